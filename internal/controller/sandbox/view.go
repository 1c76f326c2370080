package sandbox

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// View is what a sandbox shows of the machine beside the system itself. All
// paths are absolute; what does not exist is left out.
type View struct {
	Read  []string // folders and files, read-only
	Hide  []string // not these, whatever is around them
	Show  []string // read-only all the same: programs within what is hidden
	Write []string // folders
}

// with returns the view with a cell's own folders.
func (v View) with(read, write []string) View {
	v.Show = slices.Concat(v.Show, read)
	v.Write = slices.Concat(v.Write, write)
	return v
}

// private are folders that every sandbox has of its own.
var private = []string{"/tmp", "/var/tmp", "/dev", "/proc", "/home", "/root", "/run", "/var"}

// check refuses a view that shows too much: all of a home, of the machine, or of what
// is private; and folders to be written that hold what is hidden, or lie in it. (What
// is hidden in them again could be found by the next agent, where one has moved the
// folder around it.) Links count as what they lead to.
func (v View) check(home string) error {
	const op = "set up the sandbox"
	for i, p := range slices.Concat(v.Read, v.Write) {
		real := resolved(p)
		for _, p := range []string{p, real} {
			if p == "/" || within(home, p) || home != "" && within(resolved(home), p) || slices.Contains(private, p) {
				return fulgur.E(fulgur.KindInvalid, op, "the agents would see all of "+p+": keep the run file, and what runner.read and runner.write name, in folders of their own", nil)
			}
		}
		if i < len(v.Read) {
			continue
		}
		for _, s := range slices.Concat(system, []string{"/proc", "/sys", "/dev"}) {
			if within(s, real) || within(real, s) && s != "/opt" {
				return fulgur.E(fulgur.KindInvalid, op, "runner.write: agents would write "+p+", which is the system's: name a folder of their own", nil)
			}
		}
		for _, h := range v.Hide {
			if hidden := resolved(h); within(hidden, real) || within(real, hidden) {
				return fulgur.E(fulgur.KindInvalid, op, "runner.write: agents would write "+p+", and "+h+" is hidden from them (the run's folders, data, grader, and runner.hide): name a folder apart from it, or take it off runner.hide", nil)
			}
		}
		for j, w := range v.Write {
			if i-len(v.Read) != j && within(real, resolved(w)) && real != resolved(w) {
				return fulgur.E(fulgur.KindInvalid, op, "runner.write: "+p+" lies in "+w+", where an agent could put a link in its place: name one of them", nil)
			}
		}
	}
	return nil
}

// resolved is a path behind its links, as far as it exists.
func resolved(path string) string {
	path = filepath.Clean(path)
	for rest, p := "", path; ; rest, p = filepath.Join(filepath.Base(p), rest), filepath.Dir(p) {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			return filepath.Join(real, rest)
		}
		if p == filepath.Dir(p) {
			return path
		}
	}
}

// system is what every program needs.
var system = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store", "/gnu/store"}

// maxRootOnly bounds what is looked for; more than that is no usual system.
const maxRootOnly = 2000

// rootOnly returns what of the system only root, or a group, may read: where the
// agent is root's, nothing else keeps it from passwords, host keys and tokens there. ok is
// false where there is more of it than can be hidden.
func rootOnly(roots ...string) (out []string, ok bool) {
	for _, root := range roots {
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // it went away, or is nobody's to read
			}
			if len(out) >= maxRootOnly {
				return filepath.SkipAll
			}
			info, err := d.Info()
			if err != nil || d.Type()&os.ModeSymlink != 0 {
				return nil //nolint:nilerr // the same
			}
			switch mode := info.Mode().Perm(); {
			case d.IsDir() && mode&0o005 != 0o005:
				out = append(out, path)
				return filepath.SkipDir
			case d.Type().IsRegular() && mode&0o004 == 0:
				out = append(out, path)
			}
			return nil
		})
	}
	return out, len(out) < maxRootOnly
}

// kernelFiles are files by which root changes the running system. Their
// permissions look at the user outside the sandbox, not at capabilities:
// without this, an agent that root started could set kernel.core_pattern and so
// run a program outside. (bubblewrap 0.8.0 covers only those whose folder is writable.)
var kernelFiles = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi", "/proc/mtrr", "/proc/dynamic_debug", "/proc/driver"}

// kernelSecrets are files that tell root of what others do: keys' names, programs'
// timers, memory.
var kernelSecrets = []string{"/proc/keys", "/proc/kcore", "/proc/timer_list", "/proc/latency_stats", "/proc/sched_debug"}

