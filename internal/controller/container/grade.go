package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller"
)

// workPath is where an attempt's workspace is in its container, and the copy that is
// tested in the tests'.
const workPath = "/workspace"

// workOf is the workspace in an attempt's folder.
func workOf(folder string) string { return filepath.Join(folder, "work") }

// Grades implements controller.Grader.
func (r *Runner) Grades() bool { return r.grader != nil }

// Grade implements controller.Grader.
func (r *Runner) Grade(ctx context.Context, x controller.Grading) (controller.Grade, error) {
	return r.grader.Grade(ctx, x)
}

// take takes what an agent has left, whose container has ended. An agent cannot
// remove its own mount: a workspace that is gone is not its doing, and not graded.
func (r *Runner) take(x *box) {
	work := workOf(x.folder)
	if _, err := os.Stat(work); err != nil {
		r.Log.Warn("an attempt's workspace is gone", "folder", work, "err", err)
		return
	}
	r.grader.Take(x.key, work)
}

// test is grade.RunTests: a container of the agents' image that has the copy, no
// network, and nothing of the attempt's.
func (r *Runner) test(ctx context.Context, work string, out io.Writer) (int, error) {
	if err := openUp(work); err != nil {
		return -1, err
	}
	name := "fulgur-" + r.scope + "-tests-" + strings.ToLower(rand.Text()[:12])
	r.mu.Lock()
	r.testing[name] = true
	r.mu.Unlock()
	defer func() {
		r.removeAll([]string{name})
		r.mu.Lock()
		delete(r.testing, name)
		r.mu.Unlock()
	}()
	if _, err := r.client.run(ctx, r.testArguments(name, work)...); err != nil {
		return -1, fmt.Errorf("their container of %s cannot be started: %w", r.Image, err)
	}
	for nap := 100 * time.Millisecond; ; nap = min(2*nap, 10*time.Second) {
		_ = r.client.command(ctx, "wait", name).Run() // what has ended is said by the state alone
		all, err := r.client.inspect(context.WithoutCancel(ctx), name)
		if err == nil && len(all) == 0 {
			return -1, errors.New("somebody removed their container")
		}
		over := err == nil && !all[0].State.Running && all[0].State.Status != "stopping"
		if over || ctx.Err() != nil {
			if err := r.client.logs(context.WithoutCancel(ctx), name, out); err != nil {
				r.Log.Warn("what tests printed cannot be read", "container", name, "err", err)
			}
		}
		switch {
		case ctx.Err() != nil:
			return -1, ctx.Err()
		case over && !all[0].started():
			return -1, fmt.Errorf("their container of %s did not start: %s", r.Image, all[0].State.Error)
		case over:
			return all[0].State.ExitCode, nil
		case !r.pause(nap):
			return -1, context.Canceled
		}
	}
}

// testArguments is the client's command line for tests. The label has a successor
// remove what this process cannot.
func (r *Runner) testArguments(name, work string) []string {
	args := append([]string{"run", "--detach"}, r.guarded(name)...)
	args = append(args, "--label", labelScope+"="+r.scope, "--network", "none")
	if r.init {
		args = append(args, "--init")
	}
	args = append(args, r.logging()...)
	if r.ReadOnly {
		args = append(args, "--read-only", "--tmpfs", "/tmp")
	}
	for _, m := range r.Mounts { // what an agent can write is no part of a test
		if parts := strings.Split(m, ":"); len(parts) == 3 && slices.Contains(strings.Split(parts[2], ","), "ro") {
			args = append(args, "--volume", m)
		}
	}
	args = append(args, "--volume", work+":"+workPath, "--workdir", workPath, "--env", "HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1")
	args = append(args, r.Limits.args()...)
	for _, o := range r.Extra {
		if name, _, _ := strings.Cut(o, "="); slices.Contains(forTests, name) {
			args = append(args, o)
		}
	}
	tests := r.grader.Tests
	return append(append(args, "--entrypoint", tests[0], r.Image), tests[1:]...)
}

// forTests are the options of runner.container.options that tests get too: devices
// and how programs run, but no variable, file, network or right.
var forTests = []string{"--gpus", "--device", "--shm-size", "--user", "-u", "--userns", "--runtime", "--platform", "--ulimit", "--security-opt"}

// openUp lets whoever the image runs as write a copy, which is in a folder that is
// ours alone.
func openUp(work string) error {
	return filepath.WalkDir(work, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o666
		if d.IsDir() {
			mode = 0o777
		}
		return os.Chmod(name, mode)
	})
}
