package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fulgur-rl/fulgur"
)

// queries are the prepared statements of readers. They see what is committed.
type queries struct {
	all []*sql.Stmt

	byID, num, page, changed, tries       *sql.Stmt
	credential, completions               *sql.Stmt
	callsOf, callByID, eventsOf, callsAll *sql.Stmt
	callCount                             *sql.Stmt
	recorded, base, newest                *sql.Stmt
}

// callColumns selects what scanCall reads, and more columns first.
func callColumns(more string) string {
	if more != "" {
		more += ", "
	}
	return `SELECT ` + more + `c.seq, c.call, r.rollout, r.run, c.attempt, c.idx, c.mode, c.status, c.fate, c.trainable, c.started, c.latency, c.base, c.meta, c.prompt_ids, c.sampled_ids, c.log_probs, c.bodies
		FROM calls c LEFT JOIN rollouts r ON r.num = c.num`
}

func prepareQueries(ctx context.Context, db *sql.DB, d Driver) (*queries, error) {
	q := &queries{}
	for _, p := range []struct {
		to *(*sql.Stmt)
		q  string
	}{
		{&q.byID, rolloutColumns + ` WHERE r.rollout = ? AND r.hidden = 0`},
		{&q.num, `SELECT num FROM rollouts WHERE rollout = ? AND hidden = 0`},
		{&q.page, rolloutColumns + ` WHERE r.run = ? AND r.num > ? AND r.hidden = 0 ORDER BY r.num LIMIT ?`},
		{&q.changed, `SELECT rollout, run, state, last_attempt, seq FROM rollouts WHERE seq > ? AND hidden = 0 AND (? = '' OR run = ?) ORDER BY seq LIMIT ?`},
		{&q.tries, attemptColumns + ` WHERE a.num = ? ORDER BY a.attempt`},
		{&q.credential, `SELECT r.run, r.rollout, r.state, c.attempt, a.phase FROM credentials c JOIN rollouts r ON r.num = c.num
			LEFT JOIN attempts a ON a.num = c.num AND a.attempt = CAST(c.attempt AS INTEGER) WHERE c.sum = ?`},
		{&q.completions, `SELECT c.pos, r.rollout, r.hidden, c.state, c.data_id, c.is_train FROM completions c JOIN rollouts r ON r.num = c.num WHERE c.pos > ? ORDER BY c.pos LIMIT ?`},
		{&q.callsOf, callColumns("") + ` WHERE c.num = ? AND c.attempt = ? ORDER BY c.seq`},
		{&q.callCount, `SELECT count(*) FROM calls WHERE num = ? AND attempt = ?`},
		{&q.callsAll, callColumns("") + ` WHERE c.num = ? ORDER BY c.seq`},
		{&q.recorded, `SELECT attempt FROM (SELECT attempt, seq FROM calls WHERE num = ? UNION ALL SELECT attempt, seq FROM events WHERE num = ?) AS records
			GROUP BY attempt ORDER BY min(seq)`},
		{&q.callByID, callColumns("") + ` WHERE c.call = ?`},
		{&q.base, `SELECT base, prompt_ids, bodies FROM calls WHERE seq = ?`},
		{&q.newest, `SELECT seq, base, prompt_ids, bodies FROM calls WHERE num = ? AND attempt = ? AND base IS NOT NULL ORDER BY seq DESC LIMIT 1`},
		{&q.eventsOf, `SELECT seq, attempt, type, data, unused, at FROM events WHERE num = ? ORDER BY seq`},
	} {
		s, err := db.PrepareContext(ctx, d.Rebind(p.q))
		if err != nil {
			return nil, fmt.Errorf("preparing %.40q: %w", p.q, err)
		}
		*p.to = s
		q.all = append(q.all, s)
	}
	return q, nil
}

