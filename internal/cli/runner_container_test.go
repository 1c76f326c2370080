package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// What a run file says wrongly of containers is refused before anything starts.
func TestContainerRunFileIsChecked(t *testing.T) {
	t.Parallel()
	const kind = "--set=runner.kind=container"
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"no image":                         {[]string{kind}, []string{"runner.image", "missing"}},
		"a program that is not there":      {[]string{kind, "--set=runner.image=x", "--set=runner.container.program=no-such-program"}, []string{"no-such-program is not on PATH", "runner.container.program"}},
		"a program that is something else": {[]string{kind, "--set=runner.image=x", "--set=runner.container.program=false"}, []string{"docker's command line"}},
		"a mount without a place":          {[]string{kind, "--set=runner.image=x", "--set=runner.container.mounts=[data]"}, []string{"runner.container.mounts", "FOLDER:PATH"}},
		"a mount of nothing":               {[]string{kind, "--set=runner.image=x", "--set=runner.container.mounts=['nowhere:/data']"}, []string{"nowhere:/data", "is there"}},
		"a worker":                         {[]string{kind, "--set=runner.image=x", "--set=agent.worker=true"}, []string{"agent.worker", "runner.kind: local"}},
		"a path of this machine":           {[]string{kind, "--set=runner.image=x", "--set=agent.command=[sh, '{dir}/agent.sh']"}, []string{"agent.command", "write the path in the image"}},
		"an option without its dash":       {[]string{kind, "--set=runner.image=x", "--set=runner.container.options=[gpus]"}, []string{"runner.container.options", "--gpus=all"}},
		"an image's name that is none":     {[]string{kind, "--set=runner.image=--privileged"}, []string{"no name of an image"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tinyDir(t)
			start(t, dir, nil, append([]string{"train", "run.yaml", "--check"}, c.args...)...).ends(soon, exitUsage, c.says...)
			if _, err := os.Stat(filepath.Join(dir, "runs")); err == nil {
				t.Error("something was started")
			}
		})
	}
}
