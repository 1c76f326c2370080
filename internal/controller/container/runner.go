package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// box is one attempt's container.
type box struct {
	key     plan.Key
	name    string
	secrets []string
	input   []byte // for standard input; nil: none
	folder  string // of the attempt's files; "": none
	door    *door  // its relay to the gateway; nil: it has another network

	ready chan struct{} // closed when the start has worked or failed
	err   error
	exit  *plan.Exit    // it ended before it began: there is no container to follow
	gone  chan struct{} // closed when its end is known

	mu       sync.Mutex
	stopping bool
}

func newBox(k plan.Key, name string) *box {
	return &box{key: k, name: name, ready: make(chan struct{}), gone: make(chan struct{})}
}

func (x *box) started() controller.Started {
	return controller.Started{Handle: x.name, Running: x.exit == nil}
}

// Start implements controller.Runner: it returns when the container runs.
func (r *Runner) Start(ctx context.Context, e controller.Execution) (controller.Started, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return controller.Started{}, fulgur.E(fulgur.KindUnavailable, "", "the runner is closed", nil)
	}
	x, again := r.live[e.Key]
	if !again {
		x = newBox(e.Key, r.nameOf(e.Key))
		x.secrets = e.Secrets
		r.live[e.Key] = x
		r.wg.Add(1)
	}
	r.mu.Unlock()
	if again {
		<-x.ready
	} else {
		x.exit, x.err = r.launch(ctx, x, e)
		close(x.ready)
		if x.err != nil {
			r.drop(x)
			close(x.gone)
			r.wg.Done()
		} else {
			go r.follow(x)
		}
	}
	if x.err != nil {
		return controller.Started{}, x.err
	}
	return x.started(), nil
}

// drop takes a box off the list.
func (r *Runner) drop(x *box) {
	r.mu.Lock()
	delete(r.live, x.key)
	r.mu.Unlock()
}

// launch gives the attempt its files and environment, and starts its container.
// An exit is that of one that could not be started for a reason of its own.
func (r *Runner) launch(ctx context.Context, x *box, e controller.Execution) (exit *plan.Exit, err error) {
	if err := r.disk.Room(); err != nil {
		return nil, err
	}
	mapping := e.EnvMap
	if mapping == nil {
		mapping = r.Env
	}
	env, err := controller.InputEnv(mapping, e.Input)
	if err != nil {
		return nil, err
	}
	own, at := e.Env, places{}
	if r.Network == NetworkGateway {
		if own, err = r.openDoor(x, e.Env, e.Secrets); err != nil {
			return nil, err
		}
		at.socket = x.door.folder()
		defer func() {
			if err != nil || exit != nil {
				x.door.shut(true)
			}
		}()
	}
	for name, value := range own {
		env[name] = value
	}
	if r.Input == controller.ByFile {
		env["FULGUR_INPUT_FILE"] = inputPath
	}
	if r.hasFolder() {
		x.folder = r.folderOf(e.Key)
		defer func() {
			if err != nil || exit != nil {
				_ = os.RemoveAll(x.folder)
			}
		}()
		if err = r.files(x.folder, e.Input, &at); err != nil {
			return nil, err
		}
	}
	l, err := r.arguments(e.Key, env, at)
	if err != nil {
		return nil, err
	}
	if l.file != nil {
		name, err := envFile(l.file)
		if err != nil {
			return nil, fulgur.E(fulgur.KindExhausted, "", "the environment's file cannot be written", err)
		}
		defer func() { _ = os.Remove(name) }()
		l.args[slices.Index(l.args, envFileMark)] = name
	}
	if r.Input == controller.ByStdin {
		x.input = e.Input
	}
	return r.begin(ctx, x, l)
}

