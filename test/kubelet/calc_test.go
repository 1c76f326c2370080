package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The example as a user runs it: its agents' image of tools/image, as Jobs that reach
// the run's own gateway on the node and nothing else. Every rollout ends well; and
// where nobody enforces the policy, not one starts.
func TestCalc(t *testing.T) {
	for name, enforced := range map[string]bool{"enforced": true, "not enforced": false} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.startWorld()
			if enforced {
				n.enforce()
			}
			data, err := filepath.Abs("../../examples/calc/data")
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "run.yaml")
			if err := os.WriteFile(file, fmt.Appendf(nil, `version: 1
run: calc
model: builtin:calc
data: {train: %[1]s/train.jsonl, validation: %[1]s/val.jsonl}
steps: 1
sampling: {max_tokens: 48}
listen: 10.9.9.1:0
agent: {command: [/usr/bin/agent], input: {env: {QUESTION: input.question}}}
runner:
  kind: kubernetes
  image: localhost/fulgur-calc-agent:devel
  namespace: %[2]s
  slots: 4
  kubernetes: {probe_image: "localhost/fulgur:devel"}
reward: {builtin: final-answer, expected: input.answer, compare: number}
algorithm: {group_size: 4, groups_per_step: 2}
validation: {every: 1, problems: 2}
out: %[3]s/runs
`, data, n.ns, dir), 0o600); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			out, err := exec.CommandContext(t.Context(), filepath.Join(n.dir, "fulgur"), "train", file).CombinedOutput()
			t.Logf("%s", time.Since(begin).Round(time.Millisecond))
			if !enforced {
				if err == nil || !bytes.Contains(out, []byte("agents reach more than the gateway")) {
					t.Fatalf("%v\n%s", err, out)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			list, err := exec.CommandContext(t.Context(), filepath.Join(n.dir, "fulgur"), "rollouts", "list", "--run", filepath.Join(dir, "runs/calc"), "--json").Output()
			if err != nil {
				t.Fatal(err)
			}
			all, well := 0, 0
			for d := json.NewDecoder(bytes.NewReader(list)); d.More(); all++ {
				var r struct{ State string }
				if err := d.Decode(&r); err != nil {
					t.Fatal(err)
				}
				if r.State == "succeeded" {
					well++
				}
			}
			t.Logf("%d of %d rollouts succeeded", well, all)
			if all < 12 || well != all {
				t.Errorf("%s\n%s", list, out)
			}
		})
	}
}
