package container

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// NetworkGateway is the network of a container that reaches the gateway and
// nothing else: no interface but its own loopback, on which this binary (Inner)
// listens, mounted into it, and a socket that is mounted too. At the other end
// a relay of the runner's adds the attempt's credential, so that it is never in
// the container, and lets the attempt's own addresses through alone.
const NetworkGateway = "gateway"

// door is one attempt's relay: a folder with the socket's folder, which the
// container sees, and what the next controller needs to open it again.
type door struct {
	dir   string
	relay *sandbox.Relay
	http  *http.Server
	serve sync.WaitGroup

	mu   sync.Mutex
	over bool // it is shut
}

// ticket is what is kept of a door in its folder, which only this user can read.
type ticket struct {
	Upstream string
	Pass     sandbox.Pass
}

// doors is the folder of this runner's relays. A socket's name may have about 100
// bytes, so it is not below State; the same after a restart.
func (r *Runner) doors() string {
	base := os.TempDir()
	if d := r.runtimeDir(); d != "" {
		base = d
	}
	return filepath.Join(base, "fulgur-"+strconv.Itoa(os.Getuid())+"-"+r.scope)
}

// doorOf is the folder of an attempt's relay; a probe's key has no attempt.
func (r *Runner) doorOf(k plan.Key) string {
	name := short(string(k.Rollout) + "\x00" + string(k.Attempt))
	if k.Attempt == "" {
		name = probeDoor + name
	}
	return filepath.Join(r.doors(), name)
}

const probeDoor = "probe-"

// sweepDoors removes what relays of containers left that are no more. A probe's may be
// that of another controller of this run, which starts.
func (r *Runner) sweepDoors() {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := map[string]bool{}
	for k := range r.live {
		keep[filepath.Base(r.doorOf(k))] = true
	}
	if checkFolder(r.doors()) != nil {
		return
	}
	all, _ := os.ReadDir(r.doors()) // mostly there is none
	for _, d := range all {
		info, err := d.Info()
		probes := strings.HasPrefix(d.Name(), probeDoor) && (err != nil || time.Since(info.ModTime()) < 2*patience)
		if !keep[d.Name()] && !probes {
			_ = os.RemoveAll(filepath.Join(r.doors(), d.Name()))
		}
	}
}

func (r *Runner) runtimeDir() string {
	for _, kv := range r.Environ {
		if d, ok := strings.CutPrefix(kv, "XDG_RUNTIME_DIR="); ok {
			if st, err := os.Stat(d); err == nil && st.IsDir() {
				return d
			}
		}
	}
	return ""
}

// openDoor makes an attempt's relay for the variables that it would have outside,
// and returns them as they are inside.
func (r *Runner) openDoor(x *box, env map[string]string, secrets []string) (map[string]string, error) {
	inside, pass := sandbox.Through(r.Gateway, env, secrets)
	t := ticket{Upstream: r.Gateway, Pass: pass}
	dir := r.doorOf(x.key)
	if err := ownFolder(r.doors()); err != nil {
		return nil, err
	}
	b, err := json.Marshal(t)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "gateway"), 0o700)
	}
	if err == nil {
		err = os.Chmod(filepath.Join(dir, "gateway"), 0o755) // whoever the image runs as
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "ticket"), b, 0o600)
	}
	if err != nil {
		return nil, fulgur.E(fulgur.KindExhausted, "", "the relay's folder cannot be written", err)
	}
	if x.door, err = listenDoor(dir, t); err != nil {
		return nil, err
	}
	return inside, nil
}

