package store

import (
	"context"
	"database/sql"

	"github.com/fulgur-rl/fulgur"
)

// Driver is the small SQL seam: what differs between databases. The queries
// are the store's, written with ? as placeholder in the common part of SQL
// (upserts with ON CONFLICT, partial indexes, no RETURNING).
type Driver interface {
	// Name is the driver's name, as in "sqlite:PATH".
	Name() string

	// Open opens the database, creates it if it is absent, and makes sure that
	// no other store writes to it. write is used on one connection; read may be
	// used on many at once and sees what write committed. Errors are
	// *fulgur.Error: a locked database is KindConflict, a damaged one
	// KindInternal, with what to do next.
	Open(ctx context.Context) (write, read *sql.DB, err error)

	// Close lets go of what Open took beside the two handles (locks, files).
	// It is called once, after the handles are closed.
	Close() error

	// Migrations are the schema's steps, in order, each a script that runs in
	// one transaction. Released steps are never edited, only followed.
	Migrations() []string

	// Rebind turns ? into the database's placeholders.
	Rebind(query string) string

	// Begin is the statement that opens a writing transaction.
	Begin() string

	// Explain says what an error of the database means: KindExhausted for a
	// full disk, KindConflict for a broken unique constraint, KindUnavailable for
	// a lock that may go away, else KindInternal. The message, for people, may
	// be ""; it says what to do next.
	Explain(err error) (fulgur.Kind, string)
}

// Keeper is a Driver whose database can be looked after, also while a store
// writes to it. Errors are as Driver's.
type Keeper interface {
	Driver

	// OpenRead opens an existing database for reading only. KindNotFound if it is
	// not there.
	OpenRead(ctx context.Context) (*sql.DB, error)

	// Integrity returns what the database itself finds wrong with its files.
	Integrity(ctx context.Context, db *sql.DB) ([]string, error)

	// Backup writes the state of one moment to a new file at path, which it syncs.
	// KindUnsupported where the database has tools of its own for that.
	Backup(ctx context.Context, db *sql.DB, path string) error

	// Vacuum gives the space of what was deleted back to the disk. It runs on the
	// connection that writes, outside of a transaction.
	Vacuum(ctx context.Context, conn *sql.Conn) error
}

// Relocker is a Driver whose connection that writes may be lost (a server that
// restarts), and with it what keeps other stores away.
type Relocker interface {
	// Relock takes the lock on a new connection. KindConflict if another store has it.
	Relock(ctx context.Context, conn *sql.Conn) error
}
