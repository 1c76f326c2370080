package advantage

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Batch is the input of the token-level estimators: all tables are
// [rows][tokens].
type Batch struct {
	Rewards   [][]float64
	Mask      [][]float64 // 0 or 1
	Index     []string    // group of each row
	Values    [][]float64 // gae
	Baselines []float64   // remax, one a row
}

// Config of a token-level estimator.
type Config struct {
	Estimator string
	Std       bool // grpo, grpo_vectorized, grpo_passk: divide by the deviation
	Gamma     float64
	Lambda    float64
	// Round is applied to each result of the group statistics, to reproduce what
	// a narrower type computes; nil: float64.
	Round func(float64) float64
}

// Reference computes token-level advantages and returns as verl's core_algos does
// (commit 1dda039b9c63), including what it does to groups of one, equal rewards
// and NaN. Compute is what training uses.
func Reference(b Batch, c Config) (advantages, returns [][]float64, err error) {
	if c.Round == nil {
		c.Round = func(x float64) float64 { return x }
	}
	if rowValue := perRow(c.Estimator); rowValue != nil {
		s := rowSums(b.Rewards)
		for i := range s {
			s[i] = c.Round(s[i])
		}
		values, err := rowValue(s, b, c)
		if err != nil {
			return nil, nil, err
		}
		out := make([][]float64, len(values))
		for i, v := range values {
			out[i] = make([]float64, len(b.Mask[i]))
			for j, m := range b.Mask[i] {
				out[i][j] = v * m
			}
		}
		if c.Estimator == "reinforce_plus_plus_baseline" || c.Estimator == "gdpo" {
			if out, err = whitenTokens(out, b.Mask, true, c.Round); err != nil {
				return nil, nil, err
			}
		}
		return out, out, nil
	}
	switch c.Estimator {
	case "reinforce_plus_plus":
		returns = discounted(b, c.Gamma, c.Round)
		advantages, err = whitenTokens(returns, b.Mask, true, c.Round)
	case "remax":
		advantages, returns = remax(b, c.Round)
	case "gae":
		advantages, returns, err = gae(b, c)
	default:
		err = fmt.Errorf("no estimator %q", c.Estimator)
	}
	return advantages, returns, err
}

type rowEstimator func(s []float64, b Batch, c Config) ([]float64, error)

// perRow returns the estimator of a name if it gives one value per row, else nil.
func perRow(name string) rowEstimator {
	switch name {
	case "grpo":
		return grpoRows
	case "grpo_vectorized":
		return grpoFloat32
	case "gdpo":
		return func(s []float64, b Batch, c Config) ([]float64, error) {
			c.Std = true
			return grpoRows(s, b, c)
		}
	case "rloo":
		return func(s []float64, b Batch, c Config) ([]float64, error) {
			r := c.Round
			return perGroup(s, b.Index, func(v float64, g stats) float64 {
				if g.n == 1 {
					return v
				}
				return r(r(r(v*g.n)/(g.n-1)) - r(r(r(g.mean)*g.n)/(g.n-1)))
			}), nil
		}
	case "rloo_vectorized":
		return func(s []float64, b Batch, c Config) ([]float64, error) {
			return perGroup(s, b.Index, func(v float64, g stats) float64 {
				return (c.Round(g.n*v) - g.sum) / max(1, g.n-1)
			}), nil
		}
	case "opo":
		return opoRows
	case "gpg":
		return gpgRows
	case "grpo_passk":
		return passKRows
	case "reinforce_plus_plus_baseline":
		return baselineRows
	}
	return nil
}

// stats of one group; std with n-1.
type stats struct{ n, sum, mean, std float64 }

func perGroup(s []float64, index []string, f func(float64, stats) float64) []float64 {
	rows := map[string][]float64{}
	for i, g := range index {
		rows[g] = append(rows[g], s[i])
	}
	out := make([]float64, len(s))
	for i, g := range index {
		st := stats{n: float64(len(rows[g]))}
		for _, x := range rows[g] {
			st.sum += x
		}
		st.mean = st.sum / st.n
		v := 0.0
		for _, x := range rows[g] {
			v += (x - st.mean) * (x - st.mean)
		}
		st.std = math.Sqrt(v / (st.n - 1))
		out[i] = f(s[i], st)
	}
	return out
}

