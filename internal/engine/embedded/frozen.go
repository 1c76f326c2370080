package embedded

import (
	"context"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
)

var _ engine.Freezer = (*Engine)(nil)

// Freeze implements engine.Freezer.
func (e *Engine) Freeze(context.Context) error {
	e.frozen = e.snapshot(0).model
	return nil
}

// ForwardFrozen implements engine.Freezer. The workers compute with the copy for
// the time of the pass.
func (e *Engine) ForwardFrozen(ctx context.Context, data []engine.Datum) ([][]float32, error) {
	if e.frozen == nil {
		return nil, fulgur.E(fulgur.KindInvalid, "forward of the reference policy", "no weights were frozen", nil)
	}
	for _, w := range e.workers {
		w.m = e.frozen
	}
	defer func() {
		for _, w := range e.workers {
			w.m = e.train
		}
	}()
	return e.Forward(ctx, data)
}