// reopenDoor takes up an adopted container's relay where its controller left it.
func (r *Runner) reopenDoor(x *box) error {
	if err := checkFolder(r.doors()); err != nil {
		return err
	}
	dir := r.doorOf(x.key)
	b, err := os.ReadFile(filepath.Join(dir, "ticket"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has another network
	}
	var t ticket
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	if err != nil {
		return fulgur.E(fulgur.KindInternal, "", "the relay of a container cannot be opened again", err)
	}
	if t.Pass.Key != "" {
		x.secrets = append(x.secrets, t.Pass.Key)
	}
	x.door, err = listenDoor(dir, t)
	return err
}

// ownFolder makes a folder that only this user can enter, and refuses one that
// somebody else has put there.
func ownFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fulgur.E(fulgur.KindForbidden, "", "the relays' folder "+dir+" cannot be made", err)
	}
	return checkFolder(dir)
}

// checkFolder refuses a folder that others may have put there, or put something in.
// One that is not there is none.
func checkFolder(dir string) error {
	st, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && (!st.IsDir() || st.Mode().Perm() != 0o700 || !ownedByUs(st)) {
		err = errors.New("it is somebody else's, or open to others")
	}
	if err != nil {
		return fulgur.E(fulgur.KindForbidden, "", "the relays' folder "+dir+" cannot be used: remove it", err)
	}
	return nil
}

// listenDoor opens the relay's socket.
func listenDoor(dir string, t ticket) (*door, error) {
	relay, err := sandbox.NewRelay(t.Upstream)
	if err != nil {
		return nil, err
	}
	relay.Let(t.Pass)
	d := &door{dir: dir, relay: relay,
		http: &http.Server{Handler: relay, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}}
	if err := d.listen(); err != nil {
		relay.Close()
		return nil, err
	}
	return d, nil
}

// listen opens the door's socket, also again: another controller that led meanwhile
// has put one of its own there. The socket stays when its listener ends, for by then
// it may be the next controller's; it goes with its folder.
func (d *door) listen() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return nil
	}
	socket := filepath.Join(d.folder(), filepath.Base(socketPath))
	_ = os.Remove(socket)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err == nil {
		ln.SetUnlinkOnClose(false)
		if err = os.Chmod(socket, 0o666); err != nil { // whoever the image runs as; its folder is ours alone
			_ = ln.Close()
		}
	}
	if err != nil {
		return fulgur.E(fulgur.KindExhausted, "", "the relay's socket cannot be opened", err)
	}
	d.serve.Go(func() { _ = d.http.Serve(sandbox.Few(ln)) })
	return nil
}

// folder is what the container sees of it.
func (d *door) folder() string { return filepath.Join(d.dir, "gateway") }

// shut ends an attempt's relay. With the attempt goes its folder: nothing that it
// left comes through any more. Else the next runner opens it again.
func (d *door) shut(ended bool) {
	if d == nil {
		return
	}
	d.mu.Lock()
	d.over = true
	d.mu.Unlock()
	_ = d.http.Close()
	d.serve.Wait()
	d.relay.Close()
	if ended {
		_ = os.RemoveAll(d.dir)
	}
}

// CheckProgram says whether this binary can be the first program of a container,
// as the network NetworkGateway needs it.
func CheckProgram() error {
	_, err := findInner()
	return err
}

// findInner finds this binary and refuses one that would not run in every image.
func findInner() (string, error) {
	const op = "set up the containers' relay"
	self, err := os.Executable()
	if err != nil {
		return "", fulgur.E(fulgur.KindInternal, op, "this program cannot find itself", err)
	}
	if runtime.GOOS != "linux" {
		return "", fulgur.E(fulgur.KindUnsupported, op, "runner.container.network: gateway needs Linux on this machine: name a network that reaches the gateway", nil)
	}
	f, err := elf.Open(self)
	if err != nil {
		return "", fulgur.E(fulgur.KindInternal, op, "this program cannot be read", err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fulgur.E(fulgur.KindUnsupported, op, fmt.Sprintf("%s is not static, so it would not run in every image: build it with CGO_ENABLED=0 (make build), or name a network with runner.container.network", self), nil)
		}
	}
	return self, nil
}

// ownedByUs says whether a file belongs to this user.
func ownedByUs(st os.FileInfo) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Getuid()
}
