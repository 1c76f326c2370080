package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// layout writes an OCI layout with the given layers and returns the folder of layouts.
func layout(t *testing.T, folder, ref string, layers ...[]tar.Header) string {
	t.Helper()
	dir := t.TempDir()
	blobs := filepath.Join(dir, folder, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(b []byte) map[string]any {
		sum := sha256.Sum256(b)
		name := hex.EncodeToString(sum[:])
		if err := os.WriteFile(filepath.Join(blobs, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
		return map[string]any{"digest": "sha256:" + name, "size": len(b)}
	}
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var list []any
	for i, l := range layers {
		var buf bytes.Buffer
		gz := gzip.NewWriter(&buf)
		w := tar.NewWriter(gz)
		for _, h := range l {
			body := []byte(fmt.Sprintf("%s of layer %d", h.Name, i))
			if h.Typeflag == tar.TypeReg {
				h.Size = int64(len(body))
			}
			h.Uid, h.Gid = os.Getuid(), os.Getgid()
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				_, _ = w.Write(body)
			}
		}
		if err := errors.Join(w.Close(), gz.Close()); err != nil {
			t.Fatal(err)
		}
		list = append(list, put(buf.Bytes()))
	}
	config := put(encode(map[string]any{"config": Config{Entrypoint: []string{"/bin/app"}, Env: []string{"A=b"}}}))
	m := put(encode(map[string]any{"config": config, "layers": list}))
	m["annotations"] = map[string]string{"org.opencontainers.image.ref.name": ref}
	if err := os.WriteFile(filepath.Join(dir, folder, "index.json"), encode(map[string]any{"manifests": []any{m}}), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func reg(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o750} }

func TestOpen(t *testing.T) {
	dir := layout(t, "x", "local.test/app:1",
		[]tar.Header{reg("bin/app"), reg("data/old"), reg("data/gone"), reg("etc/a"), {Name: "lib", Typeflag: tar.TypeSymlink, Linkname: "usr/lib"}},
		[]tar.Header{reg("data/.wh..wh..opq"), reg("data/new"), reg("etc/.wh.a"), reg("bin/app")})
	s := &Store{Layouts: dir, Cache: t.TempDir()}
	img, err := s.Open("local.test/app:1")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	_ = filepath.WalkDir(img.Root, func(p string, d os.DirEntry, _ error) error {
		if !d.IsDir() {
			got = append(got, p[len(img.Root)+1:])
		}
		return nil
	})
	if want := []string{"bin/app", "data/new", "lib"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if b, _ := os.ReadFile(filepath.Join(img.Root, "bin/app")); string(b) != "bin/app of layer 1" {
		t.Errorf("bin/app holds %q", b)
	}
	if !slices.Equal(img.Config.Entrypoint, []string{"/bin/app"}) {
		t.Errorf("config %+v", img.Config)
	}
	again, err := s.Open("local.test/app:1")
	if err != nil || again.Root != img.Root {
		t.Errorf("the second time: %+v, %v", again, err)
	}
}

func TestNames(t *testing.T) {
	s := func(dir string) *Store { return &Store{Layouts: dir, Cache: t.TempDir()} }
	for name, c := range map[string]struct {
		folder, named, asked string
		want                 error
	}{
		"by its full name":                     {"x", "docker.io/library/app:2", "app:2", nil},
		"by a tag, in a folder of its name":    {"app", "2", "app:2", nil},
		"another tag is not it":                {"app", "2", "app:3", ErrNotFound},
		"no tag is latest":                     {"app", "latest", "app", nil},
		"the machine's own needs no layout":    {"x", "2", HostImage + ":any", nil},
		"what is no reference is told so":      {"x", "2", "Not A Name", ErrName},
		"a digest that is not there is absent": {"app", "2", "app@sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := s(layout(t, c.folder, c.named, []tar.Header{reg("a")})).Open(c.asked); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func TestLayersStayInside(t *testing.T) {
	dir := layout(t, "x", "evil:1",
		[]tar.Header{{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/"}, reg("out/tmp/escaped-from-an-image")})
	if _, err := (&Store{Layouts: dir, Cache: t.TempDir()}).Open("evil:1"); err == nil {
		t.Error("a layer wrote through a link out of its root")
	}
	if _, err := os.Stat("/tmp/escaped-from-an-image"); err == nil {
		t.Error("it is there")
	}
}

func TestDamagedBlob(t *testing.T) {
	dir := layout(t, "x", "app:1", []tar.Header{reg("a")})
	blobs, _ := filepath.Glob(filepath.Join(dir, "x/blobs/sha256/*"))
	for _, b := range blobs {
		if err := os.WriteFile(b, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (&Store{Layouts: dir, Cache: t.TempDir()}).Open("app:1"); err == nil {
		t.Error("a damaged image was unpacked")
	}
}
