package storetest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
)

// noise is n bytes that differ everywhere.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func testArtifacts(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	create(t, s, "a", "b")
	for _, id := range []fulgur.RolloutID{"a", "b"} {
		must(s.OpenAttempt(ctx, id))(t)
	}
	a := fulgur.AttemptKey{Rollout: "a", Attempt: "0"}
	const most = 2 << 20
	big := noise(1<<20+17, 1)
	put := func(key fulgur.AttemptKey, name string, body []byte) (bool, error) {
		_, created, err := s.PutArtifact(ctx, key, name, "", bytes.NewReader(body), most)
		return created, err
	}
	read := func(key fulgur.AttemptKey, name string) []byte {
		t.Helper()
		_, r, err := s.Artifact(ctx, key, name)
		noError(t, err)
		return must(io.ReadAll(r))(t)
	}
	equal(t, "the first is new", must(put(a, "workspace", big))(t), true)
	equal(t, "the same again is none", must(put(a, "workspace", big))(t), false)
	_, err := put(a, "workspace", []byte("other"))
	wantKind(t, err, fulgur.KindConflict)
	for name, test := range map[string]struct {
		key  fulgur.AttemptKey
		name string
		body io.Reader
		kind fulgur.Kind
	}{
		"all of an attempt's count":     {a, "more", bytes.NewReader(big), fulgur.KindTooLarge},
		"a body that never ends":        {fulgur.AttemptKey{Rollout: "b", Attempt: "0"}, "w", endless{}, fulgur.KindTooLarge},
		"a body that breaks off":        {a, "cut", io.MultiReader(bytes.NewReader(big[:900_000]), iotest.ErrReader(errors.New("gone"))), fulgur.KindInvalid},
		"a body that is cut off":        {a, "cut", io.MultiReader(bytes.NewReader(big[:900_000]), iotest.ErrReader(io.ErrUnexpectedEOF)), fulgur.KindInvalid},
		"one that is cut off at once":   {a, "cut", iotest.ErrReader(io.ErrUnexpectedEOF), fulgur.KindInvalid},
		"an attempt that there is not":  {fulgur.AttemptKey{Rollout: "a", Attempt: "1"}, "w", strings.NewReader(""), fulgur.KindNotFound},
		"a rollout that there is not":   {fulgur.AttemptKey{Rollout: "c", Attempt: "0"}, "w", strings.NewReader(""), fulgur.KindNotFound},
		"a name that leads to a folder": {a, "../w", strings.NewReader(""), fulgur.KindInvalid},
	} {
		_, _, err := s.PutArtifact(ctx, test.key, test.name, "", test.body, most)
		if fulgur.KindOf(err) != test.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(put(a, "empty", nil))(t)
	if got := read(a, "empty"); len(got) != 0 {
		t.Errorf("%d bytes of nothing", len(got))
	}
	// Of many at once, one is taken.
	b := fulgur.AttemptKey{Rollout: "b", Attempt: "0"}
	var wg sync.WaitGroup
	kinds := make([]fulgur.Kind, 8)
	for i := range kinds {
		wg.Go(func() {
			for kinds[i] = fulgur.KindUnavailable; kinds[i] == fulgur.KindUnavailable; { // two at a time
				_, err := put(b, "race", noise(600_000, uint64(i)))
				kinds[i] = fulgur.KindOf(err)
			}
		})
	}
	wg.Wait()
	won := 0
	for _, k := range kinds {
		if k == "" {
			won++
		} else if k != fulgur.KindConflict {
			t.Errorf("kind %s", k)
		}
	}
	equal(t, "of many at once", won, 1)
	must2 := func(_ fulgur.Artifact, _ bool, err error) { t.Helper(); noError(t, err) }
	must2(s.PutArtifact(ctx, b, "tests", "its own", strings.NewReader("copy"), most))
	equal(t, "its own secret reads it", s.MayReadArtifact(ctx, b, "tests", "its own"), true)
	equal(t, "another does not", s.MayReadArtifact(ctx, b, "tests", "another"), false)
	equal(t, "none does where none was given", s.MayReadArtifact(ctx, b, "race", ""), false)
	noError(t, s.DeleteArtifact(ctx, b, "tests"))
	noError(t, s.DeleteArtifact(ctx, b, "tests"))
	_, _, err = s.Artifact(ctx, b, "tests")
	wantKind(t, err, fulgur.KindNotFound)

	Close(t, s)
	sound(t, driver(), 0)
	s = Open(t, driver())
	if !bytes.Equal(read(a, "workspace"), big) {
		t.Error("the bytes are others after a restart")
	}
	list := must(s.Artifacts(ctx, a))(t)
	if len(list) != 2 || list[1].Name != "workspace" || list[1].Size != int64(len(big)) || len(list[1].SHA256) != 64 {
		t.Errorf("listed %+v", list)
	}
	must(s.ReportAttempt(ctx, "a", "0", okay))(t)
	_, err = put(a, "late", nil)
	wantKind(t, err, fulgur.KindGone)
	equal(t, "an ended attempt's are still there", len(read(a, "workspace")), len(big))
	equal(t, "rollouts dropped", must(s.DropRecords(ctx, "", time.Now().Add(time.Hour)))(t), 1)
	noError(t, s.Vacuum(ctx))
	equal(t, "artifacts that stay", len(must(s.Artifacts(ctx, a))(t)), 0)
	equal(t, "of one that has not ended", len(must(s.Artifacts(ctx, b))(t)), 1)
	Close(t, s)
	sound(t, driver(), 0)
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// seen is a driver whose database a test reads beside its store.
type seen struct {
	store.Driver
	db *sql.DB
}

func (d *seen) Open(ctx context.Context) (write, read *sql.DB, err error) {
	write, d.db, err = d.Driver.Open(ctx)
	return write, d.db, err
}

// An attempt's uploads count from their first part on: many that stay open fill no disk.
func testUploads(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	d := &seen{Driver: driver()}
	s := Open(t, d)
	create(t, s, "a", "b")
	for _, id := range []fulgur.RolloutID{"a", "b"} {
		must(s.OpenAttempt(ctx, id))(t)
	}
	a, b := fulgur.AttemptKey{Rollout: "a", Attempt: "0"}, fulgur.AttemptKey{Rollout: "b", Attempt: "0"}
	const most = 2 << 20
	body := noise(most*3/4, 1)
	stored := func() (n int64) {
		t.Helper()
		noError(t, d.db.QueryRowContext(ctx, "SELECT coalesce(sum(length(data)), 0) FROM artifact_parts").Scan(&n))
		return n
	}
	put := func(key fulgur.AttemptKey, name string, r io.Reader) error {
		_, _, err := s.PutArtifact(ctx, key, name, "", r, most)
		return err
	}
	// start sends body and no end, of which at least all but one part is on record then.
	start := func(key fulgur.AttemptKey, name string, body []byte) (*io.PipeWriter, chan error) {
		t.Helper()
		r, w := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			err := put(key, name, r)
			_ = r.CloseWithError(err)
			ended <- err
		}()
		must(w.Write(append(body, 0)))(t)
		return w, ended
	}
	first, ended := start(a, "first", body)
	wantKind(t, put(a, "second", bytes.NewReader(body)), fulgur.KindUnavailable)
	equal(t, "bytes on record, of one that is open", stored(), int64(len(body)))
	noError(t, put(b, "first", bytes.NewReader(body)))
	_, _, err := s.PutArtifact(ctx, a, "servers", "", strings.NewReader("any"), math.MaxInt64)
	noError(t, err)

	second, secondEnded := start(a, "second", nil)
	wantKind(t, put(a, "third", iotest.ErrReader(errors.New("read"))), fulgur.KindUnavailable)
	noError(t, put(b, "second", strings.NewReader("an attempt's own")))
	noError(t, second.CloseWithError(os.ErrDeadlineExceeded))
	wantKind(t, <-secondEnded, fulgur.KindTimeout)
	noError(t, first.CloseWithError(errors.New("cut")))
	wantKind(t, <-ended, fulgur.KindInvalid)
	equal(t, "bytes on record, but for artifacts", stored(), int64(len(body)+len("any")+len("an attempt's own")))
	noError(t, put(a, "first", bytes.NewReader(body)))
	wantKind(t, put(a, "second", bytes.NewReader(body)), fulgur.KindTooLarge)

	// The end of an attempt is the end of what it sends.
	noError(t, s.DeleteArtifact(ctx, a, "first"))
	last, ended := start(a, "last", body)
	must(s.ReportAttempt(ctx, "a", "0", okay))(t)
	if _, err := last.Write(body); fulgur.KindOf(err) != fulgur.KindGone {
		t.Errorf("behind the end: %v", err)
	}
	wantKind(t, <-ended, fulgur.KindGone)
	equal(t, "bytes on record, but for artifacts", stored(), int64(len(body)+len("any")+len("an attempt's own")))
}
