package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
	"github.com/fulgur-rl/fulgur/internal/engine"
)

// Bounds of the start: there must be something to learn and something to learn
// from, by sampling (pass@1) as by greedy decoding.
const (
	lowestStart   = .20
	highestStart  = .35
	highestGreedy = .10
	// nearDemonstrators is how far the model may be from the demonstrators' rate
	// at one and two events (standard error of acceptProblems: up to .025).
	nearDemonstrators = .08
	// longShare is how much of the demonstrators' rate it must have at three and
	// four, where every slip on a longer way counts.
	longShare      = .3
	acceptProblems = 400
)

// score are rates of right answers.
type score struct {
	Problems      int     `json:"problems"`
	Demonstrators float64 `json:"demonstrators"`
	Sampled       float64 `json:"sampled"` // at temperature 1
	Greedy        float64 `json:"greedy"`
}

// acceptance is what the finished model was measured at.
type acceptance struct {
	Mix    score   `json:"mix"`    // one and two events, as in the example's data
	Events []score `json:"events"` // one, two, three, four events
}

// check says what is out of bounds.
func (a acceptance) check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if a.Mix.Sampled < lowestStart || a.Mix.Sampled > highestStart {
		add("the example's mix is solved at a rate of %.3f, it must be %.2f to %.2f", a.Mix.Sampled, lowestStart, highestStart)
	}
	if a.Mix.Greedy > highestGreedy {
		add("greedy decoding solves the example's mix at a rate of %.3f, it must be at most %.2f", a.Mix.Greedy, highestGreedy)
	}
	for i, s := range a.Events {
		if i >= 2 && s.Sampled < longShare*s.Demonstrators {
			add("%d events are solved at a rate of %.3f, less than %.2f times the demonstrators' %.3f", i+1, s.Sampled, longShare, s.Demonstrators)
		}
		if d := s.Sampled - s.Demonstrators; i < 2 && (d < -nearDemonstrators || d > nearDemonstrators) {
			add("%d events are solved at a rate of %.3f, the demonstrators' is %.3f: more than %.2f apart", i+1, s.Sampled, s.Demonstrators, nearDemonstrators)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("the model failed its test: %w", errors.Join(errs...))
	}
	return nil
}

// accept measures the policy g in the agent's own loop, on problems of its own.
func accept(ctx context.Context, t *talk, g engine.Generator, o options) (acceptance, error) {
	var a acceptance
	measure := func(name string, events func(i int) int) (score, error) {
		r := stream(o.seed, streamAcceptance)
		var stories []*story
		s := score{Problems: o.problems}
		for i := range o.problems {
			stories = append(stories, newStory(r, events(i), func(*story) bool { return true }))
		}
		for i := range 10 * o.problems {
			p := stories[i%len(stories)]
			c, err := t.demonstrate(ctx, p, newDemonstrator(r, o.recipe.skill, p))
			if err != nil {
				return s, err
			}
			s.Demonstrators += right(c, p) / float64(10*o.problems)
		}
		var err error
		if s.Sampled, err = t.solve(ctx, g, stories, 1, o.seed); err == nil {
			s.Greedy, err = t.solve(ctx, g, stories, 0, o.seed)
		}
		o.print("%-9s  demonstrators %.3f  sampled %.3f  greedy %.3f\n", name, s.Demonstrators, s.Sampled, s.Greedy)
		return s, err
	}
	var err error
	if a.Mix, err = measure("the mix", mixed); err != nil {
		return a, err
	}
	for n := 1; n <= 4; n++ {
		s, err := measure(fmt.Sprintf("%d events", n), func(int) int { return n })
		if err != nil {
			return a, err
		}
		a.Events = append(a.Events, s)
	}
	return a, nil
}

// right is 1 if a conversation's last message has the story's answer, else 0.
func right(c *conversation, s *story) float64 {
	if strings.TrimSpace(c.final) == fmt.Sprintf("Answer: %d", s.answer) {
		return 1
	}
	return 0
}

// solve returns the share of stories that the policy solves.
func (t *talk) solve(ctx context.Context, g engine.Generator, stories []*story, temperature float64, seed uint64) (float64, error) {
	conversations, err := t.converseAll(ctx, g, stories, temperature, seed)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for i, c := range conversations {
		sum += right(c, stories[i])
	}
	return sum / float64(len(stories)), nil
}

// converseAll holds a conversation with the policy about each story, many at once.
func (t *talk) converseAll(ctx context.Context, g engine.Generator, stories []*story, temperature float64, seed uint64) ([]*conversation, error) {
	out := make([]*conversation, len(stories))
	errs := make([]error, len(stories))
	slots := make(chan struct{}, 128)
	var wg sync.WaitGroup
	for i, s := range stories {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out[i], errs[i] = t.converse(ctx, s.question, func(c *conversation) ([]int32, error) {
				answer, err := g.Generate(ctx, engine.GenerateRequest{Prompt: c.tokens, MaxTokens: loop.DefaultMaxTokens, Temperature: temperature,
					StopIDs: []int32{t.end}, Seed: seed<<40 + uint64(i)<<8 + uint64(c.calls), CacheKey: s.question}, nil)
				ids := make([]int32, len(answer.Tokens))
				for k, token := range answer.Tokens {
					ids[k] = token.ID
				}
				return ids, err
			})
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}
