package local

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur"
)

// WatchCommand is the word by which a program is asked to be a watchdog (Watch).
const WatchCommand = "watch-agents"

const (
	watchdogTalk  = time.Second     // for the watchdog to take a line, before it is given up
	watchdogLimit = 5 * time.Second // for the watchdog to end when its runner is closed
)

// watchdog is the runner's side of a process that ends what agents have left when this
// one is gone without a word: it holds the read end of a pipe whose write end is here
// alone. A nil one does nothing.
type watchdog struct {
	proc *os.Process
	pid  int
	gone chan struct{}
	log  *slog.Logger

	mu   sync.Mutex
	pipe *os.File
	lost bool
}

// startWatchdog runs a watchdog in a session of its own: no terminal's signal ends it.
func startWatchdog(command []string, owner string, grace time.Duration, log *slog.Logger) (*watchdog, error) {
	fail := func(err error) (*watchdog, error) {
		return nil, fulgur.E(fulgur.KindExhausted, "", "the process that ends agents when this one is killed cannot be started", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer func() { _ = r.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = w.Close()
		return fail(err)
	}
	defer func() { _ = null.Close() }()
	p, err := os.StartProcess(command[0], append(slices.Clone(command), owner, grace.String()), &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1"}, Files: []*os.File{r, null, null}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		_ = w.Close()
		return fail(err)
	}
	d := &watchdog{proc: p, pid: p.Pid, gone: make(chan struct{}), log: log, pipe: w}
	go func() { // until close, or somebody's kill
		defer close(d.gone)
		_, _ = p.Wait()
	}()
	return d, nil
}

// begins and ends tell of a group of processes, by its leader.
func (d *watchdog) begins(leader ident) { d.tell('+', leader) }
func (d *watchdog) ends(leader ident)   { d.tell('-', leader) }

func (d *watchdog) tell(what byte, leader ident) {
	if d == nil || leader.birth == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost {
		return
	}
	_ = d.pipe.SetWriteDeadline(time.Now().Add(watchdogTalk))
	if _, err := fmt.Fprintf(d.pipe, "%c %d %d\n", what, leader.pid, leader.birth); err != nil {
		d.lost = true
		_ = d.proc.Kill() // it would act on what it no longer hears of
		d.log.Warn("the process that ends agents when this one is killed is gone: children of agents would outlive a kill -9", "err", err)
	}
}

// close ends the watchdog, after all agents.
func (d *watchdog) close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	d.lost = true
	_ = d.pipe.Close()
	d.mu.Unlock()
	if !closedWithin(d.gone, watchdogLimit) {
		_ = syscall.Kill(d.pid, syscall.SIGKILL)
		<-d.gone
	}
}

// Watch is a watchdog if args, a whole command line, ask for one, and then does not return.
// Who runs a runner with Options.Watchdog calls it first of all.
func Watch(args []string) {
	if len(args) != 4 || args[1] != WatchCommand {
		return
	}
	grace, err := time.ParseDuration(args[3])
	if err != nil {
		os.Exit(2)
	}
	// What ends all processes of a service or of a container at once is heard by the
	// runner, too, which ends this one.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	closeInherited()
	r := remains{owner: args[2], groups: map[int]uint64{}, known: map[ident]bool{}}
	r.listen(os.Stdin)
	r.end(grace)
	os.Exit(0)
}

// closeInherited closes what a runner got from whoever started it and handed on without
// knowing: locks, listeners. Files of this process's own are closed at an exec.
func closeInherited() {
	dir, err := os.Open("/dev/fd")
	if err != nil {
		return
	}
	names, _ := dir.Readdirnames(-1)
	_ = dir.Close()
	for _, name := range names {
		var fd int
		if _, err := fmt.Sscanf(name, "%d", &fd); err != nil || fd < 3 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}

// remains are the processes of a runner that is gone.
type remains struct {
	owner  string
	groups map[int]uint64 // by their leaders, with their times of birth
	known  map[ident]bool
}

// listen hears of groups until the runner is gone.
func (r *remains) listen(in io.Reader) {
	for s := bufio.NewScanner(in); s.Scan(); {
		var what rune
		var leader ident
		if n, _ := fmt.Sscanf(s.Text(), "%c %d %d", &what, &leader.pid, &leader.birth); n < 3 || leader.pid < 2 {
			continue
		}
		if what == '+' {
			r.groups[leader.pid] = leader.birth
		} else {
			delete(r.groups, leader.pid)
		}
	}
}

// end ends all that is left: SIGTERM, and SIGKILL after the grace.
func (r *remains) end(grace time.Duration) {
	limit := time.Now().Add(grace)
	if !r.look() {
		return
	}
	r.signal(syscall.SIGTERM)
	for nap := 10 * time.Millisecond; time.Now().Before(limit); nap = min(2*nap, 200*time.Millisecond) {
		time.Sleep(min(nap, time.Until(limit)))
		if !r.look() {
			return
		}
	}
	for range 8 { // one may fork while another is being ended
		r.signal(syscall.SIGKILL)
		for id := range r.known {
			id.await()
		}
		if !r.look() {
			return
		}
	}
}

// look finds who lives: who carries the runner's mark, the leaders, what is below either, and
// what was found before.
func (r *remains) look() bool {
	for _, id := range marked(func(m string) bool { return strings.HasPrefix(m, r.owner+"/") }) {
		r.known[id] = true
	}
	alive := false
	for pid, birth := range r.groups {
		switch b, ok := born(pid); {
		case ok && b != birth, syscall.Kill(-pid, 0) != nil: // its number means somebody else, or it is empty
			delete(r.groups, pid)
		case ok:
			r.known[ident{pid, birth}] = true
			fallthrough
		default:
			alive = true
		}
	}
	var pids []int
	for id := range r.known {
		if b, ok := born(id.pid); !ok || b != id.birth {
			delete(r.known, id)
			continue
		}
		pids = append(pids, id.pid)
	}
	if len(pids) > 0 {
		for _, id := range descendants(pids...) {
			r.known[id] = true
		}
	}
	return alive || len(r.known) > 0
}

func (r *remains) signal(sig syscall.Signal) {
	for pid := range r.groups {
		_ = syscall.Kill(-pid, sig)
	}
	for id := range r.known {
		id.signal(sig)
	}
}
