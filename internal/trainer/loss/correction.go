package loss

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// safety bounds a log ratio before it is exponentiated.
const safety = 20

// CorrectionConfig says how the reference corrects for a sampler that is not the
// trained policy; the texts are written as its configuration has them.
type CorrectionConfig struct {
	Weights          string // "" (none), "token" or "sequence"
	Threshold        string // "" (no weights), "2": weights are cut to it; "0.5_2": weights outside are 0 (IcePop)
	Normalize        bool   // divide by the mean weight of the batch
	Reject           string // "" (none), or statistics with commas: token_k1, seq_sum_k2, seq_mean_k3, seq_max_k3, …
	RejectThresholds string // one for all or one each: "0.5_2" or "2" (for 1/2 to 2) bounds a k1's ratio, "0.1" another one from above
}

// Corrected is what a correction makes of a batch.
type Corrected struct {
	Weights [][]float64 // what each token's loss is multiplied by; nil: none
	Mask    [][]float64 // without the tokens that were rejected; weights keep their values there
	Metrics map[string]float64
}

// ReferenceCorrection computes importance weights and the rejection mask as verl's
// rollout_corr_helper does (commit 1dda039b9c63), with its metrics. old are log
// probs of the trained policy, sampled those of the policy that sampled; a masked
// token's NaN stays one in Weights, as there. Correct is what training uses.
func ReferenceCorrection(old, sampled, mask [][]float64, c CorrectionConfig) (Corrected, error) {
	if !slices.ContainsFunc(mask, func(m []float64) bool { return sum(m) > 0 }) {
		return Corrected{}, errors.New("no token is left to correct")
	}
	d := make([][]float64, len(old))
	for i, row := range old {
		d[i] = make([]float64, len(row))
		for j := range row {
			d[i][j] = row[j] - sampled[i][j]
		}
	}
	out := Corrected{Mask: mask, Metrics: map[string]float64{}}
	if c.Weights != "" && c.Threshold != "" {
		w, err := importance(d, mask, c, out.Metrics)
		if err != nil {
			return Corrected{}, err
		}
		out.Weights = w
	}
	if c.Reject != "" {
		kept, err := reject(d, mask, c, out.Metrics)
		if err != nil {
			return Corrected{}, err
		}
		out.Mask = kept
	}
	divergence(old, sampled, mask, out.Metrics)
	named := map[string]float64{}
	for k, v := range maps.All(out.Metrics) {
		named["rollout_corr/"+k] = v
	}
	out.Metrics = named
	return out, nil
}

// bounds reads "high" or "low_high".
func bounds(text string) (low, high float64, both bool, err error) {
	l, h, both := strings.Cut(text, "_")
	if !both {
		h = l
	}
	if high, err = strconv.ParseFloat(strings.TrimSpace(h), 64); err == nil && both {
		low, err = strconv.ParseFloat(strings.TrimSpace(l), 64)
	}
	switch {
	case err != nil:
		return 0, 0, false, fmt.Errorf("threshold %q: want a number, or two as low_high", text)
	case !(high > 0) || both && !(low > 0):
		return 0, 0, false, fmt.Errorf("threshold %q: bounds of a ratio are above 0", text)
	}
	return low, high, both, nil
}

// importance returns the weights exp(d), by token or by row, cut or set to 0.
func importance(d, mask [][]float64, c CorrectionConfig, metrics map[string]float64) ([][]float64, error) {
	low, high, band, err := bounds(c.Threshold)
	if err != nil {
		return nil, err
	}
	switch {
	case band && low > high:
		return nil, fmt.Errorf("threshold %q: the lower bound is above the upper one", c.Threshold)
	case c.Weights != "token" && c.Weights != "sequence":
		return nil, fmt.Errorf("no importance weights by %q", c.Weights)
	}
	raw, out := make([][]float64, len(d)), make([][]float64, len(d))
	logs := make([]float64, len(d)) // of the rows
	for i, row := range d {
		raw[i], out[i] = make([]float64, len(row)), make([]float64, len(row))
		logs[i] = rowSum(row, mask[i])
		for j, x := range row {
			if c.Weights == "sequence" {
				x = logs[i]
			}
			raw[i][j] = math.Exp(clamp(x, -safety, safety)) * mask[i][j]
			switch out[i][j] = raw[i][j]; {
			case !band:
				out[i][j] = min(raw[i][j], high)
			case !(raw[i][j] >= low && raw[i][j] <= high):
				out[i][j] = 0
			}
		}
	}
	least := low
	if !band {
		least = 1 / high
	}
	if err := weightMetrics(c.Weights, raw, out, mask, logs, least, high, metrics); err != nil {
		return nil, err
	}
	if band {
		metrics["rollout_is_oob_ratio"] = share(raw, mask, func(w float64) bool { return w < low || w > high })
	}
	if c.Normalize {
		normalize(c.Weights, out, mask, metrics)
	}
	return out, nil
}

func normalize(level string, w, mask [][]float64, metrics map[string]float64) {
	unit := mean(w, mask)
	if level == "sequence" {
		total, n := 0.0, 0.0
		for i := range w {
			if sum(mask[i]) > 0 {
				total += rowMean(w[i], mask[i])
				n++
			}
		}
		unit = total / n
	}
	metrics["rollout_is_batch_norm_factor"] = 1
	if !(unit > 1e-8) {
		return
	}
	metrics["rollout_is_batch_norm_factor"] = unit
	for _, row := range w {
		for j := range row {
			row[j] /= unit
		}
	}
}

