package cli

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
)

// costFile holds what a run has cost so far.
const costFile = "cost.json"

// meter measures what a run costs: wall time, and CPU time of this process and
// of every program that it ran; and what earlier processes of the run did.
type meter struct {
	start    time.Time
	self     time.Duration        // of this process at the start
	build    time.Duration        // CPU of agent.build
	children func() time.Duration // CPU of the agents' processes that have ended; nil: not measured
	before   spent                // of the processes that this one goes on from
}

// spent is what a run has cost, in seconds: cost.json, and as much of result.json.
type spent struct {
	Wall   float64 `json:"wall_seconds"`
	CPU    float64 `json:"cpu_seconds"` // all processes, without the build
	Build  float64 `json:"build_cpu_seconds"`
	Agents float64 `json:"agent_cpu_seconds"` // the agents' processes
}

func startMeter() *meter { return &meter{start: time.Now(), self: selfCPU()} }

// goOn adds what the run in dir has cost so far, up to its last checkpoint or its
// end.
func (m *meter) goOn(dir runDir) {
	if dir.readJSON(costFile, &m.before) != nil {
		_ = dir.readJSON("result.json", &m.before) // of a build without costFile; neither is there after an early kill
	}
}

// spent is what the run has cost so far.
func (m *meter) spent() spent {
	s := m.before
	var agents time.Duration
	if m.children != nil {
		agents = m.children()
	}
	s.Wall += time.Since(m.start).Seconds()
	s.CPU += (selfCPU() - m.self + agents).Seconds()
	s.Build += m.build.Seconds()
	s.Agents += agents.Seconds()
	return s
}

// selfCPU is this process's CPU time, user and system.
func selfCPU() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// buildDelay is how long what a build has left behind may hold its output.
const buildDelay = time.Second

// buildAgent runs agent.build once, in the run file's folder, and ends what it leaves
// running.
func (a *app) buildAgent(ctx context.Context, r *runFile, dir runDir, m *meter) error {
	build := config.Expand(r.Agent.Build, string(dir))
	if len(build) == 0 {
		return nil
	}
	c := exec.CommandContext(ctx, build[0], build[1:]...)
	c.Dir = r.Dir
	c.Env = append(c.Environ(), r.buildEnv...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = buildDelay // a daemon that it leaves may hold its output
	out, err := c.CombinedOutput()
	if c.ProcessState != nil {
		_ = syscall.Kill(-c.ProcessState.Pid(), syscall.SIGKILL) // what it left behind
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it has ended well
	}
	if c.ProcessState != nil && m != nil {
		m.build = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	if err != nil {
		return fulgur.E(fulgur.KindInvalid, "build the agent", strings.Join(build, " ")+" failed in "+r.Dir+":\n"+strings.TrimSpace(string(out)), err)
	}
	return nil
}
