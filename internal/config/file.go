package config

// File is a run file: everything that `fulgur train` needs to know. Every key
// has a default; Default returns them. The comments of the fields are the
// descriptions in the JSON Schema, in the effective configuration and in
// docs/run-file.md; the jsonschema tags hold the bounds and the known names.
type File struct {
	// Version of this format; 1.
	Version int `json:"version" jsonschema:"minimum=1,maximum=1"`
	// Name of the run: what its folder below `out` is called, and its id on a server.
	Run string `json:"run"`
	// Seed of everything that is random: sampling, order of data. The same seed, run name and one engine worker give the same bits.
	Seed int64 `json:"seed" jsonschema:"minimum=0"`
	// The model to start from: `builtin:NAME`, a Hugging Face folder (relative to the run file), or a name that the engine knows.
	Model string `json:"model"`
	// What holds and trains the policy. embedded: in this binary, on the CPU.
	Engine Engine `json:"engine" jsonschema:"enum=embedded,enum=verl,enum=tinker"`
	// The data sets.
	Data Data `json:"data"`
	// Training steps to make at most. Set this or `epochs`.
	Steps int `json:"steps" jsonschema:"minimum=0,maximum=1000000000"`
	// Passes over `data.train` to make at most; 0: `steps` decides.
	Epochs int `json:"epochs" jsonschema:"minimum=0,maximum=1000000"`
	// When to stop before the last step.
	Stop Stop `json:"stop"`
	// What the run fixes for every model call in training.
	Sampling Sampling `json:"sampling"`
	// What becomes of sampled tokens that a harness sends back. deployed: reused where the text is the same, split where deployment would show the model other content. sampled: all kept in one lineage; deployment then needs the same gateway.
	History string `json:"history" jsonschema:"enum=deployed,enum=sampled"`
	// The agent: any program that talks to an OpenAI-compatible server.
	Agent Agent `json:"agent"`
	// Where and how many agents run.
	Runner Runner `json:"runner"`
	// Who grades a rollout. Set one of `builtin`, `command`, `from`.
	Reward Reward `json:"reward"`
	// How rewards become updates.
	Algorithm Algorithm `json:"algorithm"`
	// When rollouts run beside updates.
	Schedule Schedule `json:"schedule"`
	// How old the policy of a rollout may be when it trains; looked at by the asynchronous schedules.
	OffPolicy OffPolicy `json:"off_policy"`
	// What each way to end leads to.
	Outcomes Outcomes `json:"outcomes"`
	// Rules: which calls are not the agent's own conversation, and where they go. The first one that matches labels a call; what is labelled does not train. The default ones know opencode's title call, and calls under another model's name; [] is none.
	Auxiliary []AuxiliaryRule `json:"auxiliary"`
	// Models besides the policy that calls may go to (a judge, a user simulator, a small model for titles). They never train.
	Models []FrozenModel `json:"models"`
	// Measurements during training, on `data.validation`.
	Validation Validation `json:"validation"`
	// What follows when the calls of a rollout show a shortcut (docs/audit.md).
	Audit Audit `json:"audit"`
	// Commands that are run when something has happened (docs/train.md).
	Hooks Hooks `json:"hooks"`
	// What is saved, and how often.
	Checkpoints Checkpoints `json:"checkpoints"`
	// What is kept when it has served its purpose.
	Retention Retention `json:"retention"`
	// What a record survives once it is acknowledged. process: `kill -9` of every process. power: a power cut too, at the price of a disk sync per group of commits.
	Durability string `json:"durability" jsonschema:"enum=process,enum=power"`
	// What is logged.
	Logs Logs `json:"logs"`
	// Behaviour of Agent Lightning v1 to keep. v1: its algorithm's numbers. v1-agents: attempts may read their own rollout, and auxiliary is without other-model where it is not set.
	Compat []string `json:"compat" jsonschema:"enum=v1,enum=v1-agents"`
	// URL of a running `fulgur serve`; empty: gateway, store and controller run in this process.
	Server string `json:"server"`
	// Address on which this process listens for the agents' model calls; port 0: any free one.
	Listen string `json:"listen"`
	// Folder below which the run's folder is made, relative to the working directory.
	Out string `json:"out"`
}

