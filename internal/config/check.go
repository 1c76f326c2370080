package config

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// checker looks at what keys mean together.
type checker struct {
	d        *decoder
	f        *File
	file     string
	warnings []Warning
}

// where returns where a key was written, or the file as a whole.
func (c *checker) where(path string) place {
	if p, ok := c.d.set[path]; ok {
		return p
	}
	return place{source: c.file}
}

// wrote says whether a key, or one below it, was written.
func (c *checker) wrote(path string) bool {
	for p := range c.d.set {
		if p == path || strings.HasPrefix(p, path+".") {
			return true
		}
	}
	return false
}

func (c *checker) fail(path, format string, args ...any) {
	c.d.problems = append(c.d.problems, problem{c.where(path), path + ": " + fmt.Sprintf(format, args...)})
}

func (c *checker) warn(path, format string, args ...any) {
	text := fmt.Sprintf("%s: %s: %s", c.where(path), path, fmt.Sprintf(format, args...))
	c.warnings = append(c.warnings, Warning{path, text})
}

// noEffect warns of a key that was written and that nothing looks at.
func (c *checker) noEffect(path, why string) {
	if c.wrote(path) {
		c.warn(path, "has no effect %s", why)
	}
}

func (c *checker) all() {
	c.names()
	c.agent()
	c.runner()
	c.outcomes()
	c.reward()
	c.auxiliary()
	c.length()
	c.algorithm()
	c.objective()
	c.offPolicy()
	c.schedule()
	c.validation()
	c.audit()
	c.hooks()
}

// runName is what a run may be called: it becomes a folder and part of URLs.
var runName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (c *checker) names() {
	if !runName.MatchString(c.f.Run) {
		c.fail("run", "want letters, digits, dots, dashes and underscores, at most 64, got %q", c.f.Run)
	}
	if c.f.Model == "" {
		c.fail("model", "want a model: builtin:calc, or a Hugging Face folder")
	}
	if c.f.Out == "" {
		c.fail("out", "want a folder")
	}
	if c.f.Data.Train == "" {
		c.fail("data.train", "missing: name a file with one JSON object per line")
	}
	if c.f.Server != "" {
		if !strings.HasPrefix(c.f.Server, "http://") && !strings.HasPrefix(c.f.Server, "https://") {
			c.fail("server", "want a URL such as http://127.0.0.1:8080, got %q", c.f.Server)
		}
	}
}

// reserved are the variables by which an agent finds its model and its events.
var reserved = []string{
	"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL",
	"AGL_OPENAI_BASE_URL", "AGL_EVENT_URL", "AGL_KEY",
}

func (c *checker) agent() {
	a := c.f.Agent
	if len(a.Command) == 0 && c.f.Runner.Kind != "local" {
		// the image's own, or the template's
	} else if len(a.Command) == 0 {
		c.fail("agent.command", "missing: the program to train and its arguments, such as [python, agent.py]")
	} else if a.Command[0] == "" {
		c.fail("agent.command", "the program's name is empty")
	}
	if i := slices.IndexFunc(a.Command, func(s string) bool { return strings.Contains(s, "{dir}") }); i >= 0 && c.f.Runner.Kind != "local" {
		c.fail("agent.command", "%q: {dir} is a folder of this machine, which agents of runner.kind: %s do not see: write the path in the image", a.Command[i], c.f.Runner.Kind)
	}
	if len(a.Build) > 0 && a.Build[0] == "" {
		c.fail("agent.build", "the program's name is empty")
	}
	for name, path := range a.Input.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			c.fail("agent.input.env", "%q is no name of a variable", name)
		}
		if slices.Contains(reserved, name) || strings.HasPrefix(name, "FULGUR_") {
			c.fail("agent.input.env", "%s is set by Fulgur for every agent: choose another name", name)
		}
		c.inputPath("agent.input.env", path)
		for _, hidden := range append([]string{c.f.Reward.Expected}, c.f.Reward.Withhold...) {
			if hidden != "" && (path == hidden || strings.HasPrefix(hidden, path+".") || strings.HasPrefix(path, hidden+".")) {
				c.fail("agent.input.env", "%s would show the agent %s, which its grader needs", name, hidden)
			}
		}
	}
	if a.Input.File && a.Input.Stdin {
		c.fail("agent.input.stdin", "the input comes by agent.input.file already: set one of the two")
	}
	if a.Worker && (a.Input.File || a.Input.Stdin) {
		c.fail("agent.worker", "a worker gets each input in its JSON line: leave agent.input.file and agent.input.stdin out")
	}
	if a.Timeout == 0 {
		c.fail("agent.timeout", "want more than 0s: an agent that hangs would hold its slot for ever")
	}
	if !a.Worker && c.f.Runner.Kind == "local" {
		c.noEffect("agent.start_timeout", "without agent.worker: a process's start counts as its active time")
	}
}

// inputPath checks a path into a rollout.
func (c *checker) inputPath(key, path string) {
	if path != "input" && !strings.HasPrefix(path, "input.") || strings.HasSuffix(path, ".") || strings.Contains(path, "..") {
		c.fail(key, "want a path such as input.question, got %q", path)
	}
}

