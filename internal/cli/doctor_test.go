package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func needBwrap(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err == nil {
		return
	}
	if os.Getenv("FULGUR_TEST_SANDBOX") != "" {
		t.Fatal("bubblewrap is not here, and the sandbox is what is to be tested")
	}
	t.Skip("bubblewrap is not here: make test-sandbox installs it and runs this")
}

func TestDoctorSaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.yaml")
	text := "data: {train: t.jsonl}\nagent: {command: [./agent]}\nreward: {builtin: final-answer, expected: input.answer}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("fulgur", "doctor", "--json", file)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+filepath.Dir(mustLook(t, "fulgur"))) // without bubblewrap
	out, err := cmd.Output()
	var found []finding
	if json.Unmarshal(out, &found) != nil || err == nil {
		t.Fatalf("%v, printed %s", err, out)
	}
	var says []string
	for _, f := range found {
		says = append(says, f.Check+" "+f.Status+": "+f.Detail)
	}
	all := strings.Join(says, "\n")
	for _, want := range []string{"sandbox warning: bubblewrap is not on this machine: install bubblewrap", "run file failed:", "t.jsonl", "run's sandbox warning: its agents would run without a sandbox"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among\n%s", want, all)
		}
	}
}

func mustLook(t *testing.T, name string) string {
	t.Helper()
	p, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDoctorFindsNoWayOut(t *testing.T) {
	if testing.Short() {
		t.Skip("tries each way out: left out by -short, make test-sandbox runs it")
	}
	needBwrap(t)
	cmd := exec.Command("fulgur", "doctor", "--json")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var found []finding
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	if len(found) < 25 {
		t.Errorf("%d findings", len(found))
	}
}
