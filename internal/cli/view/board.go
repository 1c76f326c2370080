package view

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// board is what is known of the run. It is changed by apply alone; time is an
// argument, so that what is shown is a function of what happened.
type board struct {
	phase      Phase
	phaseStart time.Time
	progress   StepProgress
	last       StepDone
	rewards    []float64   // of the steps, oldest first
	ends       []time.Time // of the last steps, for the time left
	validation *Validation
	warnings   int
	done       *Done
	said       time.Time // when a plain line was last written
}

const (
	recentSteps = 20               // over which speed and time left are taken
	quiet       = 10 * time.Second // a plain view says something at least this often while rollouts end
)

// apply takes in an event and returns the lines that it is worth: for the
// plain view all, for the live one those of which lasting is true.
func (b *board) apply(e Event, now time.Time) (lines []string, lasting bool) {
	switch e := e.(type) {
	case Phase:
		b.phase, b.phaseStart, b.progress, b.ends = e, now, StepProgress{}, nil
		lines, lasting = []string{fmt.Sprintf("%s: %s", e.Name, clean(e.Note))}, true
	case StepProgress:
		b.progress = e
		if now.Sub(b.said) < quiet || e.Done == 0 {
			return nil, false
		}
		lines = []string{stepName(e) + fmt.Sprintf("  %d/%d rollouts", min(e.Done, e.Total), e.Total)}
	case StepDone:
		b.last = e
		b.rewards = append(b.rewards, e.Reward)
		b.ends = append(b.ends, now)
		if len(b.ends) > recentSteps {
			b.ends = b.ends[1:]
		}
		lines = []string{b.stepLine()}
	case Validation:
		b.validation = &e
		lines, lasting = []string{validationLine(e)}, true
	case Warning:
		b.warnings++
		lines, lasting = []string{"warning: " + clean(e.Text)}, true
	case Done:
		b.done = &e
		return nil, true
	}
	b.said = now
	return lines, lasting
}

func stepName(p StepProgress) string {
	switch {
	case p.Label != "" && p.Step > 0:
		return fmt.Sprintf("step %d %s", p.Step, p.Label)
	case p.Label != "":
		return p.Label
	case p.Steps > 0:
		return fmt.Sprintf("step %d/%d", p.Step, p.Steps)
	}
	return fmt.Sprintf("step %d", p.Step)
}

// stepLine is the plain view's line of the last step.
func (b *board) stepLine() string {
	s := b.last
	parts := []string{
		stepName(StepProgress{Step: s.Step, Steps: s.Steps}),
		fmt.Sprintf("reward %.3f", s.Reward),
		fmt.Sprintf("mixed groups %d/%d", s.Mixed, s.Groups),
		fmt.Sprintf("%.2fs (rollouts %.2f, update %.2f)", s.Total.Seconds(), s.Rollout.Seconds(), s.Update.Seconds()),
		b.speed(),
	}
	if s.Masked > 0 {
		parts = append(parts, fmt.Sprintf("%d masked", s.Masked))
	}
	if left := b.left(); left > 0 {
		parts = append(parts, "left "+short(left))
	}
	return strings.Join(parts, "  ")
}

// speed of the last step, over its whole time.
func (b *board) speed() string {
	sec := b.last.Total.Seconds()
	if sec <= 0 {
		return ""
	}
	return fmt.Sprintf("%.0f rollouts/s  %s tokens/s", float64(b.last.Rollouts)/sec, kilo(float64(b.last.Tokens)/sec))
}

// left is the time to the last step at the pace of the recent ones,
// validations between them included; 0: not known.
func (b *board) left() time.Duration {
	n := len(b.ends)
	if n < 2 || b.last.Steps <= b.last.Step {
		return 0
	}
	return b.ends[n-1].Sub(b.ends[0]) / time.Duration(n-1) * time.Duration(b.last.Steps-b.last.Step)
}

func validationLine(v Validation) string {
	name := v.Name
	if name == "" {
		name = fmt.Sprintf("validation after step %d", v.Step)
	}
	text := name + ": " + scores(v)
	if v.Best {
		text += "  best so far"
	}
	return text
}

func scores(v Validation) string {
	text := "T=1 " + v.Score.String() + reward(v.Reward)
	if v.Greedy != nil {
		text += "  greedy " + v.Greedy.String() + reward(v.GreedyReward)
	}
	passes := ""
	if v.Reward != nil || v.GreedyReward != nil {
		passes = fmt.Sprintf(", a reward of %g passes", v.Pass)
	}
	return text + fmt.Sprintf("  (%d problems%s)", v.Problems, passes)
}

func reward(mean *float64) string {
	if mean == nil {
		return ""
	}
	return fmt.Sprintf(" mean reward %.3f", *mean)
}

// String writes the score with its interval.
func (i Interval) String() string { return fmt.Sprintf("%.3f [%.3f, %.3f]", i.Value, i.Low, i.High) }

// summary is what stays on the screen when all is over.
func (d Done) summary() []string {
	lines := []string{}
	add := func(name, text string) { lines = append(lines, fmt.Sprintf("%-10s %s", name, text)) }
	if d.Title != "" {
		add("result", clean(d.Title))
	}
	switch {
	case d.Before != nil && d.After != nil:
		add("pass@1", fmt.Sprintf("%s → %s on %d problems", d.Before, d.After, d.Problems))
	case d.After != nil:
		add("pass@1", fmt.Sprintf("%s on %d problems", d.After, d.Problems))
	case d.Before != nil:
		add("pass@1", fmt.Sprintf("%s on %d problems, before training", d.Before, d.Problems))
	}
	switch {
	case d.BeforeReward != nil && d.AfterReward != nil:
		add("reward", fmt.Sprintf("%.3f → %.3f in the mean; a reward of %g passes", *d.BeforeReward, *d.AfterReward, d.Pass))
	case d.AfterReward != nil:
		add("reward", fmt.Sprintf("%.3f in the mean; a reward of %g passes", *d.AfterReward, d.Pass))
	case d.BeforeReward != nil:
		add("reward", fmt.Sprintf("%.3f in the mean, before training; a reward of %g passes", *d.BeforeReward, d.Pass))
	}
	cost := []string{}
	if d.Updates > 0 {
		cost = append(cost, fmt.Sprintf("%d updates", d.Updates))
	}
	if d.Rollouts > 0 {
		cost = append(cost, fmt.Sprintf("%d rollouts", d.Rollouts))
	}
	if d.Wall > 0 {
		cost = append(cost, short(d.Wall))
	}
	if d.CPU > 0 {
		digits := 0
		if d.CPU < 10*time.Second {
			digits = 1
		}
		cost = append(cost, fmt.Sprintf("%.*f CPU seconds", digits, d.CPU.Seconds()))
	}
	if len(cost) > 0 {
		add("cost", strings.Join(cost, ", "))
	}
	for _, f := range d.Files {
		add(clean(f.Name), clean(f.Path))
	}
	if d.Next != "" {
		add("next", clean(d.Next))
	}
	return lines
}

// short writes a duration to the second, below ten seconds to the tenth.
func short(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func kilo(x float64) string {
	if x < 1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1fk", x/1000)
}

// clean takes control characters out: texts here hold what agents wrote, and
// must not drive the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}, s)
}
