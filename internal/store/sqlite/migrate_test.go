package sqlite_test

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
	"github.com/google/go-cmp/cmp"
)

func unzip(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type recorded struct {
	Rollout  fulgur.Rollout   `json:"rollout"`
	Attempts []fulgur.Attempt `json:"attempts"`
	Calls    []fulgur.Call    `json:"calls"`
	Events   []fulgur.Event   `json:"events"`
}

// TestAStoreOfAnOlderBinaryOpensAndReads opens a file that the first release of a schema
// wrote, beside what that release read of it, and goes on writing to it. Of schema 2 it
// is one whose calls are all told against each other by bytes (before formSelf).
func TestAStoreOfAnOlderBinaryOpensAndReads(t *testing.T) {
	for _, schema := range []string{"schema1", "schema2"} {
		t.Run(schema, func(t *testing.T) { opensAndReads(t, schema) })
	}
}

func opensAndReads(t *testing.T, schema string) {
	path := filepath.Join(t.TempDir(), "s.db")
	if err := os.WriteFile(path, unzip(t, "testdata/"+schema+".db.gz"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := map[fulgur.RolloutID]recorded{}
	if err := json.Unmarshal(unzip(t, "testdata/"+schema+".json.gz"), &want); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	s := storetest.Open(t, sqlite.New(path, sqlite.Options{}))
	check := func(s *store.Store) {
		t.Helper()
		for id, w := range want {
			var got recorded
			var err [4]error
			got.Rollout, err[0] = s.Rollout(ctx, id)
			got.Attempts, err[1] = s.Attempts(ctx, id)
			got.Calls, err[2] = s.Calls(ctx, id, "")
			got.Events, err[3] = s.Events(ctx, id, "")
			for _, err := range err {
				if err != nil {
					t.Fatal(err)
				}
			}
			// JSON has no spaces in the raw parts, and none for no ids: compared as it is written.
			g, err2 := json.Marshal(got)
			w, err3 := json.Marshal(w)
			if err2 != nil || err3 != nil {
				t.Fatal(err2, err3)
			}
			if d := cmp.Diff(string(w), string(g)); d != "" {
				t.Errorf("%s (-want +got):\n%s", id, d)
			}
			for _, c := range got.Calls {
				if one, err := s.Call(ctx, c.ID); err != nil || cmp.Diff(c, one) != "" {
					t.Errorf("call %s alone: %v", c.ID, err)
				}
			}
		}
	}
	if len(want) != 2 || len(want["open"].Calls) != 13 {
		t.Fatalf("%d rollouts", len(want))
	}
	check(s)
	// The attempt goes on, and so does its record.
	w := want["open"]
	for i := range 3 {
		c := w.Calls[12]
		c.ID, c.Index, c.Run = fulgur.CallID([]string{"a", "b", "c"}[i]), 13+i, ""
		if err := s.AppendCall(ctx, &c); err != nil {
			t.Fatal(err)
		}
		w.Calls = append(w.Calls, c)
	}
	want["open"] = w
	check(s)
	storetest.Close(t, s)
	check(storetest.Open(t, sqlite.New(path, sqlite.Options{})))
}
