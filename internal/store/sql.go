package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// statements are the writer's prepared statements, on its one connection.
type statements struct {
	conn *sql.Conn
	all  []io.Closer

	begin, commit, rollback                      *writing
	insertRollout, insertInput, updateRollout    *writing
	putAttempt, putCredential, deleteCredential  *writing
	insertCall, insertEvent, insertCompletion    *writing
	putRun, deleteEndpoints, insertEndpoint      *writing
	putLease, deleteLease, dropCalls, dropEvents *writing
	insertPart, dropParts, dropUpload            *writing
	putArtifact, dropArtifact, dropArtifacts     *writing
	selectNum, selectOne, selectTrys             *sql.Stmt
}

// writing is a statement of the driver's own: database/sql would take a fifth as
// long again to hand the arguments over. It is used within conn.Raw.
type writing struct {
	driver.Stmt
	check driver.NamedValueChecker // nil: the driver takes all that we give
	args  []driver.NamedValue
}

// exec runs the statement. The arguments are not kept.
func (w *writing) exec(args ...any) error {
	w.args = w.args[:0]
	for i, a := range args {
		switch v := a.(type) {
		case nil, int64, float64, string, []byte:
		case int:
			a = int64(v)
		default:
			return fmt.Errorf("argument %d of a statement is a %T", i+1, a)
		}
		w.args = append(w.args, driver.NamedValue{Ordinal: i + 1, Value: a})
		if w.check != nil {
			if err := w.check.CheckNamedValue(&w.args[i]); err != nil {
				return err
			}
		}
	}
	_, err := w.Stmt.(driver.StmtExecContext).ExecContext(context.Background(), w.args)
	clear(w.args)
	return err
}

