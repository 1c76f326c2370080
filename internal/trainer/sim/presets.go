package sim

// Preset is a named workload with the machine that it runs on.
type Preset struct {
	Name, Title   string
	Workload      Drawn
	Machine       Machine
	GroupsPerStep int
	GroupSize     int
	// Seeds is how many simulations give a figure that another seed would not
	// change by much: where few rollouts are very slow, many.
	Seeds int
}

// accelerators are eight GPUs: 20k tokens a second at saturation, half of it
// with 64 calls in flight; an update of 256 rollouts takes 150 s.
var accelerators = Machine{Peak: 20000, Half: 64, Prefill: 50000, Update: 150}

// twoCores is the embedded engine on the CPU with the model of examples/calc.
var twoCores = Machine{Peak: 20000, Half: 6, Prefill: 60000, Update: 1.5}

// Presets are the workloads on which schedules are compared.
func Presets() []Preset {
	gpu := func(name, title string, d Drawn) Preset {
		d.RowShare = .5
		return Preset{name, title, d, accelerators, 32, 8, 3}
	}
	cpu := func(name, title string, d Drawn) Preset {
		d.Calls, d.Tokens = LogNormal{3, .4}, LogNormal{22, .2}
		return Preset{name, title, d, twoCores, 16, 8, 24}
	}
	heavy := Drawn{Calls: LogNormal{20, 1}, Tokens: LogNormal{300, .7}, Tools: LogNormal{5, 1}, Limit: 3600}
	pareto, long := heavy, heavy
	pareto.Calls.Sigma, pareto.SlowTail = .7, 1.5
	long.LongShare, long.LongTimes = .01, 30
	return []Preset{
		gpu("light", "GPUs, light tail: about 20 calls (sigma 0.5), tools of 2 s",
			Drawn{Calls: LogNormal{20, .5}, Tokens: LogNormal{300, .5}, Tools: LogNormal{2, .5}, Limit: 3600}),
		gpu("heavy", "GPUs, heavy tail: about 20 calls (sigma 1), tools of 5 s", heavy),
		gpu("pareto", "GPUs, heavy tail and slow machines: tools times a Pareto(1.5) draw", pareto),
		gpu("engine", "GPUs, bound by the engine: calls of 1,000 tokens, tools of 0.5 s",
			Drawn{Calls: LogNormal{20, 1}, Tokens: LogNormal{1000, .7}, Tools: LogNormal{.5, .5}, Limit: 7200}),
		cpu("cpu-instant", "two cores, about 3 calls of 22 tokens, instant tools", Drawn{Tools: LogNormal{.005, .3}, RowShare: .5}),
		cpu("cpu-waiting", "two cores, tools that wait: 0.2 s (sigma 1)", Drawn{Tools: LogNormal{.2, 1}, RowShare: .3}),
		cpu("cpu-pareto", "two cores, slow machines: tools of 0.3 s times a Pareto(1.3) draw", Drawn{Tools: LogNormal{.3, 1}, SlowTail: 1.3, RowShare: .3, Limit: 20}),
		gpu("long-calls", "heavy, and one call in a hundred is 30 times as long", long),
		gpu("one-call", "GPUs, one call a rollout: 4,000 tokens (sigma 1)",
			Drawn{Calls: LogNormal{1, .01}, Tokens: LogNormal{4000, 1}, Tools: LogNormal{.1, .1}, Limit: 7200}),
	}
}