func (q *queries) close() error {
	errs := make([]error, 0, len(q.all))
	for _, s := range q.all {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func (q *queries) identity(ctx context.Context, sum [sha256.Size]byte) (fulgur.Identity, error) {
	var run, rollout, state, attempt string
	var phase sql.NullString
	if err := q.credential.QueryRowContext(ctx, sum[:]).Scan(&run, &rollout, &state, &attempt, &phase); err != nil {
		return fulgur.Identity{}, err
	}
	return fulgur.Identity{Scope: fulgur.ScopeAttempt, Run: fulgur.RunID(run), Rollout: fulgur.RolloutID(rollout), Attempt: fulgur.AttemptID(attempt),
		Ended: fulgur.RolloutState(state).Terminal() || phase.String == string(fulgur.PhaseEnded)}, nil
}

// load reads what is held in memory.
func (s *Store) load(ctx context.Context) (*live, error) {
	l := newLive()
	for _, f := range []func(context.Context, *live) error{s.loadRuns, s.loadRollouts, s.loadCounters} {
		if err := f(ctx, l); err != nil {
			return nil, err
		}
	}
	l.from = l.seq
	return l, nil
}

func (s *Store) each(ctx context.Context, query string, scan func(scanner) error) error {
	rows, err := s.read.QueryContext(ctx, s.driver.Rebind(query))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (s *Store) loadRuns(ctx context.Context, l *live) error {
	err := s.each(ctx, `SELECT run, model, config, version, created, updated, ended FROM runs`, func(row scanner) error {
		var (
			r            fulgur.Run
			id           string
			config       []byte
			version      int64
			created, upd int64
			ended        sql.NullInt64
		)
		if err := row.Scan(&id, &r.Model, &config, &version, &created, &upd, &ended); err != nil {
			return err
		}
		r.ID, r.Config, r.Version = fulgur.RunID(id), json.RawMessage(config), fulgur.PolicyVersion(version)
		r.CreatedAt, r.UpdatedAt, r.EndedAt = fromMicros(created), fromMicros(upd), timeOrNil(ended)
		l.runs[r.ID] = r
		return nil
	})
	if err != nil {
		return err
	}
	err = s.each(ctx, `SELECT run, model, url, kind, key, version FROM endpoints ORDER BY run, pos`, func(row scanner) error {
		var (
			e         fulgur.Endpoint
			run, kind string
			version   int64
		)
		if err := row.Scan(&run, &e.Model, &e.URL, &kind, &e.Key, &version); err != nil {
			return err
		}
		e.Kind, e.Version = fulgur.EndpointKind(kind), fulgur.PolicyVersion(version)
		l.endpoints[fulgur.RunID(run)] = append(l.endpoints[fulgur.RunID(run)], e)
		return nil
	})
	if err != nil {
		return err
	}
	return s.each(ctx, `SELECT run, name, holder, expires FROM leases`, func(row scanner) error {
		var (
			run     string
			v       fulgur.Lease
			expires int64
		)
		if err := row.Scan(&run, &v.Name, &v.Holder, &expires); err != nil {
			return err
		}
		v.Run, v.Expires = fulgur.RunID(run), fromMicros(expires)
		l.leases[leaseKey{v.Run, v.Name}] = v
		return nil
	})
}

func (s *Store) loadRollouts(ctx context.Context, l *live) error {
	err := s.each(ctx, rolloutColumns+` WHERE r.state IN ('queuing', 'running') AND r.hidden = 0 ORDER BY r.num`, func(row scanner) error {
		e, err := scanRollout(row)
		if err != nil {
			return err
		}
		l.open[e.ID] = e
		l.order = append(l.order, e)
		return nil
	})
	if err != nil {
		return err
	}
	rows, err := s.read.QueryContext(ctx, attemptColumns+` WHERE r.state IN ('queuing', 'running') AND r.hidden = 0 ORDER BY a.num, a.attempt`)
	if err != nil {
		return err
	}
	attempts, err := scanAttempts(rows)
	for _, a := range attempts {
		e := l.open[a.Rollout]
		e.attempts = append(e.attempts, a)
		l.creds[a.cred] = owner{rollout: a.Rollout, attempt: a.ID}
	}
	return err
}

// loadCounters finds the newest positions: every change of the log is kept in
// the row that it changed.
func (s *Store) loadCounters(ctx context.Context, l *live) error {
	for _, c := range []struct {
		query string
		to    *int64
	}{
		{`SELECT coalesce(max(num), 0) FROM rollouts`, &l.num},
		{`SELECT coalesce(max(pos), 0) FROM completions`, &l.pos},
		{`SELECT coalesce(max(seq), 0) FROM rollouts`, (*int64)(&l.seq)},
		{`SELECT coalesce(max(seq), 0) FROM runs`, (*int64)(&l.seq)},
		{`SELECT coalesce(max(seq), 0) FROM calls`, (*int64)(&l.seq)},
		{`SELECT coalesce(max(seq), 0) FROM events`, (*int64)(&l.seq)},
	} {
		err := s.each(ctx, c.query, func(row scanner) error {
			var n int64
			if err := row.Scan(&n); err != nil {
				return err
			}
			*c.to = max(*c.to, n)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
