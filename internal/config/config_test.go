package config

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

var update = flag.Bool("update", false, "write golden files and the docs anew")

// offered is what a build with the parts of the first version passes.
var offered = Variants{
	"engine":         {"embedded"},
	"runner.kind":    {"local"},
	"runner.sandbox": {"auto", "bubblewrap", "none"},
	"schedule.mode":  {"synchronous"},
	"reward.builtin": {"final-answer"},
	"history":        {"deployed"},

	"outcomes.reasons": {"timeout", "memory", "node"}, "outcomes.reasons.retries": {"node"}, "outcomes.reasons.agent": {"timeout", "memory"},
}

// small is the least that is complete.
const small = `
data: {train: t.jsonl}
agent: {command: [./agent]}
reward: {builtin: final-answer, expected: input.answer}
runner: {sandbox: none}
`

func TestAgentsOfV1AskUnderAnyName(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		want []string
	}{
		"by default":         {small, []string{"title", "other-model"}},
		"agents of v1":       {small + "compat: [v1-agents]", []string{"title"}},
		"rules of one's own": {small + "compat: [v1-agents]\nauxiliary: [{name: a, other_model: true}]", []string{"a"}},
	} {
		f, _, err := Parse([]byte(test.file), "run.yaml", offered)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range f.Auxiliary {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: rules %v, want %v", name, got, test.want)
		}
	}
}

func TestParse(t *testing.T) {
	calc, err := os.ReadFile("testdata/calc.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, warnings, err := Parse(calc, "run.yaml", offered)
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 0 {
		t.Errorf("warnings of a good file: %v", warnings)
	}
	want := Default()
	want.Run = "calc"
	want.Data = Data{Train: "train.jsonl", Validation: "val.jsonl", Test: "test.jsonl", Filter: []string{}, Limit: 100}
	want.Stop.Validation = 0.9
	want.Sampling.MaxTokens = 48
	want.Agent.Build = []string{"go", "build", "-o", "{run}/agent", "./agent"}
	want.Agent.Command = []string{"{run}/agent"}
	want.Agent.Input.Env = map[string]string{"QUESTION": "input.question"}
	want.Runner.Sandbox = "none"
	want.Reward.Builtin, want.Reward.Expected = "final-answer", "input.answer"
	want.Algorithm.Clip = Clip{0.1, 0.3}
	want.Auxiliary = []AuxiliaryRule{} // the file asks for none
	if diff := cmp.Diff(want, f); diff != "" {
		t.Error(diff)
	}
	if got := Expand(f.Agent.Build, "/r"); got[3] != "/r/agent" {
		t.Errorf("Expand: %v", got)
	}

	if marked, _, err := Parse(append([]byte("\ufeff"), calc...), "run.yaml", offered); err != nil || marked.Hash() != f.Hash() {
		t.Errorf("with a byte-order mark: %v", err)
	}

	effective := f.Effective()
	golden(t, "testdata/calc.effective.yaml", effective)
	again, _, err := Parse(effective, "effective.yaml", offered)
	if err != nil {
		t.Fatalf("the effective configuration is no run file: %v", err)
	}
	if again.Hash() != f.Hash() {
		t.Errorf("the effective configuration is another one:\n%s\n%s", again.JSON(), f.JSON())
	}
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (go test -update writes it anew):\n%s", path, diff)
	}
}

