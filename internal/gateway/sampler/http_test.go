package sampler

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// GW-14: an idle connection is given up before uvicorn would close it (5 s), so
// that no call goes out on a dying one; a busy agent's next call reuses it.
func TestIdleConnectionsEndBeforeTheServers(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 4 s")
	}
	t.Parallel()
	opened, closed := make(chan time.Time, 10), make(chan time.Time, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{}"))
	}))
	s.Config.IdleTimeout = time.Minute // what closes first is the client
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			opened <- time.Now()
		case http.StateClosed:
			closed <- time.Now()
		}
	}
	s.Start()
	defer s.Close()
	client := NewClient()
	call := func() {
		t.Helper()
		r, err := client.Post(s.URL, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
	}
	call()
	call()
	idle := time.Now()
	select {
	case at := <-closed:
		if wait := at.Sub(idle); wait < 2*time.Second {
			t.Errorf("given up after %s: a tool that takes as long costs a connection each turn", wait)
		}
	case <-time.After(5 * time.Second):
		t.Error("still open after 5 s")
	}
	if n := len(opened); n != 1 {
		t.Errorf("%d connections for two calls", n)
	}
}