// Data names the data sets: JSON lines, JSON, CSV, TSV or Parquet, relative to
// the run file. A row, whole, is the `input` of its rollouts.
type Data struct {
	// Rows to train on.
	Train string `json:"train"`
	// Rows to measure on during training; empty: no validation.
	Validation string `json:"validation"`
	// Rows to measure on before and after training only: they serve neither stopping nor the choice of the checkpoint.
	Test string `json:"test"`
	// Use only the rows of `train` for which all of these hold, such as `input.level <= 3` (docs/data.md).
	Filter []string `json:"filter"`
	// Use only the first rows of `train`, of those that the filter keeps; 0: all.
	Limit int `json:"limit" jsonschema:"minimum=0"`
}

// Stop says when training may end early.
type Stop struct {
	// Stop when the validation score (pass@1 at the training temperature) is at least this; 0: never.
	Validation float64 `json:"validation" jsonschema:"minimum=0,maximum=1"`
	// Only when two validations in a row reach it: one can be luck.
	Twice bool `json:"twice"`
	// Stop after so many validations in a row without a better score; 0: never.
	Patience int `json:"patience" jsonschema:"minimum=0,maximum=1000000"`
}

// Sampling is what the run fixes for the agent's model calls.
type Sampling struct {
	// Temperature of training and validation; other than 1 is refused where the engine's log probs are of temperature 1.
	Temperature float64 `json:"temperature" jsonschema:"minimum=0,maximum=100"`
	// Most tokens a call may sample, also where the agent asks for more; 0: what the context has room for.
	MaxTokens int `json:"max_tokens" jsonschema:"minimum=0"`
	// Nucleus sampling: the smallest set of tokens with this probability; 1: off.
	TopP float64 `json:"top_p" jsonschema:"minimum=0,maximum=1"`
	// Sample from the most likely tokens only; 0: off.
	TopK int `json:"top_k" jsonschema:"minimum=0"`
	// What becomes of parameters by which an agent changes the distribution that the run trains on (top_p, top_k, penalties, logit_bias). mark: they are honoured, and the call does not train. force: they are replaced by the run's. The temperature is always the run's.
	Enforce string `json:"enforce" jsonschema:"enum=mark,enum=force"`
}

// AuxiliaryRule says which calls are not the agent's own conversation: those
// that all of its conditions hold for.
type AuxiliaryRule struct {
	// What the calls are labelled with: letters, digits and dashes.
	Name string `json:"name"`
	// Condition: a regular expression (RE2) for the whole name of the model that is asked for.
	Model string `json:"model,omitempty"`
	// Condition: a model is asked for by a name that is not the policy's (agents find that in OPENAI_MODEL; it is the run's name).
	OtherModel bool `json:"other_model,omitempty"`
	// Condition: no tools are offered.
	NoTools bool `json:"no_tools,omitempty"`
	// Condition: a regular expression (RE2) that is found in a system or developer message at the start of the conversation.
	System string `json:"system,omitempty"`
	// Condition: at most this many tokens are asked for.
	MaxTokens int `json:"max_tokens,omitempty" jsonschema:"minimum=0"`
	// Condition: a header that is there, or `NAME: RE2` for what is found in its value.
	Header string `json:"header,omitempty"`
	// The model of `models` that answers; empty: the policy.
	Route string `json:"route,omitempty"`
	// The calls count as the agent's own and train: an exception to the rules that follow.
	Train bool `json:"train,omitempty"`
}

// FrozenModel is a model besides the policy.
type FrozenModel struct {
	// Its name, here and at its server.
	Name string `json:"name"`
	// OpenAI base URL of its server, such as https://api.example.com/v1.
	URL string `json:"url"`
	// The variable of Fulgur's environment that holds its server's key; empty: it needs none.
	KeyEnv string `json:"key_env,omitempty"`
	// Agents may ask for it by its name; otherwise only rules lead there.
	Agents bool `json:"agents,omitempty"`
}

