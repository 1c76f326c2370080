package cli

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// A probe that got out is a failed check that says so, whichever it is.
func TestDoctorTellsOfEachEscape(t *testing.T) {
	var all []sandbox.Finding
	for _, p := range sandbox.Probes() {
		all = append(all, sandbox.Finding{Name: p.Name, Escaped: true, Detail: "how"})
	}
	for i, row := range escapeRows(append(all, sandbox.Finding{Name: "held", Detail: "why"}, sandbox.Finding{Name: "nothing", Skipped: true})) {
		want := failed
		switch row.Name {
		case "held":
			want = healthy
		case "nothing":
			want = skipped
		}
		if row.Status != want || (want == failed) != strings.HasPrefix(row.Detail, "ESCAPED: ") {
			t.Errorf("row %d: %+v, want %s", i, row, want)
		}
	}
}

// Without a cluster doctor says what leads to none, what of the gateway cannot be,
// and exits with 1; without a run file it says how to look at one.
func TestDoctorOfAClusterThatIsNotThere(t *testing.T) {
	dir := tinyDir(t)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\nclusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := l.Addr().String()
	_ = l.Close()
	for name, test := range map[string]struct {
		args  []string
		wants []string // "name status: text"
	}{
		"nobody answers":    {[]string{"--set=listen=" + free}, []string{"gateway ok: none runs yet: a stand-in answers at " + free, "API server failed: http://127.0.0.1:1 does not answer"}},
		"no fixed address":  {[]string{"--set=listen=127.0.0.1:0"}, []string{"gateway warning: listen: 127.0.0.1:0 is another port at each start"}},
		"no such file":      {[]string{"--set=listen=" + free, "--set=runner.kubernetes.kubeconfig=nowhere"}, []string{"cluster failed: find the Kubernetes cluster"}},
		"a server is there": {[]string{"--set=server=http://gateway:8080"}, []string{"API server failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"doctor", "run.yaml", "--json", "--set=runner.kind=kubernetes", "--set=runner.image=i:1", "--set=runner.kubernetes.isolation=none", "--set=runner.kubernetes.kubeconfig=" + kubeconfig}, test.args...)
			cmd := exec.Command("fulgur", args...)
			cmd.Dir = dir
			out, err := cmd.Output()
			var found []finding
			if json.Unmarshal(out, &found) != nil || cmd.ProcessState.ExitCode() != exitFailed {
				t.Fatalf("%v, exit code %d, printed %s", err, cmd.ProcessState.ExitCode(), out)
			}
			var says []string
			for _, f := range found {
				says = append(says, f.Name+" "+f.Status+": "+f.Detail)
			}
			for _, want := range test.wants {
				if !strings.Contains(strings.Join(says, "\n"), want) {
					t.Errorf("%q is not among\n%s", want, strings.Join(says, "\n"))
				}
			}
		})
	}
}
