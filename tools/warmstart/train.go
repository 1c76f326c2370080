package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/fulgur-rl/fulgur/internal/engine"
)

// recipe is how the warm start trains: a fixed number of steps on fresh
// demonstrations, in a fixed order.
type recipe struct {
	steps  int
	batch  int       // demonstrations a step
	rate   float64   // highest learning rate: linear warm-up, then a cosine to a twentieth
	warmUp int       // steps
	events []float64 // weights of stories with one, two, … events
	skill  mistakes
}

var standard = recipe{steps: 12000, batch: 16, rate: 2.5e-3, warmUp: 50, events: []float64{.25, .4, .2, .15}, skill: skill}

func (c recipe) rateAt(step int) float64 {
	done := float64(step) / float64(c.steps)
	return c.rate * min(1, float64(step+1)/float64(c.warmUp)) * (.05 + .95*.5*(1+math.Cos(math.Pi*done)))
}

// pick draws a number of events.
func (c recipe) pick(r *rand.Rand) int {
	u := r.Float64()
	for i, w := range c.events {
		if u -= w; u < 0 {
			return i + 1
		}
	}
	return len(c.events)
}

// demonstrations draws the next demonstration's story and plays it, again and again.
type demonstrations struct {
	r        *rand.Rand
	recipe   recipe
	measured map[string]bool // questions that nothing may train on
	talk     *talk
}

// next returns a demonstration. Its story has no held-out pair and is in
// neither validation nor test.
func (d *demonstrations) next(ctx context.Context) (*conversation, error) {
	s := newStory(d.r, d.recipe.pick(d.r), func(s *story) bool { return !heldOut(s.kinds) && !d.measured[s.question] })
	return d.talk.demonstrate(ctx, s, newDemonstrator(d.r, d.recipe.skill, s))
}

// batch are the data of one step: cross entropy on what the demonstrator said,
// the mean over the batch's tokens.
func (d *demonstrations) batch(ctx context.Context) ([]engine.Datum, error) {
	var out []engine.Datum
	said := 0
	for range d.recipe.batch {
		c, err := d.next(ctx)
		if err != nil {
			return nil, err
		}
		n := len(c.tokens) - 1
		datum := engine.Datum{Tokens: c.tokens[:n], Targets: c.tokens[1:], Advantages: make([]float32, n), OldLogProbs: make([]float32, n), Mask: make([]float32, n)}
		for i, sampled := range c.sampled[1:] {
			if sampled {
				datum.Mask[i] = 1
				said++
			}
		}
		out = append(out, datum)
	}
	for _, datum := range out {
		for i, m := range datum.Mask {
			datum.Advantages[i] = m / float32(said)
		}
	}
	return out, nil
}

// train makes all steps and returns the mean loss of the last hundred, in nats a
// token, and how many tokens were read. progress is told every reportEvery steps.
func (c recipe) train(ctx context.Context, e engine.Engine, d *demonstrations, progress func(step int, loss, tokens float64)) (loss float64, tokens int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type batch struct {
		data []engine.Datum
		err  error
	}
	batches := make(chan batch, 4) // drawn ahead, in order; the goroutine ends with ctx or the last step
	go func() {
		defer close(batches)
		for range c.steps {
			data, err := d.batch(ctx)
			select {
			case batches <- batch{data, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	var recent []float64
	for step := range c.steps {
		b := <-batches
		if b.err != nil {
			return 0, 0, fmt.Errorf("drawing demonstrations: %w", b.err)
		}
		result, err := e.ForwardBackward(ctx, b.data, engine.Loss{Name: engine.CrossEntropy})
		if err != nil {
			return 0, 0, fmt.Errorf("step %d: %w", step, err)
		}
		if _, err := e.OptimStep(ctx, engine.AdamW{LearningRate: c.rateAt(step), Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .01, ClipNorm: 1}); err != nil {
			return 0, 0, fmt.Errorf("step %d: %w", step, err)
		}
		for _, x := range b.data {
			tokens += len(x.Tokens)
		}
		if recent = append(recent, result.Loss); len(recent) > 100 {
			recent = recent[1:]
		}
		progress(step+1, mean(recent), float64(tokens))
	}
	return mean(recent), tokens, nil
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// meter prints a progress line with the time left every few seconds.
type meter struct {
	start, last time.Time
	total       int
	print       func(format string, args ...any)
}

func (m *meter) report(now time.Time, step int, loss, tokens float64) {
	if now.Sub(m.last) < 10*time.Second && step < m.total {
		return
	}
	m.last = now
	used := now.Sub(m.start)
	left := time.Duration(float64(used) / float64(step) * float64(m.total-step))
	m.print("step %d/%d  loss %.4f  %.1fM tokens, %.0f/s  %s left\n", step, m.total, loss, tokens/1e6, tokens/used.Seconds(), left.Round(time.Second))
}
