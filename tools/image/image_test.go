package main

import (
	"archive/tar"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var hello = product{name: "hello", pkg: "./tools/image/testdata/hello", program: "usr/bin/hello", title: "Hello",
	ldflags: "-s -w -X main.version=v1", cmd: []string{"one"}}

// build makes a product and returns the folder with its layout and archives.
func build(t *testing.T, p product, platforms ...string) (job, string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the programs in the images are Linux's")
	}
	j := job{out: t.TempDir(), version: "v1.2", repository: "localhost", created: time.Unix(1e9, 0).UTC(), module: "../..", compression: 1}
	for _, s := range platforms {
		pl, err := v1.ParsePlatform(s)
		if err != nil {
			t.Fatal(err)
		}
		j.platforms = append(j.platforms, *pl)
	}
	if err := j.make(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return j, j.out
}

// imagesOf reads a layout back: the index below its tag, and the images.
func imagesOf(t *testing.T, dir string) (v1.Descriptor, v1.ImageIndex, []v1.Image) {
	t.Helper()
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := top.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("index.json names %d manifests, want 1 (%v)", len(m.Manifests), err)
	}
	index, err := top.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	im, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var images []v1.Image
	for _, d := range im.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	return m.Manifests[0], index, images
}

// unpack extracts an image's files as a runtime would see them, and returns
// their headers.
func unpack(t *testing.T, img v1.Image) (string, map[string]*tar.Header) {
	t.Helper()
	root, seen := t.TempDir(), map[string]*tar.Header{}
	rc := mutate.Extract(img)
	defer func() { _ = rc.Close() }()
	r := tar.NewReader(rc)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return root, seen
		}
		if err != nil {
			t.Fatal(err)
		}
		seen[h.Name] = h
		to := filepath.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(to, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { // the topmost layer comes first
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(to, b, fs.FileMode(h.Mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestLayoutIsValidAndHoldsWhatWasSaid(t *testing.T) {
	j, out := build(t, hello, "linux/"+runtime.GOARCH)
	desc, index, images := imagesOf(t, filepath.Join(out, "hello"))
	if err := validate.Index(index); err != nil {
		t.Error("the layout does not validate:", err)
	}
	if desc.MediaType != types.OCIImageIndex || desc.Annotations["org.opencontainers.image.ref.name"] != "v1.2" || desc.Annotations["io.containerd.image.name"] != "localhost/hello:v1.2" {
		t.Errorf("descriptor %+v", desc)
	}
	c, err := images[0].ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{User: "65532:65532", WorkingDir: "/data", Entrypoint: []string{"/usr/bin/hello"}, Cmd: []string{"one"},
		Env: []string{"PATH=/usr/bin", "HOME=/home/fulgur", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{"org.opencontainers.image.title": "Hello", "org.opencontainers.image.version": "v1.2", "org.opencontainers.image.licenses": "MIT",
			"org.opencontainers.image.source": source, "org.opencontainers.image.created": "2001-09-09T01:46:40Z"}}
	if d := cmp.Diff(want, c.Config); d != "" {
		t.Errorf("config (-want +got):\n%s", d)
	}
	if c.OS != "linux" || c.Architecture != runtime.GOARCH || !c.Created.Equal(j.created) {
		t.Errorf("platform %s/%s, created %s", c.OS, c.Architecture, c.Created)
	}

	root, seen := unpack(t, images[0])
	for name, h := range seen {
		if !h.ModTime.Equal(j.created) {
			t.Errorf("%s has the time %s", name, h.ModTime)
		}
	}
	for name, wantMode := range map[string]int64{"tmp": 0o1777, "usr/bin/hello": 0o755, "data": 0o755, "home/fulgur": 0o755, "etc/passwd": 0o644} {
		h := seen[name]
		if h == nil {
			h = seen[name+"/"]
		}
		own := name == "data" || name == "home/fulgur"
		if h == nil || h.Mode != wantMode || (h.Uid == user) != own {
			t.Errorf("%s: %+v", name, h)
		}
	}
	certs, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if pool := x509.NewCertPool(); err != nil || !pool.AppendCertsFromPEM(certs) {
		t.Errorf("no certificates: %v", err)
	}
	if b, err := exec.Command(filepath.Join(root, "usr/bin/hello"), "x").Output(); err != nil || string(b) != "hello v1 1\n" {
		t.Errorf("the program said %q, %v", b, err)
	}

	img, err := tarball.ImageFromPath(filepath.Join(out, "hello-linux-"+runtime.GOARCH+".tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error("the archive does not validate:", err)
	}
}

func TestTwoBuildsAreTheSameBytes(t *testing.T) {
	_, a := build(t, hello, "linux/"+runtime.GOARCH)
	_, b := build(t, hello, "linux/"+runtime.GOARCH)
	one, two := filesOf(t, a), filesOf(t, b)
	if d := cmp.Diff(one, two); d != "" {
		t.Error(d[:min(len(d), 2000)])
	}
}

func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		out[strings.TrimPrefix(p, dir)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The real binary, on both platforms: long, because it is compiled for both.
func TestFulgurRunsFromItsImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary for two platforms")
	}
	_, out := build(t, products("v1.2+dirty")[0], "linux/amd64", "linux/arm64")
	_, index, images := imagesOf(t, filepath.Join(out, "fulgur"))
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for i, d := range m.Manifests {
		platforms = append(platforms, d.Platform.String())
		if d.Platform.Architecture != runtime.GOARCH {
			continue
		}
		root, _ := unpack(t, images[i])
		b, err := exec.Command(filepath.Join(root, "usr/bin/fulgur"), "version").Output()
		if err != nil || !strings.Contains(string(b), "v1.2+dirty") {
			t.Errorf("fulgur version said %q, %v", b, err)
		}
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("platforms %v", platforms)
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	for name, args := range map[string][]string{
		"a platform that is none":        {"-platforms", "amiga"},
		"a platform of another system":   {"-platforms", "darwin/arm64"},
		"an image that is not made here": {"-only", "nothing"},
		"an argument":                    {"fulgur"},
	} {
		if err := run(t.Context(), append([]string{"-out", t.TempDir()}, args...)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestVersionsBecomeTags(t *testing.T) {
	for in, want := range map[string]string{"v1.2.3-4-gabc-dirty": "v1.2.3-4-gabc-dirty", "v1+meta": "v1-meta", "": "devel", "-x": "x"} {
		if got := tag(in); got != want {
			t.Errorf("tag(%q) = %q, want %q", in, got, want)
		}
	}
}
