package v2_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	v2 "github.com/fulgur-rl/fulgur/internal/api/v2"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

func newClient(t *testing.T, url string, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(url, "key", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestPausesGoThroughTheClient(t *testing.T) {
	g := &gate{}
	_, srv := serve(t, v2.Options{Gate: g})
	c := newClient(t, srv.URL, client.Options{})
	ctx := t.Context()
	req := fulgur.PauseRequest{Owner: "trainer", Lease: time.Minute, Drain: 3 * time.Second, Reason: "new policy version"}
	p, err := c.PauseCalls(ctx, "default", req)
	if err != nil || g.got != req || !p.Paused || p.InFlight != 2 || p.Run != "default" {
		t.Errorf("%+v, %+v, %v", p, g.got, err)
	}
	if _, err := c.ResumeCalls(ctx, "default", "another"); fulgur.KindOf(err) != fulgur.KindConflict || fulgur.PublicMessage(err) != "paused by trainer" {
		t.Error(err)
	}
	if p, err := c.ResumeCalls(ctx, "default", "trainer"); err != nil || p.Paused {
		t.Error(p, err)
	}
	if p, err := c.PauseState(ctx, "default"); err != nil || p.Held != 3 {
		t.Error(p, err)
	}
	if as, err := c.Activities(ctx, []fulgur.AttemptKey{{Rollout: "r", Attempt: "0"}, {Rollout: "r", Attempt: "1"}}); err != nil || len(as) != 2 || as[1].Calls != 4 {
		t.Error(as, err)
	}
	if a, err := c.Activity(ctx, "r", "0"); err != nil || a.Calls != 4 || a.Held != time.Second {
		t.Error(a, err)
	}
}

// TestAServerThatRestartsIsWaitedFor stops the server under a client that
// watches and writes: neither notices more than a delay.
func TestAServerThatRestartsIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	start := func() (*store.Store, http.Handler) {
		s, err := store.Open(t.Context(), sqlite.New(path, sqlite.Options{}), store.Options{ServerKey: "key"})
		if err != nil {
			t.Fatal(err)
		}
		return s, v2.New(v2.Options{Store: s})
	}
	s, h := start()
	var handler atomic.Pointer[http.Handler]
	handler.Store(&h)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*handler.Load()).ServeHTTP(w, r) }))
	defer srv.Close()
	c := newClient(t, srv.URL, client.Options{})
	ctx := t.Context()
	attempt(t, s, "r")
	seen := make(chan fulgur.Phase, 100)
	go func() {
		for after := fulgur.Seq(0); ; {
			cs, err := c.Changes(ctx, "", after)
			if err != nil {
				return // the test has ended
			}
			for _, ch := range cs {
				after = ch.Seq
				if ch.Kind == fulgur.ChangeAttempt {
					seen <- ch.Phase
				}
			}
		}
	}()
	if p := <-seen; p != fulgur.PhaseWaiting {
		t.Fatal(p)
	}
	// Down: connections break, then nothing but 503 and broken answers.
	var tries atomic.Int32
	down := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1)%2 == 0 {
			panic(http.ErrAbortHandler)
		}
		http.Error(w, "starting", http.StatusServiceUnavailable)
	}))
	handler.Store(&down)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	srv.CloseClientConnections()
	reported := make(chan error, 1)
	go func() {
		_, err := c.ReportAttempt(ctx, "r", "0", fulgur.AttemptReport{Phase: fulgur.PhaseRunning})
		reported <- err
	}()
	for tries.Load() < 4 { // both have met the server that is down
		time.Sleep(time.Millisecond)
	}
	s, h = start()
	defer func() {
		srv.CloseClientConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	handler.Store(&h)
	if err := <-reported; err != nil {
		t.Error(err)
	}
	if p := <-seen; p != fulgur.PhaseRunning {
		t.Error(p)
	}
}

func TestAServerThatIsNotThereIsSaidSo(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	url := srv.URL
	c := newClient(t, url, client.Options{RetryFor: -1})
	if _, err := c.Head(t.Context()); fulgur.KindOf(err) != fulgur.KindNotFound { // some other server
		t.Error(err)
	}
	srv.Close()
	if _, err := c.Head(t.Context()); fulgur.KindOf(err) != fulgur.KindUnavailable {
		t.Error(err)
	}
	if _, err := c.Changes(t.Context(), "", 0); fulgur.KindOf(err) != fulgur.KindUnavailable {
		t.Error(err)
	}
	if _, err := client.New("localhost:8080", "", client.Options{}); fulgur.KindOf(err) != fulgur.KindInvalid {
		t.Error(err)
	}
}
