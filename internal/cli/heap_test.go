package cli

import "testing"

func TestHeapPercent(t *testing.T) {
	for name, c := range map[string]struct {
		live uint64
		want int
	}{
		"an empty heap":                     {0, gcPercent},
		"a small heap grows by gcPercent":   {4 << 20, gcPercent},
		"half of the target doubles":        {heapTarget / 2, 100},
		"a quarter grows to it":             {heapTarget / 4, 300},
		"all of it doubles too":             {heapTarget, 100},
		"a large one grows by the spare":    {2 * spareHeap, 50},
		"a very large one grows by a third": {heapTarget * 100, 35},
	} {
		if got := heapPercent(c.live); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
