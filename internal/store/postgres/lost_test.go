package postgres_test

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/postgres"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

// TestCallsOutliveTheConnection ends the store's connections again and again
// while calls come in: each call waits, is on record, and once.
func TestCallsOutliveTheConnection(t *testing.T) {
	u := fresh(t)
	s := storetest.Open(t, postgres.New(u))
	ctx := t.Context()
	var specs []fulgur.RolloutSpec
	for w := range 4 {
		specs = append(specs, fulgur.RolloutSpec{ID: fulgur.RolloutID(fmt.Sprint("r", w)), Run: fulgur.DefaultRun, Input: []byte("{}")})
	}
	if _, err := s.CreateRollouts(ctx, specs); err != nil {
		t.Fatal(err)
	}
	const calls = 60
	var wg sync.WaitGroup
	var written atomic.Int64
	for w := range specs {
		wg.Go(func() {
			talk := storetest.NewTalk(uint64(w))
			for i := range calls {
				if err := s.AppendCall(ctx, talk.Call(specs[w].ID)); err != nil {
					t.Error(err)
				}
				written.Add(1)
				id := fulgur.RolloutID(fmt.Sprintf("new-%d-%d", w, i))
				if _, err := s.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: []byte("{}")}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	db, err := sql.Open("pgx", os.Getenv("FULGUR_POSTGRES"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	killed, before := int64(0), int64(-1)
	for going := true; going; {
		select {
		case <-done:
			going = false
		case <-time.After(100 * time.Millisecond):
			n := written.Load()
			if n == before { // where coming back takes longer than this, it never would
				continue
			}
			before = n
			r, err := db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'fulgur %'`)
			if err != nil {
				t.Fatal(err)
			}
			gone, _ := r.RowsAffected()
			killed += gone
		}
	}
	if killed == 0 {
		t.Error("no connection was ended")
	}
	t.Logf("%d connections were ended", killed)
	storetest.Close(t, s)
	s = storetest.Open(t, postgres.New(u))
	for _, spec := range specs {
		if got, err := s.Calls(ctx, spec.ID, "0"); err != nil || len(got) != calls {
			t.Errorf("%d calls of %s, %v", len(got), spec.ID, err)
		}
	}
	if all, err := s.Rollouts(ctx, fulgur.RolloutQuery{Limit: 1000}); err != nil || len(all) != len(specs)*(1+calls) {
		t.Errorf("%d rollouts, %v", len(all), err)
	}
	if r, err := store.Check(ctx, postgres.New(u)); err != nil || !r.OK() {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCallsOutliveARestartOfTheServer(t *testing.T) {
	restart := os.Getenv("FULGUR_POSTGRES_RESTART")
	if restart == "" {
		t.Skip("FULGUR_POSTGRES_RESTART restarts no server: run make test-postgres")
	}
	u := fresh(t)
	s := storetest.Open(t, postgres.New(u))
	ctx := t.Context()
	if _, err := s.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: "r", Run: fulgur.DefaultRun, Input: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	restarted := make(chan error, 1)
	talk, calls := storetest.NewTalk(1), 0
	for going := true; going; calls++ {
		if calls == 5 {
			go func() {
				out, err := exec.Command("sh", "-c", restart).CombinedOutput()
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				restarted <- err
			}()
		}
		if err := s.AppendCall(ctx, talk.Call("r")); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-restarted:
			if going = false; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	if err := s.AppendCall(ctx, talk.Call("r")); err != nil {
		t.Fatal(err)
	}
	// A reader may meet a connection that is gone once; then it has a new one.
	var got []fulgur.Call
	var err error
	for range 10 {
		if got, err = s.Calls(ctx, "r", "0"); err == nil {
			break
		}
	}
	if err != nil || len(got) != calls+1 {
		t.Errorf("%d of %d calls, %v", len(got), calls+1, err)
	}
}
