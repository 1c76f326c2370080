package kube

import (
	"os"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/runnertest"
)

func TestLogsAreKept(t *testing.T) {
	long := "the first line\n" + strings.Repeat("more of it\n", logMost/8) + "the last line\n"
	for what, test := range map[string]struct {
		keep controller.Keep
		log  string
		code int32
		want []string // in the file; nil: there is none
		most int
	}{
		"of one that failed":                 {controller.KeepFailures, "first\nwith secret-a\nlast\n", 3, []string{"first\nwith [credential]\nlast\n"}, 40},
		"of one that went well":              {controller.KeepAll, "first\n", 0, []string{"first\n"}, 40},
		"of none":                            {controller.KeepNone, "first\n", 3, nil, 0},
		"of failed ones, and it went well":   {controller.KeepFailures, "first\n", 0, nil, 0},
		"its beginning and its end, if long": {controller.KeepFailures, long, 3, []string{"the first line\nmore", "left out", "\nthe last line\n"}, 1200},
	} {
		t.Run(what, func(t *testing.T) {
			a := newAPI(t)
			a.log = test.log
			r := testRunner(t, a, func(o *Options) { o.State, o.Logs, o.LogCap = t.TempDir(), test.keep, 1000 })
			runnertest.Start(t, r, runnertest.Execution("a", "x"))
			a.has(name("a"), true)
			a.running(name("a"))
			a.exits(name("a"), test.code)
			x := runnertest.Exit(t, r, "a")
			if test.want == nil {
				if x.Log != "" {
					t.Errorf("kept: %s", x.Log)
				}
				return
			}
			text, err := os.ReadFile(x.Log)
			if err != nil || len(text) > test.most {
				t.Errorf("%d bytes, %v", len(text), err)
			}
			for _, w := range test.want {
				if !strings.Contains(string(text), w) {
					t.Errorf("the log has no %q: %.200q", w, text)
				}
			}
			if !strings.HasSuffix(strings.TrimRight(test.log, "\n"), x.Tail[strings.LastIndex(x.Tail, "\n")+1:]) {
				t.Errorf("tail %q", x.Tail)
			}
		})
	}
}
