package cli

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur/internal/config"
)

// A build that leaves a daemon holds up neither the start nor its end, and the daemon
// ends with it.
func TestABuildLeavesNothingRunning(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		cancel bool
	}{
		"a build that ends":            {"sleep 300 & echo $! > pid", false},
		"one that is interrupted":      {"sleep 300 & echo $! > pid; wait", true},
		"one that fails":               {"sleep 300 & echo $! > pid; exit 1", false},
		"one whose daemon is no child": {"(sleep 300 & echo $! > pid); true", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			f := &config.File{}
			f.Agent.Build = []string{"/bin/sh", "-c", test.script}
			done := make(chan error, 1)
			go func() { done <- (&app{}).buildAgent(ctx, &runFile{File: f, Dir: dir}, runDir(dir), nil) }()
			pid := 0
			for pid == 0 && ctx.Err() == nil {
				text, _ := os.ReadFile(filepath.Join(dir, "pid"))
				pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				time.Sleep(5 * time.Millisecond)
			}
			if pid == 0 {
				t.Fatal("the build did not start")
			}
			defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
			if test.cancel {
				cancel()
			}
			select {
			case err := <-done:
				if bad := test.cancel || strings.Contains(test.script, "exit 1"); bad != (err != nil) {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("what the build left holds up the start")
			}
			for limit := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
				if syscall.Kill(pid, 0) != nil || err == nil && strings.Contains(string(stat), ") Z ") {
					return
				}
				if time.Now().After(limit) {
					t.Fatal("what the build left lives on")
				}
			}
		})
	}
}