func (c *checker) reward() {
	r := c.f.Reward
	for _, w := range r.Withhold {
		c.inputPath("reward.withhold", w)
	}
	if len(r.Command) == 0 {
		for _, key := range []string{"reward.tests", "reward.pristine", "reward.paths", "reward.size", "reward.timeout"} {
			c.noEffect(key, "without reward.command")
		}
	}
	switch {
	case r.Builtin != "" && r.From != "" || len(r.Command) > 0 && r.Builtin+r.From != "":
		c.fail("reward", "set one of builtin, command and from")
	case r.Builtin == "" && r.From == "" && len(r.Command) == 0:
		c.fail("reward", "missing: nobody grades; set `builtin: final-answer` with `expected: input.answer`, a `command`, or `from: agent`")
	case len(r.Command) > 0:
		c.grader()
	case r.From != "":
		c.noEffect("reward.expected", "with from: agent")
		c.noEffect("reward.compare", "with from: agent")
		c.noEffect("reward.pattern", "with from: agent")
	case r.Builtin == "final-answer":
		if r.Expected == "" {
			c.fail("reward.expected", "missing: where the right answer is, such as input.answer")
		} else {
			c.inputPath("reward.expected", r.Expected)
		}
		if r.Compare != "pattern" {
			c.noEffect("reward.pattern", "without compare: pattern")
		} else if re, err := regexp.Compile(r.Pattern); err != nil {
			c.fail("reward.pattern", "%v", err)
		} else if re.NumSubexp() < 1 {
			c.fail("reward.pattern", "want a group around the answer, such as Answer: (.*)")
		}
	}
}

// grader checks a grader that is a program.
func (c *checker) grader() {
	r := c.f.Reward
	k := c.f.Runner.Kind
	if !c.f.Agent.Workspace {
		c.fail("reward.command", "it grades what an agent leaves in its workspace, and there is none: set agent.workspace: true")
	}
	if c.f.Agent.Worker {
		c.fail("agent.worker", "reward.command grades what an agent leaves when it and all that it started are dead, and a worker lives on: use one process a rollout")
	}
	if r.Command[0] == "" || len(r.Tests) > 0 && r.Tests[0] == "" {
		c.fail("reward.command", "the program's name is empty")
	}
	if k != "local" && slices.ContainsFunc(r.Tests, func(a string) bool { return strings.Contains(a, "{dir}") || strings.Contains(a, "{run}") }) {
		c.fail("reward.tests", "it runs in a container, where neither {dir} nor {run} is: name what is in the image, or in reward.pristine")
	}
	for _, p := range r.Paths {
		if _, err := path.Match(p, "x"); err != nil || p == "" || path.IsAbs(p) || strings.HasPrefix(path.Clean(p), "..") {
			c.fail("reward.paths", "want paths in the workspace, such as src/**/*.py, got %q", p)
		}
	}
	if r.Timeout <= 0 {
		c.fail("reward.timeout", "want more than 0s: a grader that hangs would hold its rollout for ever")
	}
	c.noEffect("reward.compare", "with command: it reads reward.expected for what is withheld only")
	c.noEffect("reward.pattern", "with command")
}

func (c *checker) length() {
	f := c.f
	switch {
	case f.Epochs > 0 && c.wrote("steps") && f.Steps > 0:
		c.fail("epochs", "set steps or epochs, not both")
	case f.Epochs > 0:
		f.Steps = 0 // the default is none where the user counts in epochs
	case f.Steps == 0:
		c.fail("steps", "want at least 1, or epochs")
	}
	if f.Stop.Validation == 0 {
		c.noEffect("stop.twice", "without stop.validation")
	}
}

func (c *checker) validation() {
	f := c.f
	if f.Data.Validation != "" && f.Validation.Every > 0 {
		return
	}
	why := "without data.validation"
	if f.Data.Validation != "" {
		why = "with validation.every: 0"
	}
	c.noEffect("validation.problems", why)
	c.noEffect("validation.greedy", why)
	if f.Data.Validation == "" && f.Validation.Every > 0 {
		c.noEffect("validation.every", why)
	}
	if f.Stop.Validation > 0 {
		c.warn("stop.validation", "has no effect %s", why)
	}
	c.noEffect("stop.patience", why)
}

func (c *checker) audit() {
	a := c.f.Audit
	for key, globs := range map[string][]string{"audit.test_files": a.TestFiles, "audit.evaluation_files": a.EvaluationFiles} {
		for _, g := range globs {
			if _, err := path.Match(g, ""); err != nil || g == "" {
				c.fail(key, "%q is no pattern: want one such as specs/*.rb, where * stands for any part of a name", g)
			}
		}
	}
	if a.Sleep == 0 {
		c.fail("audit.sleep", "want more than 0s; check_sleep: off looks for no waits")
	}
	if a.TestEdit == "off" {
		c.noEffect("audit.test_files", "with test_edit: off")
	}
	if a.EvaluationRead == "off" {
		c.noEffect("audit.evaluation_files", "with evaluation_read: off")
	}
	if a.CheckSleep == "off" {
		c.noEffect("audit.sleep", "with check_sleep: off")
	}
}

func (c *checker) hooks() {
	h := c.f.Hooks
	used := false
	for key, command := range map[string][]string{"before_run": h.BeforeRun, "after_step": h.AfterStep, "after_validation": h.AfterValidation, "after_checkpoint": h.AfterCheckpoint, "after_run": h.AfterRun} {
		used = used || len(command) > 0
		if len(command) > 0 && command[0] == "" {
			c.fail("hooks."+key, "the program's name is empty")
		}
	}
	if h.Timeout == 0 {
		c.fail("hooks.timeout", "want more than 0s: training would wait for ever for a hook that hangs")
	}
	if !used {
		c.noEffect("hooks.timeout", "without a hook")
		c.noEffect("hooks.failure", "without a hook")
	}
}