// reject returns the mask without the tokens, or rows, whose statistic is out of
// bounds; all options must let a token through.
func reject(d, mask [][]float64, c CorrectionConfig, metrics map[string]float64) ([][]float64, error) {
	options, thresholds := unique(names(c.Reject)), names(c.RejectThresholds)
	if len(options) == 0 || len(thresholds) == 0 {
		return nil, errors.New("rejection needs a statistic and a threshold")
	}
	if len(thresholds) == 1 {
		thresholds = slices.Repeat(thresholds, len(options))
	}
	if len(thresholds) != len(options) {
		return nil, fmt.Errorf("%d thresholds for %d statistics", len(thresholds), len(options))
	}
	kept := make([][]float64, len(mask))
	for i := range mask {
		kept[i] = slices.Clone(mask[i])
	}
	for k, option := range options {
		s, err := newStatistic(option, thresholds[k])
		if err != nil {
			return nil, err
		}
		values := s.values(d, mask)
		for i, row := range values {
			for j, x := range row {
				if !s.keeps(x) {
					kept[i][j] = 0
				}
			}
		}
		s.measure(values, mask, metrics)
	}
	var rows, tokens, cut float64
	for i := range mask {
		before, after := sum(mask[i]), sum(kept[i])
		tokens += before
		cut += before - after
		rows += is(after < before)
	}
	metrics["rollout_rs_masked_fraction"] = cut / tokens
	metrics["rollout_rs_seq_masked_fraction"] = rows / float64(len(mask))
	return kept, nil
}

// names reads what stands between commas.
func names(text string) (out []string) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// unique leaves the first of equal texts.
func unique(texts []string) (out []string) {
	for _, t := range texts {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// statistic is a measure of how far the two policies are apart, with its bounds.
type statistic struct {
	name, over, kind string // over: token, seq_sum, seq_mean, seq_max
	low, high        float64
}

func newStatistic(name, threshold string) (statistic, error) {
	s := statistic{name: name}
	cut := strings.LastIndexByte(name, '_')
	if cut > 0 {
		s.over, s.kind = name[:cut], name[cut+1:]
	}
	if !slices.Contains([]string{"token", "seq_sum", "seq_mean", "seq_max"}, s.over) ||
		!slices.Contains([]string{"k1", "k2", "k3"}, s.kind) || name == "seq_max_k1" {
		return s, fmt.Errorf("no rejection by %q", name)
	}
	low, high, both, err := bounds(threshold)
	switch {
	case err != nil:
		return s, err
	case s.kind == "k1":
		if !both {
			low = 1 / high
		}
		if low > high {
			return s, fmt.Errorf("threshold %q of %s: the lower bound %g is above the upper one", threshold, name, low)
		}
		s.low, s.high = math.Log(low), math.Log(high)
	case both:
		return s, fmt.Errorf("%s is bounded from above only, threshold %q has two", name, threshold)
	default:
		s.low, s.high = math.Inf(-1), high
	}
	return s, nil
}

func (s statistic) keeps(x float64) bool { return x >= s.low && x <= s.high }

// values returns the statistic of every token; a row's own at each of its tokens.
func (s statistic) values(d, mask [][]float64) [][]float64 {
	out := make([][]float64, len(d))
	for i, row := range d {
		out[i] = make([]float64, len(row))
		top := math.Inf(-1)
		for j, x := range row {
			switch x = clamp(x, -safety, safety); s.kind {
			case "k1":
				out[i][j] = -x
			case "k2":
				out[i][j] = x * x / 2
			case "k3":
				out[i][j] = math.Exp(x) - 1 - x
			}
			if mask[i][j] != 0 {
				top = max(top, out[i][j])
			}
		}
		var all float64
		switch s.over {
		case "token":
			continue
		case "seq_sum":
			all = rowSum(out[i], mask[i])
		case "seq_mean":
			all = rowMean(out[i], mask[i])
		case "seq_max":
			if all = top; math.IsInf(top, -1) {
				all = 0
			}
		}
		for j := range row {
			out[i][j] = all
		}
	}
	return out
}

// rowSum adds what is not masked.
func rowSum(x, mask []float64) (s float64) {
	for j, m := range mask {
		if m != 0 {
			s += x[j] * m
		}
	}
	return s
}

// rowMean is 0 for a row without a token.
func rowMean(x, mask []float64) float64 { return rowSum(x, mask) / max(sum(mask), 1e-8) }

// share returns the part of the unmasked tokens for which a condition holds.
func share(x, mask [][]float64, f func(float64) bool) float64 {
	n, hits := 0.0, 0.0
	for i, row := range mask {
		for j, m := range row {
			if m != 0 {
				n++
				hits += is(f(x[i][j]))
			}
		}
	}
	return hits / max(n, 1)
}

// Bypass is the reference's mode in which the policy that sampled, b.Old, takes
// the old policy's place, so that the ratio of the loss corrects for it too. kind
// is ppo_clip, which ignores the weights, or reinforce, which is multiplied by
// them; what is rejected is masked in both.
func Bypass(b Batch, c Config, kind string, correction CorrectionConfig) (Result, error) {
	corrected, err := ReferenceCorrection(b.LogProbs, b.Old, b.Mask, correction)
	if err != nil {
		return Result{}, err
	}
	b.Mask = corrected.Mask
	switch kind {
	case "ppo_clip":
		c.Mode = "vanilla"
	case "reinforce":
		c.Mode, b.Importance = "reinforce", corrected.Weights
	default:
		return Result{}, fmt.Errorf("no bypass loss %q", kind)
	}
	r, err := Reference(b, c)
	maps.Copy(r.Metrics, corrected.Metrics)
	return r, err
}
