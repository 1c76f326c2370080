package goldentest

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
)

// Float is a float of the golden data, where "NaN", "Inf" and "-Inf" are strings.
type Float float64

// UnmarshalJSON reads a number or one of the three strings.
func (f *Float) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case `"NaN"`:
		*f = Float(math.NaN())
	case `"Inf"`:
		*f = Float(math.Inf(1))
	case `"-Inf"`:
		*f = Float(math.Inf(-1))
	default:
		var x float64
		if err := json.Unmarshal(b, &x); err != nil {
			return fmt.Errorf("a float of the golden data: %w", err)
		}
		*f = Float(x)
	}
	return nil
}

// Case is one case of the files of the training arithmetic.
type Case[In, Out any] struct {
	Name      string `json:"name"`
	Input     In     `json:"input"`
	Output    Out    `json:"output"`
	Tolerance Bounds `json:"tolerance"`
}

// Bounds is a case's tolerance: a value passes within Abs + Rel times the wanted
// value's size. Metrics has the bounds of the case's metrics.
type Bounds struct {
	Abs     float64 `json:"abs"`
	Rel     float64 `json:"rel"`
	Metrics *Bounds `json:"metrics"`
}

// Near says whether got passes for want. A NaN is met by a NaN only, an infinity
// by itself.
func (b Bounds) Near(got, want float64) bool {
	if math.IsNaN(want) || math.IsInf(want, 0) || math.IsNaN(got) {
		return got == want || math.IsNaN(got) && math.IsNaN(want)
	}
	return math.Abs(got-want) <= b.Abs+b.Rel*math.Abs(want)
}

// Rows compares two tables.
func (b Bounds) Rows(t testing.TB, what string, got, want [][]float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d rows, want %d", what, len(got), len(want))
		return
	}
	for i := range want {
		if len(got[i]) != len(want[i]) {
			t.Errorf("%s, row %d: %d numbers, want %d", what, i, len(got[i]), len(want[i]))
			continue
		}
		for j := range want[i] {
			if !b.Near(got[i][j], want[i][j]) {
				t.Errorf("%s[%d][%d]: got %v, want %v", what, i, j, got[i][j], want[i][j])
			}
		}
	}
}

// Floats converts a table.
func Floats(rows [][]Float) [][]float64 {
	if rows == nil {
		return nil
	}
	out := make([][]float64, len(rows))
	for i, row := range rows {
		out[i] = make([]float64, len(row))
		for j, x := range row {
			out[i][j] = float64(x)
		}
	}
	return out
}

// Cases reads a file of cases and logs their number.
func Cases[In, Out any](t testing.TB, file string) []Case[In, Out] {
	t.Helper()
	var f struct{ Cases []Case[In, Out] }
	Load(t, &f, file)
	Count(t, file, len(f.Cases))
	return f.Cases
}
