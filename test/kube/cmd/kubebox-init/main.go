// Command kubebox-init builds a container from inside its new namespaces, then
// becomes the workload. It is a program of its own because kubebox itself takes
// a tenth of a second to begin.
package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur/test/kube/internal/sandbox"
)

func main() {
	// What prctl sets belongs to a thread: the one that becomes the workload.
	runtime.LockOSThread()
	why := os.NewFile(sandbox.ErrorFD, "error")
	unix.CloseOnExec(sandbox.ErrorFD)
	if err := start(); err != nil {
		fmt.Fprint(why, err)
		os.Exit(128)
	}
}

func start() error {
	var s sandbox.Spec
	in := os.NewFile(sandbox.SpecFD, "spec")
	if err := json.NewDecoder(in).Decode(&s); err != nil {
		return fmt.Errorf("reading the specification: %w", err)
	}
	_ = in.Close()
	for _, dir := range s.Cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("joining the control group: %w", err)
		}
	}
	if err := root(s); err != nil {
		return err
	}
	if err := volumes(s); err != nil {
		return err
	}
	return become(s)
}

// host is where the machine's own tree is while the container's is being made.
const host = "/.host"

// root makes the container's tree and goes there. From then on symbolic links
// in mount paths (/var/run to /run) resolve inside it.
func root(s sandbox.Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	lower := s.Root
	if lower == "" {
		lower = "/"
	}
	if err := unix.Mount("tmpfs", s.Scratch, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mounting the scratch space: %w", err)
	}
	up, work, root := s.Scratch+"/up", s.Scratch+"/work", s.Scratch+"/root"
	for _, dir := range []string{up, work, root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+lower+",upperdir="+up+",workdir="+work); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	if err := os.MkdirAll(root+host, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, root+host); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	type mount struct {
		dst, kind string
		flags     uintptr
		data      string
		mode      fs.FileMode
	}
	mounts := []mount{
		{"/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "", 0o755},
		{"/dev", "tmpfs", unix.MS_NOSUID, "mode=755", 0o755},
		{"/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777", 0o777},
	}
	if s.Root == "" { // the machine's own /tmp is nobody's image
		mounts = append(mounts, mount{"/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777", 0o777})
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.dst, m.mode); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dst, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.dst, err)
		}
	}
	for i, n := range []string{"stdin", "stdout", "stderr"} {
		if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", i), "/dev/"+n); err != nil {
			return err
		}
	}
	return os.Symlink("/proc/self/fd", "/dev/fd")
}

func volumes(s sandbox.Spec) error {
	for _, d := range []string{"null", "zero", "full", "random", "urandom"} {
		if err := bind(sandbox.Bind{Src: "/dev/" + d, Dst: "/dev/" + d}); err != nil {
			return err
		}
	}
	// Outer paths first, whatever their order in the manifest.
	slices.SortStableFunc(s.Binds, func(a, b sandbox.Bind) int { return strings.Count(a.Dst, "/") - strings.Count(b.Dst, "/") })
	for _, b := range s.Binds {
		if err := bind(b); err != nil {
			return err
		}
	}
	if err := unix.Unmount(host, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the machine's tree: %w", err)
	}
	if err := os.Remove(host); err != nil {
		return err
	}
	cwd := s.Cwd
	if cwd == "" {
		cwd = "/"
	}
	if err := os.MkdirAll(cwd, 0o755); err != nil {
		return err
	}
	if s.ReadOnly {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("making the root read-only: %w", err)
		}
	}
	return os.Chdir(cwd)
}

func bind(b sandbox.Bind) error {
	src := host + b.Src
	info, err := os.Stat(src)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(b.Dst, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(b.Dst), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(b.Dst, os.O_CREATE, 0o666); err == nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(src, b.Dst, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", b.Dst, err)
	}
	if b.ReadOnly {
		if err := unix.Mount("", b.Dst, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("making %s read-only: %w", b.Dst, err)
		}
	}
	return nil
}

// become gives up what the container may not have, and is the workload.
func become(s sandbox.Spec) error {
	os.Clearenv()
	for _, e := range s.Env {
		k, v, _ := strings.Cut(e, "=")
		_ = os.Setenv(k, v)
	}
	if s.Keep != nil {
		for c := 0; c <= unix.CAP_LAST_CAP; c++ {
			if !slices.Contains(s.Keep, c) {
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
					return fmt.Errorf("dropping capability %d: %w", c, err)
				}
			}
		}
	}
	uid, gid, err := user(s.User)
	if err != nil {
		return err
	}
	if err := syscall.Setgroups(append([]int{gid}, s.Groups...)); err != nil {
		return fmt.Errorf("setting groups: %w", err)
	}
	if err := syscall.Setgid(gid); err != nil {
		return err
	}
	if err := syscall.Setuid(uid); err != nil {
		return err
	}
	// A change of user cancels it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if s.NoNew {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	exe, err := exec.LookPath(s.Argv[0])
	if err != nil {
		return err
	}
	if err := unix.Exec(exe, s.Argv, os.Environ()); err != nil {
		return fmt.Errorf("exec %s: %w", exe, err)
	}
	return nil
}

// user reads "uid", "uid:gid", "name" or "name:group" with the image's own files.
func user(text string) (uid, gid int, err error) {
	if text == "" {
		return 0, 0, nil
	}
	name, group, both := strings.Cut(text, ":")
	if uid, err = strconv.Atoi(name); err != nil {
		fields, ok := entry("/etc/passwd", name)
		if !ok || len(fields) < 4 {
			return 0, 0, fmt.Errorf("unable to find user %s: no matching entries in passwd file", name)
		}
		if uid, err = strconv.Atoi(fields[2]); err != nil {
			return 0, 0, err
		}
		gid, _ = strconv.Atoi(fields[3])
	}
	if both {
		if gid, err = strconv.Atoi(group); err != nil {
			fields, ok := entry("/etc/group", group)
			if !ok || len(fields) < 3 {
				return 0, 0, fmt.Errorf("unable to find group %s: no matching entries in group file", group)
			}
			gid, err = strconv.Atoi(fields[2])
		}
	}
	return uid, gid, err
}

func entry(file, name string) ([]string, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); f[0] == name {
			return f, true
		}
	}
	return nil, false
}
