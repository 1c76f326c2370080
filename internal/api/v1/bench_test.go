package v1

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

// BenchmarkTriplets reads a rollout of 100 agent-sized calls as triplets, 14 MB.
func BenchmarkTriplets(b *testing.B) {
	path := filepath.Join(b.TempDir(), "s.db")
	s, err := store.Open(b.Context(), sqlite.New(path, sqlite.Options{}), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if _, err := s.CreateRollouts(b.Context(), []fulgur.RolloutSpec{{ID: "r", Run: fulgur.DefaultRun, Input: json.RawMessage("{}")}}); err != nil {
		b.Fatal(err)
	}
	t := storetest.NewTalk(1)
	for range 100 {
		if err := s.AppendCall(b.Context(), t.Call("r")); err != nil {
			b.Fatal(err)
		}
	}
	h := New(Options{Store: s})
	cpu := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	from := cpu()
	for b.Loop() {
		w := &sink{header: http.Header{}}
		h.ServeHTTP(w, httptest.NewRequest("GET", "/api/rollouts/r/events?format=triplet", nil))
		if w.status != 200 || w.size < 1e6 {
			b.Fatal(w.status, w.size)
		}
	}
	b.ReportMetric((cpu()-from).Seconds()/float64(b.N), "cpu-s/op")
}

// sink counts an answer.
type sink struct {
	header       http.Header
	status, size int
}

func (s *sink) Header() http.Header    { return s.header }
func (s *sink) WriteHeader(status int) { s.status = status }
func (s *sink) Write(b []byte) (int, error) {
	s.size += len(b)
	return len(b), nil
}
