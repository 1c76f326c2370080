package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/fulgur-rl/fulgur"
)

// CreateRollouts creates rollouts, in order, all or none. A known id gives the
// stored rollout untouched, also within one list; without an id the store
// makes one of 32 hex digits. An unknown run is KindNotFound, an input that is
// not JSON KindInvalid.
func (s *Store) CreateRollouts(ctx context.Context, specs []fulgur.RolloutSpec) ([]fulgur.Rollout, error) {
	const op = "create rollouts"
	for i := range specs {
		if err := checkSpec(op, i, &specs[i]); err != nil {
			return nil, err
		}
	}
	ids := make([]fulgur.RolloutID, len(specs))
	for i := range specs {
		if ids[i] = specs[i].ID; ids[i] == "" {
			id := make([]byte, 16)
			if _, err := io.ReadFull(s.opts.Rand, id); err != nil {
				return nil, fulgur.E(fulgur.KindInternal, op, "", err)
			}
			ids[i] = fulgur.RolloutID(hex.EncodeToString(id))
		}
	}
	var out []fulgur.Rollout
	err := s.do(ctx, op, func(b *batch) error {
		out = make([]fulgur.Rollout, 0, len(specs))
		known := make([]*entry, len(specs))
		for i, spec := range specs {
			if _, ok := b.run(spec.Run); !ok {
				return fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("run %q is unknown: put it first", spec.Run), nil)
			}
			e, err := b.get(op, ids[i])
			if err != nil && fulgur.KindOf(err) != fulgur.KindNotFound {
				return err
			}
			known[i] = e
		}
		for i, spec := range specs {
			e := known[i]
			if e == nil {
				e = b.byID[ids[i]] // an earlier item of this list
			}
			if e == nil || e.hidden {
				spec.ID = ids[i]
				b.num++
				e = &entry{num: b.num, Rollout: fulgur.Rollout{RolloutSpec: spec, State: fulgur.Queuing, Version: 1, CreatedAt: b.now}}
				b.put(e, fulgur.ChangeRollout, "", "")
			}
			out = append(out, e.Rollout)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func checkSpec(op string, i int, spec *fulgur.RolloutSpec) error {
	bad := func(msg string) error {
		return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("rollout %d: %s", i, msg), nil)
	}
	switch {
	case spec.Run == "":
		return bad("run is missing")
	case spec.ID == "." || spec.ID == ".." || spec.ID == "/":
		return bad(fmt.Sprintf("id %q cannot stand in a path", spec.ID))
	case !json.Valid(spec.Input):
		return bad("input is missing or not JSON")
	case len(spec.Config) > 0 && !json.Valid(spec.Config):
		return bad("v1_config is not JSON")
	case len(spec.Metadata) > 0 && !json.Valid(spec.Metadata):
		return bad("metadata is not JSON")
	case spec.Rewards != fulgur.RewardsGraded && spec.Rewards != fulgur.RewardsAgent:
		return bad(fmt.Sprintf("rewards %q is neither \"\" nor %q", spec.Rewards, fulgur.RewardsAgent))
	}
	if _, err := json.Marshal(spec.Sampling); err != nil {
		return bad("sampling has a number that is not finite")
	}
	return nil
}

// Rollout returns a rollout; KindNotFound if it is unknown or was deleted.
func (s *Store) Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error) {
	e, err := s.entry(ctx, "get rollout", id)
	if err != nil {
		return fulgur.Rollout{}, err
	}
	return e.Rollout, nil
}

// entry returns a rollout as it is committed; attempts are set for one that has not ended, or is recent.
func (s *Store) entry(ctx context.Context, op string, id fulgur.RolloutID) (*entry, error) {
	s.mu.RLock()
	e := s.live.open[id]
	if r := s.live.recent.byID[id]; e == nil && r != nil {
		e = r.e
	}
	s.mu.RUnlock()
	if e != nil {
		return e, nil
	}
	e, err := scanRollout(s.queries.byID.QueryRowContext(ctx, string(id)))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, notFound(op, id)
	}
	return e, s.fail(op, err)
}

