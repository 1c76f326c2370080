package grade

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// patch is what an agent has left in its workspace: files that are others than
// the pristine ones.
type patch struct {
	files   int      // to be graded
	refused []string // path and why: not laid over the pristine copy
	shams   int      // of refused: what decides how work is tested, and is no work
	usual   int      // of refused: that too, but interpreters and package managers leave it by themselves
}

const (
	defaultPatch = 32 << 20
	maxFiles     = 10_000
	maxRefused   = 20        // that are named
	maxSeen      = 1_000_000 // files and folders of a workspace that are looked at
	maxDepth     = 200       // of folders in one another
)

// deciding is why files are refused that decided names.
const deciding = "decides how tests run"

// excess is an error that is the agent's doing: it left too much.
type excess string

func (e excess) Error() string { return string(e) }

// takePatch compares a workspace with the pristine folder. Only regular files that are
// others count, at most size bytes together; what no pattern of paths allows, or decides how tests run, or
// stands in for a module that tests are run with (modules, besides the known ones), is refused, unless a
// pattern names it without a wildcard. A file that the agent deleted stays as it was. put
// gets what counts, one by one.
func takePatch(work, pristine fs.FS, paths, modules []string, size int64, put func(name string, text io.Reader) error) (patch, error) {
	p := patch{}
	var total int64
	seen := 0
	refuse := func(name, why string, sham, dir bool) {
		switch {
		case sham && why == deciding && leftover(pristine, name, modules, dir):
			p.usual++
		case sham:
			p.shams++
		}
		if len(p.refused) < maxRefused {
			p.refused = append(p.refused, name+" ("+why+")")
		}
	}
	err := fs.WalkDir(work, ".", func(name string, d fs.DirEntry, err error) error {
		if seen++; seen > maxSeen || strings.Count(name, "/") > maxDepth {
			return excess(fmt.Sprintf("the agent left more than %d files, or folders more than %d deep", maxSeen, maxDepth))
		}
		switch {
		case !fs.ValidPath(name): // bytes that are no text
			refuse(strings.ToValidUTF8(name, "\uFFFD"), "no name of a file", true, false)
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case errors.Is(err, fs.ErrPermission): // the agent locked it
			refuse(name, "cannot be read", true, false)
			return fs.SkipDir
		case err != nil:
			return err
		case d.IsDir():
			if decided(name, paths) && !has(pristine, name) {
				refuse(name, deciding, true, true)
				return fs.SkipDir
			}
			if slices.Contains([]string{".git", "__pycache__", ".pytest_cache"}, path.Base(name)) { // a checkout's own
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			refuse(name, "no regular file", true, false)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		same, err := equal(work, pristine, name, info.Size())
		if err != nil || same {
			return err
		}
		switch {
		case slices.Contains(paths, name):
		case decided(name, paths):
			refuse(name, deciding, true, false)
			return nil
		case shadows(pristine, name, modules):
			refuse(name, "stands in for a module that tests are run with", true, false)
			return nil
		case info.Mode()&0o111 != 0 && onPath(path.Base(name)):
			refuse(name, "stands in for a program of the system", true, false)
			return nil
		case !allowed(paths, name):
			refuse(name, "not in reward.paths", false, false)
			return nil
		}
		if total += info.Size(); total > size {
			return excess(fmt.Sprintf("the agent's files are more than reward.size (%d bytes)", size))
		}
		if p.files >= maxFiles {
			return excess(fmt.Sprintf("the agent left more than %d changed files", maxFiles))
		}
		f, err := work.Open(name)
		if errors.Is(err, fs.ErrPermission) {
			refuse(name, "cannot be read", true, false)
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		p.files++
		// As far as it was when it was looked at: what an agent's worker still does to it has no end.
		return put(name, io.LimitReader(f, info.Size()))
	})
	return p, err
}

// equal says whether a file of so many bytes is as it was.
func equal(work, pristine fs.FS, name string, size int64) (bool, error) {
	st, err := fs.Stat(pristine, name)
	if err != nil || !st.Mode().IsRegular() || st.Size() != size {
		return false, nil //nolint:nilerr // it is not there, or no such file
	}
	a, err := work.Open(name)
	if errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = a.Close() }()
	b, err := pristine.Open(name)
	if err != nil {
		return false, nil //nolint:nilerr // who copies the folder will say so
	}
	defer func() { _ = b.Close() }()
	x, y := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(a, x)
		m, err2 := io.ReadFull(b, y)
		switch {
		case !bytes.Equal(x[:n], y[:m]):
			return false, nil
		case err == nil && err2 == nil:
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return true, nil
		default:
			return false, errors.Join(err, err2)
		}
	}
}

func has(fsys fs.FS, name string) bool {
	_, err := fs.Stat(fsys, name)
	return err == nil
}

// interpreters are programs that tests run by, where this machine may have none of the
// image's.
var interpreters = []string{
	"sh", "bash", "dash", "zsh", "env", "make", "git", "python", "python2", "python3", "python3.*", "pip", "pip3", "pytest", "py.test", "tox", "uv", "uvx",
	"node", "nodejs", "npm", "npx", "yarn", "pnpm", "bun", "deno", "go", "gofmt", "cargo", "rustc", "java", "javac", "mvn", "gradle", "ruby", "bundle", "rake", "rspec", "perl", "php",
	"gcc", "g++", "cc", "c++", "clang", "ld", "cmake", "ctest", "bazel",
}

// onPath says whether the system has a program of this name, or the tests' image may.
func onPath(name string) bool {
	if slices.ContainsFunc(interpreters, func(p string) bool { ok, _ := path.Match(p, name); return ok }) {
		return true
	}
	_, err := exec.LookPath(name)
	return err == nil
}

// MayBring says whether an agent may change or add a file of the copy, where paths are
// what it may change.
func MayBring(paths []string, name string) bool {
	return slices.Contains(paths, name) || allowed(paths, name) && !decided(name, paths)
}

// allowed says whether a pattern takes a path: * and ? within a name, ** for any
// number of folders; a pattern that is a folder takes what is below it. Without
// patterns everything is taken.
func allowed(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		p = strings.TrimSuffix(p, "/")
		return matches(strings.Split(p, "/"), strings.Split(name, "/")) || strings.HasPrefix(name, p+"/")
	})
}

func matches(pattern, name []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for i := range len(name) + 1 {
				if matches(pattern[1:], name[i:]) {
					return true
				}
			}
			return false
		}
		if len(name) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], name[0]); !ok || err != nil {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	return len(name) == 0
}