// Agent says how the agent is built and started. In `build` and `command`,
// `{run}` stands for the run's folder.
type Agent struct {
	// A command that is run once before the first rollout, in the run file's folder.
	Build []string `json:"build"`
	// The program and its arguments; one process per rollout. It finds its server and key in OPENAI_BASE_URL and OPENAI_API_KEY.
	Command []string `json:"command"`
	// The program is long-lived and takes rollouts one by one, as JSON lines on standard input.
	Worker bool `json:"worker"`
	// How the agent gets its task.
	Input Input `json:"input"`
	// Each attempt starts in a new empty folder, which stays as `retention.attempts` says (in a Job it is /workspace, and goes with its pod); false: in the run file's folder. A relative program is in the run file's folder either way; for other paths of `command`, `{dir}` stands for it.
	Workspace bool `json:"workspace"`
	// An attempt is ended after this much active time; time in which its calls are held does not count.
	Timeout Duration `json:"timeout"`
	// A worker, a container or a Job's agent must run within this time. In a cluster that holds the fetch of its image; what waits for a quota or a queue has no such limit.
	StartTimeout Duration `json:"start_timeout"`
	// An attempt is ended after this much time without a model call; 0s: never.
	IdleTimeout Duration `json:"idle_timeout"`
}

// Input says how the agent gets its task. What the grader needs is withheld.
type Input struct {
	// Environment variables, each from a path into the rollout, such as input.question.
	Env map[string]string `json:"env"`
	// The input comes as JSON in the file that FULGUR_INPUT_FILE names.
	File bool `json:"file"`
	// The input comes as JSON on standard input.
	Stdin bool `json:"stdin"`
}

// Reward says who grades a rollout.
type Reward struct {
	// A built-in grader. final-answer compares the last reply of the agent's main conversation with a field of the input; the agent is not changed at all.
	Builtin string `json:"builtin" jsonschema:"enum=final-answer"`
	// Where the right answer is; it is withheld from the agent.
	Expected string `json:"expected"`
	// How the two are compared. exact: the same text, white space at the ends aside. number: the same number. pattern: the reply's answer is the first group of `pattern`.
	Compare string `json:"compare" jsonschema:"enum=exact,enum=number,enum=pattern"`
	// Regular expression (RE2) whose first group is the answer, for `compare: pattern`.
	Pattern string `json:"pattern"`
	// Further fields of the input that no agent may see.
	Withhold []string `json:"withhold"`
	// A program that grades what the agent has left in its workspace (docs/grading.md): it gets the row and the tests' result as JSON on standard input, and prints a number. Needs agent.workspace.
	Command []string `json:"command"`
	// What runs the agent's work before `command` does: in a copy, without a credential or evaluation data. Its end and its output are given to `command`, which need not believe them.
	Tests []string `json:"tests"`
	// The folder that the agent's changed files are laid over for `tests` and `command`, relative to the run file; empty: an empty one.
	Pristine string `json:"pristine"`
	// What an agent may change: paths with *, ? and ** (any folders); a folder stands for what is below it; empty: all but what decides how tests run (conftest.py, sitecustomize.py, …).
	Paths []string `json:"paths"`
	// Most that an agent's changed files may come to; with more its work is worth nothing.
	Size Bytes `json:"size"`
	// `tests`, and again `command`, are ended after this.
	Timeout Duration `json:"timeout"`
	// agent: the agent posts its own reward, as with Agent Lightning v1; only for agents that you trust to.
	From string `json:"from" jsonschema:"enum=agent"`
	// Events `call_reward` ({"call": number or id, "value": number}) of an attempt reward single calls, beside the rollout's own reward; only from agents that you trust to.
	Calls bool `json:"calls"`
}

