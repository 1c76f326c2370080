package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// client is a program with docker's command line.
type client struct {
	path    string
	environ []string
	podman  bool
	about   Client
}

// patience is how long one command of the client may take, but for those that
// wait for a container or fetch an image.
const patience = 2 * time.Minute

// clientTalk is how many bytes are kept of what a client says that may say much.
const clientTalk = 8 << 10

// findClient finds the program, and asks it whether it works.
func findClient(ctx context.Context, program string, environ []string) (*client, error) {
	const op = "find the container program"
	names := []string{program}
	if program == "" || program == "auto" {
		names = []string{"podman", "docker"}
	}
	var c *client
	for _, n := range names {
		path, err := exec.LookPath(n)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err == nil {
			c = &client{path: path, environ: environ}
			break
		}
	}
	if c == nil {
		return nil, fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("%s is not on PATH: install Podman or Docker, or name the program with runner.container.program", strings.Join(names, " and ")), nil)
	}
	out, err := c.run(ctx, "--version")
	if err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, c.path+" does not work: it should have docker's command line", err)
	}
	c.about = Client{Path: c.path, Version: strings.TrimSpace(string(out))}
	c.podman = strings.Contains(strings.ToLower(string(out)), "podman")
	// `info` needs the server, where there is one.
	info, err := c.run(ctx, "info", "--format", "{{json .}}")
	if err != nil {
		return nil, fulgur.E(fulgur.KindUnavailable, op, c.path+" cannot reach its service or its storage: does `"+c.path+" info` work for this user?", err)
	}
	c.about.tell(info)
	return c, nil
}

// failure is an answer of the client that is no success.
type failure struct {
	code int
	text string // of standard error: its last line
}

func (f *failure) Error() string { return fmt.Sprintf("%s (exit code %d)", f.text, f.code) }

// command is one call of the client, in a process group of its own: Ctrl-C is
// for us, who end what runs in order.
func (c *client) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.path, args...)
	cmd.Env = c.environ
	cmd.Dir = os.TempDir() // Podman's conmon leaves a file `oom` in its folder when a container runs out of memory
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // somebody else may hold the pipes
	return cmd
}

// run runs one command to its end and returns its standard output. An error is
// a *failure, or says that the client could not be run.
func (c *client) run(ctx context.Context, args ...string) ([]byte, error) {
	return c.runWith(ctx, c.environ, args...)
}

func (c *client) runWith(ctx context.Context, environ []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out, bad bytes.Buffer
	cmd := c.command(ctx, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = environ, &out, &bad
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // it exited with 0; a child of it holds the pipe
		err = nil
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && ctx.Err() == nil {
		return out.Bytes(), &failure{exit.ExitCode(), lastLine(bad.String())}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.Bytes(), err
}

// lastLine is what a client says at the end, without its prefixes.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	lines := strings.Split(s, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		l := strings.TrimSpace(lines[i])
		if l == "" || strings.HasPrefix(l, "See '") || strings.HasPrefix(l, "Run '") { // docker's hint to its help
			continue
		}
		for _, p := range []string{"Error: ", "docker: ", "Error response from daemon: "} {
			l = strings.TrimPrefix(l, p)
		}
		return l[:min(len(l), 2000)]
	}
	return "it said nothing"
}

// trouble is what a failure means.
type trouble int

const (
	troubleRuntime trouble = iota // the runtime could not; another try may go better
	troubleImage                  // no such image, or it cannot be had
	troubleProgram                // the program is not in the image, or cannot be executed
	troubleName                   // a container of this name is there already
	troubleGone                   // no such container
	troubleState                  // it does not run, or has not been started
	troubleOptions                // the command line itself is refused
)