func grpoRows(s []float64, b Batch, c Config) ([]float64, error) {
	r := c.Round
	return perGroup(s, b.Index, func(v float64, g stats) float64 {
		if g.n == 1 {
			g.mean, g.std = 0, 1
		}
		d := r(v - r(g.mean))
		if !c.Std {
			return d
		}
		return r(d / r(r(g.std)+epsilon))
	}), nil
}

// grpoFloat32 takes the statistics in float32 whatever the rewards' type, and the
// difference from the mean in the wider of the two types.
func grpoFloat32(s []float64, b Batch, c Config) ([]float64, error) {
	wide := c.Round
	if c.Round(1+1.0/512) == 1 { // narrower than float32
		wide = Float32
	}
	n, total := map[string]float64{}, map[string]float64{}
	for i, g := range b.Index {
		n[g]++
		total[g] = Float32(total[g] + Float32(s[i]))
	}
	mean := func(g string) float64 { return Float32(total[g] / n[g]) }
	squares := map[string]float64{}
	for i, g := range b.Index {
		d := Float32(Float32(s[i]) - mean(g))
		squares[g] = Float32(squares[g] + Float32(d*d))
	}
	out := make([]float64, len(s))
	for i, g := range b.Index {
		m, std := mean(g), Float32(math.Sqrt(Float32(squares[g]/max(1, n[g]-1))))
		if n[g] == 1 {
			m, std = 0, 1
		}
		if out[i] = wide(s[i] - m); c.Std {
			out[i] = wide(out[i] / Float32(std+epsilon))
		}
	}
	return out, nil
}

func opoRows(s []float64, b Batch, c Config) ([]float64, error) {
	weighted, tokens, n := map[string]float64{}, map[string]float64{}, map[string]int{}
	for i, g := range b.Index {
		length := 0.0
		for _, m := range b.Mask[i] {
			length += m
		}
		weighted[g] += c.Round(length * s[i])
		tokens[g] += length
		n[g]++
	}
	out := make([]float64, len(s))
	for i, g := range b.Index {
		if out[i] = s[i]; n[g] > 1 {
			out[i] = c.Round(s[i] - c.Round(c.Round(weighted[g])/tokens[g]))
		}
	}
	return out, nil
}

func gpgRows(s []float64, b Batch, c Config) ([]float64, error) {
	nonZero := 0.0
	for _, x := range s {
		if x != 0 {
			nonZero++
		}
	}
	alpha := float64(len(s)) / max(1, nonZero)
	return perGroup(s, b.Index, func(v float64, g stats) float64 {
		if g.n == 1 {
			g.mean = 0
		}
		return c.Round(alpha * c.Round(v-c.Round(g.mean)))
	}), nil
}

func baselineRows(s []float64, b Batch, c Config) ([]float64, error) {
	return perGroup(s, b.Index, func(v float64, g stats) float64 {
		if g.n == 1 {
			g.mean = 0
		}
		return c.Round(v - c.Round(g.mean))
	}), nil
}

func passKRows(s []float64, b Batch, c Config) ([]float64, error) {
	groups := map[string][]int{}
	for i, g := range b.Index {
		groups[g] = append(groups[g], i)
	}
	std := perGroup(s, b.Index, func(_ float64, g stats) float64 { return g.std })
	out := make([]float64, len(s))
	for _, in := range groups {
		if len(in) < 2 {
			return nil, errors.New("pass@k needs at least two rows in each group")
		}
		slices.SortStableFunc(in, func(i, j int) int { // a NaN is the best
			if math.IsNaN(s[i]) || math.IsNaN(s[j]) {
				return cmp.Compare(s[i], s[j])
			}
			return cmp.Compare(s[j], s[i])
		})
		best := in[0]
		out[best] = c.Round(s[best] - s[in[1]])
		if c.Std {
			out[best] = c.Round(out[best] / c.Round(c.Round(std[best])+epsilon))
		}
	}
	return out, nil
}