// machine is what there is outside.
type machine struct {
	home string
	size int64    // of each private folder; 0: no limit
	root bool     // agents are root's
	only []string // what then only root may read
}

// mounts returns bubblewrap's arguments that make the view. Later ones lie over
// earlier ones, so folders come before what is in them, and what is hidden
// before what is shown all the same.
func mounts(v View, m machine, without map[Guard]bool) []string {
	var args []string
	bind := "--ro-bind"
	if without[GuardSystem] {
		bind = "--bind"
	}
	if without[GuardFiles] {
		args = append(args, bind, "/", "/")
	} else {
		for _, dir := range system {
			args = append(args, systemDir(bind, dir)...)
		}
		over, seal := hidden(m.only)
		args = append(append(args, over...), seal...)
	}
	args = append(args, "--proc", "/proc", "--dev", "/dev")
	if m.root && !without[GuardKernel] {
		for _, p := range kernelFiles {
			if _, err := os.Lstat(p); err == nil {
				args = append(args, "--ro-bind", p, p)
			}
		}
		for _, p := range kernelSecrets {
			if _, err := os.Lstat(p); err == nil {
				args = append(args, "--ro-bind", "/dev/null", p)
			}
		}
	}
	if !without[GuardFiles] {
		private := []string{"/dev/shm", "/tmp", "/var/tmp"}
		if m.home != "" && m.home != "/" && !within(m.home, "/tmp") {
			private = append(private, m.home)
		}
		for _, dir := range private {
			if m.size > 0 {
				args = append(args, "--size", strconv.FormatInt(m.size, 10))
			}
			args = append(args, "--perms", "1777", "--tmpfs", dir)
		}
	}
	v, links := v.behindLinks()
	for _, p := range outerFirst(v.Read) {
		args = append(args, bind, p, p)
	}
	var seal []string
	if !without[GuardHide] && !without[GuardFiles] {
		apart, sealed := v.apart(bind)
		over, more := hidden(v.Hide)
		args = append(append(args, apart...), over...)
		seal = append(sealed, more...)
	}
	args = append(args, links...)
	for _, p := range outerFirst(v.Show) {
		args = append(args, bind, p, p)
	}
	for _, p := range outerFirst(v.Write) {
		args = append(args, "--bind", p, p)
	}
	if !without[GuardFiles] { // they are in memory, and not bounded
		seal = append(seal, "--remount-ro", "/dev", "--remount-ro", "/")
	}
	return append(args, seal...)
}

// behindLinks is the view with every path behind its links, so that what is hidden
// is so by each of its names, and the links that lead there: those that are in no folder
// that is shown anyway.
func (v View) behindLinks() (View, []string) {
	var links []string
	named := map[string]string{} // link → where it leads
	real := func(paths []string) []string {
		out := make([]string, 0, len(paths))
		for _, p := range paths {
			to := resolved(p)
			if out = append(out, to); to != filepath.Clean(p) {
				named[filepath.Clean(p)] = to
			}
		}
		return out
	}
	v.Read, v.Show, v.Write = real(v.Read), real(v.Show), real(v.Write)
	v.Hide = slices.Clone(v.Hide)
	for i, p := range v.Hide {
		v.Hide[i] = resolved(p)
	}
	in := func(p string, dirs []string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return within(p, dir) })
	}
	var made []string
	for _, p := range slices.Sorted(maps.Keys(named)) {
		if in(p, made) || in(p, system) || in(p, v.Write) || in(p, v.Read) && !in(p, v.Hide) {
			continue
		}
		made = append(made, p)
		links = append(links, "--symlink", named[p], p)
	}
	return v, links
}

// maxApart bounds how many names are shown one by one: each takes time at every start.
const maxApart = 150

