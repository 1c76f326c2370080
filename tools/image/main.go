// Command image builds Fulgur's container images without Docker: the static
// binaries from this module, for each platform, in a plain OCI layout and as
// archives for `docker load` and `podman load`. The same sources and time give
// the same bytes.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// product is one image.
type product struct {
	name    string
	pkg     string // of its program
	program string // its path in the image
	title   string
	ldflags string
	cmd     []string // arguments where none are given
}

const source = "https://github.com/fulgur-rl/fulgur"

func products(version string) []product {
	return []product{
		{name: "fulgur", pkg: "./cmd/fulgur", program: "usr/bin/fulgur", title: "Fulgur: reinforcement learning for LLM agents",
			ldflags: "-s -w -X github.com/fulgur-rl/fulgur/internal/cli.buildVersion=" + version, cmd: []string{"--help"}},
		{name: "fulgur-calc-agent", pkg: "./examples/calc/agent", program: "usr/bin/agent", title: "The agent of Fulgur's example calc", ldflags: "-s -w"},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "image:", err)
		}
		os.Exit(1)
	}
}

// job is what the flags say.
type job struct {
	out, version, repository string
	platforms                []v1.Platform
	created                  time.Time
	module                   string // the folder that holds go.mod
	compression              int
}

func run(ctx context.Context, args []string) error {
	fl := flag.NewFlagSet("image", flag.ContinueOnError)
	out := fl.String("out", "bin/image", "folder to write to: NAME/ is an OCI layout, NAME-OS-ARCH.tar an archive for docker load")
	version := fl.String("version", "devel", "version: the images' tag, and what the binary says")
	repository := fl.String("repository", "localhost", "what stands before the images' names, such as ghcr.io/you")
	platforms := fl.String("platforms", "linux/amd64,linux/arm64", "platforms, with commas")
	only := fl.String("only", "", "build this image alone")
	module := fl.String("module", ".", "folder of the module")
	created := fl.Int64("time", epoch(os.Getenv("SOURCE_DATE_EPOCH")), "time of creation and of all files, in seconds since 1970 (default: SOURCE_DATE_EPOCH)")
	level := fl.Int("compression", 6, "gzip level of the layers")
	if err := fl.Parse(args); err != nil {
		return err
	}
	if fl.NArg() > 0 {
		return fmt.Errorf("%q is no flag; see -h", fl.Arg(0))
	}
	j := job{out: *out, version: tag(*version), repository: *repository, created: time.Unix(*created, 0).UTC(), module: *module, compression: *level}
	for p := range strings.SplitSeq(*platforms, ",") {
		pl, err := v1.ParsePlatform(p)
		if err != nil || pl.OS != "linux" || pl.Architecture == "" {
			return fmt.Errorf("-platforms %q: want such as linux/amd64", p)
		}
		j.platforms = append(j.platforms, *pl)
	}
	found := false
	for _, p := range products(*version) {
		if *only != "" && *only != p.name {
			continue
		}
		found = true
		if err := j.make(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if !found {
		return fmt.Errorf("-only %q: no such image", *only)
	}
	return nil
}

func epoch(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// tag makes a version fit for an image's tag.
func tag(version string) string {
	t := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '-'
	}, version)
	if t = strings.TrimLeft(t, ".-"); t == "" {
		return "devel"
	}
	return t[:min(len(t), 128)]
}

// make builds a product for all platforms and writes it.
func (j job) make(ctx context.Context, p product) error {
	tmp, err := os.MkdirTemp("", "fulgur-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var images []v1.Image
	for _, pl := range j.platforms {
		bin := filepath.Join(tmp, "program-"+pl.Architecture)
		if err := compile(ctx, j.module, p, pl, bin); err != nil {
			return err
		}
		img, err := j.image(p, pl, bin)
		if err != nil {
			return err
		}
		images = append(images, img)
	}
	if err := j.write(p, images); err != nil {
		return err
	}
	fmt.Printf("%s/%s:%s in %s\n", j.repository, p.name, j.version, filepath.Join(j.out, p.name))
	return nil
}

// compile builds a static binary. Nothing of this machine is in it: -trimpath,
// and no version control stamp (the version is a flag).
func compile(ctx context.Context, module string, p product, pl v1.Platform, out string) error {
	abs, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", p.ldflags, "-o", abs, p.pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+pl.OS, "GOARCH="+pl.Architecture, "GOFLAGS=", "GOAMD64=", "GOARM64=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build %s for %s: %w\n%s", p.pkg, pl, err, stderr.Bytes())
	}
	return nil
}