// begin runs the client. A container of this name that is there already is this
// attempt's own: the key says so.
func (r *Runner) begin(ctx context.Context, x *box, l launch) (*plan.Exit, error) {
	for try := 0; ; try++ {
		_, err := r.client.runWith(ctx, l.environ, l.args...)
		if err == nil {
			return nil, nil
		}
		what := classify(err)
		if what == troubleName && try == 0 {
			if running, lerr := r.inherit(ctx, x.name); lerr != nil || running {
				return nil, lerr
			}
			continue
		}
		if ctx.Err() != nil || !errors.As(err, new(*failure)) { // cut off: nobody knows how far it came
			r.discard(x.name)
			if controller.NoRoom(err) {
				return nil, fulgur.E(fulgur.KindExhausted, "", "the container program cannot be run", err)
			}
			return nil, fulgur.E(fulgur.KindTimeout, "", "the container program did not start a container in time", err)
		}
		r.discard(x.name)
		return r.unstarted(err, what)
	}
}

// inherit says whether a container runs under this name; one that does not is
// removed, for it is in the way.
func (r *Runner) inherit(ctx context.Context, name string) (running bool, err error) {
	all, err := r.client.inspect(ctx, name)
	if err != nil {
		return false, fulgur.E(fulgur.KindUnavailable, "", "a container named "+name+" is in the way, and cannot be looked at", err)
	}
	for _, s := range all {
		if s.Config.Labels[labelScope] != r.scope {
			return false, fulgur.E(fulgur.KindConflict, "", "a container named "+name+" is in the way, and is none of ours: remove it", nil)
		}
		if s.State.Running {
			return true, nil
		}
	}
	return false, r.client.remove(ctx, name)
}

// unstarted says what a refused start means.
func (r *Runner) unstarted(err error, what trouble) (*plan.Exit, error) {
	fail := func(reason, message string) (*plan.Exit, error) {
		x := plan.Failed(reason, message)
		return &x, nil
	}
	switch what {
	case troubleImage:
		return fail(plan.ReasonImage, fmt.Sprintf("the image %s could not be had: %s", r.Image, err))
	case troubleProgram:
		return fail(plan.ReasonSpawn, fmt.Sprintf("the agent's program cannot be run in the image %s (agent.command %q): %s", r.Image, r.Command, err))
	case troubleOptions:
		return fail(plan.ReasonSpawn, fmt.Sprintf("%s does not take these options (runner.container): %s", r.client.path, err))
	}
	return fail(plan.ReasonRuntime, fmt.Sprintf("%s could not start a container of %s: %s", r.client.path, r.Image, err))
}

// discard removes what a failed start may have left, also after the caller has
// given up.
func (r *Runner) discard(name string) {
	if err := r.client.remove(r.life, name); err != nil {
		r.Log.Warn("a container that did not start could not be removed", "container", name, "err", err)
	}
}

// hasFolder says whether attempts have a folder on this machine.
func (r *Runner) hasFolder() bool { return r.Input == controller.ByFile || r.Workspace }

func (r *Runner) folderOf(k plan.Key) string {
	return filepath.Join(r.State, "attempts", controller.FileName(k))
}

// files makes an attempt's folder, and what is to be in it. What it is in is ours
// alone; whoever the image runs as can read the input, and write the workspace.
func (r *Runner) files(folder string, input []byte, at *places) error {
	err := os.MkdirAll(filepath.Dir(folder), 0o700)
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil && r.Input == controller.ByFile {
		at.input = filepath.Join(folder, "input.json")
		err = os.WriteFile(at.input, input, 0o644)
	}
	if err == nil && r.Workspace {
		at.work = workOf(folder)
		if err = os.MkdirAll(at.work, 0o777); err == nil {
			err = os.Chmod(at.work, 0o777)
		}
	}
	if err != nil {
		kind := fulgur.KindForbidden
		if controller.NoRoom(err) {
			kind = fulgur.KindExhausted
		}
		return fulgur.E(kind, "", "the attempt's folder cannot be written", err)
	}
	return nil
}