func prepare(ctx context.Context, conn *sql.Conn, d Driver) (*statements, error) {
	st := &statements{conn: conn}
	for _, p := range []struct {
		to **writing
		q  string
	}{
		{&st.begin, d.Begin()},
		{&st.commit, "COMMIT"},
		{&st.rollback, "ROLLBACK"},
		{&st.insertRollout, `INSERT INTO rollouts (rollout, run, grp, is_train, state, outcome, reward, reward_by, last_attempt, error, job_name, version, seq, created, updated, hidden, num)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&st.insertInput, `INSERT INTO inputs (num, spec, input) VALUES (?, ?, ?)`},
		{&st.updateRollout, `UPDATE rollouts SET state = ?, outcome = ?, reward = ?, reward_by = ?, last_attempt = ?, error = ?, job_name = ?, version = ?, seq = ?, updated = ?, hidden = ? WHERE num = ?`},
		{&st.putAttempt, `INSERT INTO attempts (num, attempt, phase, why, runner, holder, handle, outcome, started, ended, cred) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (num, attempt) DO UPDATE SET phase = excluded.phase, why = excluded.why, runner = excluded.runner, holder = excluded.holder, handle = excluded.handle,
			outcome = excluded.outcome, started = excluded.started, ended = excluded.ended, cred = excluded.cred`},
		{&st.putCredential, `INSERT INTO credentials (sum, scope, num, attempt, created) VALUES (?, ?, ?, ?, ?)`},
		{&st.deleteCredential, `DELETE FROM credentials WHERE sum = ?`},
		{&st.insertCall, `INSERT INTO calls (seq, call, num, attempt, idx, mode, status, fate, trainable, started, latency, base, meta, prompt_ids, sampled_ids, log_probs, bodies)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&st.insertEvent, `INSERT INTO events (seq, num, attempt, type, data, unused, at) VALUES (?, ?, ?, ?, ?, ?, ?)`},
		{&st.insertCompletion, `INSERT INTO completions (pos, num, state, data_id, is_train) VALUES (?, ?, ?, ?, ?)`},
		{&st.putRun, `INSERT INTO runs (run, model, config, version, created, updated, ended, seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (run) DO UPDATE SET model = excluded.model, config = excluded.config, version = excluded.version, updated = excluded.updated, ended = excluded.ended, seq = excluded.seq`},
		{&st.deleteEndpoints, `DELETE FROM endpoints WHERE run = ?`},
		{&st.insertEndpoint, `INSERT INTO endpoints (run, pos, model, url, kind, key, version) VALUES (?, ?, ?, ?, ?, ?, ?)`},
		{&st.putLease, `INSERT INTO leases (run, name, holder, expires) VALUES (?, ?, ?, ?) ON CONFLICT (run, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires`},
		{&st.deleteLease, `DELETE FROM leases WHERE run = ? AND name = ?`},
		{&st.dropCalls, `DELETE FROM calls WHERE num = ?`},
		{&st.dropEvents, `DELETE FROM events WHERE num = ?`},
		{&st.insertPart, `INSERT INTO artifact_parts (upload, part, data) VALUES (?, ?, ?) ON CONFLICT (upload, part) DO NOTHING`},
		{&st.putArtifact, `INSERT INTO artifacts (num, attempt, name, upload, size, sum, reader, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (num, attempt, name) DO NOTHING`},
		{&st.dropUpload, `DELETE FROM artifact_parts WHERE upload = ?`},
		{&st.dropArtifact, `DELETE FROM artifacts WHERE upload = ?`},
		{&st.dropParts, `DELETE FROM artifact_parts WHERE upload IN (SELECT upload FROM artifacts WHERE num = ?)`},
		{&st.dropArtifacts, `DELETE FROM artifacts WHERE num = ?`},
	} {
		err := conn.Raw(func(dc any) error {
			s, err := dc.(driver.ConnPrepareContext).PrepareContext(ctx, d.Rebind(p.q))
			if err == nil {
				*p.to = &writing{Stmt: s}
				(*p.to).check, _ = dc.(driver.NamedValueChecker)
				st.all = append(st.all, s)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("preparing %.40q: %w", p.q, err)
		}
	}
	for _, p := range []struct {
		to **sql.Stmt
		q  string
	}{
		{&st.selectNum, `SELECT num FROM rollouts WHERE rollout = ? AND hidden = 0`},
		{&st.selectOne, rolloutColumns + ` WHERE r.rollout = ? AND r.hidden = 0`},
		{&st.selectTrys, attemptColumns + ` WHERE a.num = ? ORDER BY a.attempt`},
	} {
		s, err := conn.PrepareContext(ctx, d.Rebind(p.q))
		if err != nil {
			return nil, fmt.Errorf("preparing %.40q: %w", p.q, err)
		}
		*p.to = s
	}
	return st, nil
}

// close ends the statements, then lets go of the connection: a database that
// still has statements is not really closed, and SQLite leaves its log behind.
func (st *statements) close() error {
	if st.conn.PingContext(context.Background()) != nil {
		_ = st.conn.Close() // it was lost, and all that it had with it
		return nil
	}
	errs := []error{st.selectNum.Close(), st.selectOne.Close(), st.selectTrys.Close(), st.conn.Raw(func(any) error {
		var errs []error
		for _, s := range st.all {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	})}
	return errors.Join(append(errs, st.conn.Close())...)
}

// flush writes a batch in one transaction. The writer never breaks off midway
// for a caller that leaves, hence no context.
func (st *statements) flush(b *batch) error {
	return st.conn.Raw(func(any) error { return st.transact(b) })
}

func (st *statements) transact(b *batch) (err error) {
	if err := st.begin.exec(); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		for _, e := range b.inserted {
			e.stored = false
		}
		// A full disk may have rolled back by itself: then this one fails, as it should.
		_ = st.rollback.exec()
	}()
	for _, f := range []func(*batch) error{st.flushRuns, st.flushRollouts, st.flushRecords, st.flushArtifacts} {
		if err := f(b); err != nil {
			return err
		}
	}
	return st.commit.exec()
}

func (st *statements) flushRuns(b *batch) error {
	for _, r := range b.runs {
		if err := st.putRun.exec(string(r.ID), r.Model, []byte(r.Config), int64(r.Version), micros(r.CreatedAt), micros(r.UpdatedAt), microsOrNil(r.EndedAt), int64(b.seq)); err != nil {
			return err
		}
	}
	for run, eps := range b.endpoints {
		if err := st.deleteEndpoints.exec(string(run)); err != nil {
			return err
		}
		for i, e := range eps {
			if err := st.insertEndpoint.exec(string(run), i, e.Model, e.URL, string(e.Kind), e.Key, int64(e.Version)); err != nil {
				return err
			}
		}
	}
	for k, l := range b.leases {
		var err error
		if l.Holder == "" {
			err = st.deleteLease.exec(string(k.run), k.name)
		} else {
			err = st.putLease.exec(string(k.run), k.name, l.Holder, micros(l.Expires))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (st *statements) flushRollouts(b *batch) error {
	for _, e := range b.sorted() {
		outcome, err := jsonOrNil(e.Outcome)
		if err != nil {
			return err
		}
		var reward any
		if e.Reward != nil {
			reward = *e.Reward
		}
		if e.stored {
			err = st.updateRollout.exec(string(e.State), outcome, reward, e.rewardBy, string(e.LastAttempt), e.Error, e.JobName, e.Version,
				int64(e.seq), micros(e.UpdatedAt), bit(e.hidden), e.num)
		} else {
			err = st.insert(e, outcome, reward)
			b.inserted = append(b.inserted, e)
		}
		if err != nil {
			return err
		}
		if first, ok := b.touched[e.num]; ok {
			for i := range e.attempts[first:] {
				if err := st.putOneAttempt(e.num, &e.attempts[first+i]); err != nil {
					return err
				}
			}
		}
	}
	for _, sum := range b.revoked {
		if err := st.deleteCredential.exec(sum[:]); err != nil {
			return err
		}
	}
	for sum, o := range b.creds {
		e := b.byID[o.rollout]
		if err := st.putCredential.exec(sum[:], string(fulgur.ScopeAttempt), e.num, string(o.attempt), micros(b.now)); err != nil {
			return err
		}
	}
	return nil
}

func (st *statements) insert(e *entry, outcome []byte, reward any) error {
	spec := e.RolloutSpec
	input := []byte(spec.Input)
	spec.Input = nil // has a column of its own
	js, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := st.insertRollout.exec(string(e.ID), string(e.Run), string(e.Group), bit(e.IsTrain), string(e.State), outcome, reward, e.rewardBy,
		string(e.LastAttempt), e.Error, e.JobName, e.Version, int64(e.seq), micros(e.CreatedAt), micros(e.UpdatedAt), bit(e.hidden), e.num); err != nil {
		return err
	}
	if err := st.insertInput.exec(e.num, js, input); err != nil {
		return err
	}
	e.stored = true
	return nil
}

func (st *statements) putOneAttempt(num int64, a *attempt) error {
	n, err := strconv.Atoi(string(a.ID))
	if err != nil {
		return err
	}
	outcome, err := jsonOrNil(a.Outcome)
	if err != nil {
		return err
	}
	return st.putAttempt.exec(num, n, string(a.Phase), a.Why, a.Runner, a.Holder, a.Handle, outcome, microsOrNil(a.StartedAt), microsOrNil(a.EndedAt), a.cred[:])
}

func (st *statements) flushRecords(b *batch) error {
	for _, num := range b.dropped { // first: a call that came later is not one of them
		for _, q := range []*writing{st.dropCalls, st.dropEvents, st.dropParts, st.dropArtifacts} {
			if err := q.exec(num); err != nil {
				return err
			}
		}
	}
	for _, c := range b.calls {
		if err := st.insertCall.exec(int64(c.seq), string(c.call.ID), c.num, string(c.call.Attempt), c.call.Index, string(c.call.Mode), c.call.HTTPStatus,
			string(c.call.Fate), bit(c.call.Trainable), micros(c.call.StartedAt), int64(c.call.Latency), int64(c.base), c.meta, c.promptIDs, c.sampledIDs, c.logProbs, c.bodies); err != nil {
			return err
		}
	}
	for _, e := range b.events {
		if err := st.insertEvent.exec(int64(e.Seq), e.num, string(e.Attempt), e.Type, []byte(e.Data), e.Unused, micros(e.At)); err != nil {
			return err
		}
	}
	for _, c := range b.completions {
		if err := st.insertCompletion.exec(c.pos, c.num, string(c.state), c.dataID, bit(c.train)); err != nil {
			return err
		}
	}
	return nil
}

// load reads a rollout with its attempts; nil if there is none.
func (st *statements) load(id fulgur.RolloutID) (*entry, error) {
	// Mostly one is asked for that is to be created: there is none, and a row of one
	// column says so for a fifth of what a row of all does.
	var num int64
	err := st.selectNum.QueryRow(string(id)).Scan(&num)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e, err := scanRollout(st.selectOne.QueryRow(string(id)))
	if err != nil {
		return nil, err
	}
	rows, err := st.selectTrys.Query(e.num)
	if err != nil {
		return nil, err
	}
	e.attempts, err = scanAttempts(rows)
	return e, err
}

const rolloutColumns = `SELECT r.num, r.rollout, r.state, r.outcome, r.reward, r.reward_by, r.last_attempt, r.error, r.job_name, r.version, r.seq, r.created, r.updated, r.hidden, i.spec, i.input
	FROM rollouts r JOIN inputs i ON i.num = r.num`

type scanner interface{ Scan(...any) error }

func scanRollout(row scanner) (*entry, error) {
	var (
		e                 entry
		outcome, spec     []byte
		reward            sql.NullFloat64
		seq, created, upd int64
		id, state, last   string
		input             []byte
	)
	if err := row.Scan(&e.num, &id, &state, &outcome, &reward, &e.rewardBy, &last, &e.Error, &e.JobName, &e.Version, &seq, &created, &upd, &e.hidden, &spec, &input); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(spec, &e.RolloutSpec); err != nil {
		return nil, fmt.Errorf("rollout %s: spec: %w", id, err)
	}
	if outcome != nil {
		e.Outcome = new(fulgur.Outcome)
		if err := json.Unmarshal(outcome, e.Outcome); err != nil {
			return nil, fmt.Errorf("rollout %s: outcome: %w", id, err)
		}
	}
	if reward.Valid {
		e.Reward = &reward.Float64
	}
	e.ID, e.State, e.LastAttempt, e.Input = fulgur.RolloutID(id), fulgur.RolloutState(state), fulgur.AttemptID(last), input
	e.seq, e.CreatedAt, e.UpdatedAt, e.stored = fulgur.Seq(seq), fromMicros(created), fromMicros(upd), true
	return &e, nil
}

const attemptColumns = `SELECT r.rollout, a.attempt, a.phase, a.why, a.runner, a.holder, a.handle, a.outcome, a.started, a.ended, a.cred FROM attempts a JOIN rollouts r ON r.num = a.num`

func scanAttempts(rows *sql.Rows) (out []attempt, err error) {
	defer rows.Close()
	for rows.Next() {
		var (
			a              attempt
			rollout, phase string
			n              int
			outcome, cred  []byte
			started, ended sql.NullInt64
		)
		if err := rows.Scan(&rollout, &n, &phase, &a.Why, &a.Runner, &a.Holder, &a.Handle, &outcome, &started, &ended, &cred); err != nil {
			return nil, err
		}
		if len(outcome) > 0 {
			a.Outcome = new(fulgur.Outcome)
			if err := json.Unmarshal(outcome, a.Outcome); err != nil {
				return nil, fmt.Errorf("attempt %d of %s: outcome: %w", n, rollout, err)
			}
		}
		a.Rollout, a.ID, a.Phase = fulgur.RolloutID(rollout), fulgur.AttemptID(strconv.Itoa(n)), fulgur.Phase(phase)
		a.StartedAt, a.EndedAt = timeOrNil(started), timeOrNil(ended)
		copy(a.cred[:], cred)
		out = append(out, a)
	}
	return out, rows.Err()
}

// bit is a bool as the columns have it.
func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func micros(t time.Time) int64 { return t.UnixMicro() }

func microsOrNil(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }

func timeOrNil(us sql.NullInt64) *time.Time {
	if !us.Valid {
		return nil
	}
	t := fromMicros(us.Int64)
	return &t
}

func jsonOrNil[T any](v *T) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	return json.Marshal(v)
}
