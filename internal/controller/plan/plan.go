// Package plan decides what a controller does next. Next looks at the whole of
// what is wanted, what runs, the limits and the clock, and says what to do;
// Judge says what an exit means; Recover says what becomes of the attempts that
// an earlier controller left. Nothing here acts, waits or reads a clock, and
// every decision is made anew from the state (level, not edge): an event that
// was missed costs time, never correctness.
package plan

import (
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Limits bound what runs, and for how long.
type Limits struct {
	Slots    int           // executions at once
	Starting int           // of these, how many may be opening or starting; 0: no cap of its own
	Rate     int           // starts per minute; 0: no limit
	Start    time.Duration // from the start's begin until the agent runs; 0: no limit
	Total    time.Duration // active time of an attempt whose rollout sets none; 0: no limit
	Idle     time.Duration // active time without a call or an event; 0: no limit
	Table    Table         // what each way to end leads to
	Lost     int           // new attempts after the death of a controller; not counted as Retries
	Backoff  time.Duration // before the first retry; doubles with each, up to MaxBackoff
}

// MaxBackoff is the longest wait before a retry.
const MaxBackoff = 30 * time.Second

// Key names an execution.
type Key struct {
	Rollout fulgur.RolloutID
	Attempt fulgur.AttemptID
}

// Execution is one that holds a slot.
type Execution struct {
	Key
	Phase    fulgur.Phase  // waiting: its start is under way; starting; running
	Since    time.Time     // when it entered the phase
	Timeout  time.Duration // of its active time; 0: Limits.Total
	Unwanted string        // the reason why it has to go; "": it is wanted
	Stopping bool          // a stop is under way
	Waits    bool          // its runner waits for room that others have (a quota, an admission): its start clock stands, and it counts as none that starts
	// Short: its start waits for room on this machine, and is tried again. Its start clock stands,
	// and it counts as one that starts: no others press in.
	Short bool
	Seen  Seen
}

// Seen is what was last observed of an execution's calls and events.
type Seen struct {
	At   time.Time     // when; zero: never
	Last time.Time     // end of the last call, or the last event; zero: none
	Busy bool          // a call was in flight, or calls were held since the observation before
	Held time.Duration // time that calls were held; it stops the clocks
}

// World is all that Next looks at.
type World struct {
	Now        time.Time
	Limits     Limits
	Pace       Pace        // of its starts
	Orphaned   bool        // the run's trainer is gone: nothing is started, and what runs is ended
	Closed     string      // why nothing is started, though what runs goes on; "": starts are open
	Executions []Execution // oldest first
	Queue      *Queue      // only looked at
}

// Kind is what an action does.
type Kind string

// The kinds of actions.
const (
	Stop    Kind = "stop"    // end the execution, for Reason
	Observe Kind = "observe" // look at its calls and events: a clock seems to have run out
	Start   Kind = "start"   // open an attempt of Item and start it
	Adopt   Kind = "adopt"   // Recover: watch what still runs as if it had been started here
	Report  Kind = "report"  // Recover: the attempt is lost; Outcome and Retry say how it ends
	Enqueue Kind = "enqueue" // Recover: it waits for its next attempt, after Delay
)

// Action is one thing to do.
type Action struct {
	Kind   Kind
	Key    Key
	Reason string
	Item   Item

	Attempt *fulgur.Attempt // Adopt: as it is on record
	Outcome *fulgur.Outcome
	Retry   bool
	Delay   time.Duration
}

// Reasons why an execution is stopped.
const (
	ReasonEnded        = "ended"         // its rollout ended or was deleted
	ReasonShutdown     = "shutdown"      // the controller stops
	ReasonOrphaned     = "orphaned"      // its run's trainer is gone
	ReasonTimeout      = "timeout"       // active time over Limits.Total or the rollout's own
	ReasonIdle         = "idle"          // no call and no event for Limits.Idle
	ReasonStartTimeout = "start_timeout" // not running after Limits.Start
)

// Next returns what to do now, in order: stops, observations, starts (those of
// validation first, else the oldest first). wake is when to ask again if
// nothing else happens before; zero: no need to.
func Next(w World) (actions []Action, wake time.Time) {
	var observe []Action
	early := func(t time.Time) {
		if wake.IsZero() || t.Before(wake) {
			wake = t
		}
	}
	starting := 0
	for i := range w.Executions {
		e := &w.Executions[i]
		if e.Phase != fulgur.PhaseRunning && !e.Waits {
			starting++
		}
		if e.Stopping {
			continue
		}
		if w.Orphaned && e.Unwanted == "" {
			actions = append(actions, Action{Kind: Stop, Key: e.Key, Reason: ReasonOrphaned})
			continue
		}
		if e.Unwanted != "" {
			actions = append(actions, Action{Kind: Stop, Key: e.Key, Reason: e.Unwanted})
			continue
		}
		due, reason, seen := clock(e, w.Limits)
		switch {
		case reason == "":
		case w.Now.Before(due):
			early(due)
		case seen:
			actions = append(actions, Action{Kind: Stop, Key: e.Key, Reason: reason})
		default:
			observe = append(observe, Action{Kind: Observe, Key: e.Key})
		}
	}
	actions = append(actions, observe...)

	free := w.Limits.Slots - len(w.Executions)
	if w.Limits.Starting > 0 {
		free = min(free, w.Limits.Starting-starting)
	}
	if w.Queue == nil || w.Orphaned || w.Closed != "" {
		return actions, wake
	}
	items, next := w.Queue.Peek(w.Now, max(free, 0))
	allowed, later := w.Pace.Allow(w.Now, len(items))
	for _, it := range items[:allowed] {
		actions = append(actions, Action{Kind: Start, Key: Key{Rollout: it.ID}, Item: it})
	}
	if allowed < len(items) {
		early(later)
		return actions, wake
	}
	if free > len(items) && !next.IsZero() {
		early(next)
	}
	return actions, wake
}

// clock returns when the execution's first clock runs out, which one it is, and
// whether what was seen of it is new enough to act on: held calls move both
// clocks, so a stop needs an observation that was made after the deadline.
func clock(e *Execution, l Limits) (due time.Time, reason string, seen bool) {
	if e.Phase != fulgur.PhaseRunning {
		if l.Start <= 0 || e.Waits || e.Short {
			return time.Time{}, "", false
		}
		return e.Since.Add(l.Start), ReasonStartTimeout, true
	}
	total := e.Timeout
	if total <= 0 {
		total = l.Total
	}
	if total > 0 {
		due, reason = e.Since.Add(total+e.Seen.Held), ReasonTimeout
	}
	if l.Idle > 0 {
		last := e.Since
		if e.Seen.Last.After(last) {
			last = e.Seen.Last
		}
		if e.Seen.Busy && e.Seen.At.After(last) {
			last = e.Seen.At
		}
		if idle := last.Add(l.Idle); reason == "" || idle.Before(due) {
			due, reason = idle, ReasonIdle
		}
	}
	return due, reason, !e.Seen.At.Before(due)
}