func rowSums(rows [][]float64) []float64 {
	out := make([]float64, len(rows))
	for i, row := range rows {
		for _, x := range row {
			out[i] += x
		}
	}
	return out
}

// discounted returns r_t + gamma times the next trained token's return; 0 on
// masked tokens, whose own reward is lost, but that it is multiplied by 0: what is
// not finite stays so. round is to the type that it is computed in.
func discounted(b Batch, gamma float64, round func(float64) float64) [][]float64 {
	out := make([][]float64, len(b.Rewards))
	for i, rewards := range b.Rewards {
		out[i] = make([]float64, len(rewards))
		running := 0.0
		for t := len(rewards) - 1; t >= 0; t-- {
			m := b.Mask[i][t]
			next := round(rewards[t] + round(gamma*running))
			out[i][t] = next * m
			running = next*m + running*(1-m)
		}
	}
	return out
}

func remax(b Batch, round func(float64) float64) (advantages, returns [][]float64) {
	advantages, returns = make([][]float64, len(b.Rewards)), make([][]float64, len(b.Rewards))
	for i, rewards := range b.Rewards {
		advantages[i], returns[i] = make([]float64, len(rewards)), make([]float64, len(rewards))
		sum := 0.0
		for t := len(rewards) - 1; t >= 0; t-- {
			sum += rewards[t] * b.Mask[i][t]
			returns[i][t] = round(sum)
			advantages[i][t] = round(returns[i][t] - b.Baselines[i]*b.Mask[i][t])
		}
	}
	return advantages, returns
}

// gae is generalised advantage estimation (Schulman et al. 2016); a masked token
// passes value and advantage of the next one through.
func gae(b Batch, c Config) (advantages, returns [][]float64, err error) {
	advantages, returns = make([][]float64, len(b.Rewards)), make([][]float64, len(b.Rewards))
	for i, rewards := range b.Rewards {
		advantages[i], returns[i] = make([]float64, len(rewards)), make([]float64, len(rewards))
		next, last := 0.0, 0.0
		for t := len(rewards) - 1; t >= 0; t-- {
			m := b.Mask[i][t]
			delta := rewards[t] + c.Gamma*next - b.Values[i][t]
			last = (delta+c.Gamma*c.Lambda*last)*m + (1-m)*last
			next = b.Values[i][t]*m + (1-m)*next
			advantages[i][t] = last
			returns[i][t] = last + b.Values[i][t]
		}
	}
	advantages, err = whitenTokens(advantages, b.Mask, false, c.Round)
	return advantages, returns, err
}

// whitenTokens subtracts the mean and divides by sqrt(var + 1e-8), both weighted
// by tokens over the batch, var with n/(n-1). masked sets masked tokens to 0. r
// rounds each result to the type that it is computed in.
func whitenTokens(x, mask [][]float64, masked bool, r func(float64) float64) ([][]float64, error) {
	n, sum := 0.0, 0.0
	for i, row := range x {
		for j, v := range row {
			if mask[i][j] != 0 {
				n += mask[i][j]
				sum += v * mask[i][j]
			}
		}
	}
	if n < 2 {
		return nil, errors.New("whitening needs at least two tokens in the batch")
	}
	mean, v := r(r(sum)/n), 0.0
	for i, row := range x {
		for j, y := range row {
			if d := r(y - mean); mask[i][j] != 0 {
				v += r(d*d) * mask[i][j]
			}
		}
	}
	v = r(r(r(v)/n) * n / (n - 1))
	scale := r(1 / math.Sqrt(r(v+1e-8)))
	out := make([][]float64, len(x))
	for i, row := range x {
		out[i] = make([]float64, len(row))
		for j, y := range row {
			if out[i][j] = r(r(y-mean) * scale); masked {
				out[i][j] *= mask[i][j]
			}
		}
	}
	return out, nil
}