// apart shows what lies beside a hidden file name by name, in a folder of the
// sandbox's own: what hides a file is gone when somebody outside puts another in its place,
// or makes one that has to be hidden too (a database's journal).
func (v View) apart(bind string) (args, seal []string) {
	hide := map[string]bool{}
	var dirs []string
	for _, p := range v.Hide {
		hide[p] = true
		if st, err := os.Stat(p); err == nil && !st.IsDir() && slices.ContainsFunc(v.Read, func(r string) bool { return within(p, r) }) {
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	total := 0
	for _, dir := range outerFirst(dirs) {
		list, err := os.ReadDir(dir)
		if total += len(list); err != nil || total > maxApart {
			continue // as hidden does it
		}
		args = append(args, "--perms", "0755", "--tmpfs", dir)
		if bind == "--ro-bind" {
			seal = append(seal, "--remount-ro", dir)
		}
		for _, d := range list {
			p := filepath.Join(dir, d.Name())
			switch target, err := os.Readlink(p); {
			case hide[p]:
			case err == nil:
				args = append(args, "--symlink", target, p)
			default:
				args = append(args, bind+"-try", p, p)
			}
		}
	}
	return args, seal
}

// systemDir shows a folder of the system, or makes the link that it is.
func systemDir(bind, dir string) []string {
	st, err := os.Lstat(dir)
	switch {
	case err != nil:
		return nil
	case st.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(dir)
		if err != nil {
			return nil
		}
		return []string{"--symlink", target, dir}
	}
	return []string{bind, dir, dir}
}

// hidden puts empty folders over folders, and an empty device over files. seal
// makes the folders read-only, after what is shown in them has its places.
func hidden(paths []string) (args, seal []string) {
	for _, p := range outerFirst(paths) {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real // a mount point is no link
		}
		if st, err := os.Stat(p); err == nil && st.IsDir() {
			args = append(args, "--perms", "0755", "--tmpfs", p)
			seal = append(seal, "--remount-ro", p)
		} else {
			args = append(args, "--ro-bind", "/dev/null", p)
		}
	}
	return args, seal
}

// outerFirst returns the paths that exist, each once, parents before children.
func outerFirst(paths []string) []string {
	out := make([]string, 0, len(paths))
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			out = append(out, filepath.Clean(p))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// within says whether path is dir or below it; nothing is within "".
func within(path, dir string) bool {
	return dir != "" && (path == dir || strings.HasPrefix(path, strings.TrimRight(dir, "/")+"/"))
}

// program returns what has to be visible beside the view for a program to run:
// the folder that it was installed to, for each link on the way to it. A program
// X/bin/p brings X, unless that is a home or a root or holds what the view
// speaks of; another brings its own file, and so does one in a hidden folder.
func (v View) program(path, home string) []string {
	var out []string
	in := func(p string, dirs []string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return within(p, dir) })
	}
	holds := func(dir string) bool {
		return slices.ContainsFunc(slices.Concat(v.Read, v.Hide, v.Show, v.Write), func(p string) bool { return within(p, dir) })
	}
	for range 16 { // links that go in a circle end somewhere
		if within(path, "/proc") {
			break
		}
		base, prefix := filepath.Base(filepath.Dir(path)), filepath.Dir(filepath.Dir(path))
		broad := filepath.Dir(prefix) == "/" && prefix != "/opt" || home != "" && within(home, prefix)
		switch {
		case in(path, v.Hide):
			out = append(out, path)
		case in(path, slices.Concat(system, v.Read, v.Show, v.Write, out)):
		case (base == "bin" || base == "shims" || base == ".bin") && !broad && !holds(prefix):
			out = append(out, prefix)
		default:
			out = append(out, path)
		}
		target, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = filepath.Clean(target)
	}
	return out
}

// Match returns what patterns name below dir: a path relative to it, with *, ?
// and […] within one name; a pattern without a slash is looked for at any depth, but
// in none of the folders but: those that agents write, who could keep a run from being
// gone on with by a name of theirs. An absolute path stands for itself.
func Match(dir string, patterns []string, but ...string) ([]string, error) {
	var out, names []string
	for _, p := range patterns {
		switch {
		case filepath.IsAbs(p):
			out = append(out, filepath.Clean(p))
		case strings.ContainsRune(strings.TrimSuffix(p, "/"), '/'):
			found, err := filepath.Glob(filepath.Join(globQuote(dir), p))
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
		default:
			if _, err := filepath.Match(p, "x"); err != nil {
				return nil, err
			}
			names = append(names, strings.TrimSuffix(p, "/"))
		}
	}
	if len(names) == 0 {
		return out, nil
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil { // not ours to read: the agent, being us, cannot either
			if d != nil && d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() && slices.Contains(but, path) {
			return filepath.SkipDir
		}
		for _, n := range names {
			if ok, _ := filepath.Match(n, d.Name()); ok && path != dir {
				out = append(out, path)
				if d.IsDir() {
					return filepath.SkipDir
				}
			}
		}
		return nil
	})
	return out, err
}

// globQuote keeps what a folder's own name holds from meaning something.
func globQuote(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}
