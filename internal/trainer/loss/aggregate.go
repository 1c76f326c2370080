package loss

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Global are the totals of a step of which a batch is a part.
type Global struct {
	Ranks     int      // dp_size; 0: 1
	Tokens    *float64 // trained tokens of the step; nil: those of the batch
	Sequences *float64 // of the step; nil: rows of the batch with a token
	Scale     *float64 // loss_scale_factor; nil: the padded width
}

// Coefficients returns what each token's loss is multiplied by before the plain
// sum: token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean or
// seq-mean-token-sum-norm.
func Coefficients(aggregate string, mask [][]float64, g Global) ([][]float64, error) {
	ranks := float64(max(g.Ranks, 1))
	n, sequences, width := 0.0, 0.0, 0
	for _, row := range mask {
		t := sum(row)
		n += t
		sequences += is(t > 0)
		width = max(width, len(row))
	}
	total := g.Sequences
	switch {
	case aggregate == "token-mean":
		total = g.Tokens
	case aggregate == "token-sum":
		total = new(float64)
	}
	if ranks > 1 && total == nil {
		return nil, errors.New("a loss over several ranks needs the totals of the step")
	}
	if g.Tokens != nil {
		n = *g.Tokens
	}
	if g.Sequences != nil {
		sequences = *g.Sequences
	}
	scale := float64(width)
	if g.Scale != nil {
		scale = *g.Scale
	}
	out := make([][]float64, len(mask))
	for i, row := range mask {
		t := sum(row)
		var x float64
		switch aggregate {
		case "token-mean":
			x = ranks / n
		case "token-sum":
			x = ranks
		case "seq-mean-token-sum":
			x = ranks / sequences
		case "seq-mean-token-mean":
			x = ranks / sequences / max(t, 1)
		case "seq-mean-token-sum-norm":
			x = ranks / sequences / scale
		default:
			return nil, fmt.Errorf("no aggregation %q", aggregate)
		}
		out[i] = make([]float64, len(row))
		for j, m := range row {
			if out[i][j] = 0; m != 0 {
				out[i][j] = x * m
			}
		}
	}
	return out, nil
}

// Aggregate returns the loss of a table of tokens' losses, and its gradient with
// respect to each, as the reference does: what token modes mask is not looked at;
// sequence modes multiply it by 0, so that a NaN or an infinity under the mask makes
// the loss NaN, unless the row has no token at all. Without a token it is 0/0 where a
// local count divides.
func Aggregate(aggregate string, losses, mask [][]float64, g Global) (loss float64, coef [][]float64, err error) {
	if coef, err = Coefficients(aggregate, mask, g); err != nil {
		return 0, nil, err
	}
	tokenwise := aggregate == "token-mean" || aggregate == "token-sum"
	some := false
	for i, row := range losses {
		if !slices.ContainsFunc(mask[i], func(m float64) bool { return m != 0 }) {
			continue
		}
		some = true
		for j, x := range row {
			if mask[i][j] != 0 || !tokenwise {
				loss += coef[i][j] * x
			}
		}
	}
	total := g.Sequences
	if aggregate == "token-mean" {
		total = g.Tokens
	}
	if !some && aggregate != "token-sum" && total == nil {
		loss = math.NaN()
	}
	return loss, coef, nil
}
