// Package loss is the arithmetic between an advantage and a gradient: what each
// token weighs, the losses that training uses (Spec), corrections for a sampler
// that is another policy, and reference forms of all of these. Everything here is a
// pure function over plain numbers; engines and tests are held to it.
package loss

import (
	"fmt"
	"math"
)

// Clip are the bounds of a ratio: it is clipped to [1-Low, 1+High]; Dual, if not
// 0, bounds the loss of a negative advantage to -A·Dual (Ye et al. 2020).
type Clip struct{ Low, High, Dual float64 }

// Term is one token's part of a loss that is a plain sum.
type Term struct {
	Loss    float64
	Grad    float64 // d Loss / d log prob
	Clipped bool    // the clip took the gradient away
}

// Losses of single tokens, by the names of the engine contract (Tinker's). With
// q = exp(logp-old) and A the advantage times its weight:
const (
	CrossEntropy       = "cross_entropy"       // -A logp
	ImportanceSampling = "importance_sampling" // -q A
	PPO                = "ppo"                 // -min(q A, clip(q) A), with Dual: at most -A·Dual where A < 0
	CISPO              = "cispo"               // -stop(clip(q)) A logp
	DRO                = "dro"                 // -(A logp - β/2 (logp-old)²); β in Clip.High, not times the weight
)

// PerToken returns one trained token's loss and gradient. Masked tokens are not
// to be passed: what is not computed with can't reach a gradient.
func PerToken(name string, logp, old, advantage float64, c Clip) (Term, error) {
	q := math.Exp(logp - old)
	clipped := min(max(q, 1-c.Low), 1+c.High)
	switch name {
	case CrossEntropy:
		return Term{Loss: -advantage * logp, Grad: -advantage}, nil
	case ImportanceSampling:
		return Term{Loss: -q * advantage, Grad: -q * advantage}, nil
	case CISPO:
		return Term{Loss: -clipped * advantage * logp, Grad: -clipped * advantage}, nil
	case DRO:
		d := logp - old
		return Term{Loss: -(advantage*logp - c.High/2*d*d), Grad: -(advantage - c.High*d)}, nil
	case PPO:
		t := Term{Loss: -q * advantage, Grad: -q * advantage}
		if other := -clipped * advantage; other > t.Loss {
			t = Term{Loss: other, Clipped: true}
		}
		if bound := -advantage * c.Dual; c.Dual > 0 && advantage < 0 && t.Loss > bound {
			t = Term{Loss: bound, Clipped: true}
		}
		return t, nil
	}
	return Term{}, fmt.Errorf("no loss %q of single tokens", name)
}

// Sequence returns a sequence's loss, the plain sum over the tokens whose mask is
// not 0 of mask times loss, and the gradient with respect to each log prob: what
// ForwardBackward of an engine computes.
func Sequence(name string, logp, old, advantage, mask []float64, c Clip) (sum float64, grad []float64, err error) {
	grad = make([]float64, len(logp))
	for i, m := range mask {
		if m == 0 {
			continue
		}
		t, err := PerToken(name, logp[i], old[i], advantage[i], c)
		if err != nil {
			return 0, nil, err
		}
		sum += m * t.Loss
		grad[i] = m * t.Grad
	}
	return sum, grad, nil
}