// Rules and models are read whole, and the effective configuration says them again.
func TestAuxiliaryAndModels(t *testing.T) {
	src := small + `
models:
  - {name: judge/1, url: "https://h/v1", key_env: JUDGE_KEY}
  - {name: small, url: "http://h:1/v1", agents: true}
auxiliary:
  - name: title
    no_tools: true
    system: '(?i)^You name, briefly: {"a": [1,2]}'
    route: judge/1
  - {name: quota, max_tokens: 1, header: "x-app: ^cli$"}
  - {name: small, model: ".*haiku.*, .*", train: true}
sampling: {enforce: force}
`
	f, warnings, err := Parse([]byte(src), "run.yaml", offered)
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	want := Default()
	want.Models = []FrozenModel{{Name: "judge/1", URL: "https://h/v1", KeyEnv: "JUDGE_KEY"}, {Name: "small", URL: "http://h:1/v1", Agents: true}}
	want.Auxiliary = []AuxiliaryRule{
		{Name: "title", NoTools: true, System: `(?i)^You name, briefly: {"a": [1,2]}`, Route: "judge/1"},
		{Name: "quota", MaxTokens: 1, Header: "x-app: ^cli$"},
		{Name: "small", Model: ".*haiku.*, .*", Train: true},
	}
	if diff := cmp.Diff(want.Models, f.Models) + cmp.Diff(want.Auxiliary, f.Auxiliary); diff != "" || f.Sampling.Enforce != "force" {
		t.Error(diff, f.Sampling.Enforce)
	}
	again, _, err := Parse(f.Effective(), "effective.yaml", offered)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f, again); diff != "" {
		t.Error(diff)
	}
	f, _, err = Parse([]byte(small), "run.yaml", offered, Override{"auxiliary", `[{name: a, other_model: true}]`, "--set"})
	if err != nil || len(f.Auxiliary) != 1 || f.Auxiliary[0].Name != "a" {
		t.Errorf("%v %v", f, err)
	}
}

