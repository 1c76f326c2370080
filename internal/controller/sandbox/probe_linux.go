package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Targets are what probes try to reach. An empty one makes its probes say that
// there is nothing to try.
type Targets struct {
	Loopback string            `json:"loopback,omitempty"` // a TCP address of the machine's own
	LAN      string            `json:"lan,omitempty"`      // one on its network
	DNS      string            `json:"dns,omitempty"`      // a UDP address that answers
	Abstract string            `json:"abstract,omitempty"` // a unix socket without a file
	Files    map[string]string `json:"files,omitempty"`    // by name: files and folders that are not to be read
	ReadOnly string            `json:"read_only,omitempty"`
	PID      int               `json:"pid,omitempty"` // a process outside
	Shm      int               `json:"shm,omitempty"` // a System V segment outside
	Canary   string            `json:"canary"`        // what variables, processes and memory outside hold
	Key      string            `json:"key,omitempty"` // stands for the attempt's credential
	Relay    bool              `json:"relay,omitempty"`
	Streams  bool              `json:"streams,omitempty"` // the relay leads to a scene's own server
}

// Probe is one way to get out.
type Probe struct {
	Name  string
	Guard Guard // what keeps it in
	// Try returns how it got out, or an error that says what stopped it;
	// errNothing: there is nothing to try here.
	Try func(Targets) (how string, err error)
}

var errNothing = errors.New("there is nothing to try here")

// Finding is what a probe came to.
type Finding struct {
	Name    string `json:"name"`
	Guard   Guard  `json:"guard"`
	Escaped bool   `json:"escaped"`
	Skipped bool   `json:"skipped,omitempty"`
	Detail  string `json:"detail"`
}

// hiddenFiles are the names of files that probes look for.
var hiddenFiles = []struct {
	name  string
	guard Guard
}{
	{"store", GuardHide}, {"run-folder", GuardHide}, {"other-attempt", GuardHide}, {"grader", GuardHide}, {"data", GuardHide}, {"git", GuardHide},
	{"server-key", GuardFiles}, {"home", GuardFiles}, {"tmp", GuardFiles},
}

// Probes returns all of them.
func Probes() []Probe {
	all := []Probe{
		{"network/loopback", GuardNet, func(t Targets) (string, error) { return dials("tcp", t.Loopback) }},
		{"network/lan", GuardNet, func(t Targets) (string, error) { return dials("tcp", t.LAN) }},
		{"network/dns", GuardNet, func(t Targets) (string, error) { return dials("udp", t.DNS) }},
		{"network/abstract-socket", GuardNet, func(t Targets) (string, error) { return dials("unix", t.Abstract) }},
		{"network/interfaces", GuardNet, interfaces},
		{"network/socket-families", GuardSeccomp, otherFamilies},
		{"relay/other-paths", GuardRelay, otherPaths},
	}
	for _, f := range hiddenFiles {
		all = append(all, Probe{"files/" + f.name, f.guard, func(t Targets) (string, error) { return reads(t.Files[f.name]) }})
	}
	return append(all,
		Probe{"files/write", GuardSystem, writes},
		Probe{"kernel/settings", GuardKernel, settings},
		Probe{"kernel/devices", GuardKernel, changesDevices},
		Probe{"kernel/keyring", GuardSeccomp, keyring},
		Probe{"kernel/namespaces", GuardUserNS, namespaces},
		Probe{"processes/see", GuardPID, sees},
		Probe{"processes/signal", GuardPID, signals},
		Probe{"processes/trace", GuardAll, traces},
		Probe{"memory/shared", GuardIPC, shares},
		Probe{"secrets/environment", GuardSecrets, func(t Targets) (string, error) { return inEnviron(t.Canary) }},
		Probe{"secrets/credential", GuardKey, func(t Targets) (string, error) { return inEnviron(t.Key) }},
	)
}

// probed is the probing program: targets on standard input, findings on standard
// output. Its arguments name the probes; none: all.
func probed(names []string) int {
	var t Targets
	if err := json.NewDecoder(os.Stdin).Decode(&t); err != nil {
		fmt.Fprintln(os.Stderr, "the probe's targets:", err)
		return 1
	}
	if len(names) == 1 && strings.HasPrefix(names[0], "limit/") {
		return overLimit(names[0])
	}
	out := []Finding{}
	for _, p := range Probes() {
		if len(names) > 0 && !slices.Contains(names, p.Name) {
			continue
		}
		f := Finding{Name: p.Name, Guard: p.Guard}
		how, err := p.Try(t)
		switch {
		case errors.Is(err, errNothing):
			f.Skipped, f.Detail = true, err.Error()
		case err != nil:
			f.Detail = err.Error()
		default:
			f.Escaped, f.Detail = true, how
		}
		out = append(out, f)
	}
	if t.Relay {
		out = append(out, reachesGateway(t))
	}
	if json.NewEncoder(os.Stdout).Encode(out) != nil {
		return 1
	}
	return 0
}

