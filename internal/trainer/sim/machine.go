package sim

import (
	"container/heap"
	"fmt"
)

// Machine is the device that samples and trains, all of it.
type Machine struct {
	Peak    float64 // tokens a second that it samples with many calls in flight
	Half    float64 // calls in flight at which it samples half of that: X(b) = Peak·b/(b+Half)
	Prefill float64 // tokens a second of a context that is read again; 0: at once
	Update  float64 // seconds of a training step: update and publication
	// Share is the part of the device that samples where schedules give each job
	// a device of its own (disaggregated); 0: one half.
	Share float64
}

func (m Machine) check() error {
	switch {
	case !(m.Peak > 0):
		return fmt.Errorf("the engine samples %g tokens a second; it must be more than 0", m.Peak)
	case !(m.Half >= 0) || !(m.Prefill >= 0) || !(m.Update >= 0):
		return fmt.Errorf("half, prefill and update can't be below 0")
	case !(m.Share >= 0 && m.Share < 1):
		return fmt.Errorf("the share of the device that samples is %g; it must lie between 0 and 1", m.Share)
	}
	return nil
}

// part is the machine of which a share samples and the rest trains.
func (m Machine) part() Machine {
	share := m.Share
	if share == 0 {
		share = .5
	}
	m.Peak, m.Half, m.Update = m.Peak*share, m.Half*share, m.Update/(1-share)
	return m
}

// throughput is X(b) in tokens a second.
func (m Machine) throughput(b int) float64 {
	if b == 0 {
		return 0
	}
	return m.Peak * float64(b) / (float64(b) + m.Half)
}

// sampler is the engine at work: the calls in flight share its throughput
// evenly. Served is what each call that has always been there would have got, so
// that a call's end is a fixed number from its arrival on.
type sampler struct {
	machine Machine
	served  float64
	frozen  bool
	calls   callHeap
}

// rate is what one call gets, in tokens a second.
func (s *sampler) rate() float64 {
	if s.frozen || len(s.calls) == 0 {
		return 0
	}
	return s.machine.throughput(len(s.calls)) / float64(len(s.calls))
}

// add begins the member's call, of which so many tokens are missing.
func (s *sampler) add(m *member, tokens float64) {
	m.ends = s.served + tokens
	heap.Push(&s.calls, m)
}

func (s *sampler) next() *member { return heap.Pop(&s.calls).(*member) }

// callHeap has the call that ends first at its top; of equal ones the one whose
// rollout began first, so that a run is a function of its seed.
type callHeap []*member

func (h callHeap) Len() int { return len(h) }
func (h callHeap) Less(i, j int) bool {
	if h[i].ends != h[j].ends {
		return h[i].ends < h[j].ends
	}
	return h[i].number < h[j].number
}
func (h callHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *callHeap) Push(x any)   { *h = append(*h, x.(*member)) }
func (h *callHeap) Pop() any {
	old := *h
	m := old[len(old)-1]
	*h = old[:len(old)-1]
	return m
}

// timer runs do at a time; of equal ones the one that was set first.
type timer struct {
	at     float64
	number int
	do     func()
}

type timerHeap []timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].number < h[j].number
}
func (h timerHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)   { *h = append(*h, x.(timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}