// UI-07: a key that does not exist is an error with its place.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ src, want string }{
		"an unknown key has its place and what was meant":    {small + "stpes: 3", `run.yaml:6:1: unknown key "stpes"; did you mean "steps"?`},
		"a nested unknown key too":                           {small + "algorithm:\n  group_sice: 3", `run.yaml:7:3: unknown key "algorithm.group_sice"; did you mean "algorithm.group_size"?`},
		"a key at the wrong level is found where it belongs": {small + "learning_rate: 1e-4", `unknown key "learning_rate"; did you mean algorithm.learning_rate?`},
		"a key like no other gets the list":                  {small + "sampling: {frobnicate: 1}", `unknown key "sampling.frobnicate"; keys here: temperature, max_tokens, top_p, top_k, enforce`},
		"text where a number is wanted":                      {small + "steps: many", `run.yaml:6:8: steps: want a whole number, got "many"`},
		"a fraction where a whole number is wanted":          {small + "steps: 1.5", `steps: want a whole number, got "1.5"`},
		"a list where text is wanted":                        {small + "model: [a]", `model: want text, got a list`},
		"text where a list is wanted":                        {"agent: {command: ./agent}", `agent.command: want a list, got "./agent"`},
		"text where keys are wanted":                         {small + "algorithm: grpo", `algorithm: want keys (estimator, vote, normalize_std,`},
		"a line indented otherwise":                          {"agent:\n  command: [a]\n   timeout: 2m", `run.yaml:3:4: value is not allowed in this context; is the line indented as the others`},
		"a tab":                                              {"agent:\n\ttimeout: 2m", `; lines are indented by spaces`},
		"no value":                                           {small + "steps:", `steps has no value`},
		"a number out of bounds":                             {small + "steps: -1", `steps: want at least 0, got -1`},
		"a version that does not exist":                      {"version: 2", `version: want at most 1, got 2`},
		"not finite":                                         {small + "stop: {validation: .nan}", `stop.validation: want a number, got ".nan"`},
		"a time without unit":                                {"agent: {timeout: 5}", `agent.timeout: want a time such as 90s or 2m, got "5"`},
		"a name of the format that this version has not":     {small + "engine: verl", `engine: "verl" is not in this version; offered: embedded`},
		"an engine with settings":                            {small + "engine: {tinker: {url: x}}", `the engine "tinker" is not in this version`},
		"a name that nobody knows":                           {small + "algorithm: {loss: poo}", `algorithm.loss: unknown name "poo"; did you mean "ppo"?`},
		"a schedule of a later version":                      {small + "schedule: {mode: collocated}", `"collocated" is not in this version; offered: synchronous`},
		"a dual clip that turns advantages round":            {small + "algorithm: {dual_clip: 0.5}", `algorithm.dual_clip: want more than 1`},
		"a constant that is not there":                       {small + "algorithm: {aggregate: constant}", `algorithm.constant_tokens: missing`},
		"an unknown way to add up":                           {small + "algorithm: {aggregate: mean}", `algorithm.aggregate: unknown name "mean"`},
		"pass@k by samples":                                  {small + "algorithm: {estimator: pass_at_k, vote: sample}", `algorithm.vote: pass_at_k compares rollouts`},
		"pass@k of single calls":                             {small + "algorithm: {estimator: pass_at_k, discount: 0.9}", `algorithm.estimator: pass_at_k knows the rewards of whole rollouts only`},
		"a filter that no group passes":                      {small + "algorithm: {filter: {valid: 9, refills: 2}}", `algorithm.filter.valid: 9 of a group of 8 can never count`},
		"a band the wrong way round":                         {small + "off_policy: {mask: [2, 0.5]}", `off_policy.mask: want low up to high`},
		"a band of words":                                    {small + "off_policy: {mask: wide}", `off_policy.mask: want none or two numbers`},
		"a band that stops every run":                        {small + "off_policy: {stop: {ratio: [2, 3]}}", `off_policy.stop.ratio: [2, 3] does not hold 1`},
		"v1 with a discount":                                 {small + "algorithm: {discount: 0.9}\ncompat: [v1]", `compat: v1 has no rewards of single calls and no discount`},
		"v1 with an estimator that it has not":               {small + "algorithm: {estimator: class_loo}\ncompat: [v1]", `compat: v1 has no estimator class_loo`},
		"auxiliary rules":                                    {small + "auxiliary: [{match: x}]", `unknown key "auxiliary[0].match"`},
		"a rule without a condition":                         {small + "auxiliary: [{name: x}]", `run.yaml:6:13: auxiliary[0]: no condition`},
		"a rule without a name":                              {small + "auxiliary: [{no_tools: true}]", `auxiliary[0].name: want letters`},
		"two rules of one name":                              {small + "auxiliary: [{name: a, no_tools: true}, {name: a, other_model: true}]", `auxiliary[1].name: "a" stands twice`},
		"a rule's expression that is none":                   {small + "auxiliary: [{name: a, system: \"(\"}]", `auxiliary[0].system: error parsing regexp`},
		"a rule that leads nowhere":                          {small + "auxiliary: [{name: a, no_tools: true, route: judge}]", `auxiliary[0].route: there is no model "judge" under models`},
		"a rule's header without a name":                     {small + "auxiliary: [{name: a, header: \": x\"}]", `auxiliary[0].header: want a header's name`},
		"rules that are no list":                             {small + "auxiliary: {name: a}", `auxiliary: want a list, got keys`},
		"a rule that is no keys":                             {small + "auxiliary: [title]", `auxiliary[0]: want keys (name, model,`},
		"a model without an address":                         {small + "models: [{name: judge}]", `models[0].url: want an OpenAI base URL`},
		"a model with the policy's name":                     {small + "models: [{name: run, url: \"http://h/v1\"}]", `models[0].name: "run" is the policy's name`},
		"a key in place of its variable":                     {small + "models: [{name: j, url: \"http://h/v1\", key_env: \"sk- 1\"}]", `models[0].key_env: want the name of a variable`},
		"what a frozen model answers can't train":            {small + "models: [{name: j, url: \"http://h/v1\"}]\nauxiliary: [{name: a, no_tools: true, route: j, train: true}]", `auxiliary[0].train`},
		"a way to enforce that is none":                      {small + "sampling: {enforce: warn}", `sampling.enforce: unknown name "warn"; offered: mark, force`},
		"compat":                                             {small + "compat: [v2]", `compat: unknown name "v2"`},
		"the whole machine shown":                            {strings.Replace(small, "none", "auto, read: [/]", 1), `run.yaml:5:31: runner.read: want a folder or a file, not all of "/"`},
		"a grader of workers":                                {"data: {train: t}\nagent: {command: [a], worker: true, workspace: true}\nreward: {command: [./grade]}", `run.yaml:2:31: agent.worker: reward.command grades what an agent leaves when it and all that it started are dead, and a worker lives on: use one process a rollout`},
		"a grader without a workspace":                       {"data: {train: t}\nagent: {command: [a]}\nreward: {command: [./grade]}", `run.yaml:3:19: reward.command: it grades what an agent leaves in its workspace, and there is none: set agent.workspace: true`},
		"a program and a built-in grader":                    {"data: {train: t}\nagent: {command: [a], workspace: true}\nreward: {command: [./grade], builtin: final-answer}", `reward: set one of builtin, command and from`},
		"a way out of the workspace":                         {"data: {train: t}\nagent: {command: [a], workspace: true}\nreward: {command: [./grade], paths: [../x]}", `run.yaml:3:37: reward.paths: want paths in the workspace, such as src/**/*.py, got "../x"`},
		"no grader":                                          {"data: {train: t}\nagent: {command: [a]}", `run.yaml: reward: missing: nobody grades`},
		"two graders":                                        {strings.Replace(small, "builtin:", "from: agent, builtin:", 1), `reward: set one of builtin, command and from`},
		"no program":                                         {"data: {train: t}", `agent.command: missing`},
		"the answer given to the agent":                      {"data: {train: t}\nagent: {command: [a], input: {env: {Q: input.answer}}}\nreward: {builtin: final-answer, expected: input.answer}", `Q would show the agent input.answer`},
		"the whole input given to the agent":                 {"data: {train: t}\nagent: {command: [a], input: {env: {Q: input}}}\nreward: {builtin: final-answer, expected: input.answer}", `Q would show the agent input.answer`},
		"steps and epochs":                                   {small + "steps: 3\nepochs: 1", `epochs: set steps or epochs, not both`},
		"a group of one":                                     {small + "algorithm: {group_size: 1}", `want at least 2`},
		"fewer groups than optimizer steps by default":       {small + "algorithm: {groups_per_step: 1}", `algorithm.groups_per_step: 1 cannot be divided over the 2 optimizer steps of a step, which are the default: add algorithm.minibatches: 1`},
		"more optimizer steps than groups":                   {small + "algorithm: {groups_per_step: 2, minibatches: 4}", `2 groups cannot be divided over 4`},
		"one bound too many":                                 {small + "algorithm: {clip: [0.1, 0.2, 0.3]}", `algorithm.clip: want two numbers [low, high], got 3`},
		"a key twice":                                        {small + "steps: 1\nsteps: 2", `run.yaml:7:1: mapping key "steps" already defined`},
		"no YAML":                                            {"a: [", `run.yaml:1:4: `},
		"two documents":                                      {small + "\n---\nsteps: 3", `a second document`},
		"a run's name that is no folder":                     {small + "run: ../x", `run: want letters, digits`},
		"greedy training":                                    {small + "sampling: {temperature: 0}", `sampling.temperature: greedy rollouts`},
		"a pattern without group":                            {"reward: {builtin: final-answer, expected: input.a, compare: pattern, pattern: x}", `want a group around the answer`},
		"a reason that is none":                              {small + "outcomes: {reasons: {timeot: {then: 0}}}", `run.yaml:6:22: outcomes.reasons: unknown reason "timeot"; did you mean "timeout"?`},
		"a second try for failing":                           {small + "outcomes: {reasons: {timeout: {retries: 1}}}", `outcomes.reasons.timeout: retries: this is no failure that another attempt may mend`},
		"a rule of nothing":                                  {small + "outcomes: {reasons: {node: 3}}", `outcomes.reasons.node: want retries, then, or both`},
		"a rule's unknown key":                               {small + "outcomes: {reasons: {node: {retry: 3}}}", `outcomes.reasons.node: unknown key "retry"; keys here: retries, then`},
		"a consequence that is none":                         {small + "outcomes: {reasons: {node: {then: drop}}}", `outcomes.reasons.node.then: want mask, graded or a number, got "drop"`},
		"an alias without anchor":                            {small + "run: *x", `no anchor &x`},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Parse([]byte(c.src), "run.yaml", offered)
			if err == nil {
				t.Fatal("accepted")
			}
			if fulgur.KindOf(err) != fulgur.KindInvalid {
				t.Errorf("kind %s", fulgur.KindOf(err))
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
		})
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	_, _, err := Parse([]byte("stepz: 3\nalgorithm: {clip: x}\nmodel: []"), "r.yaml", offered)
	if err == nil || len(strings.Split(err.Error(), "\n")) != 3 {
		t.Errorf("want three lines, got:\n%v", err)
	}
}

