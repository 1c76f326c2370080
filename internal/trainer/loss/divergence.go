package loss

import (
	"errors"
	"math"
	"slices"
)

// weightMetrics describes importance weights as the reference does: raw before
// they were cut, w after; logs are the rows' log ratios. Weights that are all 0
// are refused: the effective sample size is 1/0 then.
func weightMetrics(level string, raw, w, mask [][]float64, logs []float64, low, high float64, metrics map[string]float64) error {
	set := func(name string, v float64) { metrics["rollout_is_"+name] = v }
	set("mean", mean(w, mask))
	if level == "sequence" {
		// The threshold is a float32 there.
		top, least := math.Log(float64(float32(high))), math.Log(float64(float32(low)))
		set("max", math.Exp(min(slices.Max(logs), safety)))
		set("min", math.Exp(slices.Min(logs)))
		set("ratio_fraction_high", part(logs, func(x float64) bool { return x > top }))
		set("ratio_fraction_low", part(logs, func(x float64) bool { return x < least }))
	} else {
		all := unmasked(w, mask)
		set("max", slices.Max(all))
		set("min", slices.Min(all))
		set("ratio_fraction_high", share(raw, mask, func(x float64) bool { return x > high }))
		set("ratio_fraction_low", share(raw, mask, func(x float64) bool { return x < low }))
	}
	cut := each(w, func(x float64) float64 { return clamp(x, 0, high) })
	set("std", spread(cut, mask))
	unit := mean(cut, mask) + 1e-8
	square := mean(each(cut, func(x float64) float64 { return x / unit * (x / unit) }), mask)
	if square == 0 {
		return errors.New("all importance weights are 0: nothing is left to train on")
	}
	set("eff_sample_size", 1/square)
	rows, before := make([]float64, len(w)), make([]float64, len(w))
	far := 0.0
	for i := range w {
		rows[i], before[i] = rowMean(w[i], mask[i]), rowMean(raw[i], mask[i])
		far = max(far, math.Abs(rows[i]-1))
	}
	describe("rollout_is_seq_", rows, metrics)
	set("seq_max_deviation", far)
	set("seq_fraction_high", part(before, func(x float64) bool { return x > high }))
	set("seq_fraction_low", part(before, func(x float64) bool { return x < low }))
	return nil
}

// measure describes a statistic of rejection.
func (s statistic) measure(values, mask [][]float64, metrics map[string]float64) {
	name := "rollout_rs_" + s.name + "_"
	set := func(key string, v float64) { metrics[name+key] = v }
	var rows []float64 // of rows with a token
	lost, withTokens := 0.0, 0.0
	for i := range values {
		if sum(mask[i]) == 0 {
			continue
		}
		rows = append(rows, rowMean(values[i], mask[i]))
		withTokens++
		for j, m := range mask[i] {
			if m != 0 && !s.keeps(values[i][j]) {
				lost++
				break
			}
		}
	}
	all := unmasked(values, mask)
	if s.over != "token" {
		all = rows
	}
	high, low := func(x float64) bool { return x > s.high }, func(x float64) bool { return x < s.low }
	set("mean", mean(values, mask))
	set("max", slices.Max(all))
	set("min", slices.Min(all))
	set("fraction_high", part(all, high))
	set("fraction_low", part(all, low))
	least := max(s.low, 0)
	if s.kind == "k1" {
		least = s.low
	}
	set("std", spread(each(values, func(x float64) float64 { return clamp(x, least, s.high) }), mask))
	describe(name+"seq_", rows, metrics)
	far := 0.0
	for _, x := range rows {
		far = max(far, math.Abs(x))
	}
	set("seq_max_deviation", far)
	set("seq_fraction_high", part(rows, high))
	if s.kind == "k1" {
		set("seq_fraction_low", part(rows, low))
	}
	set("masked_fraction", share(values, mask, func(x float64) bool { return !s.keeps(x) }))
	set("seq_masked_fraction", lost/withTokens)
}

// divergence measures how far the trained policy is from the one that sampled. A
// row without a token counts, with a perplexity of 1.
func divergence(old, sampled, mask [][]float64, metrics map[string]float64) {
	n := float64(len(old))
	var ppl, logPPL, ppl2, logPPL2, diff, far, ratio, chi float64
	most, least := math.Inf(-1), math.Inf(1)
	for i := range old {
		a, b := rowMean(old[i], mask[i]), rowMean(sampled[i], mask[i])
		ppl += math.Exp(-a) / n
		ppl2 += math.Exp(-b) / n
		logPPL -= a / n
		logPPL2 -= b / n
		diff += (b - a) / n
		far += math.Abs(b-a) / n
		ratio += math.Exp(b-a) / n
		most, least = max(most, b-a), min(least, b-a)
		chi += math.Exp(2*clamp(rowSum(old[i], mask[i])-rowSum(sampled[i], mask[i]), -safety, safety)) / n
	}
	pairs := func(f func(d float64) float64) float64 {
		x := make([][]float64, len(old))
		for i := range old {
			x[i] = make([]float64, len(old[i]))
			for j := range old[i] {
				x[i][j] = f(old[i][j] - sampled[i][j])
			}
		}
		return mean(x, mask)
	}
	for name, v := range map[string]float64{
		"training_ppl": ppl, "training_log_ppl": logPPL, "rollout_ppl": ppl2, "rollout_log_ppl": logPPL2,
		"log_ppl_diff": diff, "log_ppl_abs_diff": far, "log_ppl_diff_max": most, "log_ppl_diff_min": least, "ppl_ratio": ratio,
		"kl":         pairs(func(d float64) float64 { return -d }),
		"k3_kl":      pairs(func(d float64) float64 { return math.Exp(d) - d - 1 }),
		"chi2_token": pairs(func(d float64) float64 { return math.Exp(2 * clamp(d, -safety, safety)) }) - 1,
		"chi2_seq":   chi - 1,
	} {
		metrics[name] = v
	}
}

func describe(prefix string, rows []float64, metrics map[string]float64) {
	m, v := sum(rows)/float64(len(rows)), 0.0
	for _, x := range rows {
		v += (x - m) * (x - m)
	}
	metrics[prefix+"mean"], metrics[prefix+"std"] = m, 0
	if len(rows) > 1 {
		metrics[prefix+"std"] = math.Sqrt(v / float64(len(rows)-1))
	}
	metrics[prefix+"max"], metrics[prefix+"min"] = slices.Max(rows), slices.Min(rows)
}

// spread is the deviation over unmasked tokens, with n; 0 for a single one.
func spread(x, mask [][]float64) float64 {
	if len(unmasked(x, mask)) < 2 {
		return 0
	}
	m := mean(x, mask)
	return math.Sqrt(max(0, mean(each(x, func(v float64) float64 { return v * v }), mask)-m*m))
}

// mean over unmasked tokens. The reference counts them in float32, where the
// 1e-8 that it adds is lost.
func mean(x, mask [][]float64) float64 {
	all := unmasked(x, mask)
	return sum(all) / float64(len(all))
}

func part(x []float64, f func(float64) bool) float64 {
	n := 0.0
	for _, v := range x {
		n += is(f(v))
	}
	return n / float64(len(x))
}

func unmasked(x, mask [][]float64) (out []float64) {
	for i, row := range mask {
		for j, m := range row {
			if m != 0 {
				out = append(out, x[i][j])
			}
		}
	}
	return out
}

func each(x [][]float64, f func(float64) float64) [][]float64 {
	out := make([][]float64, len(x))
	for i, row := range x {
		out[i] = make([]float64, len(row))
		for j, v := range row {
			out[i][j] = f(v)
		}
	}
	return out
}