const probeTimeout = 500 * time.Millisecond

// dials connects, and has its greeting answered.
func dials(network, addr string) (string, error) {
	if addr == "" {
		return "", errNothing
	}
	c, err := net.DialTimeout(network, addr, probeTimeout)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(probeTimeout))
	if _, err := c.Write([]byte("hello")); err != nil {
		return "", err
	}
	if _, err := c.Read(make([]byte, 16)); err != nil {
		return "", err
	}
	return addr + " answered", nil
}

func interfaces(Targets) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			return "interface " + i.Name + " is up", nil
		}
	}
	return "", errors.New("there is no interface but the loopback's")
}

// otherFamilies makes sockets of families that know no network namespace.
func otherFamilies(Targets) (string, error) {
	none := true
	for name, family := range map[string]int{"vsock": unix.AF_VSOCK, "alg": unix.AF_ALG, "can": unix.AF_CAN, "kcm": unix.AF_KCM, "x25": unix.AF_X25, "rds": unix.AF_RDS, "tipc": unix.AF_TIPC} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
			fd, err := unix.Socket(family, kind, 0)
			if err == nil {
				_ = unix.Close(fd)
				return "a socket of family " + name + " was made", nil
			}
			none = none && err == unix.EAFNOSUPPORT
		}
	}
	if _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); none && err == unix.EAFNOSUPPORT {
		return "", err
	}
	return "", errors.New("no such socket can be made")
}

// relayGet asks the relay.
func relayGet(path string) (*http.Response, error) {
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return c.Get("http://127.0.0.1:" + strconv.Itoa(Port) + path)
}

// otherPaths asks the gateway for what is no attempt's.
func otherPaths(t Targets) (string, error) {
	if !t.Relay {
		return "", errNothing
	}
	for _, p := range []string{"/metrics", "/api/v2/runs", "/api/rollouts", "/openai/../metrics", "/openai/%2e%2e/metrics"} {
		resp, err := relayGet(p)
		if err != nil {
			return "", err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			return fmt.Sprintf("%s was answered with status %d", p, resp.StatusCode), nil
		}
	}
	return "", errors.New("the relay refuses them")
}

// gatewayName is the finding that the one way out is open.
const gatewayName = "relay/gateway"

// reachesGateway says whether the gateway can be reached, and streams.
func reachesGateway(t Targets) Finding {
	f := Finding{Name: gatewayName}
	fail := func(why string) Finding { f.Escaped, f.Detail = true, why; return f }
	path := "/healthz"
	if t.Streams {
		path = streamPath
	}
	resp, err := relayGet(path)
	if err != nil {
		return fail("the gateway cannot be reached: " + err.Error())
	}
	defer func() { _ = resp.Body.Close() }()
	first := make([]byte, len(firstPart))
	_, err = io.ReadFull(resp.Body, first)
	begin := time.Now()
	if !t.Streams {
		if resp.StatusCode != http.StatusOK {
			return fail("the gateway answers " + path + " with " + resp.Status)
		}
		f.Detail = "the gateway is reached through the relay"
		return f
	}
	rest, err2 := io.ReadAll(resp.Body)
	switch gap := time.Since(begin); {
	case err != nil || err2 != nil || string(first)+string(rest) != firstPart+secondPart:
		return fail(fmt.Sprintf("an answer was changed on its way: %q", string(first)+string(rest)))
	case gap < partGap/2:
		return fail("an answer's first part was held back until its second")
	}
	f.Detail = "the gateway is reached, and streams"
	return f
}

