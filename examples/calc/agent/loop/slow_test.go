package loop

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlowToolsTakeTheirTimeBeforeEachCallButTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		for range 2001 {
			chat := Slow(func(context.Context, []json.RawMessage) (json.RawMessage, error) { return nil, nil }, 200*time.Millisecond)
			for call := range 2 {
				start := time.Now()
				if _, err := chat(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				d := time.Since(start)
				if call == 0 && d != 0 {
					t.Fatalf("the first call waited %s", d)
				}
				if call == 1 {
					took = append(took, d)
				}
			}
		}
		slices.Sort(took)
		if m := took[1000]; m < 180*time.Millisecond || m > 222*time.Millisecond {
			t.Errorf("the median is %s, want about 200ms", m)
		}
		if p := took[1682]; p < 480*time.Millisecond || p > 610*time.Millisecond { // e times the median
			t.Errorf("84 %% are within %s, want about 544ms", p)
		}
	})
}
