package plan

import "time"

// Share is one run's part in the slots of a controller that several runs share.
type Share struct {
	Running int    // slots that it has
	Wants   int    // further executions that it would start now
	Turn    uint64 // when it was given a slot last
}

// Pick returns which run the next free slot goes to: the one that has the least,
// among equals the one that waits longest. -1: none wants any.
func Pick(runs []Share) int {
	best := -1
	for i := range runs {
		if runs[i].Wants <= 0 {
			continue
		}
		if best < 0 || before(&runs[i], &runs[best]) {
			best = i
		}
	}
	return best
}

func before(a, b *Share) bool {
	return a.Running < b.Running || a.Running == b.Running && a.Turn < b.Turn
}

// Pace spreads starts over time: at most PerMinute, and never more than a few
// seconds' worth at once, also after a time without any.
type Pace struct {
	PerMinute int // 0: no limit
	// due is when the next start would be due if all came evenly; one may be early
	// by burst.
	due time.Time
}

// burst is how many seconds' worth of starts may come at once.
const burst = 3 * time.Second

// Allow returns how many of n starts may be made now, and when the next may if
// it is fewer. It changes nothing: Took does.
func (p Pace) Allow(now time.Time, n int) (allowed int, next time.Time) {
	if p.PerMinute <= 0 {
		return n, time.Time{}
	}
	each := time.Minute / time.Duration(p.PerMinute)
	due := p.due
	if due.Before(now) {
		due = now
	}
	if room := now.Add(max(burst, each)).Sub(due); room >= each {
		allowed = min(n, int(room/each))
	}
	if allowed < n {
		next = due.Add(time.Duration(allowed+1)*each - max(burst, each))
	}
	return allowed, next
}

// Took notes that n starts are made now.
func (p *Pace) Took(now time.Time, n int) {
	if p.PerMinute <= 0 || n == 0 {
		return
	}
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(time.Duration(n) * (time.Minute / time.Duration(p.PerMinute)))
}