// envFile writes an env file that nobody else can read.
func envFile(text []byte) (string, error) {
	f, err := os.CreateTemp("", "fulgur-env-") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// Stop implements controller.Runner: the container gets SIGTERM, and SIGKILL
// when its grace is over. Its first process ends with all others in it.
func (r *Runner) Stop(_ context.Context, key plan.Key) error {
	r.mu.Lock()
	x := r.live[key]
	r.mu.Unlock()
	if x != nil {
		r.stop(x)
	}
	return nil
}

func (r *Runner) stop(x *box) {
	x.mu.Lock()
	was := x.stopping
	x.stopping = true
	x.mu.Unlock()
	if was {
		return
	}
	r.wg.Go(func() {
		<-x.ready
		if x.err != nil || x.exit != nil {
			return
		}
		r.kill(x, "TERM")
		grace := time.NewTimer(r.Grace)
		defer grace.Stop()
		for {
			select {
			case <-x.gone:
				return
			case <-grace.C:
				r.kill(x, "KILL")
				grace.Reset(time.Second) // again, should the runtime not have heard
			}
		}
	})
}

func (r *Runner) kill(x *box, signal string) {
	if err := r.client.signal(context.WithoutCancel(r.life), x.name, signal); err != nil {
		r.Log.Warn("a container could not be sent a signal", "container", x.name, "signal", signal, "err", err)
	}
}

// fills ends the container of an attempt that uses up the disk, at once.
func (r *Runner) fills(key plan.Key) {
	r.mu.Lock()
	x := r.live[key]
	r.mu.Unlock()
	if x != nil {
		r.kill(x, "KILL")
	}
}

// List implements controller.Runner.
func (r *Runner) List(context.Context) ([]plan.Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.live)), nil
}

// Adopt implements controller.Runner: a container that the record knows is taken
// over, also one that has ended meanwhile; every other one of this scope goes. A
// runner that leads again goes on with what it started itself.
func (r *Runner) Adopt(ctx context.Context, left []controller.Leftover) ([]plan.Key, error) {
	const op = "find the containers of an earlier controller"
	if err := r.grader.Sweep(); err != nil {
		r.Log.Warn("what an earlier controller was grading could not be removed", "err", err)
	}
	out, err := r.client.run(ctx, "ps", "--all", "--quiet", "--no-trunc", "--filter", "label="+labelScope+"="+r.scope)
	if err != nil {
		return nil, fulgur.E(fulgur.KindUnavailable, op, "the container program does not list them", err)
	}
	all, err := r.client.inspect(ctx, strings.Fields(string(out))...)
	if err != nil {
		return nil, fulgur.E(fulgur.KindUnavailable, op, "the container program does not show them", err)
	}
	known := map[plan.Key]bool{}
	for _, l := range left {
		known[l.Key] = true
	}
	var taken []plan.Key
	var dead []string
	var own []*box
	r.mu.Lock()
	r.left = false
	for k, x := range r.live {
		if known[k] {
			own = append(own, x)
		}
	}
	for _, s := range all {
		if r.testing[strings.TrimPrefix(s.Name, "/")] {
			continue
		}
		k := plan.Key{Rollout: fulgur.RolloutID(s.Config.Labels[labelRollout]), Attempt: fulgur.AttemptID(s.Config.Labels[labelAttempt])}
		if known[k] && r.live[k] != nil {
			continue
		}
		if !known[k] || !s.started() || r.closed {
			dead = append(dead, s.ID)
			continue
		}
		x := newBox(k, r.nameOf(k))
		x.secrets = s.credentials()
		if r.hasFolder() {
			x.folder = r.folderOf(k)
		}
		if err := r.reopenDoor(x); err != nil {
			r.Log.Warn("a container of an earlier controller cannot be taken over", "container", x.name, "err", err)
			dead = append(dead, s.ID)
			continue
		}
		close(x.ready)
		r.live[k] = x
		r.wg.Add(1)
		go r.follow(x)
		taken = append(taken, k)
	}
	r.mu.Unlock()
	for _, x := range own {
		<-x.ready
		if x.err != nil {
			continue
		}
		taken = append(taken, x.key)
		if x.door != nil {
			if err := x.door.listen(); err != nil {
				r.Log.Warn("a container's relay could not be opened again", "container", x.name, "err", err)
			}
		}
	}
	if len(dead) > 0 {
		r.Log.Warn("removing containers that an earlier controller left", "containers", len(dead))
		if err := r.client.remove(ctx, dead...); err != nil {
			return taken, fulgur.E(fulgur.KindUnavailable, op, "containers of an earlier controller could not be removed", err)
		}
	}
	r.sweepDoors()
	return taken, nil
}