// Rollouts returns the rollouts that q selects, in order of creation; q.Run ""
// means fulgur.DefaultRun.
func (s *Store) Rollouts(ctx context.Context, q fulgur.RolloutQuery) ([]fulgur.Rollout, error) {
	const op = "list rollouts"
	if q.Limit == 0 {
		q.Limit = 500
	}
	if q.Run == "" {
		q.Run = fulgur.DefaultRun
	}
	open := len(q.States) > 0
	for _, st := range q.States {
		if !st.Valid() {
			return nil, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("state %q is none of queuing, running, succeeded, failed", st), nil)
		}
		open = open && !st.Terminal()
	}
	if q.Limit < 0 {
		return nil, nil
	}
	var after int64
	if q.After != "" {
		err := s.queries.num.QueryRowContext(ctx, string(q.After)).Scan(&after)
		if errors.Is(err, sql.ErrNoRows) {
			return nil, notFound(op, q.After)
		}
		if err != nil {
			return nil, s.fail(op, err)
		}
	}
	if open {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return s.live.list(q, after), nil
	}
	return s.page(ctx, q, after)
}

// page reads rollouts from the database, in pages until there are enough.
func (s *Store) page(ctx context.Context, q fulgur.RolloutQuery, after int64) ([]fulgur.Rollout, error) {
	const op, size = "list rollouts", 1000
	var out []fulgur.Rollout
	for {
		rows, err := s.queries.page.QueryContext(ctx, string(q.Run), after, size)
		if err != nil {
			return nil, s.fail(op, err)
		}
		n := 0
		for rows.Next() && len(out) < q.Limit {
			e, err := scanRollout(rows)
			if err != nil {
				rows.Close()
				return nil, s.fail(op, err)
			}
			n++
			after = e.num
			if selects(q, e) {
				out = append(out, e.Rollout)
			}
		}
		err = rows.Err()
		rows.Close()
		if err != nil {
			return nil, s.fail(op, err)
		}
		if n < size || len(out) == q.Limit {
			return out, nil
		}
	}
}

// Terminal returns a page of the completion log of fulgur.DefaultRun, which is
// what v1's trainer reads. A negative after is 0, a limit under 1 is 1.
func (s *Store) Terminal(ctx context.Context, after, limit int) (fulgur.TerminalPage, error) {
	const op = "read the completion log"
	after, limit = max(after, 0), max(limit, 1)
	s.mu.RLock()
	p := fulgur.TerminalPage{Next: after, Total: int(s.live.pos)}
	s.mu.RUnlock()
	if after >= p.Total {
		return p, nil
	}
	rows, err := s.queries.completions.QueryContext(ctx, after, limit)
	if err != nil {
		return p, s.fail(op, err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			pos       int
			id, state string
			hidden    bool
			it        fulgur.TerminalItem
		)
		if err := rows.Scan(&pos, &id, &hidden, &state, &it.DataID, &it.IsTrain); err != nil {
			return p, s.fail(op, err)
		}
		// Completions that came after Total was read count as well.
		p.Next, p.Total = pos, max(p.Total, pos)
		if !hidden {
			it.ID, it.State = fulgur.RolloutID(id), fulgur.RolloutState(state)
			p.Items = append(p.Items, it)
		}
	}
	return p, s.fail(op, rows.Err())
}

// EndRollout fails a rollout that has not ended: its attempt ends with it. One
// that has ended is returned as it is.
func (s *Store) EndRollout(ctx context.Context, id fulgur.RolloutID, o fulgur.Outcome) (out fulgur.Rollout, err error) {
	const op = "end rollout"
	if o.Class == "" || o.Class == fulgur.OutcomeOK {
		return out, fulgur.E(fulgur.KindInvalid, op, "the outcome's class must be agent_failure or infrastructure", nil)
	}
	if o.Calls == 0 { // who ends it here has not counted
		if o.Calls, err = s.countCalls(ctx, op, id); err != nil {
			return out, err
		}
	}
	err = s.do(ctx, op, func(b *batch) error {
		e, err := b.get(op, id)
		if err != nil {
			return err
		}
		if !e.State.Terminal() {
			e = e.clone()
			b.endAttempt(e, o)
			b.finish(e, fulgur.Failed, o)
		}
		out = e.Rollout
		return nil
	})
	return out, err
}

// endAttempt ends e's newest attempt if it has not ended.
func (b *batch) endAttempt(e *entry, o fulgur.Outcome) {
	a := e.last()
	if a == nil || a.Phase == fulgur.PhaseEnded {
		return
	}
	now := b.now
	a.Phase, a.Outcome, a.EndedAt = fulgur.PhaseEnded, &o, &now
	b.touch(e)
	b.put(e, fulgur.ChangeAttempt, a.ID, a.Phase)
}

