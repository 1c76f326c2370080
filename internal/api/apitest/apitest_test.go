package apitest_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
	"github.com/fulgur-rl/fulgur/internal/api/apitest"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	v2 "github.com/fulgur-rl/fulgur/internal/api/v2"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

func open(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), sqlite.New(filepath.Join(t.TempDir(), "s.db"), sqlite.Options{}), store.Options{ServerKey: "key"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	apitest.Run(t, func(t *testing.T) apitest.Subject {
		s := open(t)
		return apitest.Subject{API: s, Store: s}
	})
}

func TestClient(t *testing.T) {
	apitest.Run(t, func(t *testing.T) apitest.Subject {
		s := open(t)
		srv := httptest.NewServer(described(t, v2.New(v2.Options{Store: s, Capabilities: api.Capabilities{Version: "test"}})))
		c, err := client.New(srv.URL, "key", client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			srv.CloseClientConnections()
			srv.Close()
		})
		return apitest.Subject{API: c, Store: s}
	})
}

// described is h, with every answer held against the API's own description.
func described(t *testing.T, h http.Handler) http.Handler {
	var mu sync.Mutex
	d := describe(t, h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/watch") { // has no end
			h.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		mu.Lock()
		err := d.check(r.Method, r.URL.EscapedPath(), rec.Code, rec.Header().Get("Content-Type"), rec.Body.Bytes())
		mu.Unlock()
		if err != nil {
			t.Error(err)
		}
		maps.Copy(w.Header(), rec.Header())
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	})
}

// TestAWatchOfSomeStates: changes of rollouts in other states are left out, and
// the watch lives on through a time when there are only those.
func TestAWatchOfSomeStates(t *testing.T) {
	s := open(t)
	srv := httptest.NewServer(v2.New(v2.Options{Store: s, Heartbeat: 50 * time.Millisecond}))
	defer srv.Close()
	c, err := client.New(srv.URL, "key", client.Options{States: []fulgur.RolloutState{fulgur.Succeeded}, Silence: 300 * time.Millisecond, RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx := t.Context()
	head, err := s.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for i := range 60 { // for longer than Silence
			id := fulgur.RolloutID(fmt.Sprint("r", i))
			if _, err := s.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: []byte("{}")}}); err != nil {
				t.Error(err)
				return
			}
			_, _ = s.OpenAttempt(ctx, id)
			time.Sleep(10 * time.Millisecond)
		}
		_, _ = s.ReportAttempt(ctx, "r7", "0", fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeOK, Reason: "ok"}})
	}()
	changes, err := c.Changes(ctx, fulgur.DefaultRun, head)
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) != 1 || changes[0].Rollout != "r7" || changes[0].State != fulgur.Succeeded {
		t.Errorf("changes %+v", changes)
	}
}