func reads(path string) (string, error) {
	if path == "" {
		return "", errNothing
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if st.IsDir() {
		list, err := os.ReadDir(path)
		if err != nil {
			return "", err
		}
		if len(list) == 0 {
			return "", errors.New("an empty folder is there")
		}
		return fmt.Sprintf("%s shows %d names", path, len(list)), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if n, _ := f.Read(make([]byte, 1)); n == 0 {
		return "", errors.New("an empty file is there")
	}
	return path + " can be read", nil
}

func writes(t Targets) (string, error) {
	if t.ReadOnly == "" {
		return "", errNothing
	}
	name := filepath.Join(t.ReadOnly, ".fulgur-probe")
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	_ = f.Close()
	_ = os.Remove(name)
	return name + " was written", nil
}

// settings opens, and does not change, the name of the program that root's kernel
// runs at a crash.
func settings(Targets) (string, error) {
	const name = "/proc/sys/kernel/core_pattern"
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	return name + " can be written: a program of the agent's would run outside, as root", f.Close()
}

// changesDevices sets the permissions of a device of the machine's to what they are.
func changesDevices(Targets) (string, error) {
	const name = "/dev/full"
	st, err := os.Stat(name)
	if err != nil {
		return "", errNothing
	}
	if err := os.Chmod(name, st.Mode().Perm()); err != nil {
		return "", err
	}
	return "who may use " + name + " and /dev/null on this machine can be changed", nil
}

// keyring asks for the session's keys, which no namespace holds.
func keyring(Targets) (string, error) {
	id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if errors.Is(err, unix.ENOSYS) {
		return "", errNothing
	}
	if err != nil && !errors.Is(err, unix.ENOKEY) {
		return "", err
	}
	return fmt.Sprintf("the session's keyring %d can be asked", id), nil
}

// namespaces makes a user namespace, in which a program has all capabilities
// over what it makes there: where most of the kernel's holes were.
func namespaces(Targets) (string, error) {
	cmd := exec.Command("/proc/self/exe", trueName)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	if err := cmd.Run(); err != nil {
		return "", err
	}
	return "a user namespace was made", nil
}

func sees(t Targets) (string, error) {
	if t.Canary == "" {
		return "", errNothing
	}
	for _, file := range []string{"cmdline", "environ"} {
		found, _ := filepath.Glob("/proc/[0-9]*/" + file)
		for _, name := range found {
			if pid := strings.Split(name, "/")[2]; pid == strconv.Itoa(os.Getpid()) {
				continue
			}
			if b, _ := os.ReadFile(name); strings.Contains(string(b), t.Canary) {
				return name + " of a process outside can be read", nil
			}
		}
	}
	return "", errors.New("no process outside is seen")
}

func signals(t Targets) (string, error) {
	if t.PID == 0 {
		return "", errNothing
	}
	if err := syscall.Kill(t.PID, 0); err != nil {
		return "", err
	}
	return fmt.Sprintf("process %d takes signals", t.PID), nil
}

func traces(t Targets) (string, error) {
	if t.PID == 0 {
		return "", errNothing
	}
	// Memory is read by whoever may trace.
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", t.PID))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the memory of process %d can be read", t.PID), f.Close()
}

func shares(t Targets) (string, error) {
	if t.Shm == 0 {
		return "", errNothing
	}
	p, err := unix.SysvShmAttach(t.Shm, 0, unix.SHM_RDONLY)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("segment %d can be read", t.Shm), unix.SysvShmDetach(p)
}

// inEnviron looks for a word in this program's variables. (Those of other processes
// that it sees are for sees.)
func inEnviron(word string) (string, error) {
	if word == "" {
		return "", errNothing
	}
	for _, kv := range os.Environ() {
		if name, value, _ := strings.Cut(kv, "="); strings.Contains(value, word) {
			return "variable " + name + " holds it", nil
		}
	}
	return "", errors.New("no variable holds it")
}

// overLimit does what a limit forbids and says "survived" if it could.
func overLimit(name string) int {
	defer fmt.Println("survived")
	switch name {
	case "limit/memory":
		b := make([]byte, 2*scarce.Memory)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		fmt.Fprint(io.Discard, b[len(b)-1])
	case "limit/processes":
		for range 2 * scarce.Processes {
			cmd := exec.Command("/proc/self/exe", victimName)
			if err := cmd.Start(); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
	case "limit/file":
		err := os.WriteFile("/tmp/large", make([]byte, 2*scarce.File), 0o600)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "limit/cpu":
		var u unix.Rusage
		for unix.Getrusage(unix.RUSAGE_SELF, &u) == nil && time.Duration(u.Utime.Nano()+u.Stime.Nano()) < 5*scarce.CPU { //nolint:revive // that is the work
		}
	}
	return 0
}

// scarce are limits that are quickly over. (With less memory, where it is each
// process's, no Go program starts.)
var scarce = Limits{Memory: 256 << 20, Processes: 24, File: 1 << 20, CPU: time.Second}

// limitProbes are the names that overLimit knows.
var limitProbes = []string{"limit/memory", "limit/processes", "limit/file", "limit/cpu"}

// victim waits to be reached.
func victim() {
	time.Sleep(time.Minute)
	os.Exit(0)
}
