package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// migrate brings the schema forward, one transaction a step. A schema that is
// newer than the binary is refused and left alone.
func migrate(ctx context.Context, conn *sql.Conn, d Driver, now time.Time) error {
	if _, err := conn.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS schema (version INTEGER PRIMARY KEY, applied BIGINT NOT NULL)`); err != nil {
		return err
	}
	var have int
	if err := conn.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM schema`).Scan(&have); err != nil {
		return err
	}
	steps := d.Migrations()
	if have > len(steps) {
		return fulgur.E(fulgur.KindUnsupported, "open store", fmt.Sprintf(
			"the store has schema version %d, this binary knows up to %d: use the newer fulgur that wrote it, or another store", have, len(steps)), nil)
	}
	for v := have + 1; v <= len(steps); v++ {
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, steps[v-1])
		if err == nil {
			_, err = tx.ExecContext(ctx, d.Rebind(`INSERT INTO schema (version, applied) VALUES (?, ?)`), v, micros(now))
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			_ = tx.Rollback()
			return fmt.Errorf("migrating the store to schema version %d: %w", v, err)
		}
	}
	return nil
}
