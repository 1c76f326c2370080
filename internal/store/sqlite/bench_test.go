package sqlite_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peak is the most memory that this process, with the maker of the calls, has
// had, in MiB.
func peak(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("no /proc")
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib float64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}

func openBench(b *testing.B) (*store.Store, string) {
	path := filepath.Join(b.TempDir(), "s.db")
	s, err := store.Open(b.Context(), sqlite.New(path, sqlite.Options{}), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s, path
}

func rollouts(b *testing.B, s *store.Store, ids ...fulgur.RolloutID) {
	specs := make([]fulgur.RolloutSpec, len(ids))
	for i, id := range ids {
		specs[i] = fulgur.RolloutSpec{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage(`{"data_id":"x"}`)}
	}
	if _, err := s.CreateRollouts(b.Context(), specs); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkGrowingHistories records b.N agents of 100 calls, 8 at a time, and
// prints what a call takes on disk and of the processor, without making it.
func BenchmarkGrowingHistories(b *testing.B) {
	s, path := openBench(b)
	var making, took time.Duration
	var mu sync.Mutex
	total := 0
	for n := 0; n < b.N; n += 8 {
		var ids []fulgur.RolloutID
		var talks []*storetest.Talk
		for i := n; i < min(b.N, n+8); i++ {
			ids, talks = append(ids, fulgur.RolloutID(fmt.Sprint("r", i))), append(talks, storetest.NewTalk(uint64(i)))
		}
		rollouts(b, s, ids...)
		for range 100 {
			begin := cpu()
			calls := make([]*fulgur.Call, len(talks))
			for i, t := range talks {
				calls[i] = t.Call(ids[i])
			}
			made := cpu()
			var wg sync.WaitGroup
			for _, c := range calls {
				wg.Go(func() {
					if err := s.AppendCall(b.Context(), c); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			mu.Lock()
			making, took, total = making+made-begin, took+cpu()-made, total+len(calls)
			mu.Unlock()
		}
	}
	size := int64(0)
	for _, end := range []string{"", "-wal"} {
		if st, err := os.Stat(path + end); err == nil {
			size += st.Size()
		}
	}
	b.ReportMetric(float64(size)/float64(total)/1024, "KiB/call")
	b.ReportMetric(float64(took.Microseconds())/float64(total), "cpu-µs/call")
	b.ReportMetric(peak(b), "MiB-of-memory")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkReadingAnAgent reads a rollout of 100 such calls: whole, as records,
// and its last call alone.
func BenchmarkReadingAnAgent(b *testing.B) {
	s, path := openBench(b)
	rollouts(b, s, "r")
	t := storetest.NewTalk(1)
	for range 100 {
		if err := s.AppendCall(b.Context(), t.Call("r")); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	s, err := store.Open(b.Context(), sqlite.New(path, sqlite.Options{}), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for name, f := range map[string]func() error{
		"calls": func() error { _, err := s.Calls(b.Context(), "r", "0"); return err },
		"record": func() error {
			_, err := s.Records(b.Context(), []fulgur.RolloutID{"r"})
			return err
		},
		"one call": func() error { _, err := s.Call(b.Context(), "r.99"); return err },
	} {
		b.Run(name, func(b *testing.B) {
			from := cpu()
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu()-from).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// BenchmarkSmallCall records calls of the size of the demo's: four of a growing
// history per rollout, by 16 callers.
func BenchmarkSmallCall(b *testing.B) {
	s, _ := openBench(b)
	const callers = 16
	var ids []fulgur.RolloutID
	for i := range callers * (b.N/callers/4 + 1) {
		ids = append(ids, fulgur.RolloutID(fmt.Sprint("r", i)))
	}
	rollouts(b, s, ids...)
	filler := strings.Repeat("Use the calculator. Answer with a number. ", 50)
	calls := make([][]*fulgur.Call, callers)
	for w := range callers {
		for i := range b.N / callers {
			k := i % 4
			id := ids[w*(b.N/callers/4+1)+i/4]
			c := &fulgur.Call{ID: fulgur.CallID(fmt.Sprintf("%d.%d", w, i)), Rollout: id, Attempt: "0", Index: k, HTTPStatus: 200, Trainable: true}
			for m := range 2*k + 2 {
				c.Messages = append(c.Messages, fulgur.Message{Role: "user", Content: filler[:2000-400*min(m, 4)] + fmt.Sprint(w, i/4, m)})
			}
			c.Request, _ = json.Marshal(c.Messages)
			for n := range 100 + 100*k {
				c.PromptIDs = append(c.PromptIDs, int32(n*n%700))
			}
			c.SampledIDs, c.LogProbs = c.PromptIDs[:40], make([]float32, 40)
			calls[w] = append(calls[w], c)
		}
	}
	runtime.GC()
	from := cpu()
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, list := range calls {
		wg.Go(func() {
			for _, c := range list {
				if err := s.AppendCall(b.Context(), c); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64((cpu()-from).Microseconds())/float64(b.N), "cpu-µs/call")
}

// BenchmarkListing lists what is open among 100,000 rollouts, and reads a page of
// 1000 of the completion log.
func BenchmarkListing(b *testing.B) {
	s, _ := openBench(b)
	specs := make([]fulgur.RolloutSpec, 100_000)
	for i := range specs {
		specs[i] = fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprint("r", i)), Run: fulgur.DefaultRun, Input: json.RawMessage(`{"data_id":"x"}`)}
	}
	if _, err := s.CreateRollouts(b.Context(), specs); err != nil {
		b.Fatal(err)
	}
	failed := fulgur.Failed
	var wg sync.WaitGroup
	for w := range 100 {
		wg.Go(func() {
			for i := w; i < len(specs)-100; i += 100 {
				if _, err := s.PatchStatus(b.Context(), specs[i].ID, fulgur.StatusPatch{State: &failed}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for name, f := range map[string]func() (int, error){
		"open": func() (int, error) {
			rs, err := s.Rollouts(b.Context(), fulgur.RolloutQuery{States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Running}})
			return len(rs), err
		},
		"page of 1000": func() (int, error) {
			p, err := s.Terminal(b.Context(), 50_000, 1000)
			return len(p.Items), err
		},
	} {
		b.Run(name, func(b *testing.B) {
			from := cpu()
			for b.Loop() {
				if n, err := f(); err != nil || n < 100 {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64((cpu()-from).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}
