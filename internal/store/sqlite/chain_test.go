package sqlite_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

// TestAnAttemptIsToldOnAfterEachRestart restarts the store behind each call: its
// next one is still a delta, until the chain is long enough to start anew.
func TestAnAttemptIsToldOnAfterEachRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	talk := storetest.NewTalk(1)
	const calls = 75
	for i := range calls {
		s := storetest.Open(t, sqlite.New(path, sqlite.Options{}))
		if i == 0 {
			make1(t, s, "r")
		}
		if err := s.AppendCall(t.Context(), talk.Call("r")); err != nil {
			t.Fatal(err)
		}
		storetest.Close(t, s)
	}
	if r, err := store.Check(t.Context(), sqlite.New(path, sqlite.Options{})); err != nil || !r.OK() || r.Calls != calls {
		t.Fatalf("%+v, %v", r, err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var alone, most int
	err = db.QueryRowContext(t.Context(), `WITH RECURSIVE chain (seq, depth) AS (SELECT seq, 0 FROM calls WHERE base = 0
		UNION ALL SELECT c.seq, depth + 1 FROM calls c JOIN chain ON c.base = chain.seq)
		SELECT (SELECT count(*) FROM calls WHERE base = 0), max(depth) FROM chain`).Scan(&alone, &most)
	if err != nil || alone != 2 || most != 65 {
		t.Errorf("%d calls stand for themselves, the longest chain is %d (%v)", alone, most, err)
	}
}
