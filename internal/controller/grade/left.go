package grade

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// What was taken of a workspace waits on disk for its turn, below the folder that it is
// graded in: many agents may end at once, and each may leave Options.Size.

// leftFolder is where what was taken waits, in an attempt's folder of Grader.state.
const leftFolder = "left"

// ours is an error that is not the agent's: of what was taken, where this process keeps it.
type ours struct{ error }

func (e ours) Unwrap() error { return e.error }

// Take takes what an agent has left, once, when all of it is dead and before its
// workspace is removed; work "": it had none.
func (g *Grader) Take(key plan.Key, work string) {
	name := controller.FileName(key)
	if !g.claim(key, name) {
		return
	}
	t := taken{}
	if work != "" {
		t.patch, t.err = g.take(work, filepath.Join(g.state, name))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.patches[key] = t
}

// claim says whether nothing was taken of an attempt yet, and makes its folder this process's.
func (g *Grader) claim(key plan.Key, name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, again := g.patches[key]; again || g.copies[name] {
		return false
	}
	g.copies[name] = true
	return true
}

func (g *Grader) take(work, dir string) (patch, error) {
	// An agent may have put a link in the workspace's place.
	parent, err := os.OpenRoot(filepath.Dir(work))
	if err != nil {
		return patch{}, err
	}
	defer func() { _ = parent.Close() }()
	root, err := parent.OpenRoot(filepath.Base(work))
	if err != nil {
		return patch{}, err
	}
	defer func() { _ = root.Close() }()
	left := filepath.Join(dir, leftFolder)
	if err := errors.Join(controller.RemoveAll(dir), os.MkdirAll(left, 0o700)); err != nil {
		return patch{}, ours{err}
	}
	into, err := os.OpenRoot(left)
	if err != nil {
		return patch{}, ours{err}
	}
	defer func() { _ = into.Close() }()
	var p fs.FS = emptyFS{}
	if g.Pristine != "" {
		p = os.DirFS(g.Pristine)
	}
	return takePatch(rootFS{root}, p, g.Paths, modulesOf(g.Tests), g.Size, func(name string, text io.Reader) error {
		from := &source{r: text}
		err := lay(into, name, from)
		if err != nil && from.err == nil {
			return ours{err}
		}
		return err
	})
}

// source remembers how reading failed.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// layAll lays what was taken over a pristine copy, tells in what became of it, and
// removes it where it has waited.
func (g *Grader) layAll(copied *os.Root, left string, in *graderInput) error {
	from, err := os.OpenRoot(left)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the agent had no workspace
	}
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	err = fs.WalkDir(from.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := from.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		switch err := lay(copied, name, f); {
		case Machine(err):
			return fmt.Errorf("laying %s over the pristine copy: %w", name, err)
		case err != nil: // a file where a folder is, a name that is too long
			in.Refused = append(in.Refused, name+" (cannot be laid over the pristine copy)")
		default:
			in.Applied = append(in.Applied, name)
		}
		return nil
	})
	return errors.Join(err, controller.RemoveAll(left))
}

// lay writes an agent's file in a folder.
func lay(root *os.Root, name string, text io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if st, err := root.Lstat(name); err == nil && st.Mode().IsRegular() {
		mode = st.Mode().Perm() // a program stays one
	}
	_ = root.Remove(name)
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, text)
	return errors.Join(err, f.Close())
}

// Forget drops what was taken of attempts that nobody grades any more.
func (g *Grader) Forget(keys ...plan.Key) {
	if g == nil {
		return
	}
	for _, k := range keys {
		g.mu.Lock()
		_, there := g.patches[k]
		delete(g.patches, k)
		g.mu.Unlock()
		if there {
			g.drop(controller.FileName(k))
		}
	}
}

// drop removes an attempt's folder, and gives it up: Sweep tries again.
func (g *Grader) drop(name string) {
	_ = controller.RemoveAll(filepath.Join(g.state, name))
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.copies, name)
}

// Sweep removes what a process has left that was killed while it graded, or before. It is
// for one that leads: nobody else grades in the same folder.
func (g *Grader) Sweep() error {
	if g == nil {
		return nil
	}
	found, err := os.ReadDir(g.state)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range found {
		if !g.copies[d.Name()] {
			err = errors.Join(err, controller.RemoveAll(filepath.Join(g.state, d.Name())))
		}
	}
	return err
}