// UI-07: a key that has no effect in this mode is a warning.
func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct{ src, want string }{
		"clip without a clipped loss":        {small + "algorithm: {loss: importance_sampling, clip: 0.2}", "run.yaml:6:46: algorithm.clip: has no effect with loss importance_sampling"},
		"dual clip without its loss":         {small + "algorithm: {loss: cispo, dual_clip: 3}", "algorithm.dual_clip: has no effect with loss cispo"},
		"a constant that nobody divides by":  {small + "algorithm: {constant_tokens: 64}", "algorithm.constant_tokens: has no effect with aggregate rollout"},
		"a kind of a KL term that is off":    {small + "algorithm: {kl: {kind: k1}}", "algorithm.kl.kind: has no effect with coefficient 0"},
		"a filter without refills":           {small + "algorithm: {filter: {equal_rewards: true}}", "algorithm.filter: has no effect with refills: 0"},
		"a limit without weights":            {small + "off_policy: {truncate: 3}", "off_policy.truncate: has no effect without a correction"},
		"corrected twice":                    {small + "algorithm: {loss: importance_sampling}\noff_policy: {correction: token}", "off_policy.correction: loss importance_sampling has the sampler in its ratio already"},
		"aggregation under v1":               {small + "algorithm: {aggregate: token}\ncompat: [v1]", "algorithm.aggregate: has no effect with compat v1"},
		"gspo with ppo's clip":               {small + "algorithm: {loss: gspo}", "algorithm.clip: gspo's ratio is a mean over a rollout"},
		"std of another estimator":           {small + "algorithm: {estimator: rloo, normalize_std: true}", "algorithm.normalize_std: has no effect with estimator rloo"},
		"stop without validation":            {small + "stop: {validation: 0.9}", "stop.validation: has no effect without data.validation"},
		"validation settings without data":   {small + "validation: {problems: 3}", "validation.problems: has no effect without data.validation"},
		"a slow start without worker":        {strings.Replace(small, "[./agent]", "[./agent], start_timeout: 3s", 1), "agent.start_timeout: has no effect without agent.worker"},
		"tests without a grader":             {strings.Replace(small, "input.answer", "input.answer, tests: [pytest]", 1), "reward.tests: has no effect without reward.command"},
		"limits without a sandbox":           {strings.Replace(small, "none", "none, limits: {memory: 1GiB}", 1), "runner.limits.memory: has no effect with sandbox: none"},
		"WE-04: a cut distribution":          {small + "sampling: {top_p: 0.9}", "sampling.top_p: tokens are drawn from a cut distribution"},
		"an end without a way there":         {small + "algorithm: {learning_rate: {start: 0.1, end: 0.05}}", "end has no effect without over"},
		"a rate of another optimizer":        {small + "algorithm: {learning_rate: 1e3}", "run.yaml:6:28: algorithm.learning_rate: 1000 is far above"},
		"masking what agents bring about":    {small + "outcomes: {reasons: {memory: {then: mask}}}", "run.yaml:6:22: outcomes.reasons.memory: agents can bring this about: masked, it is better for them"},
		"paying for what agents bring about": {small + "outcomes: {reasons: {timeout: {then: 0.5}}}", "outcomes.reasons.timeout: agents can bring this about, and 0.5 is more than failing gets"},
		"keys of another kind of runner":     {strings.Replace(small, "none", "none, image: x", 1), "runner.image: has no effect with runner.kind: local"},
	} {
		t.Run(name, func(t *testing.T) {
			_, warnings, err := Parse([]byte(c.src), "run.yaml", offered)
			if err != nil {
				t.Fatal(err)
			}
			if len(warnings) != 1 || !strings.Contains(warnings[0].String(), c.want) {
				t.Errorf("got  %v\nwant %s", warnings, c.want)
			}
		})
	}
}

