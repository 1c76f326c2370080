package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"
)

// histories records 10,000 agent-sized calls (5,000 in the quick form) of agents whose
// histories grow to 100 calls, and then lets retention drop them.
func (b *bench) histories() error {
	s, err := b.startFulgur("histories")
	if err != nil {
		return err
	}
	agents := pick(b, 50, 100)
	if err := s.create("h", agents); err != nil {
		return err
	}
	before := measure(s.pid())
	// Agents in turn: all histories are alive at once, as in training.
	m, err := s.load(8, agents*turns, pick(b, time.Minute, 5*time.Minute), func(i int) error {
		seed := i % agents
		return post(s.path(fmt.Sprintf("h-%d", seed)), b.mock.talks.of(seed).request(seed, i/agents))
	})
	if err != nil {
		return err
	}
	b.mock.talks.known = map[int]*conversation{}
	if m.n < agents*turns {
		b.report.figure("recorded in the time there is", "%d calls only", m.n)
	}
	b.report.figure("rate, 8 callers", "%.0f calls a second", m.perSecond)
	b.report.figure("CPU s per 1000 calls (the reference: 13.3)", "%.2f", m.cpu)
	b.report.figure("memory before and after", "%.0f and %.0f MiB", before.rss, m.rss)
	b.report.most(fmt.Sprintf("memory at its peak, %d calls on record", m.n), peakRSS(s.pid()), 200, "MiB")
	for i := range agents {
		for _, state := range []string{"running", "succeeded"} {
			if err := s.do("PATCH", fmt.Sprintf("/api/rollouts/h-%d", i), object{"status": object{"state": state}}, nil); err != nil {
				return err
			}
		}
	}
	s.stop()
	size := sizeOf(s.store)
	b.report.most("on disk, for a call", float64(size)/float64(m.n)/1024, 24, "KiB")
	return b.retain(s, size)
}

// retain drops the records by age, and vacuums.
func (b *bench) retain(old *server, size int64) error {
	s, err := b.startFulgur("histories", "--keep-records", "1s")
	if err != nil {
		return err
	}
	began := time.Now()
	for {
		var events []any
		if err := s.do("GET", "/api/rollouts/h-49/events", nil, &events); err != nil {
			return err
		}
		if len(events) == 0 {
			break
		}
		if time.Since(began) > time.Minute {
			return fmt.Errorf("a minute after their retention the records are still there")
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.report.figure("dropped by --keep-records after", "%.1f s", time.Since(began).Seconds())
	s.stop()
	dropped := sizeOf(old.store)
	cmd := exec.Command(b.fulgur, "store", "vacuum", "--store", "sqlite:"+old.store)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fulgur store vacuum: %w: %s", err, out)
	}
	i, err := os.Stat(old.store)
	if err != nil {
		return err
	}
	b.report.figure("on disk before, after retention, after vacuum", "%.1f, %.1f, %.1f MiB", mib(size), mib(dropped), mib(i.Size()))
	b.report.most("of that left on disk after retention and vacuum", float64(i.Size())/float64(size)*100, 2, "%")
	return nil
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }
