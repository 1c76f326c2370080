package sqlite_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() store.Driver {
		path := filepath.Join(t.TempDir(), "a dir?", "s.db") // made by the driver
		return func() store.Driver { return sqlite.New(path, sqlite.Options{}) }
	})
}

func TestMemoryAndPowerStoresWork(t *testing.T) {
	for name, d := range map[string]store.Driver{
		"memory": sqlite.New(sqlite.Memory, sqlite.Options{}),
		"power":  sqlite.New(filepath.Join(t.TempDir(), "s.db"), sqlite.Options{Power: true}),
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.Open(t, d)
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					id := fulgur.RolloutID(fmt.Sprint("r", i))
					_, err := s.CreateRollouts(t.Context(), []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage("1")}})
					err2 := s.AppendCall(t.Context(), &fulgur.Call{ID: fulgur.CallID(id), Rollout: id, Attempt: "0"})
					calls, err3 := s.Calls(t.Context(), id, "")
					if err := errors.Join(err, err2, err3); err != nil || len(calls) != 1 {
						t.Error(calls, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestASecondStoreOnTheFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s := storetest.Open(t, sqlite.New(path, sqlite.Options{}))
	_, err := store.Open(t.Context(), sqlite.New(path, sqlite.Options{}), store.Options{})
	if fulgur.KindOf(err) != fulgur.KindConflict || !strings.Contains(fulgur.PublicMessage(err), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("%v", err)
	}
	storetest.Close(t, s)
	storetest.Close(t, storetest.Open(t, sqlite.New(path, sqlite.Options{})))
}

func TestWhatIsNoStoreIsRefusedAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	content := strings.Repeat("no database\n", 500)
	if err := os.WriteFile(text, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"a text file": text, "a folder": dir, "a folder below a file": filepath.Join(text, "s.db")} {
		_, err := store.Open(t.Context(), sqlite.New(path, sqlite.Options{}), store.Options{})
		if fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(fulgur.PublicMessage(err), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b, err := os.ReadFile(text); err != nil || string(b) != content {
		t.Errorf("the text file was changed (%v)", err)
	}
}

func TestADamagedFileIsSaidToBeDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s := storetest.Open(t, sqlite.New(path, sqlite.Options{}))
	for i := range 200 {
		if _, err := s.CreateRollouts(t.Context(), []fulgur.RolloutSpec{{ID: fulgur.RolloutID(fmt.Sprint(i)), Run: fulgur.DefaultRun, Input: json.RawMessage(`"` + strings.Repeat("x", 500) + `"`)}}); err != nil {
			t.Fatal(err)
		}
	}
	storetest.Close(t, s)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 4096; i < len(b); i++ { // all but the first page
		b[i] = 0xa5
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(t.Context(), sqlite.New(path, sqlite.Options{}), store.Options{})
	if fulgur.KindOf(err) != fulgur.KindInternal || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("%v", err)
	}
}

func TestAFullDiskFailsLoudlyAndNothingIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s := storetest.Open(t, sqlite.New(path, sqlite.Options{MaxPages: 60}))
	ctx := t.Context()
	if _, err := s.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: "r", Run: fulgur.DefaultRun, Input: json.RawMessage("1")}}); err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, 2000)
	for i := range ids { // nothing to compress
		ids[i] = rand.Int32()
	}
	kept := 0
	var err error
	for ; kept < 1000 && err == nil; kept++ {
		err = s.AppendCall(ctx, &fulgur.Call{ID: fulgur.CallID(fmt.Sprint(kept)), Rollout: "r", Attempt: "0", Index: kept, SampledIDs: ids})
	}
	kept--
	if fulgur.KindOf(err) != fulgur.KindExhausted || !strings.Contains(fulgur.PublicMessage(err), "disk is full") {
		t.Fatalf("after %d calls: %v", kept, err)
	}
	if calls, err := s.Calls(ctx, "r", "0"); err != nil || len(calls) != kept {
		t.Errorf("%d calls, %v; want %d", len(calls), err, kept)
	}
	storetest.Close(t, s)
	s = storetest.Open(t, sqlite.New(path, sqlite.Options{})) // room again
	if calls, err := s.Calls(ctx, "r", "0"); err != nil || len(calls) != kept {
		t.Errorf("after a restart: %d calls, %v; want %d", len(calls), err, kept)
	}
	if err := s.AppendCall(ctx, &fulgur.Call{ID: fulgur.CallID(fmt.Sprint(kept)), Rollout: "r", Attempt: "0", SampledIDs: ids}); err != nil {
		t.Errorf("the refused call, again: %v", err)
	}
}

// TestALockedFileFailsLoudlyAndNothingIsLost has another program hold the file's
// lock, as people's sqlite3 does.
func TestALockedFileFailsLoudlyAndNothingIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s := storetest.Open(t, sqlite.New(path, sqlite.Options{Busy: 50 * time.Millisecond}))
	ctx := t.Context()
	make1(t, s, "r")
	talk := storetest.NewTalk(1)
	add := func() error { return s.AppendCall(ctx, talk.Call("r")) }
	if err := add(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	other, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := add(); fulgur.KindOf(err) != fulgur.KindUnavailable || !strings.Contains(fulgur.PublicMessage(err), "locked by another process") {
			t.Errorf("while it is locked: %v", err)
		}
	}
	if calls, err := s.Calls(ctx, "r", ""); err != nil || len(calls) != 1 {
		t.Errorf("read while it is locked: %d calls, %v", len(calls), err)
	}
	if _, err := other.ExecContext(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := add(); err != nil {
		t.Errorf("after it: %v", err)
	}
	storetest.Close(t, s)
	if r, err := store.Check(ctx, sqlite.New(path, sqlite.Options{})); err != nil || !r.OK() || r.Calls != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}
