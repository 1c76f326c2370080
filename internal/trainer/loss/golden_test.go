package loss

import (
	"cmp"
	"math"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/goldentest"
)

type (
	num  = goldentest.Float
	rows = [][]num
)

type clipIn struct {
	Ratio float64  `json:"clip_ratio"`
	Low   *float64 `json:"clip_ratio_low"`
	High  *float64 `json:"clip_ratio_high"`
	C     float64  `json:"clip_ratio_c"`
	Ranks int      `json:"dp_size"`

	Beta     float64   `json:"dro_beta"`
	KLRatio  float64   `json:"kl_cov_ratio"`
	KLCoef   float64   `json:"ppo_kl_coef"`
	CovRatio float64   `json:"clip_cov_ratio"`
	CovLow   float64   `json:"clip_cov_lb"`
	CovHigh  float64   `json:"clip_cov_ub"`
	Global   globalsIn `json:"global_batch_info"`
}

type globalsIn struct {
	Ranks     int      `json:"dp_size"`
	Tokens    *float64 `json:"batch_num_tokens"`
	Sequences *float64 `json:"global_batch_size"`
	Scale     *float64 `json:"loss_scale_factor"`
}

func (g globalsIn) global() Global { return Global(g) }

func (c clipIn) clip() Clip {
	out := Clip{c.Ratio, c.Ratio, c.C}
	if c.Low != nil {
		out.Low = *c.Low
	}
	if c.High != nil {
		out.High = *c.High
	}
	return out
}

type lossIn struct {
	Mode       string `json:"loss_mode"`
	LogProbs   any    `json:"log_probs"`
	Old        rows   `json:"old_log_probs"`
	Advantages rows   `json:"advantages"`
	Mask       rows   `json:"response_mask"`
	Importance rows   `json:"rollout_is_weights"`
	Aggregate  string `json:"loss_agg_mode"`
	Config     clipIn `json:"config"`

	Micro [][]int `json:"micro_batches"`

	Matrix     rows      `json:"loss_mat"`
	MatrixMask rows      `json:"loss_mask"`
	Global     globalsIn `json:"global_batch_info"`

	Penalty string `json:"kl_penalty"`
	Ref     []num  `json:"ref_log_probs"`

	Logits []rows `json:"logits"`

	Values    rows     `json:"values"`
	OldValues rows     `json:"old_values"`
	Returns   rows     `json:"returns"`
	ClipValue *float64 `json:"cliprange_value"`
}

type lossOut struct {
	Loss      num            `json:"loss"`
	Grad      any            `json:"grad"`
	Metrics   map[string]num `json:"metrics"`
	Error     *struct{}      `json:"error"`
	KL        []num          `json:"kl"`
	GradOfSum []num          `json:"grad_of_sum"`
	Entropy   rows           `json:"entropy"`
	Clipped   num            `json:"clipfrac"`
	Micro     []struct {
		Loss    num            `json:"loss"`
		Metrics map[string]num `json:"metrics"`
	} `json:"micro"`
	MicroSum *num `json:"micro_loss_sum"`
}

func floats(x []num) []float64 { return goldentest.Floats(rows{x})[0] }

// table reads a table whose depth the schema leaves open.
func table(x any) (out [][]float64) {
	for _, row := range x.([]any) {
		out = append(out, list(row))
	}
	return out
}

func list(x any) (out []float64) {
	for _, v := range x.([]any) {
		switch v := v.(type) {
		case float64:
			out = append(out, v)
		case string:
			out = append(out, map[string]float64{"NaN": math.NaN(), "Inf": math.Inf(1), "-Inf": math.Inf(-1)}[v])
		}
	}
	return out
}

