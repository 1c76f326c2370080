package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// levelKey is a size of calls at a number of callers.
type levelKey struct {
	size    string
	callers int
}

// plan says how many calls a server gets at each level, with the number of rounds: the
// reference makes some 50 a second, the others thousands.
func (b *bench) plan(s size, callers int, slow bool) (n, rounds int) {
	switch {
	case slow && callers > 256:
		return 0, 0
	case slow:
		return pick(b, max(300, callers), 1000), pick(b, 1, 2)
	case s == small:
		return pick(b, 4000, 12000), pick(b, 2, 3)
	}
	return pick(b, 1500, 4000), pick(b, 2, 3)
}

// calls measures proxied calls: the median round of each server, beside the same calls
// straight at the model server.
func (b *bench) calls() error {
	starts := append(b.others(), func() (*server, error) { return b.startFulgur("calls") })
	got := map[string]map[levelKey]measured{}
	fmt.Printf("     %-10s %-6s %7s %10s %9s %9s %9s %11s %9s %8s\n", "", "size", "callers", "calls/s", "p50 ms", "p99 ms", "+p99 ms", "CPU s/1000", "of first", "RSS MiB")
	for _, f := range starts {
		s, err := f()
		if err != nil {
			return err
		}
		got[s.name] = map[levelKey]measured{}
		for _, z := range []size{small, agent} {
			for _, callers := range []int{16, 256, 1000} {
				if !slices.Contains(strings.Split(b.levels, ","), fmt.Sprintf("%s:%d", z.name, callers)) {
					continue
				}
				m, direct, err := b.level(s, z, callers)
				if err != nil {
					return fmt.Errorf("%s, %s calls, %d callers: %w", s.name, z.name, callers, err)
				}
				if m.n == 0 {
					continue
				}
				fmt.Printf("     %-10s %-6s %7d %10.0f %9.2f %9.2f %9.2f %11.3f %9.3f %8.0f\n", s.name, z.name, callers, m.perSecond, ms(m.p50), ms(m.p99), ms(m.p99-direct), m.cpu, m.first, m.rss)
				m.p99 -= direct
				got[s.name][levelKey{z.name, callers}] = m
			}
		}
		s.stop()
	}
	b.judgeCalls(got["fulgur"], got["reference"])
	return nil
}

// level runs the rounds of one server at one level, and returns the one with the least
// CPU time, with the best p99 of them, and the best p99 without a proxy. The first call of
// each caller opens connections and begins an attempt: it is measured apart, or 1,000
// callers, of a few calls each, would be compared with 16 of hundreds.
func (b *bench) level(s *server, z size, callers int) (m measured, direct time.Duration, err error) {
	n, rounds := b.plan(z, callers, s.name == "reference")
	body := z.request()
	none := &server{}
	m.cpu, direct = math.Inf(1), math.MaxInt64
	best := time.Duration(math.MaxInt64)
	for round := range rounds {
		prefix := fmt.Sprintf("%s-%d-%d", z.name, callers, round)
		if err := s.create(prefix, callers); err != nil {
			return m, 0, err
		}
		d, err := none.load(callers, n, 20*time.Second, func(int) error { return post(b.mock.url+"/v1/chat/completions", body) })
		if err != nil {
			return m, 0, err
		}
		op := func(i int) error { return post(s.path(fmt.Sprintf("%s-%d", prefix, i%callers)), body) }
		first, err := s.load(callers, callers, time.Minute, op)
		if err != nil {
			return m, 0, err
		}
		through, err := s.load(callers, n, 20*time.Second, op)
		if err != nil {
			return m, 0, err
		}
		through.first = first.cpu
		direct, best = min(direct, d.p99), min(best, through.p99)
		if through.cpu < m.cpu {
			m = through
		}
		if !s.plain { // a trainer deletes what it has read
			for i := range callers {
				if err := s.do("DELETE", fmt.Sprintf("/api/rollouts/%s-%d", prefix, i), nil, nil); err != nil {
					return m, 0, err
				}
			}
		}
	}
	if rounds == 0 {
		return measured{}, 0, nil
	}
	m.p99 = best
	return m, direct, nil
}

// judgeCalls holds the figures against the reference's, measured a moment before, or
// those of a quiet machine where it is not installed.
func (b *bench) judgeCalls(ours, reference map[levelKey]measured) {
	word := "measured just now"
	if reference == nil {
		word = "not installed: figures of a quiet machine"
		at := func(cpu float64, p99 int) measured {
			return measured{cpu: cpu, p99: time.Duration(p99) * time.Millisecond}
		}
		reference = map[levelKey]measured{{"small", 16}: at(4.9, 267), {"small", 256}: at(12.9, 7570), {"agent", 16}: at(12.8, 709), {"agent", 256}: at(21.0, 20200)}
	}
	b.report.figure("reference", "%s", word)
	for _, z := range []size{small, agent} {
		for _, callers := range []int{16, 256} {
			k := levelKey{z.name, callers}
			if ours[k].n == 0 || reference[k].cpu == 0 {
				continue
			}
			b.report.most(fmt.Sprintf("CPU s per 1000 %s calls, %d callers; a tenth of the reference's", z.name, callers), ours[k].cpu, reference[k].cpu/10, "s")
		}
		k, many := levelKey{z.name, 16}, levelKey{z.name, 1000}
		if ours[k].n == 0 || ours[many].n == 0 || reference[k].cpu == 0 {
			continue
		}
		b.report.most(fmt.Sprintf("CPU s per 1000 %s calls, 1000 callers; as at 16 (5 %% of noise)", z.name), ours[many].cpu, ours[k].cpu*1.05, "s")
		b.report.most(fmt.Sprintf("p99 added to %s calls, 16 callers; a twentieth of the reference's", z.name), ms(ours[k].p99), ms(reference[k].p99)/20, "ms")
	}
	b.report.figure("for comparison, CPU s per 1000 at 16 and 256 callers (quiet machine)", "LiteLLM 25 and 22-24 small, 91 and 78 agent-sized")
}
