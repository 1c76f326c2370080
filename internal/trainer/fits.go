package trainer

import (
	"context"
	"fmt"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
)

// Fits says what of a run an engine can't do: to sample at a temperature, and to
// replay routed experts. The error is for people, of KindUnsupported.
func Fits(info engine.Info, temperature float64, replay bool) error {
	switch {
	case info.Temperature1 && temperature != 1:
		return fulgur.E(fulgur.KindUnsupported, "fit the run to its engine", fmt.Sprintf(
			"sampling.temperature is %g, but the log probs of the engine %s are of temperature 1: the ratio of policies would be wrong; use 1", temperature, info.Name), nil)
	case replay && !info.Replay:
		return fulgur.E(fulgur.KindUnsupported, "fit the run to its engine", fmt.Sprintf(
			"algorithm.replay: the engine %s can't replay the experts that were chosen at sampling: leave it out", info.Name), nil)
	}
	return nil
}

// fitEngine sees that engine and store can do what the run asks of them.
func (t *trainer) fitEngine(ctx context.Context) error {
	o := &t.o
	info, err := o.Engine.Info(ctx)
	if err == nil {
		err = Fits(info, o.Sampling.Temperature, o.Samples.Replay)
	}
	if err != nil {
		return err
	}
	if _, ok := o.Store.(fullCalls); o.Samples.Replay && !ok {
		return fulgur.E(fulgur.KindUnsupported, "start training",
			"algorithm.replay: this store gives calls without the experts that were chosen at sampling, and nothing would train: leave it out", nil)
	}
	o.Objective.replay = o.Samples.Replay
	if t.maxTokens = o.MaxTokens; t.maxTokens == 0 {
		t.maxTokens = info.ContextLength
	}
	return nil
}