var (
	imageText   = regexp.MustCompile(`(?i)image not known|no such image|manifest unknown|pull access denied|repository does not exist|unable to find image|name unknown|initializing source|invalid reference format|unauthorized`)
	programText = regexp.MustCompile(`(?i)executable file .*not found|no such file or directory: OCI|exec: .*(no such file|permission denied)|exec format error|command that was not found|command cannot be invoked`)
	nameText    = regexp.MustCompile(`(?i)name .* is already in use|already in use by`)
	goneText    = regexp.MustCompile(`(?i)no such container|no container with name or ID|no such object|container .* does not exist`)
	stateText   = regexp.MustCompile(`(?i)is not running|only attach to running|can only kill running|container state improper|not in running state|cannot attach to a stopped|is stopped`)
	optionText  = regexp.MustCompile(`(?i)unknown flag|unknown shorthand flag|invalid argument|flag needs an argument|invalid option`)
)

// classify reads a failure: 127 is the program's by docker's custom, the texts are
// Podman's and Docker's.
func classify(err error) trouble {
	var f *failure
	if !errors.As(err, &f) {
		return troubleRuntime
	}
	switch {
	case nameText.MatchString(f.text):
		return troubleName
	case goneText.MatchString(f.text):
		return troubleGone
	case stateText.MatchString(f.text):
		return troubleState
	case f.code == 127 || programText.MatchString(f.text): // 126 also stands for what the runtime may not do
		return troubleProgram
	case imageText.MatchString(f.text):
		return troubleImage
	case optionText.MatchString(f.text):
		return troubleOptions
	}
	return troubleRuntime
}

// state is what `inspect` says of a container. Podman and Docker agree on these.
type state struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Status    string
		Running   bool
		OOMKilled bool
		ExitCode  int
		Error     string
		StartedAt time.Time
	}
	Config struct {
		Labels map[string]string
		Env    []string
	}
}

// credentials are what an adopted container's log must not show: its controller
// knew them, and its environment still does.
func (s *state) credentials() (out []string) {
	for _, kv := range s.Config.Env {
		if name, v, _ := strings.Cut(kv, "="); v != "" && v != sandbox.Placeholder && (name == "OPENAI_API_KEY" || name == "ANTHROPIC_API_KEY" || name == "AGL_KEY") {
			out = append(out, v)
		}
	}
	return out
}

// started says whether its program has ever run.
func (s *state) started() bool { return s.State.StartedAt.Year() > 1 }

// inspect looks at containers; those that are gone are left out.
func (c *client) inspect(ctx context.Context, names ...string) ([]state, error) {
	if len(names) == 0 {
		return nil, nil
	}
	out, err := c.run(ctx, append([]string{"container", "inspect"}, names...)...)
	if err != nil && classify(err) != troubleGone {
		return nil, err
	}
	var all []state
	if jerr := json.Unmarshal(out, &all); jerr != nil {
		if err != nil { // gone, and nothing else was asked for
			return nil, nil
		}
		return nil, fmt.Errorf("reading what %s inspect says: %w", c.path, jerr)
	}
	return all, nil
}

// logs copies a container's output to w.
func (c *client) logs(ctx context.Context, name string, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := c.command(ctx, "logs", name)
	cmd.Stdout, cmd.Stderr = w, w // one pipe: the lines keep their order
	return cmd.Run()
}

// remove ends containers by force, if they run, and removes them.
func (c *client) remove(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	args := []string{"rm", "--force", "--volumes"}
	if c.podman {
		args = append(args, "--time", "0") // its own --force waits ten seconds for a program that ignores SIGTERM
	}
	_, err := c.run(ctx, append(args, names...)...)
	if err != nil && classify(err) == troubleGone {
		return nil
	}
	return err
}

// signal sends a signal to a container's first process. One that does not run
// any more is no error.
func (c *client) signal(ctx context.Context, name, signal string) error {
	_, err := c.run(ctx, "kill", "--signal", signal, name)
	if t := classify(err); err != nil && (t == troubleGone || t == troubleState) {
		return nil
	}
	return err
}
