package sqlite_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

// ST-07: rollouts of 20 growing turns that are made, end and are deleted leave next
// to nothing in memory, of more than a megabyte each, and the cursor of completions
// where it was.
func TestManyRolloutsAreMadeAndDeleted(t *testing.T) {
	if testing.Short() {
		t.Skip("records 2,000 calls")
	}
	s := storetest.Open(t, sqlite.New(filepath.Join(t.TempDir(), "s.db"), sqlite.Options{}))
	ctx := t.Context()
	const turns, atOnce = 20, 10
	n := 0
	round := func(rollouts int) (heap uint64) {
		t.Helper()
		for range rollouts / atOnce {
			var wg sync.WaitGroup
			for range atOnce {
				n++
				id := fulgur.RolloutID(fmt.Sprint("r", n))
				talk := storetest.NewTalk(uint64(n))
				make1(t, s, id)
				wg.Go(func() {
					if _, err := s.OpenAttempt(ctx, id); err != nil {
						t.Error(err)
					}
					for range turns {
						if err := s.AppendCall(ctx, talk.Call(id)); err != nil {
							t.Error(err)
						}
					}
					if _, err := s.ReportAttempt(ctx, id, "0", fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeOK, Reason: "exit"}}); err != nil {
						t.Error(err)
					}
					if err := s.DeleteRollout(ctx, id); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		var m runtime.MemStats
		for range 3 { // what waits for finalizers goes too
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := round(40)
	after := round(60)
	t.Logf("%d KiB after 40 rollouts, %d KiB after 100", before>>10, after>>10)
	if after > before+2<<20 {
		t.Errorf("memory grew by %d bytes a deleted rollout", (after-before)/60)
	}
	page, err := s.Terminal(ctx, n-10, 100)
	if err != nil || page.Total != n || page.Next != n || len(page.Items) != 0 {
		t.Errorf("the cursor: %+v, %v", page, err)
	}
}
