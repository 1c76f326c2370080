package loss

import (
	"cmp"
	"encoding/json"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/goldentest"
)

type correctionConfigIn struct {
	Is          *string         `json:"rollout_is"`
	Threshold   json.RawMessage `json:"rollout_is_threshold"`
	Normalize   bool            `json:"rollout_is_batch_normalize"`
	Rs          *string         `json:"rollout_rs"`
	RsThreshold json.RawMessage `json:"rollout_rs_threshold"`
	LossType    string          `json:"loss_type"`
}

// text reads what is written as a number or as text there.
func text(raw json.RawMessage) string {
	if s := strings.Trim(string(raw), `"`); s != "null" {
		return s
	}
	return ""
}

// config reads the settings; what is absent has the reference's default.
func (c correctionConfigIn) config() CorrectionConfig {
	out := CorrectionConfig{Threshold: "2", Normalize: c.Normalize, RejectThresholds: text(c.RsThreshold)}
	if c.Threshold != nil {
		if out.Threshold = text(c.Threshold); string(c.Threshold) == `""` {
			out.Threshold = " " // no number, and not absent
		}
	}
	if c.Is != nil {
		out.Weights = cmp.Or(*c.Is, " ")
	}
	if c.Rs != nil {
		out.Reject = cmp.Or(*c.Rs, " ")
	}
	return out
}

type correctionIn struct {
	Old        rows   `json:"old_log_probs"`
	Sampled    rows   `json:"rollout_log_probs"`
	Mask       rows   `json:"response_mask"`
	Mode       string `json:"loss_mode"`
	LogProbs   rows   `json:"log_probs"`
	Advantages rows   `json:"advantages"`
	Aggregate  string `json:"loss_agg_mode"`
	Config     struct {
		correctionConfigIn
		clipIn
		Correction correctionConfigIn `json:"rollout_correction"`
	} `json:"config"`
}

type correctionOut struct {
	Weights rows           `json:"weights"`
	Mask    rows           `json:"response_mask"`
	Metrics map[string]num `json:"metrics"`
	Error   *struct{}      `json:"error"`
	Loss    num            `json:"loss"`
	Grad    rows           `json:"grad"`
}

func TestGoldenCorrections(t *testing.T) {
	for _, c := range goldentest.Cases[correctionIn, correctionOut](t, "correction.json") {
		t.Run(c.Name, func(t *testing.T) {
			in, out, tol := c.Input, c.Output, c.Tolerance
			if in.Mode != "" {
				b := Batch{LogProbs: goldentest.Floats(in.LogProbs), Old: goldentest.Floats(in.Sampled),
					Advantages: goldentest.Floats(in.Advantages), Mask: goldentest.Floats(in.Mask)}
				cfg := Config{Clip: in.Config.clip(), Aggregate: in.Aggregate, Global: in.Config.Global.global()}
				r, err := Bypass(b, cfg, cmp.Or(in.Config.Correction.LossType, "ppo_clip"), in.Config.Correction.config())
				if (err != nil) != (out.Error != nil) {
					t.Fatalf("error %v, want one: %v", err, out.Error != nil)
				}
				if err == nil {
					tol.Rows(t, "loss", [][]float64{{r.Loss}}, [][]float64{{float64(out.Loss)}})
					tol.Rows(t, "grad", r.Grad, goldentest.Floats(out.Grad))
					checkMetrics(t, tol, r.Metrics, out.Metrics)
				}
				return
			}
			got, err := ReferenceCorrection(goldentest.Floats(in.Old), goldentest.Floats(in.Sampled), goldentest.Floats(in.Mask), in.Config.config())
			if (err != nil) != (out.Error != nil) {
				t.Fatalf("error %v, want one: %v", err, out.Error != nil)
			}
			if err != nil {
				return
			}
			tol.Rows(t, "weights", got.Weights, goldentest.Floats(out.Weights))
			tol.Rows(t, "mask", got.Mask, goldentest.Floats(out.Mask))
			checkMetrics(t, tol, got.Metrics, out.Metrics)
		})
	}
}
