package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/fulgur-rl/fulgur"
)

type eventRow struct {
	fulgur.Event
	num int64
}

// AppendEvent appends an event to an attempt and returns it with its place and
// time. A reward that an agent posts sets the rollout's reward where the
// rollout takes rewards from its agent, the attempt is the last one and the
// rollout has not ended; else it is kept with Unused saying why. KindNotFound for an
// unknown rollout, or an attempt that was never opened where any was.
func (s *Store) AppendEvent(ctx context.Context, ev fulgur.Event) (fulgur.Event, error) {
	const op = "append event"
	if ev.Type == "" {
		return ev, fulgur.E(fulgur.KindInvalid, op, "the event's type is missing", nil)
	}
	if len(ev.Data) == 0 {
		ev.Data = json.RawMessage("{}")
	}
	if !json.Valid(ev.Data) {
		return ev, fulgur.E(fulgur.KindInvalid, op, "the event's data is not JSON", nil)
	}
	err := s.do(ctx, op, func(b *batch) error {
		e, err := b.get(op, ev.Rollout)
		if err != nil {
			return err
		}
		if len(e.attempts) > 0 && e.find(ev.Attempt) == nil {
			return unknownAttempt(op, ev.Rollout, ev.Attempt)
		}
		row := &eventRow{Event: ev, num: e.num}
		row.At = b.now
		row.Seq = b.next()
		row.Unused = ""
		if ev.Type == fulgur.EventReward {
			value, why := agentReward(e, ev)
			if row.Unused = why; why == "" {
				e = e.clone()
				e.Reward, e.rewardBy = &value, string(ev.Attempt)+" agent"
				b.put(e, fulgur.ChangeRollout, e.LastAttempt, "")
			}
		}
		b.events = append(b.events, row)
		ev = row.Event
		return nil
	})
	return ev, err
}

// agentReward returns the reward that ev gives to e, or why it does not count.
func agentReward(e *entry, ev fulgur.Event) (float64, string) {
	var data struct{ Value *float64 }
	err := json.Unmarshal(ev.Data, &data)
	switch {
	case e.State.Terminal():
		return 0, fulgur.UnusedLate
	case err != nil || data.Value == nil:
		return 0, fulgur.UnusedNoNumber
	case len(e.attempts) > 0 && ev.Attempt != e.LastAttempt:
		return 0, "not of the last attempt"
	case e.Rewards != fulgur.RewardsAgent:
		return 0, "the run grades, its agents do not"
	}
	return *data.Value, ""
}

// SetReward appends a reward event {value, source} and makes value the
// rollout's reward; if it is of another attempt than the last, it is kept as
// unused. The same value from the same source again changes nothing.
func (s *Store) SetReward(ctx context.Context, id fulgur.RolloutID, aid fulgur.AttemptID, value float64, source string) error {
	return s.SetRewards(ctx, []fulgur.Reward{{AttemptKey: fulgur.AttemptKey{Rollout: id, Attempt: aid}, Value: value, Source: source}})
}

// SetRewards is SetReward for several attempts, all or none, in order.
func (s *Store) SetRewards(ctx context.Context, rs []fulgur.Reward) error {
	const op = "set reward"
	data := make([][]byte, len(rs))
	for i, r := range rs {
		if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) {
			return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("the reward %v is not finite", r.Value), nil)
		}
		var err error
		data[i], err = json.Marshal(struct {
			Value  float64 `json:"value"`
			Source string  `json:"source"`
		}{r.Value, r.Source})
		if err != nil {
			return fulgur.E(fulgur.KindInvalid, op, "", err)
		}
	}
	return s.do(ctx, op, func(b *batch) error {
		known := make([]*entry, len(rs))
		for i, r := range rs {
			e, err := b.get(op, r.Rollout)
			if err != nil {
				return err
			}
			if len(e.attempts) > 0 && e.find(r.Attempt) == nil {
				return unknownAttempt(op, r.Rollout, r.Attempt)
			}
			known[i] = e
		}
		for i := range rs {
			e := known[i]
			if newer := b.byID[e.ID]; newer != nil { // an earlier item of this list
				e = newer
			}
			b.reward(e, &rs[i], data[i])
		}
		return nil
	})
}

// reward gives e a reward whose attempt is there, if e has any.
func (b *batch) reward(e *entry, r *fulgur.Reward, data []byte) {
	by := string(r.Attempt) + " " + r.Source
	if e.Reward != nil && *e.Reward == r.Value && e.rewardBy == by {
		return
	}
	row := &eventRow{num: e.num, Event: fulgur.Event{Seq: b.next(), Rollout: e.ID, Attempt: r.Attempt, Type: fulgur.EventReward, Data: data, At: b.now}}
	b.events = append(b.events, row)
	if r.Attempt != e.LastAttempt && len(e.attempts) > 0 {
		row.Unused = "not of the last attempt"
		return
	}
	e = e.clone()
	value := r.Value
	e.Reward, e.rewardBy = &value, by
	b.put(e, fulgur.ChangeRollout, e.LastAttempt, "")
}

// Events returns the events of an attempt ("": of all) in order of arrival.
func (s *Store) Events(ctx context.Context, id fulgur.RolloutID, aid fulgur.AttemptID) ([]fulgur.Event, error) {
	const op = "list events"
	num, err := s.number(ctx, op, id)
	if err != nil {
		return nil, err
	}
	rows, err := s.queries.eventsOf.QueryContext(ctx, num)
	if err != nil {
		return nil, s.fail(op, err)
	}
	defer rows.Close()
	var out []fulgur.Event
	for rows.Next() {
		var (
			seq, at int64
			attempt string
			data    []byte
			ev      = fulgur.Event{Rollout: id}
		)
		if err := rows.Scan(&seq, &attempt, &ev.Type, &data, &ev.Unused, &at); err != nil {
			return nil, s.fail(op, err)
		}
		if aid != "" && string(aid) != attempt {
			continue
		}
		ev.Seq, ev.Attempt, ev.Data, ev.At = fulgur.Seq(seq), fulgur.AttemptID(attempt), bytes.Clone(data), fromMicros(at)
		out = append(out, ev)
	}
	return out, s.fail(op, rows.Err())
}
