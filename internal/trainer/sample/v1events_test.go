package sample

import (
	"encoding/json"
	"testing"
)

// What Python 3.12's float() makes of these.
func TestLogProbsThatAreTextAreReadAsPythonReadsThem(t *testing.T) {
	for text, want := range map[string]float64{
		" -1\t": -1, "1_0": 10, "5.": 5, "1E5": 1e5, "-١٢": -12, "٣.٥": 3.5, "−1": none, "-１．５": none, "१": 1, "𝟏𝟐": 12, "１_２": 12,
		"1\u00a0": 1, "\u30001": 1, "1\u2028": 1, "1\x1c": none, "1\u200b": none, "1__0": none, "_1": none, "²": none, "Ⅷ": none, "0x1p3": none, "1 2": none,
	} {
		raw, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := v1Float(raw)
		if ok != (want != none) || ok && got != want {
			t.Errorf("%q: got %v, %t, want %v", text, got, ok, want)
		}
	}
}

const none = -1234 // of the table above: it is refused