// Algorithm says how rewards become updates.
type Algorithm struct {
	// How a group's rewards become advantages (docs/algorithms.md has the formulas).
	Estimator string `json:"estimator" jsonschema:"enum=grpo,enum=dr_grpo,enum=rloo,enum=class_loo,enum=reinforce_plus_plus,enum=reinforce_plus_plus_baseline,enum=opo,enum=pass_at_k"`
	// What has a vote in a group's baseline. rollout: each rollout has one. sample: each training sequence, so that a rollout which was split has several; with aggregate sequence this is the sample level that rollout level is compared with.
	Vote string `json:"vote" jsonschema:"enum=rollout,enum=sample"`
	// Divide a group's advantages by the standard deviation of its rewards; looked at by grpo.
	NormalizeStd bool `json:"normalize_std"`
	// Rollouts of one row in a step.
	GroupSize int `json:"group_size" jsonschema:"minimum=1,maximum=10000"`
	// Rows in a step.
	GroupsPerStep int `json:"groups_per_step" jsonschema:"minimum=1,maximum=1000000"`
	// Optimizer steps that a step's groups are divided over.
	Minibatches int `json:"minibatches" jsonschema:"minimum=1"`
	// The loss of a trained token.
	Loss string `json:"loss" jsonschema:"enum=ppo,enum=importance_sampling,enum=cispo,enum=gspo,enum=dro"`
	// The ratio of new to old probability is clipped to [1 - first, 1 + second]; looked at by ppo, cispo and gspo.
	Clip Clip `json:"clip"`
	// A token of a negative advantage costs at most so many times it, whatever its ratio; above 1; 0: off. Looked at by ppo and gspo.
	DualClip float64 `json:"dual_clip" jsonschema:"minimum=0"`
	// What half the square of a token's log ratio weighs; looked at by dro.
	DROBeta float64 `json:"dro_beta" jsonschema:"minimum=0"`
	// How tokens add up. rollout: each rollout has the same share, however many tokens and samples it is. token: each token counts the same. sequence: each training sequence has the same share. constant: sums over tokens, divided by `constant_tokens` and the number of rollouts.
	Aggregate string `json:"aggregate" jsonschema:"enum=rollout,enum=token,enum=sequence,enum=constant"`
	// The constant of `aggregate: constant`, in tokens; such as the most that a rollout may sample.
	ConstantTokens int `json:"constant_tokens" jsonschema:"minimum=0"`
	// What the return of a call counts in that of the call before it: below 1, early calls get less of a late reward; 1: all calls alike.
	Discount float64 `json:"discount" jsonschema:"minimum=0,maximum=1"`
	// A pull towards the policy that the run starts from.
	KL KL `json:"kl"`
	// Which rows an epoch has. none: each one once. pass_rate: rows that always pass, or never do, only now and then.
	Curriculum string `json:"curriculum" jsonschema:"enum=none,enum=pass_rate"`
	// What one training sequence is made of (docs/samples.md). lineage: the model calls that continue one another, merged. call: one call, with its whole prompt as context.
	Samples string `json:"samples" jsonschema:"enum=lineage,enum=call"`
	// Most tokens of a training sequence; 0: the engine's context.
	SampleTokens int `json:"sample_tokens" jsonschema:"minimum=0"`
	// What becomes of a call that ends behind that. cut: it doesn't train. mask: nor does its lineage. drop: nor does its rollout. The rollout votes in its group all the same.
	OverLong string `json:"over_long" jsonschema:"enum=cut,enum=mask,enum=drop"`
	// Mixtures of experts: in updates, tokens take the experts that were chosen at sampling. Model servers are asked for them; a call without a row for each of its tokens doesn't train (`missing_routed_experts`). Refused where the engine can't.
	Replay bool `json:"replay"`
	// Groups that are left out and replaced by others.
	Filter Filter `json:"filter"`
	// A number, or {start, end, over}: linear from start to end over that many steps, then end.
	LearningRate LearningRate `json:"learning_rate"`
	// The optimizer, AdamW.
	Adam Adam `json:"adam"`
}

// KL pulls the policy towards a frozen copy of the start weights.
type KL struct {
	// Its weight; 0: off, and no copy is kept.
	Coefficient float64 `json:"coefficient" jsonschema:"minimum=0"`
	// How the divergence is estimated from a token's log probs. k1: their difference. k2: half its square. k3: unbiased and never negative.
	Kind string `json:"kind" jsonschema:"enum=k1,enum=k2,enum=k3"`
	// Where it counts. loss: at each trained token. reward: the sum over a rollout is taken off its reward.
	In string `json:"in" jsonschema:"enum=loss,enum=reward"`
}

// Filter says which complete groups are not to train.
type Filter struct {
	// Leave out groups whose rewards are all equal: they teach nothing.
	EqualRewards bool `json:"equal_rewards"`
	// Leave out groups with fewer rollouts that count (neither masked nor without a reward); 0: none.
	Valid int `json:"valid" jsonschema:"minimum=0"`
	// Groups that a step may ask for in place of those; when none is left, a group trains as it is.
	Refills int `json:"refills" jsonschema:"minimum=0"`
}

// LearningRate is a constant or a straight line. In step s (from 0) it is
// start + (end - start) * min(s / over, 1); over 0: start throughout.
type LearningRate struct {
	// Rate of the first step.
	Start float64 `json:"start" jsonschema:"minimum=0"`
	// Rate after `over` steps.
	End float64 `json:"end" jsonschema:"minimum=0"`
	// Steps from start to end; 0: start throughout.
	Over int `json:"over" jsonschema:"minimum=0"`
}

