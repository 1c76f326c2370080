package advantage

import (
	"math"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/goldentest"
)

type goldenIn struct {
	Estimator string               `json:"estimator"`
	Index     []string             `json:"index"`
	Rewards   [][]goldentest.Float `json:"token_level_rewards"`
	Mask      [][]goldentest.Float `json:"response_mask"`
	Values    [][]goldentest.Float `json:"values"`
	Baselines []float64            `json:"reward_baselines"`
	Dtype     string               `json:"dtype"`
	Config    struct {
		Std    bool    `json:"norm_adv_by_std_in_grpo"`
		Gamma  float64 `json:"gamma"`
		Lambda float64 `json:"lam"`
	} `json:"config"`
}

type goldenOut struct {
	Advantages [][]goldentest.Float `json:"advantages"`
	Returns    [][]goldentest.Float `json:"returns"`
	Error      *struct{}            `json:"error"`
}

// bfloat16 rounds to the nearest bfloat16, ties to even.
func bfloat16(x float64) float64 {
	b := math.Float32bits(float32(x))
	return float64(math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff))
}

func TestGoldenAdvantages(t *testing.T) {
	for _, c := range goldentest.Cases[goldenIn, goldenOut](t, "advantage.json") {
		t.Run(c.Name, func(t *testing.T) {
			in := c.Input
			cfg := Config{Estimator: in.Estimator, Std: in.Config.Std, Gamma: in.Config.Gamma, Lambda: in.Config.Lambda}
			switch in.Dtype {
			case "bfloat16":
				cfg.Round = bfloat16
			case "float32":
				cfg.Round = func(x float64) float64 { return float64(float32(x)) }
			}
			b := Batch{Rewards: goldentest.Floats(in.Rewards), Mask: goldentest.Floats(in.Mask), Index: in.Index,
				Values: goldentest.Floats(in.Values), Baselines: in.Baselines}
			advantages, returns, err := Reference(b, cfg)
			if (err != nil) != (c.Output.Error != nil) {
				t.Fatalf("error %v, want one: %v", err, c.Output.Error != nil)
			}
			if err == nil {
				c.Tolerance.Rows(t, "advantages", advantages, goldentest.Floats(c.Output.Advantages))
				c.Tolerance.Rows(t, "returns", returns, goldentest.Floats(c.Output.Returns))
				if cfg.Round == nil { // what a narrower type makes of near rewards says nothing of ours
					agrees(t, b, cfg, advantages)
				}
			}
		})
	}
}

// agrees holds Compute to the reference where the two mean the same: groups of
// at least two finite rewards that are not all equal.
func agrees(t *testing.T, b Batch, c Config, want [][]float64) {
	own := map[string]Estimator{"grpo": GRPO, "rloo": RLOO, "opo": OPO, "grpo_passk": PassK}[c.Estimator]
	if c.Estimator == "grpo" && !c.Std {
		own = GRPONoStd
	}
	if own == "" || c.Estimator == "grpo_passk" && !c.Std {
		return
	}
	members := make([]Member, len(b.Index))
	n := map[string]int{}
	finite, differ, first := map[string]bool{}, map[string]bool{}, map[string]float64{}
	for i, s := range rowSums(b.Rewards) {
		g := b.Index[i]
		members[i] = Member{Group: g, Reward: s}
		for _, m := range b.Mask[i] {
			members[i].Tokens += int(m)
		}
		if n[g]++; n[g] == 1 {
			first[g], finite[g] = s, true
		}
		finite[g] = finite[g] && !math.IsNaN(s) && !math.IsInf(s, 0)
		differ[g] = differ[g] || s != first[g]
	}
	r, err := Compute(own, members, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range b.Index {
		if n[g] < 2 || !finite[g] || !differ[g] {
			continue
		}
		for j, m := range b.Mask[i] {
			const tolerance = 1e-9
			if m != 0 && math.Abs(r.Advantages[i]-want[i][j]) > tolerance*(1+math.Abs(want[i][j])) {
				t.Errorf("Compute gives row %d %g, the reference %g", i, r.Advantages[i], want[i][j])
				break
			}
		}
	}
}
