package loss

// Value returns the clipped value loss ½·token-mean(max((v-R)², (clip(v, v₀±ε)-R)²)),
// its gradient with respect to the values, and the share of trained tokens where
// the clipped term was larger (PPO2's value clipping).
func Value(values, old, returns, mask [][]float64, epsilon float64) (loss float64, grad [][]float64, clipped float64) {
	n := 0.0
	for _, row := range mask {
		n += sum(row)
	}
	grad = make([][]float64, len(values))
	for i, row := range values {
		grad[i] = make([]float64, len(row))
		for j, v := range row {
			if mask[i][j] == 0 {
				continue
			}
			k := clamp(v, old[i][j]-epsilon, old[i][j]+epsilon)
			free, bound := v-returns[i][j], k-returns[i][j]
			loss += max(free*free, bound*bound) / 2 / n
			if bound*bound > free*free {
				clipped += 1 / n
				continue // where the clip holds the value, no gradient passes
			}
			grad[i][j] = free / n
		}
	}
	return loss, grad, clipped
}