// Adam holds the parameters of AdamW.
type Adam struct {
	// Decay of the mean of the gradient.
	Beta1 float64 `json:"beta1" jsonschema:"minimum=0,maximum=1"`
	// Decay of the mean of its square.
	Beta2 float64 `json:"beta2" jsonschema:"minimum=0,maximum=1"`
	// Added to the denominator.
	Eps float64 `json:"eps" jsonschema:"minimum=0"`
	// Decoupled weight decay.
	WeightDecay float64 `json:"weight_decay" jsonschema:"minimum=0"`
	// The gradient's norm is clipped to this; 0: off.
	ClipNorm float64 `json:"clip_norm" jsonschema:"minimum=0"`
}

// Schedule says when rollouts run beside updates.
type Schedule struct {
	// synchronous: all rollouts of a step end, then the update. collocated: rollouts of several steps are under way, and model calls are held during an update, on the same device. disaggregated: the same on other devices, and nothing is held (docs/schedules.md).
	Mode string `json:"mode" jsonschema:"enum=synchronous,enum=collocated,enum=disaggregated"`
	// Groups under way at once, as a multiple of algorithm.groups_per_step, at least 1; 0: one more than off_policy.mean_staleness. Looked at by the asynchronous modes.
	Active float64 `json:"active" jsonschema:"minimum=0,maximum=1000"`
	// When a group that has left is replaced. update: behind each new policy; `active` counts all that is under way or waits to train. completion: at once; `active` counts what is under way. Looked at with `active`.
	Refill string `json:"refill" jsonschema:"enum=update,enum=completion"`
	// How long an update waits for model calls that are being answered. Those that are left go on after it from their own tokens, where the sampler can, and are cut off where it can't.
	Drain Duration `json:"drain"`
	// Closes groups of which some rollouts do not end. Off by default: it favours short rollouts. Looked at by the asynchronous modes.
	Straggler Straggler `json:"straggler"`
}

// Straggler says when a group is closed without those that still run.
type Straggler struct {
	// Share of the group that must have ended.
	Done float64 `json:"done" jsonschema:"minimum=0,maximum=1"`
	// The group is closed when it has run for so many times as long as its median ended rollout took; 0: never.
	Factor float64 `json:"factor" jsonschema:"minimum=0"`
}

// OffPolicy bounds the age of what trains, in policy versions.
type OffPolicy struct {
	// Mean age that the number of groups under way is chosen for.
	MeanStaleness float64 `json:"mean_staleness" jsonschema:"minimum=0"`
	// Age that nothing exceeds: an update that would make a running group older waits for it, and nothing is discarded.
	MaxStaleness int `json:"max_staleness" jsonschema:"minimum=0"`
	// How tokens are weighted that another policy has sampled than the one at the step's start. token: by the ratio of their probabilities. sequence: by the product over their rollout. auto: token with the asynchronous schedules, but for a loss that has the sampler in its ratio and compat v1; else none.
	Correction string `json:"correction" jsonschema:"enum=auto,enum=none,enum=token,enum=sequence"`
	// Most that such a weight may be; 0: no limit.
	Truncate float64 `json:"truncate" jsonschema:"minimum=0"`
	// Tokens whose ratio is outside [low, high] train nothing; with correction sequence, rollouts whose geometric mean is. none: all train.
	Mask Band `json:"mask"`
	// How far sampler and trainer may be apart before the run stops.
	Stop Drift `json:"stop"`
}

// Drift bounds what is measured at the start of each step.
type Drift struct {
	// The mean over tokens of the trainer's probability over the sampler's, [low, high]; none: not looked at. It is 1 in expectation, also between two policies.
	Ratio Band `json:"ratio"`
	// Divergence of sampler from trainer, nats a token; 0: not looked at.
	KL float64 `json:"kl" jsonschema:"minimum=0"`
}

