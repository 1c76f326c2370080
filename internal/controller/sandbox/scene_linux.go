package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur"
)

// Scene is what there is outside for probes to reach: listeners, a process with
// a key among its variables, shared memory, and folders like a run's.
type Scene struct {
	Dir     string // to be visible, as the run file's folder; what is hidden in it is in Hide
	Hide    []string
	Gateway string // address of a server that stands for the gateway
	t       Targets
	close   []func()
}

// The gateway's stand-in answers this path in two parts.
const (
	streamPath = "/openai/v1/stream"
	firstPart  = "data: one\n\n"
	secondPart = "data: two\n\n"
	partGap    = 100 * time.Millisecond
)

// NewScene opens one, in a new folder below dir ("": the system's temporary one).
func NewScene(dir string) (_ *Scene, err error) {
	s := &Scene{}
	defer func() {
		if err != nil {
			s.Close()
			err = fulgur.E(fulgur.KindInternal, "set up what probes try to reach", "", err)
		}
	}()
	s.t = Targets{Canary: "canary-" + rand.Text(), Key: "credential-" + rand.Text(), Files: map[string]string{}}
	root, err := os.MkdirTemp(dir, "fulgur-doctor-")
	if err != nil {
		return nil, err
	}
	s.close = append(s.close, func() { _ = os.RemoveAll(root) })
	if err := s.files(root); err != nil {
		return nil, err
	}
	if err := s.listeners(); err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", victimName, s.t.Canary)
	cmd.Env = append(os.Environ(), "FULGUR_SERVER_KEY="+s.t.Canary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.close = append(s.close, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	s.t.PID = cmd.Process.Pid
	if id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600); err == nil {
		s.t.Shm = id
		s.close = append(s.close, func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	}
	return s, nil
}

// files makes folders like a run's.
func (s *Scene) files(root string) error {
	s.Dir = filepath.Join(root, "project")
	run := filepath.Join(s.Dir, "runs", "run")
	for name, path := range map[string]string{
		"store": run + "/store.db", "other-attempt": run + "/attempts/attempts/other.0/input.json", "grader": s.Dir + "/grade.py",
		"data": s.Dir + "/train.jsonl", "git": s.Dir + "/.git/config", "server-key": root + "/outside/server.json", "tmp": root + "/outside/tmp",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(s.t.Canary), 0o644); err != nil {
			return err
		}
		s.t.Files[name] = path
	}
	s.t.Files["run-folder"], s.t.ReadOnly = run, s.Dir
	if home, err := os.UserHomeDir(); err == nil {
		for _, name := range []string{".ssh", ".netrc", ".aws", ".gitconfig", ".bash_history", ".bashrc", ".profile", ".zshrc"} {
			if _, err := reads(filepath.Join(home, name)); err == nil {
				s.t.Files["home"] = filepath.Join(home, name)
				break
			}
		}
	}
	s.Hide = []string{filepath.Join(s.Dir, "runs"), s.t.Files["grader"], s.t.Files["data"], filepath.Join(s.Dir, ".git")}
	return nil
}

// listeners opens servers that answer whoever speaks to them.
func (s *Scene) listeners() error {
	echo := func(network, addr string) (net.Listener, error) {
		l, err := net.Listen(network, addr)
		if err != nil {
			return nil, err
		}
		s.close = append(s.close, func() { _ = l.Close() })
		go func() { // ends with Close
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.SetDeadline(time.Now().Add(time.Second))
				if _, err := c.Read(make([]byte, 16)); err == nil {
					_, _ = c.Write([]byte("hello"))
				}
				_ = c.Close()
			}
		}()
		return l, nil
	}
	l, err := echo("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.t.Loopback = l.Addr().String()
	s.t.Abstract = "@fulgur-" + rand.Text()
	if _, err := echo("unix", s.t.Abstract); err != nil {
		return err
	}
	if ip := ownAddress(); ip != "" {
		if l, err := echo("tcp", net.JoinHostPort(ip, "0")); err == nil {
			s.t.LAN = l.Addr().String()
		}
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.close = append(s.close, func() { _ = udp.Close() })
	go func() { // ends with Close
		buf := make([]byte, 512)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(buf[:n], from)
		}
	}()
	s.t.DNS = udp.LocalAddr().String()
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(standIn), ReadHeaderTimeout: time.Minute}
	s.close = append(s.close, func() { _ = server.Close() })
	go func() { _ = server.Serve(web) }() // ends with Close
	s.Gateway = "http://" + web.Addr().String()
	return nil
}

// standIn is the gateway's: it answers everything, one path in two parts.
func standIn(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != streamPath {
		_, _ = w.Write([]byte("ok"))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = w.Write([]byte(firstPart))
	_ = http.NewResponseController(w).Flush()
	t := time.NewTimer(partGap)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
	}
	_, _ = w.Write([]byte(secondPart))
}

