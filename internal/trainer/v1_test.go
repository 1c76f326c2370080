package trainer

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/goldentest"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
)

type stepIn struct {
	Rows []struct {
		Rollout  string             `json:"rollout_id"`
		UID      string             `json:"uid"`
		Score    goldentest.Float   `json:"score"`
		Position []int              `json:"score_position"`
		Drop     bool               `json:"is_drop"`
		Mask     []float64          `json:"mask"`
		Sampled  []goldentest.Float `json:"rollout_log_probs"`
		Old      []goldentest.Float `json:"old_log_probs"`
	} `json:"rows"`
	Config struct {
		MiniBatch    int     `json:"ppo_mini_batch_size"`
		N            int     `json:"rollout_n"`
		MaxUpdates   *int    `json:"max_ppo_update_times"`
		Estimator    string  `json:"adv_estimator"`
		Std          bool    `json:"norm_adv_by_std_in_grpo"`
		Gamma        float64 `json:"gamma"`
		RolloutLevel bool    `json:"enable_rollout_level_advantage"`
		Correction   *struct {
			Bypass      bool            `json:"bypass_mode"`
			Is          string          `json:"rollout_is"`
			Threshold   json.RawMessage `json:"rollout_is_threshold"`
			Normalize   bool            `json:"rollout_is_batch_normalize"`
			Rs          string          `json:"rollout_rs"`
			RsThreshold json.RawMessage `json:"rollout_rs_threshold"`
		} `json:"rollout_correction"`
	} `json:"config"`
}

func (in stepIn) read() ([]v1Row, v1Config) {
	rows := make([]v1Row, len(in.Rows))
	for i, r := range in.Rows {
		rows[i] = v1Row{rollout: r.Rollout, group: r.UID, score: float64(r.Score), marked: r.Drop, mask: r.Mask,
			old: goldentest.Floats([][]goldentest.Float{r.Old})[0], sampled: goldentest.Floats([][]goldentest.Float{r.Sampled})[0]}
		if len(r.Position) > 0 {
			rows[i].at = r.Position[0]
		}
	}
	c := v1Config{miniBatch: in.Config.MiniBatch * in.Config.N, estimator: in.Config.Estimator, std: in.Config.Std, gamma: in.Config.Gamma,
		rolloutLevel: in.Config.RolloutLevel}
	if in.Config.MaxUpdates != nil {
		c.maxUpdates = *in.Config.MaxUpdates
	}
	if k := in.Config.Correction; k != nil {
		text := func(raw json.RawMessage) string { return strings.Trim(strings.Trim(string(raw), `"`), "nul") }
		c.bypass = k.Bypass
		c.correction = &loss.CorrectionConfig{Weights: k.Is, Threshold: text(k.Threshold), Normalize: k.Normalize, Reject: k.Rs, RejectThresholds: text(k.RsThreshold)}
	}
	return rows, c
}

type stepOut struct {
	After      []int `json:"rows_after_marked_drop"`
	Drop       int   `json:"n_to_drop"`
	Equal      []int `json:"same_reward_eligible"`
	Candidates *int  `json:"n_random_candidates"`
	Kept       []int `json:"kept_example"`
	Skipped    bool  `json:"skipped"`
	Normalized bool  `json:"normalized"`
	Rows       []struct {
		Advantage  *goldentest.Float  `json:"advantage"`
		Weight     *goldentest.Float  `json:"weight"`
		Tokens     float64            `json:"tokens"`
		Mask       []float64          `json:"mask"`
		Importance []goldentest.Float `json:"rollout_is_weights"`
		Advantages []goldentest.Float `json:"advantages"`
	} `json:"rows"`
	Metrics map[string]float64          `json:"metrics"`
	Mass    map[string]goldentest.Float `json:"weight_mass_per_rollout"`
	Error   *struct{}                   `json:"error"`
}

func TestGoldenSteps(t *testing.T) {
	for _, c := range goldentest.Cases[stepIn, stepOut](t, "step.json") {
		t.Run(c.Name, func(t *testing.T) {
			rows, cfg := c.Input.read()
			out, tol := c.Output, c.Tolerance
			cut := v1Plan(rows, cfg)
			if !slices.Equal(cut.rows, out.After) || cut.drop != out.Drop || cut.nothing != out.Skipped {
				t.Fatalf("after the marked drop %v, %d to drop, nothing left: %t; want %v, %d, %t", cut.rows, cut.drop, cut.nothing, out.After, out.Drop, out.Skipped)
			}
			slices.Sort(out.Equal)
			if out.Drop > 0 && !slices.Equal(cut.equal, out.Equal) {
				t.Errorf("equal rewards: rows %v, want %v", cut.equal, out.Equal)
			}
			if want := out.Candidates; want != nil && cut.eligible != *want || want == nil && cut.eligible != 0 {
				t.Errorf("%d candidates of the random drop, want %v", cut.eligible, want)
			}
			pick := v1Keep(cut, rand.New(rand.NewPCG(1, 2)).Perm)
			if len(pick) != len(cut.rows)-cut.drop || !slices.IsSorted(pick) {
				t.Errorf("kept %v of %v", pick, cut.rows)
			}
			if out.Skipped {
				return
			}
			if out.Error != nil && out.Kept == nil {
				out.Kept = pick
			}
			got, err := v1Weigh(rows, cut, out.Kept, cfg)
			if (err != nil) != (out.Error != nil) {
				t.Fatalf("error %v, want one: %v", err, out.Error != nil)
			}
			if err == nil {
				checkStep(t, rows, got, out, tol)
			}
		})
	}
}

func checkStep(t *testing.T, rows []v1Row, got v1Weighed, out stepOut, tol goldentest.Bounds) {
	if got.normalized != out.Normalized || len(got.weights) != len(out.Rows) {
		t.Fatalf("normalized %t, %d rows", got.normalized, len(got.weights))
	}
	mass := map[string]float64{}
	for k, want := range out.Rows {
		mask, tokens := got.mask[k], 0.0
		for j, m := range mask {
			tokens += m
			if m == 0 {
				continue
			}
			mass[rows[out.Kept[k]].rollout] += got.weights[k][j]
			switch {
			case want.Advantages != nil:
				if !tol.Near(got.advantages[k][j], float64(want.Advantages[j])) {
					t.Errorf("row %d: advantages %v, want %v", k, got.advantages[k], want.Advantages)
				}
			case !tol.Near(got.advantages[k][j], float64(*want.Advantage)) || !tol.Near(got.weights[k][j], float64(*want.Weight)):
				t.Errorf("row %d: advantage %v and weight %v, want %v and %v", k, got.advantages[k][j], got.weights[k][j], *want.Advantage, *want.Weight)
			}
		}
		if tokens != want.Tokens || want.Mask != nil && !slices.Equal(mask, want.Mask) {
			t.Errorf("row %d: mask %v, want %v", k, mask, want.Mask)
		}
		if want.Importance != nil {
			tol.Rows(t, "importance", [][]float64{got.importance[k]}, goldentest.Floats([][]goldentest.Float{want.Importance}))
		}
	}
	for id, want := range out.Mass {
		if b := tol; !b.Near(mass[id], float64(want)) && math.Abs(mass[id]-float64(want)) > 1e-12 {
			t.Errorf("rollout %s has mass %v, want %v", id, mass[id], want)
		}
	}
	if len(got.metrics) != len(out.Metrics) {
		t.Errorf("metrics %v, want %v", got.metrics, out.Metrics)
	}
	for name, want := range out.Metrics {
		if v, ok := got.metrics[name]; !ok || v != want {
			t.Errorf("%s: got %v, want %v", name, v, want)
		}
	}
}
