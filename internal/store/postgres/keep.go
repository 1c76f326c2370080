package postgres

import (
	"context"
	"database/sql"

	"github.com/fulgur-rl/fulgur"
)

// OpenRead connects for reading; see store.Keeper.
func (d *Driver) OpenRead(ctx context.Context) (*sql.DB, error) {
	op := "open store " + d.public()
	db, err := d.connect(op)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(2)
	var tables int
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = 'schema'`).Scan(&tables)
	switch {
	case err != nil:
		kind, msg := d.Explain(err)
		err = fulgur.E(kind, op, msg, err)
	case tables == 0:
		err = fulgur.E(fulgur.KindNotFound, op, "there is no store in this schema", nil)
	default:
		return db, nil
	}
	_ = db.Close()
	return nil, err
}

// Integrity finds nothing: PostgreSQL checks its own files (initdb --data-checksums, pg_amcheck).
func (d *Driver) Integrity(context.Context, *sql.DB) ([]string, error) { return nil, nil }

// Backup is PostgreSQL's own.
func (d *Driver) Backup(context.Context, *sql.DB, string) error {
	return fulgur.E(fulgur.KindUnsupported, "back up "+d.public(), "PostgreSQL has its own: pg_dump -Fc URL > FILE, also while Fulgur runs; pg_restore brings it back", nil)
}

// Vacuum rewrites the tables that records are deleted from.
func (d *Driver) Vacuum(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "VACUUM (FULL, ANALYZE) calls, events, artifacts, artifact_parts")
	return err
}