func checkMetrics(t *testing.T, tol goldentest.Bounds, got map[string]float64, want map[string]num) {
	t.Helper()
	if tol.Metrics != nil {
		tol = *tol.Metrics
	}
	for name, w := range want {
		if g, ok := got[name]; !ok || !tol.Near(g, float64(w)) {
			t.Errorf("%s: got %v, want %v", name, g, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
}

func choose(rows [][]float64, parts []int) (out [][]float64) {
	if rows == nil {
		return nil
	}
	for _, i := range parts {
		out = append(out, rows[i])
	}
	return out
}

func (b Batch) part(parts []int) Batch {
	return Batch{choose(b.LogProbs, parts), choose(b.Old, parts), choose(b.Advantages, parts), choose(b.Mask, parts), choose(b.Importance, parts)}
}

func TestGoldenLosses(t *testing.T) {
	for _, c := range goldentest.Cases[lossIn, lossOut](t, "loss.json") {
		t.Run(c.Name, func(t *testing.T) {
			in, out, tol := c.Input, c.Output, c.Tolerance
			switch {
			case in.Matrix != nil:
				goldenAggregate(t, in, out, tol)
			case in.Penalty != "":
				value, grad, err := KL(in.Penalty, list(in.LogProbs), floats(in.Ref))
				if (err != nil) != (out.Error != nil) {
					t.Fatalf("error %v, want one: %v", err, out.Error != nil)
				}
				if err != nil {
					return
				}
				tol.Rows(t, "kl", [][]float64{value}, [][]float64{floats(out.KL)})
				tol.Rows(t, "grad", [][]float64{grad}, [][]float64{floats(out.GradOfSum)})
			case in.Logits != nil:
				goldenEntropy(t, in, out, tol)
			case in.ClipValue != nil:
				loss, grad, clipped, err := Value(goldentest.Floats(in.Values), goldentest.Floats(in.OldValues), goldentest.Floats(in.Returns), goldentest.Floats(in.Mask), *in.ClipValue,
					cmp.Or(in.Aggregate, "token-mean"), in.Global.global())
				if (err != nil) != (out.Error != nil) {
					t.Fatalf("error %v, want one: %v", err, out.Error != nil)
				}
				if err != nil {
					return
				}
				tol.Rows(t, "loss", [][]float64{{loss, clipped}}, [][]float64{{float64(out.Loss), float64(out.Clipped)}})
				tol.Rows(t, "grad", grad, table(out.Grad))
			default:
				goldenPolicy(t, in, out, tol)
			}
		})
	}
}

func goldenPolicy(t *testing.T, in lossIn, out lossOut, tol goldentest.Bounds) {
	b := Batch{LogProbs: table(in.LogProbs), Old: goldentest.Floats(in.Old), Advantages: goldentest.Floats(in.Advantages),
		Mask: goldentest.Floats(in.Mask), Importance: goldentest.Floats(in.Importance)}
	c := Config{Mode: in.Mode, Clip: in.Config.clip(), Aggregate: in.Aggregate, Global: in.Config.Global.global(), Beta: in.Config.Beta,
		CovRatio: in.Config.KLRatio + in.Config.CovRatio, KLCoef: in.Config.KLCoef, CovLow: in.Config.CovLow, CovHigh: in.Config.CovHigh}
	compare(t, b, c, in.Micro, out, tol)
}

// compare holds a batch's loss, and that of its micro-batches (case AL-06), to the reference's.
func compare(t *testing.T, b Batch, c Config, micro [][]int, out lossOut, tol goldentest.Bounds) {
	t.Helper()
	r, err := Reference(b, c)
	if (err != nil) != (out.Error != nil) {
		t.Fatalf("error %v, want one: %v", err, out.Error != nil)
	}
	if err != nil {
		return
	}
	tol.Rows(t, "loss", [][]float64{{r.Loss}}, [][]float64{{float64(out.Loss)}})
	tol.Rows(t, "grad", r.Grad, table(out.Grad))
	checkMetrics(t, tol, r.Metrics, out.Metrics)
	total := 0.0
	for i, part := range micro {
		m, err := Reference(b.part(part), c)
		if err != nil {
			t.Fatal(err)
		}
		total += m.Loss
		tol.Rows(t, "micro-batch", [][]float64{{m.Loss}}, [][]float64{{float64(out.Micro[i].Loss)}})
		checkMetrics(t, tol, m.Metrics, out.Micro[i].Metrics)
	}
	if out.MicroSum != nil {
		tol.Rows(t, "sum of micro-batches", [][]float64{{total}}, [][]float64{{float64(*out.MicroSum)}})
	}
}

func goldenAggregate(t *testing.T, in lossIn, out lossOut, tol goldentest.Bounds) {
	loss, coef, err := Aggregate(in.Aggregate, goldentest.Floats(in.Matrix), goldentest.Floats(in.MatrixMask), in.Global.global())
	if (err != nil) != (out.Error != nil) {
		t.Fatalf("error %v, want one: %v", err, out.Error != nil)
	}
	if err != nil {
		return
	}
	tol.Rows(t, "loss", [][]float64{{loss}}, [][]float64{{float64(out.Loss)}})
	tol.Rows(t, "grad", coef, table(out.Grad))
}

func goldenEntropy(t *testing.T, in lossIn, out lossOut, tol goldentest.Bounds) {
	entropies := make([][]float64, len(in.Logits))
	_, coef, err := Aggregate(in.Aggregate, entropies, goldentest.Floats(in.Mask), in.Global.global())
	if (err != nil) != (out.Error != nil) {
		t.Fatalf("error %v, want one: %v", err, out.Error != nil)
	}
	if err != nil {
		return
	}
	grads := out.Grad.([]any)
	for i, row := range in.Logits {
		want := table(grads[i])
		for j, logits := range row {
			h, grad := Entropy(floats(logits))
			tol.Rows(t, "entropy", [][]float64{{h}}, [][]float64{{float64(out.Entropy[i][j])}})
			entropies[i] = append(entropies[i], h)
			for k := range grad {
				grad[k] *= coef[i][j]
			}
			tol.Rows(t, "grad", [][]float64{grad}, [][]float64{want[j]})
		}
	}
	loss, _, err := Aggregate(in.Aggregate, entropies, goldentest.Floats(in.Mask), in.Global.global())
	if err != nil {
		t.Fatal(err)
	}
	tol.Rows(t, "loss", [][]float64{{loss}}, [][]float64{{float64(out.Loss)}})
}

type rolloutIn struct {
	LogProbs       rows     `json:"log_probs"`
	Old            rows     `json:"old_log_probs"`
	Advantages     rows     `json:"advantages"`
	Mask           rows     `json:"mask"`
	Rollouts       []string `json:"rollout_ids"`
	Rows           int      `json:"num_trained_rows"`
	Config         clipIn   `json:"config"`
	AdvantageDtype string   `json:"advantage_dtype"`
	Normalize      bool     `json:"normalize"`
	Importance     rows     `json:"rollout_is_weights"`
	Micro          [][]int  `json:"micro_batches"`
}

type rolloutOut struct {
	lossOut
	Weights rows `json:"weights"`
}

func bfloat16(x float64) float64 {
	b := math.Float32bits(float32(x))
	return float64(math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff))
}

func TestGoldenRolloutLosses(t *testing.T) {
	for _, c := range goldentest.Cases[rolloutIn, rolloutOut](t, "rollout-loss.json") {
		t.Run(c.Name, func(t *testing.T) {
			in, out, tol := c.Input, c.Output, c.Tolerance
			b := Batch{LogProbs: goldentest.Floats(in.LogProbs), Old: goldentest.Floats(in.Old), Advantages: goldentest.Floats(in.Advantages),
				Mask: goldentest.Floats(in.Mask), Importance: goldentest.Floats(in.Importance)}
			if in.Normalize {
				var round func(float64) float64
				if in.AdvantageDtype == "bfloat16" {
					round = bfloat16
				}
				b.Advantages = RolloutWeights(b.Advantages, b.Mask, in.Rollouts, in.Rows, round)
				tol.Rows(t, "weights", b.Advantages, goldentest.Floats(out.Weights))
			}
			cfg := Config{Mode: "vanilla", Clip: in.Config.clip(), Aggregate: "token-sum", Global: Global{Ranks: in.Config.Ranks}}
			if in.AdvantageDtype == "bfloat16" {
				cfg.Round = bfloat16
			}
			compare(t, b, cfg, in.Micro, out.lossOut, tol)
		})
	}
}

type tinkerIn struct {
	Name       string `json:"loss_fn"`
	LogProbs   []num  `json:"log_probs"`
	Old        []num  `json:"logprobs"`
	Weights    []num  `json:"weights"`
	Advantages []num  `json:"advantages"`
	Config     struct {
		Low  float64 `json:"clip_low_threshold"`
		High float64 `json:"clip_high_threshold"`
	} `json:"loss_fn_config"`
}

type tinkerOut struct {
	Losses   []num `json:"token_losses"`
	Sum      num   `json:"sum"`
	Grad     []num `json:"grad_of_sum"`
	JAX      num   `json:"skyrl_jax_sequence_loss"`
	JAXGrads []num `json:"skyrl_jax_grad"`
}

func TestGoldenTinkerLosses(t *testing.T) {
	for _, c := range goldentest.Cases[tinkerIn, tinkerOut](t, "tinker-loss.json") {
		t.Run(c.Name, func(t *testing.T) {
			in, out, tol := c.Input, c.Output, c.Tolerance
			mask, advantages := floats(in.Weights), floats(in.Advantages)
			if in.Name == CrossEntropy { // its weights are what the gradient is multiplied by
				for i := range advantages {
					advantages[i] = 1
				}
			}
			clip := Clip{Low: 1 - in.Config.Low, High: in.Config.High - 1}
			sum, grad, err := Sequence(in.Name, floats(in.LogProbs), floats(in.Old), advantages, mask, clip)
			if err != nil {
				t.Fatal(err)
			}
			want, jax := floats(out.Grad), floats(out.JAXGrads)
			total := 0.0
			for i, m := range mask {
				total += m
				// Where the mask is 0 we compute nothing: a NaN there, which the
				// reference lets through, is 0.
				if m == 0 && math.IsNaN(want[i]) {
					want[i], jax[i] = 0, 0
				}
			}
			tol.Rows(t, "sum", [][]float64{{sum}}, [][]float64{{float64(out.Sum)}})
			tol.Rows(t, "grad", [][]float64{grad}, [][]float64{want})
			// What a server makes of it that divides by the sum of weights.
			total = max(total, 1e-9)
			for i := range grad {
				grad[i] /= total
			}
			tol.Rows(t, "JAX", [][]float64{{sum / total}, grad}, [][]float64{{float64(out.JAX)}, jax})
		})
	}
}