func TestGradersOfOtherRunners(t *testing.T) {
	all := maps.Clone(offered)
	all["runner.kind"] = []string{"local", "container", "kubernetes"}
	const head = "data: {train: t}\nagent: {command: [a], workspace: true}\n"
	for src, want := range map[string]string{
		"runner: {kind: kubernetes, image: i, kubernetes: {isolation: none}}\nreward: {command: [./grade]}":                                 "runner.kubernetes.relay_image: missing: with reward.command",
		"runner: {kind: kubernetes, image: i, kubernetes: {probe_image: p}}\nreward: {command: [./grade], tests: [\"{run}/t\"]}":            "reward.tests: it runs in a container",
		"runner: {kind: kubernetes, image: i, kubernetes: {probe_image: p, relay_image: r}}\nreward: {command: [./grade], tests: [pytest]}": "",
		"runner: {kind: container, image: i}\nreward: {command: [./grade], tests: [\"{dir}/t\"]}":                                           "reward.tests: it runs in a container",
		"runner: {kind: container, image: i}\nreward: {command: [./grade], tests: [pytest]}":                                                "",
	} {
		_, warnings, err := Parse([]byte(head+src), "run.yaml", all)
		if want == "" && (err != nil || len(warnings) > 0) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", src, warnings, err)
		}
	}
}

