package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/fulgur-rl/fulgur"
)

// OpenAttempt opens the rollout's next attempt, in phase waiting, with its
// credential, and moves a queuing rollout to running. Asked again before the
// attempt has started, it returns the same attempt with a new credential: the
// old one is void. KindConflict if the rollout has ended, its last attempt
// still runs, or a v1 controller runs it.
func (s *Store) OpenAttempt(ctx context.Context, id fulgur.RolloutID) (out fulgur.OpenedAttempt, err error) {
	const op = "open attempt"
	secrets, err := s.secrets(op, 1)
	if err != nil {
		return out, err
	}
	err = s.do(ctx, op, func(b *batch) error {
		out, err = b.open(op, id, secrets[0])
		return err
	})
	return out, err
}

// secrets makes n new credentials.
func (s *Store) secrets(op string, n int) ([]string, error) {
	out := make([]string, n)
	secret := make([]byte, 24)
	for i := range out {
		if _, err := io.ReadFull(s.opts.Rand, secret); err != nil {
			return nil, fulgur.E(fulgur.KindInternal, op, "", err)
		}
		out[i] = credentialPrefix + base64.RawURLEncoding.EncodeToString(secret)
	}
	return out, nil
}

// OpenAttempts opens the attempts of those of the rollouts that OpenAttempt
// would not refuse, in their order; the others are left out.
func (s *Store) OpenAttempts(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.OpenedAttempt, error) {
	const op = "open attempts"
	secrets, err := s.secrets(op, len(ids))
	if err != nil {
		return nil, err
	}
	out := make([]fulgur.OpenedAttempt, 0, len(ids))
	err = s.do(ctx, op, func(b *batch) error {
		for i, id := range ids {
			a, err := b.open(op, id, secrets[i])
			switch fulgur.KindOf(err) {
			case "":
				out = append(out, a)
			case fulgur.KindConflict, fulgur.KindNotFound:
			default:
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// open is OpenAttempt in a batch, with a new credential.
func (b *batch) open(op string, id fulgur.RolloutID, credential string) (out fulgur.OpenedAttempt, err error) {
	e, err := b.get(op, id)
	if err != nil {
		return out, err
	}
	last := e.last()
	switch {
	case e.State.Terminal():
		return out, fulgur.E(fulgur.KindConflict, op, fmt.Sprintf("rollout %s has ended (%s)", id, e.State), nil)
	case last == nil && e.State == fulgur.Running:
		return out, fulgur.E(fulgur.KindConflict, op, fmt.Sprintf("rollout %s is run by a v1 controller", id), nil)
	case last != nil && last.Phase != fulgur.PhaseWaiting && last.Phase != fulgur.PhaseEnded:
		return out, fulgur.E(fulgur.KindConflict, op, fmt.Sprintf("attempt %s of rollout %s is %s: report its end first", last.ID, id, last.Phase), nil)
	}
	sum := sha256.Sum256([]byte(credential))
	e = e.clone()
	if last = e.last(); last != nil && last.Phase == fulgur.PhaseWaiting {
		b.revoked = append(b.revoked, last.cred)
		delete(b.creds, last.cred)
		last.cred, last.Why, last.Handle = sum, "", "" // what waited for room is gone
	} else {
		e.attempts = append(e.attempts, attempt{cred: sum, Attempt: fulgur.Attempt{
			Rollout: id, ID: fulgur.AttemptID(strconv.Itoa(len(e.attempts))), Phase: fulgur.PhaseWaiting}})
		last = e.last()
	}
	b.creds[sum] = owner{rollout: id, attempt: last.ID}
	b.touch(e)
	if e.State == fulgur.Queuing {
		e.State = fulgur.Running
	}
	if e.LastAttempt != last.ID {
		e.LastAttempt = last.ID
		e.Version++
	}
	b.put(e, fulgur.ChangeAttempt, last.ID, last.Phase)
	return fulgur.OpenedAttempt{Attempt: last.Attempt, Credential: credential}, nil
}

// rank orders the phases; -1 for what is none.
func rank(p fulgur.Phase) int {
	switch p {
	case fulgur.PhaseWaiting:
		return 0
	case fulgur.PhaseStarting:
		return 1
	case fulgur.PhaseRunning:
		return 2
	case fulgur.PhaseGrading:
		return 3
	case fulgur.PhaseEnded:
		return 4
	}
	return -1
}

// ReportAttempt moves an attempt forward. Phases only go forward: a report of
// an earlier phase changes nothing, one of the same phase no more than the handle
// (a Job that got another name), and the first outcome stays. What has been
// starting may wait all the same when the report says what for, and starts again.
// PhaseEnded without Retry ends the rollout: succeeded if the class is ok, else
// failed. KindNotFound for an unknown attempt, KindInvalid for an end without
// outcome.
func (s *Store) ReportAttempt(ctx context.Context, id fulgur.RolloutID, aid fulgur.AttemptID, r fulgur.AttemptReport) (out fulgur.Rollout, err error) {
	all, err := s.report(ctx, []fulgur.Report{{AttemptKey: fulgur.AttemptKey{Rollout: id, Attempt: aid}, AttemptReport: r}})
	if err != nil {
		return out, err
	}
	return all[0], nil
}

// ReportAttempts is ReportAttempt for several attempts, all or none, in order.
func (s *Store) ReportAttempts(ctx context.Context, rs []fulgur.Report) error {
	_, err := s.report(ctx, rs)
	return err
}

func (s *Store) report(ctx context.Context, rs []fulgur.Report) ([]fulgur.Rollout, error) {
	const op = "report attempt"
	for i := range rs {
		r := &rs[i]
		if rank(r.Phase) < 0 {
			return nil, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("phase %q is none of waiting, starting, running, grading, ended", r.Phase), nil)
		}
		if r.Phase == fulgur.PhaseEnded && (r.Outcome == nil || r.Outcome.Class == "") {
			return nil, fulgur.E(fulgur.KindInvalid, op, "an attempt that ended needs an outcome with its class", nil)
		}
	}
	out := make([]fulgur.Rollout, len(rs))
	err := s.do(ctx, op, func(b *batch) error {
		known := make([]*entry, len(rs))
		for i := range rs {
			e, err := b.get(op, rs[i].Rollout)
			if err != nil {
				return err
			}
			if e.find(rs[i].Attempt) == nil {
				return unknownAttempt(op, rs[i].Rollout, rs[i].Attempt)
			}
			known[i] = e
		}
		for i := range rs {
			e := known[i]
			if newer := b.byID[e.ID]; newer != nil { // an earlier item of this list
				e = newer
			}
			out[i] = b.report(e, rs[i].Attempt, &rs[i].AttemptReport)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// report moves an attempt of e that is there forward.
func (b *batch) report(e *entry, aid fulgur.AttemptID, r *fulgur.AttemptReport) fulgur.Rollout {
	was := e.find(aid)
	moved := r.Phase == was.Phase && r.Phase != fulgur.PhaseEnded && r.Handle != "" && r.Handle != was.Handle
	waits := (r.Phase == fulgur.PhaseWaiting || r.Phase == fulgur.PhaseStarting) && r.Why != "" && rank(was.Phase) <= rank(fulgur.PhaseStarting) && (r.Phase != was.Phase || r.Why != was.Why)
	if rank(r.Phase) <= rank(was.Phase) && !moved && !waits {
		return e.Rollout
	}
	e = e.clone()
	a := e.find(aid)                         // not ended, so it is the last one
	if r.Phase != was.Phase || r.Why != "" { // else it brings the handle alone
		a.Why = r.Why
	}
	if r.Handle != "" {
		a.Handle = r.Handle
	}
	if r.Runner != "" {
		a.Runner = r.Runner
	}
	if r.Holder != "" {
		a.Holder = r.Holder
	}
	now := b.now
	switch {
	case a.StartedAt != nil:
	case r.StartedAt != nil:
		at := fromMicros(micros(*r.StartedAt))
		a.StartedAt = &at
	case r.Phase == fulgur.PhaseRunning || r.Phase == fulgur.PhaseGrading:
		a.StartedAt = &now
	}
	if r.Phase != fulgur.PhaseEnded {
		a.Phase = r.Phase
		b.touch(e)
		b.put(e, fulgur.ChangeAttempt, a.ID, a.Phase)
		return e.Rollout
	}
	b.endAttempt(e, *r.Outcome)
	if !r.Retry {
		state := fulgur.Failed
		if r.Outcome.Class == fulgur.OutcomeOK {
			state = fulgur.Succeeded
		}
		b.finish(e, state, *r.Outcome)
	}
	return e.Rollout
}

// Attempts returns a rollout's attempts, in order.
func (s *Store) Attempts(ctx context.Context, id fulgur.RolloutID) ([]fulgur.Attempt, error) {
	const op = "list attempts"
	e, err := s.entry(ctx, op, id)
	if err != nil {
		return nil, err
	}
	list := e.attempts
	if e.State.Terminal() && len(list) == 0 {
		rows, err := s.queries.tries.QueryContext(ctx, e.num)
		if err != nil {
			return nil, s.fail(op, err)
		}
		if list, err = scanAttempts(rows); err != nil {
			return nil, s.fail(op, err)
		}
	}
	out := make([]fulgur.Attempt, len(list))
	for i := range list {
		out[i] = list[i].Attempt
	}
	return out, nil
}

func unknownAttempt(op string, id fulgur.RolloutID, a fulgur.AttemptID) error {
	return fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("rollout %s has no attempt %q", id, a), nil)
}

// number returns a visible rollout's key.
func (s *Store) number(ctx context.Context, op string, id fulgur.RolloutID) (num int64, err error) {
	s.mu.RLock()
	e := s.live.open[id]
	if r := s.live.recent.byID[id]; e == nil && r != nil {
		e = r.e
	}
	s.mu.RUnlock()
	if e != nil {
		return e.num, nil
	}
	err = s.queries.num.QueryRowContext(ctx, string(id)).Scan(&num)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, notFound(op, id)
	}
	return num, s.fail(op, err)
}
