// Package image finds images by their reference in a folder of OCI image
// layouts and unpacks them.
package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/distribution/reference"
)

// HostImage is the machine's own root file system, under any tag.
const HostImage = "kubebox.test/host"

// Errors that a kubelet tells apart.
var (
	ErrNotFound = errors.New("not found")
	ErrName     = errors.New("couldn't parse image name")
)

// Image is one that was unpacked.
type Image struct {
	Root   string // its files; "" is the machine's own root
	Config Config
}

// Config is what an image says of its process.
type Config struct {
	User       string
	Env        []string
	Entrypoint []string
	Cmd        []string
	WorkingDir string
}

// Store is a folder with one OCI layout in each subfolder, and a folder for what is unpacked.
type Store struct {
	Layouts, Cache string
	mu             sync.Mutex
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform"`
}

// Open returns the image of a reference. A layout holds it if its index names it
// in full (org.opencontainers.image.ref.name or io.containerd.image.name), or by
// the tag alone in a folder of the image's name.
func (s *Store) Open(ref string) (Image, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrName, err)
	}
	named = reference.TagNameOnly(named)
	if named.Name() == HostImage {
		return Image{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	dirs, err := os.ReadDir(s.Layouts)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Image{}, err
	}
	for _, d := range dirs {
		layout := filepath.Join(s.Layouts, d.Name())
		var index struct{ Manifests []descriptor }
		if err := readJSON(filepath.Join(layout, "index.json"), &index); err != nil {
			continue // no layout
		}
		for _, m := range index.Manifests {
			if names(m, d.Name(), named) {
				return s.unpack(layout, m)
			}
		}
	}
	return Image{}, fmt.Errorf("failed to pull and unpack image %q: failed to resolve reference %q: %s: %w", named, named, named, ErrNotFound)
}

func names(m descriptor, folder string, want reference.Named) bool {
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		name := m.Annotations[key]
		if name == "" {
			continue
		}
		if !strings.ContainsAny(name, "/:") {
			name = folder + ":" + name
		}
		if n, err := reference.ParseNormalizedNamed(name); err == nil && reference.TagNameOnly(n).String() == want.String() {
			return true
		}
	}
	return false
}

func readJSON(file string, into any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// blob returns the file of a digest, after reading it whole.
func blob(layout, digest string) (string, error) {
	kind, sum, ok := strings.Cut(digest, ":")
	if !ok || kind != "sha256" || len(sum) != 64 || strings.ContainsAny(sum, "/.") {
		return "", fmt.Errorf("digest %q is no sha256", digest)
	}
	file := filepath.Join(layout, "blobs", kind, sum)
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != sum {
		return "", fmt.Errorf("blob %s has the digest %s: the image is damaged", sum, got)
	}
	return file, nil
}

func (s *Store) unpack(layout string, m descriptor) (Image, error) {
	file, err := blob(layout, m.Digest)
	if err != nil {
		return Image{}, err
	}
	var manifest struct {
		Manifests []descriptor
		Config    descriptor
		Layers    []descriptor
	}
	if err := readJSON(file, &manifest); err != nil {
		return Image{}, err
	}
	if len(manifest.Manifests) > 0 {
		for _, p := range manifest.Manifests {
			if p.Platform != nil && p.Platform.OS == "linux" && p.Platform.Architecture == runtime.GOARCH {
				return s.unpack(layout, p)
			}
		}
		return Image{}, fmt.Errorf("no match for platform linux/%s in manifest: %w", runtime.GOARCH, ErrNotFound)
	}
	var conf struct {
		Config Config `json:"config"`
	}
	if file, err = blob(layout, manifest.Config.Digest); err != nil {
		return Image{}, err
	}
	if err := readJSON(file, &conf); err != nil {
		return Image{}, err
	}
	root := filepath.Join(s.Cache, strings.ReplaceAll(m.Digest, ":", "-"))
	if _, err := os.Stat(root); err == nil {
		return Image{Root: root, Config: conf.Config}, nil
	}
	tmp := root + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return Image{}, err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return Image{}, err
	}
	for _, l := range manifest.Layers {
		file, err := blob(layout, l.Digest)
		if err == nil {
			err = apply(tmp, file)
		}
		if err != nil {
			return Image{}, fmt.Errorf("layer %s: %w", l.Digest, err)
		}
	}
	return Image{Root: root, Config: conf.Config}, os.Rename(tmp, root)
}

// apply unpacks one layer, tar or tar.gz, over dir, with OCI's whiteouts.
func apply(dir, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReader(f)
	var r io.Reader = in
	if magic, _ := in.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		if r, err = gzip.NewReader(in); err != nil {
			return err
		}
	}
	// Nothing is written outside dir, whatever links the layer has made in it.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := entry(root, h, t); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func entry(root *os.Root, h *tar.Header, r io.Reader) error {
	name := strings.TrimPrefix(filepath.Clean("/"+h.Name), "/")
	if name == "" {
		return nil
	}
	dir, base := filepath.Dir(name), filepath.Base(name)
	if base == ".wh..wh..opq" {
		return empty(root, dir)
	}
	if gone, ok := strings.CutPrefix(base, ".wh."); ok {
		return root.RemoveAll(filepath.Join(dir, gone))
	}
	if err := root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && !(info.IsDir() && h.Typeflag == tar.TypeDir) {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	mode := h.FileInfo().Mode()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	case tar.TypeSymlink:
		return errors.Join(root.Symlink(h.Linkname, name), root.Lchown(name, h.Uid, h.Gid))
	case tar.TypeLink:
		return root.Link(strings.TrimPrefix(filepath.Clean("/"+h.Linkname), "/"), name)
	default:
		return fmt.Errorf("entries of type %q are not unpacked", h.Typeflag)
	}
	// Ownership first: it takes setuid bits away.
	if err := root.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	return root.Chmod(name, mode)
}

func empty(root *os.Root, dir string) error {
	f, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	list, err := f.Readdirnames(-1)
	for _, n := range list {
		err = errors.Join(err, root.RemoveAll(filepath.Join(dir, n)))
	}
	return err
}
