// Package store keeps the durable state of Fulgur: runs, rollouts, attempts,
// credentials, calls, events, endpoints, leases, and the log of changes that
// trainer and controller react to.
//
// One writer goroutine owns the state. A write is a function on the state in
// memory; the writer runs the writes that wait, all in one transaction, and
// answers them when it is committed: what was acknowledged is on record. What
// has not ended is held in memory, so that a model call needs no query; what
// has ended is read from the database. See design.md.
package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Options are the settings of a store. The zero value is good for tests.
type Options struct {
	Now       func() time.Time // nil: time.Now
	Rand      io.Reader        // of credentials and ids; nil: crypto/rand
	ServerKey string           // identifies trainers, controllers, people; "": everyone who shows no credential is trusted
}

// Store is the durable state. Its methods are safe for concurrent use; errors
// are *fulgur.Error.
type Store struct {
	driver Driver
	opts   Options
	keySum [sha256.Size]byte
	codec  *codec
	chains *chains
	drops  atomic.Int64 // DropRecords so far: what was told before one may rest on what is gone

	write, read *sql.DB
	sql         *statements // the writer's alone
	lost        lost
	queries     *queries

	reqs chan *request
	stop chan struct{} // closed by Close
	done chan struct{} // closed by the writer when it has stopped
	once sync.Once

	mu   sync.RWMutex
	live *live

	uploads uploads
}

// Open opens a store, brings its schema up to date and loads what is open.
// A store that was written by a newer binary is refused (KindUnsupported).
func Open(ctx context.Context, d Driver, o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	s := &Store{driver: d, opts: o, keySum: sha256.Sum256([]byte(o.ServerKey)), chains: newChains(maxChained),
		reqs: make(chan *request, 256), stop: make(chan struct{}), done: make(chan struct{})}
	var err error
	if s.codec, err = newCodec(); err != nil {
		return nil, fulgur.E(fulgur.KindInternal, "open store", "", err)
	}
	if s.write, s.read, err = d.Open(ctx); err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(s.fail("open store", err), s.closeHandles())
	}
	go s.writer()
	return s, nil
}

func (s *Store) start(ctx context.Context) error {
	conn, err := s.write.Conn(ctx)
	if err != nil {
		return err
	}
	if err := migrate(ctx, conn, s.driver, s.opts.Now()); err != nil {
		return err
	}
	if s.sql, err = prepare(ctx, conn, s.driver); err != nil {
		return err
	}
	if err := s.sql.clearUploads(ctx); err != nil {
		return err
	}
	if s.queries, err = prepareQueries(ctx, s.read, s.driver); err != nil {
		return err
	}
	if s.live, err = s.load(ctx); err != nil {
		return err
	}
	if _, ok := s.live.runs[fulgur.DefaultRun]; ok {
		return nil
	}
	return s.commit([]*request{{fn: func(b *batch) error {
		b.putRun(fulgur.Run{ID: fulgur.DefaultRun, CreatedAt: b.now})
		return nil
	}}})
}

// Close ends the writer after the writes that wait, and closes the database.
// Writes that come later get KindUnavailable.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		<-s.done
		err = s.closeHandles()
	})
	return err
}

func (s *Store) closeHandles() error {
	var errs []error
	if s.queries != nil {
		errs = append(errs, s.queries.close())
	}
	if s.sql != nil {
		errs = append(errs, s.sql.close())
	}
	errs = append(errs, s.read.Close(), s.write.Close(), s.driver.Close())
	return errors.Join(errs...)
}

// now is the time with the resolution that is stored.
func (s *Store) now() time.Time { return s.opts.Now().UTC().Truncate(time.Microsecond) }

// fail makes the boundary error of a database error; others pass unchanged.
func (s *Store) fail(op string, err error) error {
	var fe *fulgur.Error
	if err == nil || errors.As(err, &fe) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fulgur.E(fulgur.KindCanceled, op, "the caller left before the store had answered", err)
	}
	kind, msg := s.driver.Explain(err)
	switch {
	case msg != "":
	case kind == fulgur.KindExhausted:
		msg = "the store's disk is full: free some space, then try again; nothing that was acknowledged is lost"
	case kind == fulgur.KindUnavailable:
		msg = "the store is locked by another process: stop it, or wait"
	case kind == fulgur.KindConflict:
		msg = "it is on record already"
	default:
		msg = "the store failed; see the server's log"
	}
	return fulgur.E(kind, op, msg, err)
}

// credentialPrefix starts every attempt's credential.
const credentialPrefix = "fk-"

// Identify says who presents a secret: the server key, or an attempt's
// credential, also after its end. Without a server key, any other secret is the
// server's. What is unknown is KindDenied.
func (s *Store) Identify(ctx context.Context, secret string) (fulgur.Identity, error) {
	var buf [64]byte // what is no longer takes no memory
	sum := sha256.Sum256(append(buf[:0], secret...))
	// Hashes have one length, so the comparison's time tells nothing of the key.
	if subtle.ConstantTimeCompare(sum[:], s.keySum[:]) == 1 {
		return fulgur.Identity{Scope: fulgur.ScopeServer}, nil
	}
	s.mu.RLock()
	o, ok := s.live.creds[sum]
	var e *entry
	if ok {
		e = s.live.open[o.rollout]
	}
	s.mu.RUnlock()
	if e != nil {
		return e.identity(o.attempt), nil
	}
	id, err := s.queries.identity(ctx, sum)
	if errors.Is(err, sql.ErrNoRows) {
		// Without a server key every caller is trusted, but one that shows a
		// credential means to be held to it.
		if s.opts.ServerKey == "" && !strings.HasPrefix(secret, credentialPrefix) {
			return fulgur.Identity{Scope: fulgur.ScopeServer}, nil
		}
		return fulgur.Identity{}, fulgur.E(fulgur.KindDenied, "identify", "Invalid or missing API key", nil)
	}
	return id, s.fail("identify", err)
}
