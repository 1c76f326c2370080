package advantage

import "math"

// BFloat16 rounds to the nearest bfloat16, ties to even: v1's trainer keeps
// rewards, group statistics and token counts in that type. A NaN stays one.
func BFloat16(x float64) float64 {
	if math.IsNaN(x) {
		return x
	}
	b := math.Float32bits(float32(x))
	return float64(math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff))
}

// Float32 rounds to the nearest float32.
func Float32(x float64) float64 { return float64(float32(x)) }

// Rounding returns what v1's trainer rounds the advantages of an estimator to:
// bfloat16 but for two estimators that compute wider.
func Rounding(estimator string) func(float64) float64 {
	switch estimator {
	case "grpo_vectorized":
		return Float32
	case "rloo_vectorized":
		return func(x float64) float64 { return x }
	}
	return BFloat16
}
