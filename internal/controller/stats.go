package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Stats is what a controller has done, and does.
type Stats struct {
	Queued    int            // rollouts that wait, with those in a back-off
	Starting  int            // executions that do not run yet
	Waiting   int            // executions that wait for room: a quota, an admission
	Running   int            //
	Grading   int            // ended ones whose work a program grades: they have no slot
	Started   int64          // executions that ran
	Retries   int64          // attempts that another one follows
	RetriesBy map[string]int // of these, by reason
	Outcomes  map[string]int // ended attempts by "class/reason"
	StartP50  time.Duration  // from the rollout's creation to its first process, of the last 1024 starts
	StartP90  time.Duration
	Starts    Histogram // of the same, of all
}

// Histogram counts durations.
type Histogram struct {
	Within [len(startBounds)]uint64 // those of at most so many seconds
	Count  uint64
	Sum    float64 // seconds
}

// startBounds are those of starts, in seconds: a process takes milliseconds, a pod
// seconds, a place in a long queue hours.
var startBounds = [...]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}

func (h *Histogram) observe(d time.Duration) {
	for i, bound := range startBounds {
		if d.Seconds() <= bound {
			h.Within[i]++
		}
	}
	h.Count++
	h.Sum += d.Seconds()
}

// stats gathers them.
type stats struct {
	mu      sync.Mutex
	now     Stats
	latency []time.Duration // ring
	next    int
}

const latencies = 1024

func (s *stats) gauges(queued, starting, waiting, running int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Queued, s.now.Starting, s.now.Waiting, s.now.Running = queued, starting, waiting, running
}

// grading counts executions that begin (1) or cease (-1) to be graded.
func (s *stats) grading(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Grading += n
}

// started counts a start; a negative latency is not known.
func (s *stats) started(latency time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Started++
	if latency < 0 {
		return
	}
	s.now.Starts.observe(latency)
	if len(s.latency) < latencies {
		s.latency = append(s.latency, latency)
		return
	}
	s.latency[s.next%latencies] = latency
	s.next++
}

func (s *stats) ended(v plan.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.Outcomes == nil {
		s.now.Outcomes, s.now.RetriesBy = map[string]int{}, map[string]int{}
	}
	s.now.Outcomes[string(v.Outcome.Class)+"/"+v.Outcome.Reason]++
	if v.Retry {
		s.now.Retries++
		s.now.RetriesBy[v.Outcome.Reason]++
	}
}

func (s *stats) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.now
	out.Outcomes, out.RetriesBy = maps.Clone(s.now.Outcomes), maps.Clone(s.now.RetriesBy)
	if n := len(s.latency); n > 0 {
		sorted := slices.Sorted(slices.Values(s.latency))
		out.StartP50, out.StartP90 = sorted[n/2], sorted[n*9/10]
	}
	return out
}

// gauges publishes the loop's numbers.
func (c *Controller) gauges() {
	starting, waiting := 0, 0
	var why string // of the one that waits longest
	for _, e := range c.slots {
		switch {
		case e.Waits, e.Short:
			if waiting++; waiting == 1 {
				why = e.why
			}
		case e.Phase != fulgur.PhaseRunning:
			starting++
		}
	}
	c.stats.gauges(c.queue.Len(), starting, waiting, len(c.slots)-starting-waiting)
	c.tellWaits(waiting, why)
}

// tellWaits tells once that agents wait for room, and why, and when none does any
// more. Hundreds that wait for the same are one piece of news.
func (c *Controller) tellWaits(waiting int, why string) {
	why = cmp.Or(why, "the runner does not say why")
	switch {
	case waiting > 0 && (c.waits == "" || c.waits != why && time.Since(c.waitsTold) > waitsEvery):
		c.tell(fmt.Sprintf("%d agents of run %s wait for room: %s", waiting, c.o.Run, why))
		c.waits, c.waitsTold = why, time.Now()
	case waiting == 0 && c.waits != "":
		c.tell(fmt.Sprintf("no agent of run %s waits for room any more", c.o.Run))
		c.waits = ""
	}
}

// waitsEvery is how often another reason for waiting is told.
const waitsEvery = time.Minute

// tell says something that people shall see while it lasts.
func (c *Controller) tell(text string) {
	c.log.Warn(text)
	if c.o.Tell != nil {
		c.o.Tell(text)
	}
}
