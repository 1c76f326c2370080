package grade

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// A workspace that is in another place than its grader travels as a tar file, and so
// does the copy that is tested there. Neither holds owners or times: of the same files
// the same bytes.

// Each file is opened from the folder on: these bound how long an agent can make that last.
const (
	maxEntries = 50_000 // files and folders of an archive
	maxFolders = 64     // in one another
)

// RefusedLink is where a link of an agent's leads in what Unpack makes of it: to
// nothing. That there was one is for the grader to know.
const RefusedLink = ".a-link-of-the-agents"

// Pack writes a folder as a compressed tar file: of an agent's workspace (size > 0) regular files
// of at most size bytes together, and of what is none, of a checkout's own and of
// compiled code that it is there; else links too, as they are. An error that is not w's is of
// what the folder holds.
func Pack(w io.Writer, dir string, size int64) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	p := &packer{root: root, t: tar.NewWriter(z), work: size > 0, left: size}
	if err := fs.WalkDir(root.FS(), ".", p.add); err != nil {
		return err
	}
	return errors.Join(p.t.Close(), z.Close())
}

type packer struct {
	root *os.Root
	t    *tar.Writer
	work bool
	left int64
	n    int
}

func (p *packer) add(name string, d fs.DirEntry, err error) error {
	if p.n++; p.work && (p.n > maxEntries || strings.Count(name, "/") > maxFolders) {
		return fmt.Errorf("the agent left more than %d files, or folders more than %d deep", maxEntries, maxFolders)
	}
	h := &tar.Header{Name: strings.ToValidUTF8(name, "\uFFFD"), Mode: 0o644, Format: tar.FormatPAX}
	switch {
	case name == ".":
		return err
	case err != nil && !p.work:
		return err
	case err != nil || !fs.ValidPath(name):
		// A folder that nobody can read, a name that is no text: the agent's doing.
		// Its number tells it from others that read alike, and from itself as a folder.
		h.Typeflag, h.Linkname = tar.TypeSymlink, RefusedLink
		h.Name = fmt.Sprintf("%s (%d)", strings.ToValidUTF8(h.Name[:min(len(h.Name), 100)], ""), p.n)
		if err := p.t.WriteHeader(h); err != nil || !d.IsDir() {
			return err
		}
		return fs.SkipDir
	case d.IsDir():
		h.Typeflag, h.Mode = tar.TypeDir, 0o755
		if err := p.t.WriteHeader(h); err != nil {
			return err
		}
		if base := path.Base(name); p.work && (base == ".git" || base == "__pycache__") {
			return fs.SkipDir // takePatch looks no further
		}
		return nil
	case !d.Type().IsRegular():
		h.Typeflag, h.Linkname = tar.TypeSymlink, RefusedLink
		if !p.work {
			if d.Type()&fs.ModeSymlink == 0 {
				return nil
			}
			if h.Linkname, err = p.root.Readlink(name); err != nil {
				return err
			}
		}
		return p.t.WriteHeader(h)
	}
	return p.file(name, h)
}

func (p *packer) file(name string, h *tar.Header) error {
	f, err := p.root.Open(name)
	if p.work && errors.Is(err, fs.ErrPermission) {
		h.Typeflag, h.Linkname = tar.TypeSymlink, RefusedLink
		return p.t.WriteHeader(h)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if h.Typeflag, h.Size = tar.TypeReg, info.Size(); info.Mode()&0o111 != 0 {
		h.Mode = 0o755
	}
	if p.left -= h.Size; p.work && p.left < 0 {
		return errors.New("the agent's workspace is larger than what is taken of one")
	}
	if err := p.t.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(p.t, f, h.Size)
	return err
}

// Unpack writes what Pack has written into an empty folder. Whatever the archive
// says, nothing is written outside of it: names that lead elsewhere are errors, and so are
// devices, more than size bytes (0: any number) and more entries than there can be.
// A link leads to RefusedLink (size > 0), or within the folder.
func Unpack(r io.Reader, dir string, size int64) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	t := tar.NewReader(z)
	left := size
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if left -= h.Size; size > 0 && (left < 0 || n > maxEntries) {
			return fmt.Errorf("the archive has more than %d bytes, or %d entries", size, maxEntries)
		}
		if err := unpackOne(root, h, t, size > 0); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.Discard, z) // its checksum
	return err
}

func unpackOne(root *os.Root, h *tar.Header, r io.Reader, work bool) error {
	name := strings.TrimSuffix(h.Name, "/")
	if !fs.ValidPath(name) || name == "." || !filepath.IsLocal(name) {
		return fmt.Errorf("the archive has the name %.100q", h.Name)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		if work {
			return root.Symlink(RefusedLink, name)
		}
		if path.IsAbs(h.Linkname) || !filepath.IsLocal(path.Join(path.Dir(name), h.Linkname)) {
			return nil // it leads to something that is not here
		}
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(h.Mode)&0o777|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("%.100q is no file, folder or link", h.Name)
}