// ownAddress is an address of this machine on its network, "" if it has none.
func ownAddress() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	return ""
}

// Close ends the scene.
func (s *Scene) Close() {
	for _, f := range slices.Backward(s.close) {
		f()
	}
	s.close = nil
}

// Probe lets the probes loose in a box, and returns what they came to. names
// chooses some; none: all but those of limits.
func (s *Scene) Probe(ctx context.Context, b *Box, names ...string) ([]Finding, error) {
	t := s.t
	t.Relay = b.relay != nil
	t.Streams = t.Relay && b.o.Upstream == s.Gateway
	vars, pass := b.Env(map[string]string{"OPENAI_API_KEY": t.Key, "OPENAI_BASE_URL": b.o.Upstream + "/openai/v1"}, []string{t.Key})
	pass.Paths = append(pass.Paths, "/healthz")
	env := append(os.Environ(), "FULGUR_SERVER_KEY="+t.Canary)
	if !b.o.without[GuardSecrets] {
		env = Environ(env)
	}
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	out, said, err := s.run(ctx, b, t, env, pass, names)
	if err != nil {
		return nil, err
	}
	var found []Finding
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fulgur.E(fulgur.KindInternal, "probe the sandbox", "the probes did not run: "+said, err)
	}
	return found, nil
}

// run runs the probing program in a box; what it prints on standard error comes apart.
func (s *Scene) run(ctx context.Context, b *Box, t Targets, env []string, pass Pass, names []string) (out []byte, said string, err error) {
	targets, err := json.Marshal(t)
	if err != nil {
		return nil, "", err
	}
	c := Command{Program: "/proc/self/fd/4", Args: append([]string{"probe", probeName}, names...), Env: env}
	var printed bytes.Buffer
	text := &head{room: 8 << 10}
	_, err = b.Run(ctx, c, pass, Streams{In: targets, Out: &printed, Err: text})
	return printed.Bytes(), strings.TrimSpace(string(text.text)), err
}

// Outside lets the probes loose without a sandbox: what they then report is what there
// is to guard.
func (s *Scene) Outside(ctx context.Context, names ...string) ([]Finding, error) {
	targets, err := json.Marshal(s.t)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{probeName}, names...)...)
	cmd.Stdin = bytes.NewReader(targets)
	cmd.Env = append(os.Environ(), "FULGUR_SERVER_KEY="+s.t.Canary, "OPENAI_API_KEY="+s.t.Key)
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var found []Finding
	return found, json.Unmarshal(out, &found)
}

// Limits lets programs loose that want more than a box's limits; b has the limits of Scarce.
func (s *Scene) Limits(ctx context.Context, b *Box) ([]Finding, error) {
	var found []Finding
	for _, name := range limitProbes {
		out, said, err := s.run(ctx, b, s.t, os.Environ(), Pass{}, []string{name})
		if err != nil {
			return nil, err
		}
		f := Finding{Name: name, Guard: GuardLimits, Detail: "it was stopped"}
		if strings.Contains(string(out), "survived") {
			f.Escaped, f.Detail = true, "it went on beyond the limit"
		} else if said != "" {
			f.Detail, _, _ = strings.Cut(said, "\n")
		}
		found = append(found, f)
	}
	return found, nil
}

// Scarce are the limits that Limits is to be given.
func Scarce() Limits { return scarce }

// Prove shows that a box holds, for a run that is about to start: every probe, in
// the run's own sandbox. hidden are paths of the run's own that no agent may
// read. It returns an error that names what got out.
func (b *Box) Prove(ctx context.Context, hidden map[string]string) error {
	const op = "prove the sandbox"
	s, err := NewScene("")
	if err != nil {
		return err
	}
	defer s.Close()
	s.t.Files, s.t.ReadOnly = hidden, ""
	if len(b.o.View.Read) > 0 {
		s.t.ReadOnly = b.o.View.Read[0]
		if st, err := os.Stat(s.t.ReadOnly); err != nil || !st.IsDir() || slices.ContainsFunc(b.o.View.Write, func(w string) bool { return within(s.t.ReadOnly, w) }) {
			s.t.ReadOnly = ""
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	found, err := s.Probe(ctx, b)
	if err != nil {
		return err
	}
	var out []string
	for _, f := range found {
		switch {
		case !f.Escaped:
		case f.Name == gatewayName:
			return fulgur.E(fulgur.KindUnavailable, op, f.Detail+": agents would not reach their model", nil)
		default:
			out = append(out, f.Name+" ("+f.Detail+")")
		}
	}
	if len(out) > 0 {
		return fulgur.E(fulgur.KindForbidden, op, fmt.Sprintf("agents would get out of it: %s; `fulgur doctor` shows more. Mend it, or set runner.sandbox: none if you trust the agent", strings.Join(out, "; ")), nil)
	}
	return nil
}
