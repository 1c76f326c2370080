package cli

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// heapTarget is what the heap of a server may grow to before it is collected, as long
// as half of that is in use. At gcPercent alone a gateway with 200 MB of calls in
// flight grew to a gigabyte; with less room the demo's gateway, of some 50 MB, spends
// a fifth more CPU (bench/serving). spareHeap is the most by which a larger one doubles:
// with 1,000 callers, whose stacks are read each time, a third of the CPU went into
// collections of a heap that grew by a third only.
const (
	heapTarget = 120 << 20
	spareHeap  = 128 << 20
)

// boundHeap keeps the heap of a server at about heapTarget, or where more than half of it
// is in use at twice that, with at most spareHeap or a third more: after each collection
// it sets the percentage anew. end stops that.
func boundHeap() (end func()) {
	b := &heapBound{percent: gcPercent, sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}}
	b.arm()
	return func() { b.over.Store(true) }
}

// heapBound's fields but over belong to the goroutine of finalizers.
type heapBound struct {
	percent int
	sample  []metrics.Sample
	over    atomic.Bool
}

// arm has the next collection call collected: it finds a pointer that nobody holds.
func (b *heapBound) arm() {
	type mark struct{ _ *byte }
	runtime.SetFinalizer(&mark{}, func(*mark) { b.collected() })
}

func (b *heapBound) collected() {
	if b.over.Load() {
		return
	}
	metrics.Read(b.sample)
	// Setting it stops the world for a moment: not for a small difference.
	if p := heapPercent(b.sample[0].Value.Uint64(), b.sample[1].Value.Uint64()); 10*abs(p-b.percent) > b.percent {
		b.percent = p
		debug.SetGCPercent(p)
	}
	b.arm()
}

// heapPercent is by how much a heap of so many live bytes may grow until the next
// collection, in the runtime's percent: of live and stacks. Each collection reads the
// stacks of all goroutines, at several times the cost of as many bytes of bodies, and is
// the rarer for them.
func heapPercent(live, stacks uint64) int {
	use := int64(max(live, 1))
	room := max(heapTarget-use, min(use, spareHeap)) + 3*int64(stacks)
	return max(35, min(gcPercent, int(100*room/(use+int64(stacks)))))
}

func abs(x int) int { return max(x, -x) }
