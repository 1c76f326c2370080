package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/fulgur-rl/fulgur"
)

// CheckReport is what Check found.
type CheckReport struct {
	Schema   int      `json:"schema"`
	Rollouts int      `json:"rollouts"`
	Calls    int      `json:"calls"`
	Events   int      `json:"events"`
	Problems []string `json:"problems"` // the first maxProblems of them
	More     int      `json:"more"`     // problems beyond these
}

// OK says whether nothing is wrong.
func (r *CheckReport) OK() bool { return len(r.Problems)+r.More == 0 }

const maxProblems = 50

func (r *CheckReport) add(format string, args ...any) {
	if len(r.Problems) >= maxProblems {
		r.More++
		return
	}
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// Check reads all that a store holds: whether the database is whole, each call
// comes back from its deltas, ids fit log probs and spans, and the tables agree. It
// changes nothing and may run beside the store. The error says that it could
// not be checked; what is wrong with the store is in the report. A schema that is
// older or newer than this binary's is KindUnsupported.
func Check(ctx context.Context, d Keeper) (r CheckReport, err error) {
	const op = "check the store"
	db, err := d.OpenRead(ctx)
	if err != nil {
		return r, err
	}
	defer db.Close()
	fail := func(err error) error { return (&Store{driver: d}).fail(op, err) }
	problems, err := d.Integrity(ctx, db)
	if err != nil {
		return r, fail(err)
	}
	for _, p := range problems {
		r.add("database: %s", p)
	}
	if err := db.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM schema`).Scan(&r.Schema); err != nil {
		return r, fulgur.E(fulgur.KindInvalid, op, "this is no Fulgur store: it has no table of schema versions", err)
	}
	if know := len(d.Migrations()); r.Schema != know {
		return r, fulgur.E(fulgur.KindUnsupported, op, fmt.Sprintf("the store has schema version %d, this binary checks %d: open it once with fulgur serve to bring it up to date, or use the newer fulgur that wrote it", r.Schema, know), nil)
	}
	// One transaction sees one moment, whatever is written meanwhile.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true})
	if err != nil {
		return r, fail(err)
	}
	defer func() { _ = tx.Rollback() }()
	c := &checker{ctx: ctx, tx: tx, r: &r}
	if c.codec, err = newCodec(); err != nil {
		return r, fail(err)
	}
	for _, f := range []func() error{c.counts, c.tables, c.calls} {
		if err := f(); err != nil {
			return r, fail(err)
		}
	}
	return r, nil
}

type checker struct {
	ctx   context.Context
	tx    *sql.Tx
	codec *codec
	r     *CheckReport
}

func (c *checker) counts() error {
	for table, to := range map[string]*int{"rollouts": &c.r.Rollouts, "calls": &c.r.Calls, "events": &c.r.Events} {
		if err := c.tx.QueryRowContext(c.ctx, "SELECT count(*) FROM "+table).Scan(to); err != nil {
			return err
		}
	}
	return nil
}

// tables counts the rows that break a rule.
func (c *checker) tables() error {
	orphans := func(table string) string {
		return "SELECT count(*) FROM " + table + " x LEFT JOIN rollouts r ON r.num = x.num WHERE r.num IS NULL"
	}
	for _, rule := range []struct{ says, query string }{
		{"calls belong to no rollout", orphans("calls") + " AND x.num <> 0"},
		{"events belong to no rollout", orphans("events")},
		{"attempts belong to no rollout", orphans("attempts")},
		{"credentials belong to no rollout", orphans("credentials")},
		{"completions belong to no rollout", orphans("completions")},
		{"rollouts have no input", "SELECT count(*) FROM rollouts r LEFT JOIN inputs i ON i.num = r.num WHERE i.num IS NULL"},
		{"rollouts are in a state that there is not", "SELECT count(*) FROM rollouts WHERE state NOT IN ('queuing', 'running', 'succeeded', 'failed')"},
		{"rollouts of the default run ended and are not in the completion log",
			"SELECT count(*) FROM rollouts r LEFT JOIN completions c ON c.num = r.num WHERE r.run = 'default' AND r.hidden = 0 AND r.state IN ('succeeded', 'failed') AND c.num IS NULL"},
		{"rollouts are in the completion log and have not ended",
			"SELECT count(*) FROM completions c JOIN rollouts r ON r.num = c.num WHERE r.state NOT IN ('succeeded', 'failed')"},
		{"rollouts are in the completion log twice", "SELECT count(*) FROM (SELECT num FROM completions GROUP BY num HAVING count(*) > 1) AS twice"},
		{"places of the completion log are missing", "SELECT coalesce(max(pos), 0) - count(*) FROM completions"},
		{"attempts have not ended though their rollout has",
			"SELECT count(*) FROM attempts a JOIN rollouts r ON r.num = a.num WHERE r.state IN ('succeeded', 'failed') AND a.phase <> 'ended'"},
		{"artifacts belong to no rollout", orphans("artifacts")},
		{"artifacts have lost parts", "SELECT count(*) FROM artifacts a WHERE a.size <> (SELECT coalesce(sum(length(p.data)), 0) FROM artifact_parts p WHERE p.upload = a.upload)"},
		{"calls and events share a position", "SELECT count(*) FROM calls c JOIN events e ON e.seq = c.seq"},
	} {
		var n int
		if err := c.tx.QueryRowContext(c.ctx, rule.query).Scan(&n); err != nil {
			return err
		}
		if n > 0 {
			c.r.add("%d %s", n, rule.says)
		}
	}
	return nil
}

// calls reads every call, rollout by rollout.
func (c *checker) calls() error {
	rows, err := c.tx.QueryContext(c.ctx, callColumns("c.num")+` ORDER BY c.num, c.seq`)
	if err != nil {
		return err
	}
	defer rows.Close()
	of := int64(-1)
	var texts map[int64]checked
	for rows.Next() {
		var num int64
		call, cols, err := scanCall(rows, true, &num)
		if err != nil {
			return err
		}
		if num != of {
			of, texts = num, map[int64]checked{}
		}
		texts[int64(call.Seq)] = checked{c.one(&call, cols, texts), call.Attempt}
	}
	return rows.Err()
}

type checked struct {
	text
	attempt fulgur.AttemptID
}

// one checks a call, and returns its text for those that are told against it.
func (c *checker) one(call *fulgur.Call, cols *columns, texts map[int64]checked) text {
	bad := func(format string, args ...any) {
		c.r.add("call %s of rollout %s: %s", call.ID, call.Rollout, fmt.Sprintf(format, args...))
	}
	base, known := texts[cols.base.Int64]
	if cols.base.Int64 != 0 && !known {
		bad("it is a delta of the call at %d, which is not there", cols.base.Int64)
		return text{}
	}
	if known && base.attempt != call.Attempt {
		bad("it is a delta of a call of another attempt")
	}
	t, err := c.codec.read(cols, base.text)
	if err == nil {
		err = c.codec.decode(call, cols, t, nil)
	}
	if err != nil {
		bad("it cannot be read: %v", err)
		return t
	}
	if err := sound(call); err != nil {
		bad("%v", err)
	}
	return t
}

// sound says what of a call contradicts itself.
func sound(c *fulgur.Call) error {
	var errs []error
	if n := len(c.LogProbs); n > 0 && n != len(c.SampledIDs) {
		errs = append(errs, fmt.Errorf("%d log probs for %d sampled ids", n, len(c.SampledIDs)))
	}
	at := -1
	for _, s := range c.Spans {
		if s.Start <= at || s.Start > len(c.SampledIDs) {
			errs = append(errs, fmt.Errorf("spans %v do not fit %d sampled ids", c.Spans, len(c.SampledIDs)))
			break
		}
		at = s.Start
	}
	if !c.Trainable {
		return errors.Join(errs...)
	}
	if len(c.SampledIDs) == 0 || len(c.PromptIDs) == 0 {
		errs = append(errs, errors.New("it is trainable, and has no token ids"))
	}
	for _, p := range c.LogProbs {
		if math.IsNaN(float64(p)) || math.IsInf(float64(p), 0) {
			errs = append(errs, fmt.Errorf("it is trainable, and has a log prob of %v", p))
			break
		}
	}
	return errors.Join(errs...)
}

// MarshalJSON writes no problems as a list too.
func (r CheckReport) MarshalJSON() ([]byte, error) {
	type plain CheckReport
	if r.Problems == nil {
		r.Problems = []string{}
	}
	return json.Marshal(plain(r))
}
