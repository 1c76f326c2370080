// Package sqlite is the store's default driver: one SQLite file in WAL mode,
// by modernc.org/sqlite (no cgo).
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/fulgur-rl/fulgur"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Memory as a path keeps the store in memory: it is gone with the process.
const Memory = ":memory:"

// Options are a driver's settings.
type Options struct {
	// Power syncs the log at each commit: what was acknowledged survives a
	// power cut. Otherwise it survives kill -9 of the process.
	Power bool
	// MaxPages bounds the file, in pages of 4 KiB; 0: by the disk.
	MaxPages int
	// Busy is how long a write waits for a lock of another program's (sqlite3, a
	// backup of files); 0: 5 s.
	Busy time.Duration
}

// Driver is one SQLite file. It satisfies store.Driver.
type Driver struct {
	path string
	opts Options
	lock *os.File
}

// New returns a driver of the file at path, which Open creates if it is absent.
func New(path string, o Options) *Driver { return &Driver{path: path, opts: o} }

//go:embed 0001.sql
var schema1 string

//go:embed 0002.sql
var schema2 string

//go:embed 0003.sql
var schema3 string

//go:embed 0004.sql
var schema4 string

// Migrations returns the schema's steps.
func (d *Driver) Migrations() []string { return []string{schema1, schema2, schema3, schema4} }

// Name returns "sqlite".
func (d *Driver) Name() string { return "sqlite" }

// Rebind returns query: SQLite takes ?.
func (d *Driver) Rebind(query string) string { return query }

// Begin takes the write lock at once, so that a transaction never fails midway for want of it.
func (d *Driver) Begin() string { return "BEGIN IMMEDIATE" }

// Open opens the file; see store.Driver.
func (d *Driver) Open(ctx context.Context) (write, read *sql.DB, err error) {
	op := "open store " + d.path
	defer func() {
		if err != nil {
			err = errors.Join(d.openError(op, err), d.Close())
			var fe *fulgur.Error
			if errors.As(err, &fe) {
				err = fe
			}
		}
	}()
	dsn := "file:" + (&url.URL{Path: d.path}).EscapedPath() + "?"
	if d.path == Memory {
		dsn = "file:/" + rand.Text() + "?vfs=memdb&"
	} else {
		if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil {
			return nil, nil, err
		}
		if d.lock, err = lockFile(d.path + "-lock"); err != nil {
			return nil, nil, err
		}
	}
	if write, err = sql.Open("sqlite", dsn+d.writePragmas().Encode()); err != nil {
		return nil, nil, err
	}
	write.SetMaxOpenConns(1)
	if read, err = sql.Open("sqlite", dsn+readPragmas().Encode()); err != nil {
		return nil, nil, errors.Join(err, write.Close())
	}
	read.SetMaxOpenConns(4)
	read.SetMaxIdleConns(4)
	if err = write.PingContext(ctx); err == nil {
		// Ping opens without reading: a file that is no database shows here.
		_, err = write.ExecContext(ctx, "SELECT count(*) FROM sqlite_schema")
	}
	if err != nil {
		return nil, nil, errors.Join(err, write.Close(), read.Close())
	}
	return write, read, nil
}

func (d *Driver) writePragmas() url.Values {
	sync := "NORMAL"
	if d.opts.Power {
		sync = "FULL"
	}
	// A larger log is copied back less often: pages that change again and again are copied once.
	busy := d.opts.Busy
	if busy == 0 {
		busy = 5 * time.Second
	}
	p := url.Values{"_pragma": {fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()), "journal_mode(WAL)", "synchronous(" + sync + ")", "wal_autocheckpoint(4000)",
		"temp_store(MEMORY)", "cache_size(-8000)", "foreign_keys(0)"}}
	if d.opts.MaxPages > 0 {
		p.Add("_pragma", fmt.Sprintf("max_page_count(%d)", d.opts.MaxPages))
	}
	return p
}

func readPragmas() url.Values {
	return url.Values{"_pragma": {"busy_timeout(5000)", "query_only(1)", "cache_size(-2000)"}}
}

// Close lets go of the lock.
func (d *Driver) Close() error {
	if d.lock == nil {
		return nil
	}
	err := d.lock.Close()
	d.lock = nil
	return err
}

func (d *Driver) openError(op string, err error) error {
	var fe *fulgur.Error
	if errors.As(err, &fe) {
		return fe
	}
	var se *sqlite.Error
	if errors.As(err, &se) && se.Code()&0xff == sqlite3.SQLITE_NOTADB {
		return fulgur.E(fulgur.KindInvalid, op, d.path+" is not a Fulgur store (or its first bytes are damaged): name another file with --store sqlite:PATH, or restore a backup", err)
	}
	if errors.As(err, &se) && se.Code()&0xff != sqlite3.SQLITE_CANTOPEN {
		kind, msg := d.Explain(err)
		return fulgur.E(kind, op, msg, err)
	}
	return fulgur.E(fulgur.KindInvalid, op, d.path+" cannot be opened for writing: check its folder and permissions", err)
}

// Explain says what an error of SQLite means; see store.Driver.
func (d *Driver) Explain(err error) (fulgur.Kind, string) {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return fulgur.KindInternal, ""
	}
	switch se.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return fulgur.KindExhausted, ""
	case sqlite3.SQLITE_IOERR:
		if se.Code() == sqlite3.SQLITE_IOERR_WRITE || se.Code() == sqlite3.SQLITE_IOERR_FSYNC {
			return fulgur.KindExhausted, "the disk of " + d.path + " cannot be written: is it full?"
		}
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fulgur.KindUnavailable, ""
	case sqlite3.SQLITE_CONSTRAINT:
		return fulgur.KindConflict, ""
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return fulgur.KindInternal, d.path + " is damaged: restore a backup, or copy what is readable with sqlite3's .recover"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return fulgur.KindInvalid, d.path + " cannot be written: check its permissions"
	}
	return fulgur.KindInternal, ""
}
