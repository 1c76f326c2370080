// Package postgres is the store's driver for a PostgreSQL that a team shares, by
// pgx. One store at a time writes to a schema: an advisory lock, which ends with
// its connection, keeps a second one away.
package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fulgur-rl/fulgur"
)

// Driver is one schema of one database. It satisfies store.Driver.
type Driver struct {
	url string
}

// New returns a driver of the database at a URL as psql takes it,
// postgres://USER:PASSWORD@HOST:PORT/NAME?search_path=SCHEMA. The database has to
// exist; its tables are made by the store.
func New(url string) *Driver { return &Driver{url: url} }

//go:embed 0001.sql
var schema1 string

//go:embed 0002.sql
var schema2 string

//go:embed 0003.sql
var schema3 string

// Migrations returns the schema's steps.
func (d *Driver) Migrations() []string { return []string{schema1, schema2, schema3} }

// Name returns "postgres".
func (d *Driver) Name() string { return "postgres" }

// Begin is the statement that opens a transaction.
func (d *Driver) Begin() string { return "BEGIN" }

// Rebind turns each ? into $1, $2, ….
func (d *Driver) Rebind(query string) string {
	var b strings.Builder
	n := 0
	for {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		n++
		b.WriteString("$" + strconv.Itoa(n))
		query = after
	}
}

// lockName is hashed, with the schema's name, to the advisory lock's number.
const lockName = "fulgur store"

// lockWait is how long Open waits for the store before it to be gone.
const lockWait = 3 * time.Second

// Open connects; see store.Driver.
func (d *Driver) Open(ctx context.Context) (write, read *sql.DB, err error) {
	op := "open store " + d.public()
	if write, err = d.connect(op); err != nil {
		return nil, nil, err
	}
	if read, err = d.connect(op); err != nil {
		return nil, nil, errors.Join(err, write.Close())
	}
	write.SetMaxOpenConns(1) // the lock is this connection's
	write.SetMaxIdleConns(1)
	read.SetMaxOpenConns(8)
	read.SetMaxIdleConns(8)
	if err := d.lock(ctx, op, write.QueryRowContext); err != nil {
		return nil, nil, errors.Join(err, write.Close(), read.Close())
	}
	return write, read, nil
}

func (d *Driver) connect(op string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(d.url)
	if err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, "the URL is not as psql takes it: want postgres://USER:PASSWORD@HOST:PORT/DATABASE", err)
	}
	if _, ok := cfg.RuntimeParams["application_name"]; !ok {
		host, _ := os.Hostname()
		cfg.RuntimeParams["application_name"] = fmt.Sprintf("fulgur %s:%d", host, os.Getpid())
	}
	return sql.OpenDB(connector{stdlib.GetConnector(*cfg)}), nil
}

// query is QueryRowContext of a database or a connection.
type query func(ctx context.Context, query string, args ...any) *sql.Row

// Relock takes the lock on a new connection; see store.Relocker.
func (d *Driver) Relock(ctx context.Context, conn *sql.Conn) error {
	return d.lock(ctx, "open store "+d.public(), conn.QueryRowContext)
}

func (d *Driver) lock(ctx context.Context, op string, row query) error {
	// The server notices a moment later that a store's connection has gone.
	for deadline := time.Now().Add(lockWait); ; {
		var got bool
		err := row(ctx, `SELECT pg_try_advisory_lock(hashtext($1 || current_schema()))`, lockName).Scan(&got)
		if err != nil {
			kind, msg := d.Explain(err)
			if msg == "" {
				msg = "the database cannot be used"
			}
			return fulgur.E(kind, op, msg, err)
		}
		if got {
			return nil
		}
		if time.Now().After(deadline) {
			return d.taken(ctx, op, row)
		}
		select {
		case <-ctx.Done():
			return fulgur.E(fulgur.KindCanceled, op, "the caller left before the store was open", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// taken says who has the lock.
func (d *Driver) taken(ctx context.Context, op string, row query) error {
	var who string
	err := row(ctx, `SELECT coalesce(max(a.application_name), '') FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.objid::int8 = (hashtext($1 || current_schema())::int8 & 4294967295)`, lockName).Scan(&who)
	if err != nil || who == "" {
		who = "another process"
	}
	return fulgur.E(fulgur.KindConflict, op, who+" has this store open: stop it, or name another schema (…?search_path=NAME)", err)
}

// public is the URL without what is secret in it.
func (d *Driver) public() string {
	u, err := url.Parse(d.url)
	if err != nil {
		return "postgres:…"
	}
	u.RawQuery = ""
	return u.Redacted()
}

// Close does nothing: the lock goes with its connection.
func (d *Driver) Close() error { return nil }

// Explain says what an error of PostgreSQL means; see store.Driver.
func (d *Driver) Explain(err error) (fulgur.Kind, string) {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		if isGone(err) {
			return fulgur.KindUnavailable, "PostgreSQL at " + d.public() + " does not answer: is it running, and reachable from here?"
		}
		return fulgur.KindInternal, ""
	}
	switch {
	case pe.Code == "53100":
		return fulgur.KindExhausted, ""
	case pe.Code == "23505":
		return fulgur.KindConflict, ""
	case pe.Code[:2] == "54":
		return fulgur.KindInvalid, "PostgreSQL has a limit that this passes (an id of more than 2,000 characters?): " + pe.Message
	case pe.Code[:2] == "53":
		return fulgur.KindExhausted, "PostgreSQL is out of memory or connections: " + pe.Message
	case pe.Code == "55P03":
		return fulgur.KindUnavailable, ""
	case pe.Code[:2] == "57" || pe.Code[:2] == "08":
		return fulgur.KindUnavailable, "PostgreSQL at " + d.public() + " went away: " + pe.Message
	case pe.Code[:2] == "28" || pe.Code[:2] == "3D" || pe.Code == "3F000" || pe.Code == "42501" || pe.Code == "25006":
		return fulgur.KindInvalid, "PostgreSQL at " + d.public() + " refused: " + pe.Message + ": check the URL, and that the user may create tables there"
	}
	return fulgur.KindInternal, ""
}

// isGone says whether an error that is not the server's means that it, or the
// connection to it, is not there.
func isGone(err error) bool {
	var ne net.Error
	var ce *pgconn.ConnectError
	for _, is := range []error{sql.ErrConnDone, driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed} {
		if errors.Is(err, is) {
			return true
		}
	}
	return errors.As(err, &ce) || errors.As(err, &ne) || pgconn.SafeToRetry(err)
}

// connector makes connections that write strings as PostgreSQL takes them: it
// has no text with a zero byte or of broken UTF-8, which ids and error texts of
// v1's clients may be.
type connector struct{ driver.Connector }

// Connect makes a connection.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return cleanConn{conn.(*stdlib.Conn)}, nil
}

type cleanConn struct{ *stdlib.Conn }

// CheckNamedValue cleans a string; see driver.NamedValueChecker.
func (c cleanConn) CheckNamedValue(v *driver.NamedValue) error {
	if s, ok := v.Value.(string); ok {
		v.Value = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
		return nil
	}
	return c.Conn.CheckNamedValue(v)
}