// The trainer's engine listens there (docs/apart.md).
func TestListenBesideAServer(t *testing.T) {
	if _, warnings, err := Parse([]byte(small+"server: http://x\nlisten: :80"), "run.yaml", offered); err != nil || len(warnings) > 0 {
		t.Errorf("%v, %v", warnings, err)
	}
}

func TestOverrides(t *testing.T) {
	env := FromEnvironment([]string{"FULGUR_STEPS=7", "FULGUR_ALGORITHM_GROUP_SIZE=4", "FULGUR_KEY=secret", "STEPS=1"})
	flags, err := ParseOverrides("--set", []string{"steps=9", "agent.command=[a, b]", "agent.input.env.Q=input.q", "algorithm.learning_rate.start=1e-3", "run=1"})
	if err != nil {
		t.Fatal(err)
	}
	f, _, err := Parse([]byte(small+"steps: 5\n"), "run.yaml", offered, append(env, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	got := []any{f.Steps, f.Algorithm.GroupSize, f.Agent.Command, f.Agent.Input.Env, f.Algorithm.LearningRate, f.Run}
	want := []any{9, 4, []string{"a", "b"}, map[string]string{"Q": "input.q"}, LearningRate{1e-3, 4e-5, 200}, "1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("flag over variable over file over default:\n", diff)
	}

	for name, c := range map[string]struct{ path, value, want string }{
		"an unknown key":                     {"stepz", "3", `--set x: unknown key "stepz"; did you mean "steps"?`},
		"a wrong type":                       {"steps", "x", `--set x: steps: want a whole number, got "x"`},
		"no value":                           {"steps", "", `--set x: steps: no value`},
		"below a value":                      {"steps.x", "3", `--set x: steps has no keys below it`},
		"a name not there":                   {"engine", "verl", `--set x: engine: "verl" is not in this version`},
		"no YAML":                            {"agent.command", "[", `--set x: `},
		"out of bounds":                      {"steps", "-1", `--set x: steps: want at least 0, got -1`},
		"so many that their product is none": {"algorithm.group_size", "4611686018427387904", `--set x: algorithm.group_size: want at most 10000`},
		"together":                           {"algorithm.group_size", "1", `--set x: algorithm.group_size: grpo compares`},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Parse([]byte(small), "run.yaml", offered, Override{c.path, c.value, "--set x"})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	if _, err := ParseOverrides("--set", []string{"steps"}); err == nil {
		t.Error("--set without a value was accepted")
	}
}

func TestLearningRateForms(t *testing.T) {
	for src, want := range map[string]LearningRate{
		"1e-4":                              {1e-4, 1e-4, 0},
		"{start: 4e-4, end: 4e-5, over: 9}": {4e-4, 4e-5, 9},
		"{start: 2e-4}":                     {2e-4, 2e-4, 0},
	} {
		f, _, err := Parse([]byte(small+"algorithm: {learning_rate: "+src+"}"), "r", offered)
		if err != nil {
			t.Fatal(err)
		}
		if f.Algorithm.LearningRate != want {
			t.Errorf("%s: got %v, want %v", src, f.Algorithm.LearningRate, want)
		}
	}
}

func TestAnchors(t *testing.T) {
	f, _, err := Parse([]byte(small+"run: &r abc\nmodel: *r\n"), "r", offered)
	if err != nil || f.Model != "abc" {
		t.Errorf("%v %v", f, err)
	}
}

func TestSchema(t *testing.T) {
	schema := Schema(offered)
	golden(t, "testdata/schema.json", schema)
	var s struct {
		Schema               string `json:"$schema"`
		AdditionalProperties *bool
		Properties           map[string]struct {
			Description string
			Enum        []string
		}
	}
	if err := json.Unmarshal(schema, &s); err != nil {
		t.Fatal(err)
	}
	if s.Schema != "https://json-schema.org/draft/2020-12/schema" || s.AdditionalProperties == nil || *s.AdditionalProperties {
		t.Errorf("draft %q, unknown keys allowed: %v", s.Schema, s.AdditionalProperties)
	}
	for name, p := range s.Properties {
		if p.Description == "" {
			t.Errorf("%s has no description", name)
		}
	}
	if diff := cmp.Diff([]string{"embedded"}, s.Properties["engine"].Enum); diff != "" {
		t.Errorf("engine: %s", diff)
	}
}

func TestEveryKeyIsDescribed(t *testing.T) {
	for _, k := range Keys(offered) {
		if k.Doc == "" || !regexp.MustCompile(`[.)]$`).MatchString(k.Doc) {
			t.Errorf("%s: %q is no sentence", k.Path, k.Doc)
		}
	}
}

func TestVariablesAreDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, p := range Paths() {
		if other, ok := seen[Variable(p)]; ok {
			t.Errorf("%s and %s share %s", p, other, Variable(p))
		}
		seen[Variable(p)] = p
	}
}

// TestDocs holds docs/run-file.md to the keys: the part between the marks is
// made from them.
func TestDocs(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "run-file.md")
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- keys -->\n", "<!-- /keys -->"
	head, rest, ok1 := strings.Cut(string(src), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has lost the marks %q and %q", path, begin, end)
	}
	var table strings.Builder
	table.WriteString("| key | default | what it means |\n|---|---|---|\n")
	for _, k := range Keys(offered) {
		def := ""
		if !k.Group {
			def = "`" + k.Default + "`"
		}
		doc := strings.ReplaceAll(k.Doc, "|", `\|`)
		if len(k.Names) > 1 {
			doc += " One of " + strings.Join(k.Names, ", ") + "."
		}
		table.WriteString("| `" + k.Path + "` | " + def + " | " + doc + " |\n")
	}
	golden(t, path, []byte(head+begin+table.String()+end+tail))
}

func FuzzParse(f *testing.F) {
	f.Add(small, "steps", "3")
	calc, err := os.ReadFile("testdata/calc.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(calc), "agent.input.env.X", "input.x")
	f.Add("a: &a [*a]\n<<: *a", "algorithm", "{clip: [1]}")
	f.Add("? [a]\n: b", "agent.command", "[&a x, *a]")
	f.Fuzz(func(t *testing.T, src, path, value string) {
		file, _, err := Parse([]byte(src), "fuzz.yaml", offered, Override{path, value, "--set"})
		if err != nil {
			return
		}
		again, _, err := Parse(file.Effective(), "effective.yaml", offered)
		if err != nil {
			t.Fatalf("the effective configuration of %q is no run file: %v\n%s", src, err, file.Effective())
		}
		if again.Hash() != file.Hash() {
			t.Fatalf("another configuration:\n%s\n%s", file.JSON(), again.JSON())
		}
	})
}

// The pause is that before an attempt whose controller was lost, too: it has an
// effect without retries.
func TestBackoffWithoutRetries(t *testing.T) {
	t.Parallel()
	_, warnings, err := Parse([]byte("data: {train: t}\nagent: {command: [a]}\nreward: {from: agent}\noutcomes: {infrastructure: {retries: 0, backoff: 1s}}\n"), "run.yaml", nil)
	if err != nil || len(warnings) > 0 {
		t.Errorf("%v, %v", warnings, err)
	}
}

// Where each key was written is known to those who find later what is amiss with it.
func TestPlaces(t *testing.T) {
	t.Parallel()
	src := "data: {train: t.jsonl}\nagent:\n  command: [x]\n  input: {env: {Q: input.q, R: input.r}}\nreward: {from: agent}\n"
	_, _, got, err := ParsePlaces([]byte(src), "run.yaml", nil,
		Override{Path: "agent.input.env.S", Value: "input.s", Source: "--set S"}, Override{Path: "runner", Value: "{kind: kubernetes, image: x, kubernetes: {isolation: none}}", Source: "--set runner"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"agent.command": "run.yaml:3:12", "agent.input.env.R": "run.yaml:4:29", "agent.input.env.S": "--set S", "runner.image": "--set runner", "agent.timeout": "",
	} {
		if got[path] != want {
			t.Errorf("%s: %q, want %q", path, got[path], want)
		}
	}
}
