package controller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

func TestNoTwoAttemptsShareAFileName(t *testing.T) {
	seen := map[string]plan.Key{}
	for _, k := range []plan.Key{{Rollout: "a", Attempt: "0"}, {Rollout: "a.0", Attempt: "0"}, {Rollout: "a", Attempt: "0.0"}, {Rollout: "..", Attempt: "0"}, {Rollout: "", Attempt: "0"}, {Rollout: "a/b", Attempt: "0"},
		{Rollout: "a", Attempt: "b/0"}, {Rollout: "ä", Attempt: "0"}, {Rollout: "x", Attempt: ""}, {Rollout: "A", Attempt: "0"}} {
		name := FileName(k)
		if other, ok := seen[name]; ok || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
			t.Errorf("%v is called %q, as %v", k, name, other)
		}
		seen[name] = k
	}
	if got := FileName(plan.Key{Rollout: "r-1.x", Attempt: "2"}); got != "r-1.x.2" {
		t.Errorf("a plain one is called %q", got)
	}
}

func TestWriteLog(t *testing.T) {
	key := plan.Key{Rollout: "a", Attempt: "0"}
	for name, test := range map[string]struct {
		policy     Keep
		log        string
		good       bool
		tail, file string
	}{
		"one that failed":            {KeepFailures, "one\nkey s3cret\n", false, "one\nkey [credential]", "one\nkey [credential]\n"},
		"one that went well":         {KeepFailures, "one\n", true, "", ""},
		"one that went well, kept":   {KeepAll, "one\n", true, "one", "one\n"},
		"nothing is kept":            {KeepNone, "one\n", false, "one", ""},
		"an empty one":               {KeepAll, "", false, "", ""},
		"the end of one is its tail": {KeepAll, strings.Repeat("x\n", 100), false, strings.TrimSuffix(strings.Repeat("x\n", 20), "\n"), strings.Repeat("x\n", 100)},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			tail, path, err := WriteLog(state, test.policy, key, []byte(test.log), []string{"s3cret"}, test.good)
			if err != nil || tail != test.tail || (path != "") != (test.file != "") {
				t.Errorf("tail %q, path %q, %v", tail, path, err)
			}
			if text, _ := os.ReadFile(filepath.Join(state, "logs", "a.0.log")); string(text) != test.file {
				t.Errorf("file %q, want %q", text, test.file)
			}
		})
	}
	full := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if tail, path, err := WriteLog(full, KeepAll, key, []byte("x"), nil, false); err == nil || path != "" || tail != "x" {
		t.Errorf("a log that cannot be written: %q, %q, %v", tail, path, err)
	}
}