// Audit says what follows each kind of shortcut. off: not looked for. flag: kept
// with the rollout, counted, and nothing else. zero: the reward becomes 0. mask:
// the rollout neither trains nor votes. fail: it counts as a failure of the agent.
type Audit struct {
	// The repository's later history: other refs, the reflog, the object store.
	GitHistory string `json:"git_history" jsonschema:"enum=off,enum=flag,enum=zero,enum=mask,enum=fail"`
	// wget, curl, urllib and their like, from elsewhere than this machine.
	Download string `json:"download" jsonschema:"enum=off,enum=flag,enum=zero,enum=mask,enum=fail"`
	// pip, npm, apt and their like.
	PackageInstall string `json:"package_install" jsonschema:"enum=off,enum=flag,enum=zero,enum=mask,enum=fail"`
	// Existing tests that are changed or deleted.
	TestEdit string `json:"test_edit" jsonschema:"enum=off,enum=flag,enum=zero,enum=mask,enum=fail"`
	// Graders, expected answers and hidden tests that are read.
	EvaluationRead string `json:"evaluation_read" jsonschema:"enum=off,enum=flag,enum=zero,enum=mask,enum=fail"`
	// Rewards and events that the model posts by a tool.
	RewardPost string `json:"reward_post" jsonschema:"enum=off,enum=flag,enum=zero,enum=mask,enum=fail"`
	// Waits beyond `sleep`.
	CheckSleep string `json:"check_sleep" jsonschema:"enum=off,enum=flag,enum=zero,enum=mask,enum=fail"`
	// Further files that no agent may change: globs of a path or its end, such as specs/*.rb.
	TestFiles []string `json:"test_files"`
	// Further files that no agent may read.
	EvaluationFiles []string `json:"evaluation_files"`
	// How long one command may wait.
	Sleep Duration `json:"sleep"`
}

// Actions returns what follows each detector's findings, by its name.
func (a Audit) Actions() map[string]string {
	return map[string]string{"git_history": a.GitHistory, "download": a.Download, "package_install": a.PackageInstall, "test_edit": a.TestEdit,
		"evaluation_read": a.EvaluationRead, "reward_post": a.RewardPost, "check_sleep": a.CheckSleep}
}

// Hooks are programs with their arguments, run in the run file's folder while
// training waits. What happened comes as JSON on standard input; HOOK_EVENT,
// HOOK_STEP and HOOK_RUN (the run's folder) say it in short. `{run}` stands for the folder too.
type Hooks struct {
	// Before the first rollout, also after a resume.
	BeforeRun []string `json:"before_run"`
	// After each training step.
	AfterStep []string `json:"after_step"`
	// After each evaluation: validation, before and after training.
	AfterValidation []string `json:"after_validation"`
	// When a checkpoint is whole.
	AfterCheckpoint []string `json:"after_checkpoint"`
	// When the run has ended, with its result; not when it was interrupted.
	AfterRun []string `json:"after_run"`
	// A hook is ended after this time, with all that it started.
	Timeout Duration `json:"timeout"`
	// What follows a hook that fails. warn: a warning. stop: a checkpoint is saved and the run stops.
	Failure string `json:"failure" jsonschema:"enum=warn,enum=stop"`
}

// Validation says when and on what is measured during training.
type Validation struct {
	// Steps between two validations; 0: none.
	Every int `json:"every" jsonschema:"minimum=0"`
	// The first rows of `data.validation` that are used; 0: all.
	Problems int `json:"problems" jsonschema:"minimum=0"`
	// Runs of each problem of validation and test at the training temperature. From 2 on pass@k, pass^k and the share of flips are measured, and intervals are over problems.
	Runs int `json:"runs" jsonschema:"minimum=1,maximum=1000"`
	// Measure greedy decoding too, beside the training temperature.
	Greedy bool `json:"greedy"`
}

// Checkpoints says what is saved. The best one by validation is kept besides.
type Checkpoints struct {
	// Steps between two checkpoints; what a crash loses at most.
	Every int `json:"every" jsonschema:"minimum=1"`
	// The newest ones that are kept.
	Keep int `json:"keep" jsonschema:"minimum=1"`
}

// Retention says what is kept.
type Retention struct {
	// Attempts whose working folder and log stay in the run's folder (of a Job's, the log; what is to be graded of it, with the server).
	Attempts string `json:"attempts" jsonschema:"enum=all,enum=failed,enum=none"`
}

// Logs says what is logged.
type Logs struct {
	// Least level of our own log.
	Level string `json:"level" jsonschema:"enum=debug,enum=info,enum=warn,enum=error"`
	// Bytes of an attempt's standard output and error that are kept, half from the beginning and half from the end; the tail goes into failure messages.
	AgentBytes int `json:"agent_bytes" jsonschema:"minimum=0,maximum=1073741824"`
}
