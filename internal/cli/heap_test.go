package cli

import "testing"

func TestHeapPercent(t *testing.T) {
	for name, c := range map[string]struct {
		live uint64
		want int
	}{
		"an empty heap":                     {0, gcPercent},
		"a small heap grows by gcPercent":   {4 << 20, gcPercent},
		"one of the spare's size doubles":   {spareHeap, 100},
		"one of half of it grows threefold": {spareHeap / 2, 200},
		"a large one grows by half":         {spareHeap * 2, 50},
		"a very large one grows by a third": {spareHeap * 100, 35},
	} {
		if got := heapPercent(c.live); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
