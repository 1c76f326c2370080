package loop

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"time"
)

// Slow lets time pass before each call but a conversation's first, as if the
// calculator had taken it: lognormal with the given median and sigma 1, so that
// one in a hundred takes ten times the median and most of the waiting is for few.
func Slow(chat Chat, median time.Duration) Chat {
	first := true
	return func(ctx context.Context, messages []json.RawMessage) (json.RawMessage, error) {
		if !first {
			t := time.NewTimer(time.Duration(float64(median) * math.Exp(rand.NormFloat64())))
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		first = false
		return chat(ctx, messages)
	}
}
