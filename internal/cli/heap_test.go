package cli

import "testing"

func TestHeapPercent(t *testing.T) {
	for name, c := range map[string]struct {
		live, stacks uint64
		want         int
	}{
		"an empty heap":                     {0, 0, gcPercent},
		"a small heap grows by gcPercent":   {4 << 20, 0, gcPercent},
		"half of the target doubles":        {heapTarget / 2, 0, 100},
		"a quarter grows to it":             {heapTarget / 4, 0, 300},
		"all of it doubles too":             {heapTarget, 0, 100},
		"a large one grows by the spare":    {2 * spareHeap, 0, 50},
		"a very large one grows by a third": {heapTarget * 100, 0, 35},
		"stacks leave room for themselves":  {heapTarget / 2, heapTarget / 6, 150},
	} {
		if got := heapPercent(c.live, c.stacks); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
