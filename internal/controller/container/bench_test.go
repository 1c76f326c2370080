package container

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

// A no-op rollout, from its start to its end being told, beside what the program
// takes by itself for `run --rm` of the same image.
func BenchmarkNoop(b *testing.B) {
	p := os.Getenv("FULGUR_TEST_CONTAINER")
	if p == "" {
		b.Skip("needs Podman or Docker: FULGUR_TEST_CONTAINER=podman")
	}
	image, err := agentImage()
	if err != nil {
		b.Fatal(err)
	}
	r, err := New(context.Background(), Options{Program: p, Image: image, Pull: "never", Command: []string{"/bin/agent"}, Scope: b.Name(), Network: "none",
		Env: map[string]string{runnertest.AgentEnv: "process", "DO": "input.do"}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b.Run("runner", func(b *testing.B) {
		var started time.Duration
		for i := 0; b.Loop(); i++ {
			e := runnertest.Execution(fmt.Sprintf("n-%d-%d", time.Now().UnixNano(), i), "")
			begin := time.Now()
			if _, err := r.Start(b.Context(), e); err != nil {
				b.Fatal(err)
			}
			started += time.Since(begin)
			for ev := range r.Events() {
				if ev.Exit != nil {
					break
				}
			}
		}
		b.ReportMetric(float64(started.Milliseconds())/float64(b.N), "ms-to-running")
	})
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command(p, "run", "--rm", "--network", "none", "--env", runnertest.AgentEnv+"=process", "--entrypoint", "/bin/agent", image)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}
