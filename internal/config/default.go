package config

import "time"

// Default returns the run file of someone who wrote nothing.
func Default() *File {
	return &File{
		Version:   1,
		Run:       "run",
		Seed:      1,
		Model:     "builtin:calc",
		Engine:    "embedded",
		Steps:     160,
		Stop:      Stop{Twice: true},
		Sampling:  Sampling{Temperature: 1, TopP: 1, Enforce: "mark"},
		History:   "deployed",
		Agent:     Agent{Timeout: Duration(minutes(2)), StartTimeout: Duration(minutes(1)), Input: Input{Env: map[string]string{}}, Build: []string{}, Command: []string{}},
		Runner:    Runner{Kind: "local", Sandbox: "auto", Read: []string{}, Write: []string{}, Hide: []string{".git", ".env"}, Namespace: "default", Kubernetes: Kubernetes{Pull: "auto", Prepull: 20, Lease: Duration(minutes(10)), Isolation: "policy", GatewayPods: map[string]string{}}, Container: Container{Program: "auto", Pull: "missing", Network: "gateway", Mounts: []string{}, Options: []string{}}},
		Reward:    Reward{Compare: "exact", Withhold: []string{}, Command: []string{}, Tests: []string{}, Paths: []string{}, Size: 32 << 20, Timeout: Duration(minutes(10))},
		Schedule:  Schedule{Mode: "synchronous", Refill: "update", Drain: Duration(10 * time.Second)},
		OffPolicy: OffPolicy{MeanStaleness: 4, MaxStaleness: 40, Correction: "auto", Truncate: 2, Stop: Drift{Ratio: Band{0.5, 2}, KL: 1}},
		Outcomes:  Outcomes{Infrastructure: Infrastructure{Retries: 2, Backoff: Duration(500 * time.Millisecond), Then: Then{Mask: true}}, AgentFailure: AgentFailure{FailureReward{Then{Value: new(0.0)}}}},
		Auxiliary: defaultAuxiliary(false),
		Models:    []FrozenModel{},
		Data:      Data{Filter: []string{}},
		Hooks: Hooks{BeforeRun: []string{}, AfterStep: []string{}, AfterValidation: []string{}, AfterCheckpoint: []string{}, AfterRun: []string{},
			Timeout: Duration(minutes(1)), Failure: "warn"},
		Validation: Validation{Every: 20, Problems: 200, Runs: 1, Greedy: true},
		Audit: Audit{GitHistory: "flag", Download: "flag", PackageInstall: "flag", TestEdit: "flag", EvaluationRead: "flag", RewardPost: "flag", CheckSleep: "flag",
			TestFiles: []string{}, EvaluationFiles: []string{}, Sleep: Duration(minutes(2))},
		Algorithm: Algorithm{
			Estimator: "grpo", Vote: "rollout", NormalizeStd: true, GroupSize: 8, GroupsPerStep: 16, Minibatches: 2,
			Loss: "ppo", Clip: Clip{0.2, 0.28}, DROBeta: 0.1, Aggregate: "rollout", Samples: "lineage", OverLong: "cut", Discount: 1, Curriculum: "none", KL: KL{Kind: "k3", In: "loss"},
			LearningRate: LearningRate{Start: 4e-4, End: 4e-5, Over: 200},
			Adam:         Adam{Beta1: 0.9, Beta2: 0.98, Eps: 1e-8, ClipNorm: 1},
		},
		Checkpoints: Checkpoints{Every: 20, Keep: 2},
		Retention:   Retention{Attempts: "failed"},
		Durability:  "process",
		Logs:        Logs{Level: "info", AgentBytes: 64 << 10},
		Compat:      []string{},
		Listen:      "127.0.0.1:0",
		Out:         "runs",
	}
}
