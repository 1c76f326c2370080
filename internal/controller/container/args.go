package container

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// launch is how one container is started.
type launch struct {
	args    []string // of the client, from `run` or `create` on
	environ []string // the client's, with the agent's variables
	file    []byte   // the env file's text; nil: none is needed
}

// places are an attempt's files on this machine; "": it has none of that kind.
type places struct {
	input  string // the input's file
	socket string // the folder of its relay's socket
	work   string // its workspace
}

// envFileMark stands in args where the env file's name goes.
const envFileMark = "\x00env-file"

// arguments makes the client's command line for an attempt. env are the agent's
// variables: they go by name on the command line and by value in the client's
// environment, for command lines can be read by everybody (ps), and an env file
// cannot hold a line feed. Names that the client itself may look at go by an
// env file.
func (r *Runner) arguments(k plan.Key, env map[string]string, at places) (launch, error) {
	l := launch{environ: r.Environ}
	if r.Input == controller.ByStdin {
		l.args = []string{"create", "--interactive", "--attach", "stdin", "--attach", "stdout", "--attach", "stderr"}
	} else {
		l.args = []string{"run", "--detach"}
	}
	add := func(args ...string) { l.args = append(l.args, args...) }
	add(r.guarded(r.nameOf(k))...)
	add("--label", labelScope+"="+r.scope, "--label", labelRollout+"="+string(k.Rollout), "--label", labelAttempt+"="+string(k.Attempt))
	if r.init && r.Network != NetworkGateway { // there Inner is one
		add("--init")
	}
	add(r.logging()...)
	switch r.Network {
	case NetworkGateway:
		add("--network", r.isolated())
		if at.socket != "" {
			add("--volume", r.inner+":"+innerPath+":ro", "--volume", at.socket+":"+path.Dir(socketPath))
		}
	default:
		add("--network", r.Network)
	}
	if r.ReadOnly {
		add("--read-only", "--tmpfs", "/tmp")
	}
	for _, m := range r.Mounts {
		add("--volume", m)
	}
	if at.input != "" {
		add("--volume", at.input+":"+inputPath+":ro")
	}
	if at.work != "" {
		add("--volume", at.work+":"+workPath, "--workdir", workPath)
	}
	l.args = append(l.args, r.Limits.args()...)
	if err := l.environment(env); err != nil {
		return launch{}, err
	}
	add(r.Extra...)
	switch {
	case at.socket != "":
		add("--entrypoint", innerPath, r.Image, innerName)
		add(r.entry...)
	case len(r.Command) > 0:
		add("--entrypoint", r.Command[0], r.Image)
		add(r.Command[1:]...)
	default:
		add(r.Image)
	}
	return l, nil
}

// guarded are the options of every container that runs something: its name, an image
// that is here, and no more rights than it needs.
func (r *Runner) guarded(name string) []string {
	args := []string{"--name", name, "--pull", "never", "--cap-drop", "all", "--security-opt", "no-new-privileges"}
	if r.client.podman {
		args = append(args, "--http-proxy=false")
	}
	return args
}

// logging are the options of a container's log. Its cap is on disk too: an agent that
// never stops talking fills no disk.
func (r *Runner) logging() []string {
	size := strconv.Itoa(max(8*r.LogCap, 4<<20))
	if r.client.podman {
		return []string{"--log-driver", "k8s-file", "--log-opt", "max-size=" + size}
	}
	return []string{"--log-driver", "json-file", "--log-opt", "max-size=" + size, "--log-opt", "max-file=2"}
}

// isolated is the network of a container that has the relay alone.
func (r *Runner) isolated() string {
	if r.unguarded {
		return "host"
	}
	return "none"
}

// args are the limits as options.
func (l Limits) args() (out []string) {
	if l.Memory > 0 {
		m := strconv.FormatInt(l.Memory, 10)
		out = append(out, "--memory", m, "--memory-swap", m)
	}
	if l.Processes > 0 {
		out = append(out, "--pids-limit", strconv.Itoa(l.Processes))
	}
	if l.FileSize > 0 {
		out = append(out, "--ulimit", fmt.Sprintf("fsize=%d:%d", l.FileSize, l.FileSize))
	}
	if l.CPUTime > 0 {
		out = append(out, "--ulimit", fmt.Sprintf("cpu=%d:%d", l.CPUTime, l.CPUTime))
	}
	if l.CPUs > 0 {
		out = append(out, "--cpus", strconv.FormatFloat(l.CPUs, 'f', -1, 64))
	}
	return out
}

// steering are beginnings of names by which a client, or the libraries below
// it, can be told to do something else.
var steering = []string{"CONTAINER", "DOCKER", "BUILDAH", "STORAGE_", "XDG_", "LD_", "GO", "SSL_", "REGISTRY_", "DBUS_", "LISTEN_", "NOTIFY_", "KUBE", "_CONTAINERS"}

// ours says whether a variable must not reach the client's own environment.
func ours(name string) bool {
	switch strings.ToUpper(name) {
	case "PATH", "HOME", "USER", "TMPDIR", "TERM", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY":
		return true
	}
	return slices.ContainsFunc(steering, func(p string) bool { return strings.HasPrefix(name, p) })
}

// environment adds the agent's variables.
func (l *launch) environment(env map[string]string) error {
	var file strings.Builder
	environ := slices.Clone(l.environ)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		if err := controller.CheckVar(name, value); err != nil {
			return err
		}
		if !ours(name) {
			environ = append(environ, name+"="+value)
			l.args = append(l.args, "--env", name)
			continue
		}
		if strings.ContainsAny(value, "\r\n") {
			return fulgur.E(fulgur.KindInvalid, "", fmt.Sprintf("the environment variable %s would hold a line feed, which cannot be given to a container under a name that the container program reads itself: choose another name in agent.input.env", name), nil)
		}
		fmt.Fprintf(&file, "%s=%s\n", name, value)
	}
	if file.Len() > 0 {
		l.file = []byte(file.String())
		l.args = append(l.args, "--env-file", envFileMark)
	}
	l.environ = environ
	return nil
}
