package grade

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// patch is what an agent has left in its workspace: files that are others than
// the pristine ones.
type patch struct {
	files   map[string][]byte // to be graded, by path
	refused []string          // path and why: not laid over the pristine copy
	shams   int               // of refused: what decides how work is tested, and is no work
}

const (
	defaultPatch = 32 << 20
	maxFiles     = 10_000
	maxRefused   = 20 // that are named
)

// decides are names of files that decide how tests run, or what runs in their
// place, whatever the work is: an interpreter or a test runner reads them by itself.
var decides = []string{
	"conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc", "*.egg-link", "__pycache__", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", ".coveragerc",
	"jest.config.*", "vitest.config.*", ".mocharc*", ".npmrc", "package.json", ".babelrc*",
	"go.mod", "go.sum", "go.work", ".git", ".gitattributes", ".bashrc", ".profile", ".bash_profile", ".envrc", "LD_PRELOAD*", "*.so", "*.dylib",
}

// takePatch compares a workspace with the pristine folder. Only regular files count, at most size
// bytes together; what no pattern of paths allows, or decides how tests run, is
// refused, unless a pattern names it without a wildcard. A file that the agent deleted stays as it was.
func takePatch(work, pristine fs.FS, paths []string, size int64) (patch, error) {
	p := patch{files: map[string][]byte{}}
	var total int64
	refuse := func(name, why string, sham bool) {
		if sham {
			p.shams++
		}
		if len(p.refused) < maxRefused {
			p.refused = append(p.refused, name+" ("+why+")")
		}
	}
	err := fs.WalkDir(work, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if decided(name) && !slices.Contains(paths, name) && !has(pristine, name) {
				refuse(name, "decides how tests run", true)
				return fs.SkipDir
			}
			if path.Base(name) == ".git" || path.Base(name) == "__pycache__" { // a checkout's own
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			refuse(name, "no regular file", true)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if total+info.Size() > size {
			return fmt.Errorf("the agent's files are more than reward.size (%d bytes)", size)
		}
		text, err := fs.ReadFile(work, name)
		if err != nil {
			return err
		}
		old, err := fs.ReadFile(pristine, name)
		if err == nil && bytes.Equal(old, text) {
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		switch {
		case slices.Contains(paths, name):
		case decided(name):
			refuse(name, "decides how tests run", true)
			return nil
		case info.Mode()&0o111 != 0 && onPath(path.Base(name)):
			refuse(name, "stands in for a program of the system", true)
			return nil
		case !allowed(paths, name):
			refuse(name, "not in reward.paths", false)
			return nil
		}
		if total += info.Size(); len(p.files) >= maxFiles {
			return fmt.Errorf("the agent left more than %d changed files", maxFiles)
		}
		p.files[name] = text
		return nil
	})
	return p, err
}

func has(fsys fs.FS, name string) bool {
	_, err := fs.Stat(fsys, name)
	return err == nil
}

// decided says whether a part of a path is one of decides.
func decided(name string) bool {
	for _, pattern := range decides {
		if ok, _ := path.Match(pattern, path.Base(name)); ok {
			return true
		}
	}
	return false
}

// onPath says whether the system has a program of this name.
func onPath(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
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
