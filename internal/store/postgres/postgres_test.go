package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/postgres"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

var schemas atomic.Int64

// fresh makes an empty schema in the database of FULGUR_POSTGRES, which `make
// test-postgres` sets, and returns its URL.
func fresh(t *testing.T) string {
	t.Helper()
	base := os.Getenv("FULGUR_POSTGRES")
	if base == "" {
		t.Skip("FULGUR_POSTGRES names no database: run make test-postgres")
	}
	db, err := sql.Open("pgx", base)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	name := fmt.Sprintf("t%d_%d", os.Getpid(), schemas.Add(1))
	if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		db, err := sql.Open("pgx", base)
		if err == nil {
			_, err = db.ExecContext(context.Background(), "DROP SCHEMA "+name+" CASCADE")
			_ = db.Close()
		}
		if err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String()
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() store.Driver {
		u := fresh(t)
		return func() store.Driver { return postgres.New(u) }
	})
}

func TestASecondStoreOnTheSchemaIsRefused(t *testing.T) {
	u := fresh(t)
	s := storetest.Open(t, postgres.New(u))
	_, err := store.Open(t.Context(), postgres.New(u), store.Options{})
	if fulgur.KindOf(err) != fulgur.KindConflict || !strings.Contains(fulgur.PublicMessage(err), fmt.Sprint(":", os.Getpid())) {
		t.Errorf("%v", err)
	}
	storetest.Open(t, postgres.New(fresh(t))) // another schema is another store
	storetest.Close(t, s)
	storetest.Close(t, storetest.Open(t, postgres.New(u)))
}

func TestWhatCannotBeReachedSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		url  string
		kind fulgur.Kind
	}{
		"no server":            {"postgres://u:secret@127.0.0.1:1/db", fulgur.KindUnavailable},
		"no port":              {"postgres://127.0.0.1:port/db", fulgur.KindInvalid},
		"an unknown parameter": {"postgres://u:secret@127.0.0.1:1/db?sslmode=perhaps", fulgur.KindInvalid},
	} {
		_, err := store.Open(t.Context(), postgres.New(c.url), store.Options{})
		if fulgur.KindOf(err) != c.kind || strings.Contains(fulgur.PublicMessage(err), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTextThatPostgresHasNotIsKept(t *testing.T) {
	s := storetest.Open(t, postgres.New(fresh(t)))
	ctx := t.Context()
	id := fulgur.RolloutID("a\x00b\xff'\"\\?")
	if _, err := s.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	text := "exit\x00\xfe"
	p := &text
	if _, err := s.PatchStatus(ctx, id, fulgur.StatusPatch{Error: &p}); err != nil {
		t.Fatal(err)
	}
	if err := s.AppendCall(ctx, &fulgur.Call{ID: "c", Rollout: id, Attempt: "\x00", Request: []byte("\x00\xff")}); err != nil {
		t.Fatal(err)
	}
	c, err := s.Call(ctx, "c")
	if err != nil || string(c.Request) != "\x00\xff" {
		t.Errorf("%q, %v", c.Request, err)
	}
	if calls, err := s.Calls(ctx, id, ""); err != nil || len(calls) != 1 {
		t.Errorf("%d calls, %v", len(calls), err)
	}
}
