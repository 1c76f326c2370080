package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/config"
)

// What the agent is shows in its digest, wherever it runs.
func TestHarnessDigest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	podman := write("podman", "#!/bin/sh\ncat "+filepath.Join(dir, "$5")+"\n")
	write("agent:1", "sha256:aaaa\n")
	write("job.yaml", "kind: Job\n")
	of := func(change func(*config.File)) string {
		f := config.Default()
		f.Agent.Command = []string{"sh", "{dir}/agent.sh"}
		change(f)
		return harnessDigest(t.Context(), &runFile{File: f, Dir: dir}, runDir(dir)).Hash
	}
	kinds := map[string]func(*config.File){
		"local": func(*config.File) {},
		"a container": func(f *config.File) {
			f.Runner.Kind, f.Runner.Image, f.Runner.Container.Program = "container", "agent:1", podman
		},
		"a Job":            func(f *config.File) { f.Runner.Kind, f.Runner.Image = "kubernetes", "agent:1" },
		"a Job's template": func(f *config.File) { f.Runner.Kind, f.Runner.JobTemplate = "kubernetes", "job.yaml" },
	}
	write("agent.sh", "1")
	was := map[string]string{}
	for name, change := range kinds {
		was[name] = of(change)
		if was[name] == of(func(f *config.File) { f.Agent.Command = nil }) {
			t.Errorf("%s has the digest of nothing", name)
		}
	}
	if c := of(func(f *config.File) { kinds["a container"](f); f.Agent.Command = []string{"other"} }); c == was["a container"] {
		t.Error("another command in the image has the same digest")
	}
	if c := of(func(f *config.File) { kinds["a Job"](f); f.Runner.Image = "agent:2" }); c == was["a Job"] {
		t.Error("another image has the same digest")
	}
	write("agent.sh", "2")
	write("agent:1", "sha256:bbbb\n")
	write("job.yaml", "kind: Job\nspec: {}\n")
	for name, change := range kinds {
		if same := of(change) == was[name]; same != (name == "a Job") { // a cluster's images are known by name
			t.Errorf("%s that changed: the same digest: %v", name, same)
		}
	}
}
