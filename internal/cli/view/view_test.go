package view

import (
	"bytes"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// story is a short run, with the time after which each event comes.
func story() []struct {
	after time.Duration
	event Event
} {
	type item = struct {
		after time.Duration
		event Event
	}
	out := []item{
		{0, Phase{PhaseBefore, "measuring the start on 500 problems"}},
		{11 * time.Second, StepProgress{Label: "test", Done: 240, Total: 500, Active: 8}},
		{9 * time.Second, Phase{PhaseTraining, "160 steps of 16 groups of 8 rollouts"}},
	}
	for i := 1; i <= 3; i++ {
		out = append(out,
			item{500 * time.Millisecond, StepProgress{Step: i, Steps: 160, Done: 64, Total: 128, Active: 8}},
			item{700 * time.Millisecond, StepDone{Step: i, Steps: 160, Reward: 0.2 * float64(i), Groups: 16, Mixed: 9, Rollouts: 128, Masked: i - 1, Tokens: 5400, Rollout: 800 * time.Millisecond, Update: 400 * time.Millisecond, Total: 1200 * time.Millisecond}})
	}
	return append(out,
		item{time.Second, Validation{Step: 3, Problems: 200, Score: Interval{0.6, 0.53, 0.67}, Greedy: &Interval{0.9, 0.85, 0.93}, Best: true}},
		item{0, Warning{"9 of 16 groups teach nothing\x1b[31m\n(all rewards equal)"}},
		item{time.Second, Done{Title: "reached 0.9 in step 3", Problems: 500, Before: &Interval{0.26, 0.22, 0.3}, After: &Interval{0.914, 0.886, 0.936}, Wall: 151 * time.Second, CPU: 402 * time.Second, Rollouts: 20480, Updates: 320, Files: []File{{"report", "runs/calc/report.html"}}, Next: "fulgur serve --run runs/calc"}})
}

func TestPlainLinesGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		v := New(&out, Options{Title: "calc"})
		for _, item := range story() {
			time.Sleep(item.after) // the clock of the bubble
			synctest.Wait()
			v.Send(item.event)
		}
		v.Close()
		if strings.ContainsRune(out.String(), '\x1b') {
			t.Error("control codes in plain lines")
		}
		if *update {
			if err := os.WriteFile("testdata/plain.txt", out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile("testdata/plain.txt")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), out.String()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestLiveBlock(t *testing.T) {
	start := time.Unix(1000, 0)
	m := model{board: &board{}, title: "calc", width: 90, start: start, now: start}
	now := start
	for _, item := range story()[:10] {
		now = now.Add(item.after)
		next, _ := m.Update(arrived{item.event, now})
		m = next.(model)
	}
	got := ansi.Strip(m.text())
	want := strings.Join([]string{
		"calc training  step 3/160 · 25s · about 3m8s left",
		"████████████████████████░░░░░░░░░░░░░░░░░░░░░░░░ 64/128 rollouts, 8 agents",
		"reward      ▂▄▅ 0.600  mixed groups 9/16",
		"speed       107 rollouts/s  4.5k tokens/s",
		"validation  step 3: T=1 0.600 [0.530, 0.670]  greedy 0.900 [0.850, 0.930]  (200 problems)",
		"Ctrl-C: save a checkpoint and stop; twice: stop at once",
	}, "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for i, l := range strings.Split(got, "\n") {
		if ansi.StringWidth(l) > 90 {
			t.Errorf("line %d is wider than the terminal", i)
		}
	}
	if _, cmd := m.Update(closing{}); cmd == nil {
		t.Error("closing does not end the program")
	}
}

func TestLiveViewEndsWithTheSummary(t *testing.T) {
	var out bytes.Buffer
	v := New(&out, Options{Title: "calc", TTY: true, Width: 80})
	for _, item := range story() {
		v.Send(item.event)
	}
	v.Close()
	v.Close()
	v.Send(Warning{"late"})
	text := ansi.Strip(out.String())
	for _, want := range []string{"pass@1     0.260 [0.220, 0.300] → 0.914 [0.886, 0.936] on 500 problems", "runs/calc/report.html"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not on the screen:\n%s", want, text)
		}
	}
	if strings.Contains(out.String(), "\x1b[31m\n") {
		t.Error("a control code of an agent's text got through")
	}
	if strings.Contains(out.String(), "\x1b[?2026$p") || strings.Contains(out.String(), "\x1b[c") {
		t.Error("the terminal was asked something: nobody reads the answer")
	}
}

// blocked is a terminal that takes nothing until it is released.
type blocked struct {
	io.Writer
	release chan struct{}
}

func (b *blocked) Write(p []byte) (int, error) { <-b.release; return b.Writer.Write(p) }

func TestSendDoesNotWaitForTheTerminal(t *testing.T) {
	var out bytes.Buffer
	b := &blocked{&out, make(chan struct{})}
	v := New(b, Options{})
	for i := 1; i <= 1000; i++ {
		v.Send(StepDone{Step: i, Steps: 1000})
	}
	close(b.release)
	v.Close()
	if n := strings.Count(out.String(), "\n"); n != 1000 {
		t.Errorf("%d of 1000 lines were written", n)
	}
}

func TestCountersNeverExceedTheTotal(t *testing.T) {
	b := &board{}
	b.apply(StepProgress{Step: 1, Done: 33, Total: 32}, time.Unix(0, 0))
	m := model{board: b, width: 80}
	if text := ansi.Strip(m.text()); !strings.Contains(text, "32/32") {
		t.Error(text)
	}
}

func TestSpark(t *testing.T) {
	for name, c := range map[string]struct {
		values []float64
		n      int
		want   string
	}{
		"from none to all":        {[]float64{0, 0.5, 1}, 9, "▁▅█"},
		"more values than blocks": {[]float64{0, 0, 1, 1}, 2, "▁█"},
		"rewards above one":       {[]float64{0, 10}, 9, "▁█"},
		"negative ones":           {[]float64{-1, 1}, 9, "▁█"},
		"nothing":                 {nil, 9, ""},
	} {
		if got := spark(c.values, c.n); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}
