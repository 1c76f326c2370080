package sqlite_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

func make1(t testing.TB, s *store.Store, ids ...fulgur.RolloutID) {
	t.Helper()
	specs := make([]fulgur.RolloutSpec, len(ids))
	for i, id := range ids {
		specs[i] = fulgur.RolloutSpec{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage("{}")}
	}
	if _, err := s.CreateRollouts(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
}

func TestABackupIsWholeWhileCallsComeIn(t *testing.T) {
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "s.db"), filepath.Join(dir, "copy.db")
	s := storetest.Open(t, sqlite.New(path, sqlite.Options{}))
	make1(t, s, "r0", "r1", "r2", "r3")
	stop := make(chan struct{})
	first := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			tk := storetest.NewTalk(uint64(w))
			for i := 0; ; i++ {
				if err := s.AppendCall(t.Context(), tk.Call(fulgur.RolloutID(fmt.Sprint("r", w)))); err != nil {
					t.Error(err)
				}
				if i == 5 {
					first <- struct{}{}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 4 {
		<-first
	}
	err := store.Backup(t.Context(), sqlite.New(path, sqlite.Options{}), copied)
	r, err2 := store.Check(t.Context(), sqlite.New(path, sqlite.Options{})) // of the live one
	close(stop)
	wg.Wait()
	if err != nil || err2 != nil || !r.OK() || r.Calls < 20 {
		t.Fatalf("%v, %v, %+v", err, err2, r)
	}
	if r, err = store.Check(t.Context(), sqlite.New(copied, sqlite.Options{})); err != nil || !r.OK() || r.Calls < 20 || r.Rollouts != 4 {
		t.Errorf("the copy: %+v, %v", r, err)
	}
	c := storetest.Open(t, sqlite.New(copied, sqlite.Options{}))
	for w := range 4 {
		id := fulgur.RolloutID(fmt.Sprint("r", w))
		got, err := c.Calls(t.Context(), id, "")
		all, err2 := s.Calls(t.Context(), id, "")
		if err != nil || err2 != nil || len(got) < 5 || len(got) > len(all) || !slices.EqualFunc(got, all[:len(got)], func(a, b fulgur.Call) bool { return string(a.Response) == string(b.Response) }) {
			t.Errorf("%d of %d calls, %v, %v", len(got), len(all), err, err2)
		}
	}
	if st, err := os.Stat(copied); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := store.Backup(t.Context(), sqlite.New(path, sqlite.Options{}), copied); fulgur.KindOf(err) != fulgur.KindConflict {
		t.Errorf("over a file that is there: %v", err)
	}
	if err := store.Backup(t.Context(), sqlite.New(path+"x", sqlite.Options{}), copied); fulgur.KindOf(err) != fulgur.KindNotFound {
		t.Errorf("of a store that is not there: %v", err)
	}
	if err := store.Backup(t.Context(), sqlite.New(path, sqlite.Options{}), filepath.Join(dir, "no", "where.db")); fulgur.KindOf(err) != fulgur.KindInvalid {
		t.Errorf("to a folder that is not there: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCheckSaysWhatIsWrong(t *testing.T) {
	for damage, says := range map[string]string{
		`DELETE FROM calls WHERE call = 'r.1'`:                                          "which is not there",
		`UPDATE calls SET bodies = x'03ffff' WHERE call = 'r.2'`:                        "call r.2 of rollout r: it cannot be read",
		`UPDATE calls SET log_probs = x'00000000' WHERE call = 'r.3'`:                   "1 log probs for 200 sampled ids",
		`UPDATE calls SET meta = '{"sampling":{},"spans":[{"start":0},{"start":900}]}'`: "spans",
		`UPDATE calls SET sampled_ids = NULL, log_probs = NULL WHERE call = 'r.0'`:      "trainable, and has no token ids",
		`DELETE FROM rollouts`:                    "belong to no rollout",
		`DELETE FROM inputs`:                      "have no input",
		`UPDATE rollouts SET state = 'succeeded'`: "not in the completion log",
		`INSERT INTO events VALUES (2, 1, '0', 't', '{}', '', 0), (3, 1, '0', 't', '{}', '', 0)`: "share a position",
		`INSERT INTO completions VALUES (2, 1, 'failed', '', 0)`:                                 "have not ended",
	} {
		path := filepath.Join(t.TempDir(), "s.db")
		s := storetest.Open(t, sqlite.New(path, sqlite.Options{}))
		make1(t, s, "r")
		tk := storetest.NewTalk(1)
		for range 6 {
			if err := s.AppendCall(t.Context(), tk.Call("r")); err != nil {
				t.Fatal(err)
			}
		}
		storetest.Close(t, s)
		if r, err := store.Check(t.Context(), sqlite.New(path, sqlite.Options{})); err != nil || !r.OK() {
			t.Fatalf("before: %+v, %v", r, err)
		}
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.ExecContext(t.Context(), damage)
		if err != nil {
			t.Fatal(damage, err)
		}
		db.Close()
		r, err := store.Check(t.Context(), sqlite.New(path, sqlite.Options{}))
		if err != nil || r.OK() || !strings.Contains(strings.Join(r.Problems, "\n"), says) {
			t.Errorf("%s: %+v, %v", damage, r, err)
		}
	}
}

func TestCheckOfWhatIsNoStore(t *testing.T) {
	dir := t.TempDir()
	text, other := filepath.Join(dir, "a.txt"), filepath.Join(dir, "other.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("no database", 100)), 0o644); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE x (y)"); err != nil {
		t.Fatal(err)
	}
	db.Close()
	old := filepath.Join(dir, "old.db")
	if err := os.WriteFile(old, unzip(t, "testdata/schema1.db.gz"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, kind := range map[string]fulgur.Kind{text: fulgur.KindInvalid, other: fulgur.KindInvalid, dir: fulgur.KindNotFound, filepath.Join(dir, "none"): fulgur.KindNotFound, old: fulgur.KindUnsupported} {
		if _, err := store.Check(t.Context(), sqlite.New(path, sqlite.Options{})); fulgur.KindOf(err) != kind {
			t.Errorf("%s: %v, want %s", path, err, kind)
		}
	}
}

// TestDroppedRecordsGiveTheirSpaceBack is ST-07's second half: what retention
// took is gone from the disk, and positions go on.
func TestDroppedRecordsGiveTheirSpaceBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s := storetest.Open(t, sqlite.New(path, sqlite.Options{}))
	ctx := t.Context()
	make1(t, s, "old", "open", "late")
	talks := map[fulgur.RolloutID]*storetest.Talk{"old": storetest.NewTalk(1), "open": storetest.NewTalk(2), "late": storetest.NewTalk(3)}
	add := func(id fulgur.RolloutID) {
		t.Helper()
		if err := s.AppendCall(ctx, talks[id].Call(id)); err != nil {
			t.Fatal(err)
		}
	}
	for range 60 {
		for id := range talks {
			add(id)
		}
	}
	failed := fulgur.Failed
	for _, id := range []fulgur.RolloutID{"old", "late"} {
		if _, err := s.PatchStatus(ctx, id, fulgur.StatusPatch{State: &failed}); err != nil {
			t.Fatal(err)
		}
	}
	add("late") // the newest position is of a call that goes
	head, _ := s.Head(ctx)
	vacuum := func() int64 {
		t.Helper()
		if err := s.Vacuum(ctx); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	before := vacuum()
	if n, err := s.DropRecords(ctx, fulgur.DefaultRun, time.Now().Add(-time.Hour)); n != 0 || err != nil {
		t.Errorf("nothing is that old: %d, %v", n, err)
	}
	if _, err := s.DropRecords(ctx, "nobody", time.Now()); fulgur.KindOf(err) != fulgur.KindNotFound {
		t.Errorf("of an unknown run: %v", err)
	}
	if n, err := s.DropRecords(ctx, "", time.Now().Add(time.Hour)); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if after := vacuum(); after > before*45/100 {
		t.Errorf("%d bytes before, %d after two of three rollouts were dropped", before, after)
	}
	add("late") // its base is gone
	add("open")
	check := func(n map[fulgur.RolloutID]int) {
		t.Helper()
		for id, want := range n {
			if calls, err := s.Calls(ctx, id, ""); err != nil || len(calls) != want {
				t.Errorf("%s: %d calls, %v; want %d", id, len(calls), err, want)
			}
		}
	}
	want := map[fulgur.RolloutID]int{"old": 0, "late": 1, "open": 61}
	check(want)
	storetest.Close(t, s)
	if r, err := store.Check(ctx, sqlite.New(path, sqlite.Options{})); err != nil || !r.OK() || r.Calls != 62 {
		t.Errorf("%+v, %v", r, err)
	}
	s = storetest.Open(t, sqlite.New(path, sqlite.Options{}))
	check(want)
	if now, _ := s.Head(ctx); now < head {
		t.Errorf("positions go back from %d to %d", head, now)
	}
	if r, err := s.Rollout(ctx, "old"); err != nil || r.State != fulgur.Failed {
		t.Errorf("%+v, %v", r, err)
	}
}