// finish makes e terminal and gives it its place in the completion log.
func (b *batch) finish(e *entry, state fulgur.RolloutState, o fulgur.Outcome) {
	e.State, e.Outcome = state, &o
	e.Version++
	if state == fulgur.Failed && e.Error == "" {
		if e.Error = o.Message; e.Error == "" {
			e.Error = o.Reason
		}
	}
	b.put(e, fulgur.ChangeRollout, e.LastAttempt, "")
	if e.Run == fulgur.DefaultRun && !e.hidden {
		b.pos++
		b.completions = append(b.completions, completion{pos: b.pos, num: e.num, state: state, dataID: dataID(e.Input), train: e.IsTrain})
	}
}

// dataID is v1's data id: input.data_id, else input.instance_id, else "";
// null, false, 0, "" and empty lists or objects count as missing.
func dataID(input json.RawMessage) string {
	var in map[string]json.RawMessage
	if json.Unmarshal(input, &in) != nil {
		return ""
	}
	for _, key := range []string{"data_id", "instance_id"} {
		var str string
		switch v := in[key]; {
		case len(v) == 0:
		case v[0] == '"' && json.Unmarshal(v, &str) == nil:
			if str != "" {
				return str
			}
		default:
			switch text := string(v); text {
			case "null", "false", "0", "0.0", "-0", "-0.0", "[]", "{}":
			case "true":
				return "True" // as Python writes it
			default:
				return text
			}
		}
	}
	return ""
}

// PatchStatus changes a rollout's status the way v1's PATCH does: a change of
// state that is not allowed is KindConflict; other fields of an ended rollout
// can be patched, its outcome stays. An empty patch changes nothing.
func (s *Store) PatchStatus(ctx context.Context, id fulgur.RolloutID, p fulgur.StatusPatch) (out fulgur.Rollout, err error) {
	const op = "patch rollout"
	err = s.do(ctx, op, func(b *batch) error {
		e, err := b.get(op, id)
		if err != nil {
			return err
		}
		if p.State != nil && !e.State.CanBecome(*p.State) {
			return fulgur.E(fulgur.KindConflict, op, fmt.Sprintf("Rollout %s: cannot transition %s -> %s", id, e.State, *p.State), nil)
		}
		if p == (fulgur.StatusPatch{}) {
			out = e.Rollout
			return nil
		}
		if e.State.Terminal() && (overwrites(string(e.LastAttempt), p.LastAttempt) || overwrites(e.Error, p.Error)) {
			return fulgur.E(fulgur.KindConflict, op, fmt.Sprintf("Rollout %s has ended (%s): its last_attempt_id and error_message stay", id, e.State), nil)
		}
		e = e.clone()
		set := func(to *string, v **string) {
			if v != nil {
				*to = ""
				if *v != nil {
					*to = **v
				}
			}
		}
		set(&e.JobName, p.JobName)
		set((*string)(&e.LastAttempt), p.LastAttempt)
		set(&e.Error, p.Error)
		b.patchState(e, p.State)
		out = e.Rollout
		return nil
	})
	return out, err
}

// overwrites says whether a patch gives something else in the place of what is there.
func overwrites(old string, v **string) bool {
	return v != nil && old != "" && (*v == nil || **v != old)
}

func (b *batch) patchState(e *entry, state *fulgur.RolloutState) {
	switch {
	case state == nil || !state.Terminal():
		if state != nil {
			e.State = *state
		}
		e.Version++
		b.put(e, fulgur.ChangeRollout, e.LastAttempt, "")
	default:
		o := fulgur.Outcome{Class: fulgur.OutcomeOK, Reason: "reported"}
		if *state == fulgur.Failed {
			o.Class, o.Message = fulgur.OutcomeAgent, e.Error
		}
		errText := e.Error
		b.endAttempt(e, o)
		b.finish(e, *state, o)
		e.Error = errText // as it was patched: v1 keeps null
	}
}

// DeleteRollout hides a rollout and frees its id; one that has not ended ends.
// Its record stays until retention takes it. Deleting what is not there is no error.
func (s *Store) DeleteRollout(ctx context.Context, id fulgur.RolloutID) error {
	const op = "delete rollout"
	return s.do(ctx, op, func(b *batch) error {
		e, err := b.get(op, id)
		if fulgur.KindOf(err) == fulgur.KindNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		e = e.clone()
		e.hidden = true
		if e.State.Terminal() {
			b.put(e, fulgur.ChangeRollout, e.LastAttempt, "")
			return nil
		}
		o := fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "deleted", Message: "the rollout was deleted"}
		b.endAttempt(e, o)
		b.finish(e, fulgur.Failed, o)
		return nil
	})
}
