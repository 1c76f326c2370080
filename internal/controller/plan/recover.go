package plan

import (
	"fmt"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Left is a running rollout as a new leader finds it.
type Left struct {
	Rollout  fulgur.Rollout
	Attempts []fulgur.Attempt // in order
}

// Count sums up the attempts that have ended.
func Count(attempts []fulgur.Attempt) (h History) {
	for _, a := range attempts {
		switch {
		case a.Outcome == nil || a.Outcome.Class != fulgur.OutcomeInfrastructure:
		case a.Outcome.Reason == ReasonLost:
			h.Lost++
		case a.Outcome.Reason == ReasonShutdown: // somebody wanted it: not bounded
		default:
			h.Failures++
		}
	}
	return h
}

// Orphan returns the attempt that the record says is under way, if there is one.
func (l Left) Orphan() (fulgur.Attempt, bool) {
	if n := len(l.Attempts); n > 0 && l.Attempts[n-1].Phase != fulgur.PhaseEnded {
		return l.Attempts[n-1], true
	}
	return fulgur.Attempt{}, false
}

// lostDelay is how long a rollout waits that was lost so many times before: not
// at all at first, then longer and longer. Controllers that die one after the
// other do not take the same rollouts with them each time, and one that is what
// kills them leaves the others time.
func lostDelay(before int, l Limits) time.Duration {
	if before <= 0 {
		return 0
	}
	return min(l.Backoff<<min(before, 20), MaxBackoff)
}

// Recover says what becomes of the rollouts that were running when this
// controller began to lead: adopted is what the runner took over; all other
// executions of old are dead by now. A rollout without attempts belongs to
// somebody else (a v1 controller) and is left alone.
func Recover(left []Left, adopted map[Key]bool, l Limits) (actions []Action) {
	for _, r := range left {
		item := Item{ID: r.Rollout.ID, Validation: !r.Rollout.IsTrain, Created: r.Rollout.CreatedAt}
		a, open := r.Orphan()
		key := Key{r.Rollout.ID, a.ID}
		switch {
		case len(r.Attempts) == 0:
		case open && adopted[key]:
			item.Rollout = &r.Rollout // its timeout
			actions = append(actions, Action{Kind: Adopt, Key: key, Item: item, Attempt: &a})
		case open && a.Phase == fulgur.PhaseWaiting:
			// Opened and never started: it is opened again, with a new credential.
			actions = append(actions, Action{Kind: Enqueue, Key: key, Item: item})
		case open:
			h := Count(r.Attempts)
			again := h.Lost < l.Lost
			out := &fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: ReasonLost, Message: "the controller that ran it is gone; its processes were killed"}
			if !again {
				out.Message += fmt.Sprintf(" (lost %d times: no new attempt)", h.Lost+1)
			}
			actions = append(actions, Action{Kind: Report, Key: key, Item: item, Outcome: out, Retry: again})
			if again {
				actions = append(actions, Action{Kind: Enqueue, Key: key, Item: item, Delay: lostDelay(h.Lost, l)})
			}
		default: // the last attempt ended with a retry
			actions = append(actions, Action{Kind: Enqueue, Key: key, Item: item, Delay: lostDelay(Count(r.Attempts).Lost-1, l)})
		}
	}
	return actions
}
