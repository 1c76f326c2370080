package loss

// Value returns the clipped value loss ½·aggregate(max((v-R)², (clip(v, v₀±ε)-R)²)),
// its gradient with respect to the values, and the share of trained tokens where
// the clipped term was larger, a float32 (PPO2's value clipping).
func Value(values, old, returns, mask [][]float64, epsilon float64, aggregate string, g Global) (loss float64, grad [][]float64, clipped float64, err error) {
	losses, hits, n := make([][]float64, len(values)), 0.0, 0.0
	grad = make([][]float64, len(values))
	for i, row := range values {
		losses[i], grad[i] = make([]float64, len(row)), make([]float64, len(row))
		for j, v := range row {
			k := clamp(v, old[i][j]-epsilon, old[i][j]+epsilon)
			free, bound := v-returns[i][j], k-returns[i][j]
			losses[i][j] = max(free*free, bound*bound) / 2
			held := bound*bound > free*free // by the clip: no gradient passes
			if !held {
				grad[i][j] = free
			}
			if mask[i][j] != 0 {
				n++
				hits += is(held)
			}
		}
	}
	loss, coef, err := Aggregate(aggregate, losses, mask, g)
	if err != nil {
		return 0, nil, 0, err
	}
	for i, row := range grad {
		for j := range row {
			row[j] *= coef[i][j]
		}
	}
	return loss, grad, float64(float32(hits / max(n, 1))), nil
}
