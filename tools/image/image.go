package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is who the programs run as: the number that distroless images use too,
// so that a cluster's runAsNonRoot can be proved from the image.
const user = 65532

// file is one entry of a layer.
type file struct {
	name string // without a leading slash; a folder ends in one
	mode int64
	own  bool // it is the user's
	body []byte
	from string // or a file of this machine
}

// base is what a static program may look for: its user, trusted certificates, a
// temporary folder, a home and a place for data.
func base() []file {
	return []file{
		{name: "data/", mode: 0o755, own: true},
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, body: fmt.Appendf(nil, "root:x:0:\nfulgur:x:%d:\n", user)},
		{name: "etc/nsswitch.conf", mode: 0o644, body: []byte("hosts: files dns\n")},
		{name: "etc/passwd", mode: 0o644, body: fmt.Appendf(nil, "root:x:0:0:root:/root:/sbin/nologin\nfulgur:x:%d:%d:fulgur:/home/fulgur:/sbin/nologin\n", user, user)},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, body: roots()},
		{name: "home/", mode: 0o755},
		{name: "home/fulgur/", mode: 0o755, own: true},
		{name: "tmp/", mode: 0o1777},
		{name: "usr/", mode: 0o755},
		{name: "usr/bin/", mode: 0o755},
	}
}

// roots are Mozilla's certificates as Go's authors keep them: those of the
// machine that builds would make images differ.
func roots() []byte {
	var out bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint == nil { // a bundle of PEM has no way to say a constraint
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate})
		}
	}
	return out.Bytes()
}

// layer packs files, in their order, with one time for all.
func (j job) layer(files []file) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		if err := j.pack(w, f); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	raw := buf.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(j.compression), tarball.WithCompressedCaching)
}

func (j job) pack(w *tar.Writer, f file) error {
	if f.from != "" {
		var err error
		if f.body, err = os.ReadFile(f.from); err != nil {
			return err
		}
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.body)), ModTime: j.created, Format: tar.FormatPAX}
	if f.name[len(f.name)-1] == '/' {
		h.Typeflag = tar.TypeDir
	}
	if f.own {
		h.Uid, h.Gid = user, user
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(f.body)
	return err
}

// image is a product for one platform, from its binary.
func (j job) image(p product, pl v1.Platform, binary string) (v1.Image, error) {
	below, err := j.layer(base())
	if err != nil {
		return nil, err
	}
	above, err := j.layer([]file{{name: p.program, mode: 0o755, from: binary}})
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	when := v1.Time{Time: j.created}
	if img, err = mutate.Append(img,
		mutate.Addendum{Layer: below, History: v1.History{Created: when, CreatedBy: "folders, user, certificates"}},
		mutate.Addendum{Layer: above, History: v1.History{Created: when, CreatedBy: p.program}},
	); err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Variant, c.Created = pl.OS, pl.Architecture, pl.Variant, when
	c.Config = v1.Config{
		User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/data", Entrypoint: []string{"/" + p.program}, Cmd: p.cmd,
		Env: []string{"PATH=/usr/bin", "HOME=/home/fulgur", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title": p.title, "org.opencontainers.image.version": j.version,
			"org.opencontainers.image.source": source, "org.opencontainers.image.licenses": "MIT",
			"org.opencontainers.image.created": j.created.Format(time.RFC3339),
		},
	}
	return mutate.ConfigFile(img, c)
}

// write puts a product's images into one OCI layout, under an index of its
// platforms, and each into an archive of its own.
func (j job) write(p product, images []v1.Image) error {
	ref, err := name.NewTag(j.repository + "/" + p.name + ":" + j.version)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, img := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &j.platforms[i]}})
	}
	dir := filepath.Join(j.out, p.name)
	if err := os.RemoveAll(dir); err != nil { // blobs of earlier builds
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": j.version, // what skopeo and podman take as the tag
		"io.containerd.image.name":          ref.String(),
	})); err != nil {
		return err
	}
	for i, img := range images {
		pl := j.platforms[i]
		if err := tarball.WriteToFile(filepath.Join(j.out, fmt.Sprintf("%s-%s-%s.tar", p.name, pl.OS, pl.Architecture)), ref, img); err != nil {
			return err
		}
	}
	return nil
}
