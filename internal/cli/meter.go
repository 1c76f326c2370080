package cli

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
)

// meter measures what a run costs: wall time, and CPU time of this process and
// of every program that it ran.
type meter struct {
	start  time.Time
	self   time.Duration // of this process at the start
	build  time.Duration // CPU of agent.build
	agents time.Duration // CPU of the agents' processes
}

func startMeter() *meter { return &meter{start: time.Now(), self: selfCPU()} }

func (m *meter) wall() time.Duration { return time.Since(m.start) }

// cpu is the CPU time of all processes but the build's.
func (m *meter) cpu() time.Duration { return selfCPU() - m.self + m.agents }

// selfCPU is this process's CPU time, user and system.
func selfCPU() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// buildAgent runs agent.build once, in the run file's folder.
func (a *app) buildAgent(ctx context.Context, r *runFile, dir runDir, m *meter) error {
	build := config.Expand(r.Agent.Build, string(dir))
	if len(build) == 0 {
		return nil
	}
	c := exec.CommandContext(ctx, build[0], build[1:]...)
	c.Dir = r.Dir
	c.Env = append(c.Environ(), r.buildEnv...)
	out, err := c.CombinedOutput()
	if c.ProcessState != nil && m != nil {
		m.build = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	if err != nil {
		return fulgur.E(fulgur.KindInvalid, "build the agent", strings.Join(build, " ")+" failed in "+r.Dir+":\n"+strings.TrimSpace(string(out)), err)
	}
	return nil
}
