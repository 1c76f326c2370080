package embedded

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
)

// call is one Generate call. The scheduler writes tokens, reason and err under
// mu; Generate reads them.
type call struct {
	ctx    context.Context // ends when Generate does
	req    engine.GenerateRequest
	limit  int           // tokens to sample at most
	stream bool          // wake Generate for every token
	wake   chan struct{} // buffered, one

	mu     sync.Mutex
	tokens []engine.Token
	reason string
	cached int
	err    error
	done   bool
}

// generator is the scheduler: one goroutine owns the queue, the prefix cache and
// the running sequences, and computes a step after another while there are any.
type generator struct {
	e       *Engine
	submit  chan *call
	quit    chan struct{}
	stopped chan struct{}
	once    sync.Once

	cur      *published
	cache    *prefixCache
	waiting  []*call
	live     []*sequence
	decoders []*decoder
}

func newGenerator(e *Engine) *generator {
	g := &generator{e: e, submit: make(chan *call, 64), quit: make(chan struct{}), stopped: make(chan struct{}),
		cur: e.sampled.Load(), cache: newPrefixCache(e.layout, e.k.Columns(), e.opt.CacheBytes)}
	for range e.opt.Threads {
		g.decoders = append(g.decoders, newDecoder(e.layout, e.opt.MaxRows))
	}
	go g.run()
	return g
}

func (g *generator) close() {
	g.once.Do(func() { close(g.quit) })
	<-g.stopped
}

// Generate implements engine.Generator.
func (e *Engine) Generate(ctx context.Context, req engine.GenerateRequest, emit func(engine.Token) error) (engine.Generation, error) {
	c, err := e.newCall(req)
	if err != nil {
		return engine.Generation{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.ctx, c.stream = ctx, emit != nil
	closed := fulgur.E(fulgur.KindUnavailable, "generating", "the engine is closed", nil)
	select {
	case e.gen.submit <- c:
	case <-ctx.Done():
		return engine.Generation{}, ended(ctx)
	case <-e.gen.stopped:
		return engine.Generation{}, closed
	}
	sent := 0
	for {
		var end error
		select {
		case <-c.wake:
		case <-ctx.Done():
			end = ended(ctx)
		case <-e.gen.stopped:
			end = closed
		}
		gen, done, err := c.state()
		for emit != nil && sent < len(gen.Tokens) {
			if ctx.Err() != nil { // also while emit was busy with tokens that were there already
				gen.FinishReason = ""
				return gen, ended(ctx)
			}
			if err := emit(gen.Tokens[sent]); err != nil {
				gen.Tokens, gen.FinishReason = gen.Tokens[:sent+1], ""
				return gen, err
			}
			sent++
		}
		switch {
		case done:
			return gen, err
		case end != nil:
			return gen, end
		}
	}
}

func ended(ctx context.Context) error {
	kind := fulgur.KindCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = fulgur.KindTimeout
	}
	return fulgur.E(kind, "generating", "the caller left or its deadline passed", ctx.Err())
}

// newCall checks a request.
func (e *Engine) newCall(req engine.GenerateRequest) (*call, error) {
	const op = "generating"
	n, room := len(req.Prompt), e.layout.context-len(req.Prompt)
	switch {
	case n == 0:
		return nil, fulgur.E(fulgur.KindInvalid, op, "the prompt has no tokens", nil)
	case room <= 0:
		return nil, fulgur.E(fulgur.KindContextFull, op, fmt.Sprintf("the prompt has %d tokens, the context %d: nothing can follow", n, e.layout.context), nil)
	case !(req.Temperature >= 0) || math.IsInf(req.Temperature, 0) || !(req.TopP >= 0 && req.TopP <= 1) || req.TopK < 0 || req.MaxTokens < 0:
		return nil, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("temperature %g, top_p %g, top_k %d, max_tokens %d: none may be negative, top_p not above 1",
			req.Temperature, req.TopP, req.TopK, req.MaxTokens), nil)
	}
	for i, id := range req.Prompt {
		if uint32(id) >= uint32(e.layout.VocabSize) {
			return nil, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("token %d at position %d is outside the vocabulary of %d", id, i, e.layout.VocabSize), nil)
		}
	}
	if req.Temperature < 1e-6 {
		req.Temperature = 0 // the reciprocal would overflow, and it is the same
	}
	limit := room
	if req.MaxTokens > 0 {
		limit = min(room, req.MaxTokens)
	}
	return &call{req: req, limit: limit, wake: make(chan struct{}, 1)}, nil
}

// state returns what there is so far.
func (c *call) state() (engine.Generation, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return engine.Generation{Tokens: c.tokens[:len(c.tokens):len(c.tokens)], FinishReason: c.reason, CachedTokens: c.cached}, c.done, c.err
}

func (c *call) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// add records a sampled token and says whether the call is done.
func (c *call) add(t engine.Token) bool {
	c.mu.Lock()
	c.tokens = append(c.tokens, t)
	switch {
	case slices.Contains(c.req.StopIDs, t.ID):
		c.reason, c.done = "stop", true
	case len(c.tokens) >= c.limit:
		c.reason, c.done = "length", true
	}
	done := c.done
	c.mu.Unlock()
	if done || c.stream {
		c.notify()
	}
	return done
}

func (c *call) fail(err error) {
	c.mu.Lock()
	c.err, c.done = err, true
	c.mu.Unlock()
	c.notify()
}

// run is the scheduler's goroutine; it ends when the generator is closed.
func (g *generator) run() {
	defer close(g.stopped)
	for g.receive() {
		// Calls are taken before weights are: one that came after a publication
		// meets the new ones.
		if p := g.e.sampled.Load(); p != g.cur {
			g.cur = p
			g.cache.drop()
		}
		g.reap()
		g.admit()
		if g.plan() {
			g.step()
		}
	}
}

// receive takes new calls, waiting for one if there is nothing to do. It returns
// false when the generator is closed.
func (g *generator) receive() bool {
	if len(g.live)+len(g.waiting) == 0 {
		select {
		case c := <-g.submit:
			g.waiting = append(g.waiting, c)
		case <-g.quit:
			return false
		}
	}
	for {
		select {
		case <-g.quit:
			return false
		case c := <-g.submit:
			g.waiting = append(g.waiting, c)
		default:
			return true
		}
	}
}

// reap drops calls that nobody waits for any more.
func (g *generator) reap() {
	g.waiting = slices.DeleteFunc(g.waiting, func(c *call) bool { return c.ctx.Err() != nil })
	g.live = slices.DeleteFunc(g.live, func(s *sequence) bool {
		if s.call.ctx.Err() == nil {
			return false
		}
		g.cache.release(s)
		return true
	})
}

// admit starts waiting calls, first come first served, while there are rows and
// memory for them. One whose prompt is just being computed for another waits
// for that.
func (g *generator) admit() {
	var reserved int64
	for _, s := range g.live {
		reserved += g.need(s.call)
	}
	full := false
	g.waiting = slices.DeleteFunc(g.waiting, func(c *call) bool {
		if full || len(g.live) >= g.e.opt.MaxRows || len(g.live) > 0 && reserved+g.need(c) > g.cache.limit {
			full = true // nobody overtakes
			return false
		}
		if g.shares(c) {
			return false
		}
		s := &sequence{call: c, tokens: append(make([]int32, 0, len(c.req.Prompt)+min(c.limit, 256)), c.req.Prompt...)}
		g.cache.attach(s)
		c.mu.Lock()
		c.cached = s.cached
		c.mu.Unlock()
		g.live = append(g.live, s)
		reserved += g.need(c)
		return true
	})
}

// need is the memory that a call may come to hold.
func (g *generator) need(c *call) int64 {
	return int64((len(c.req.Prompt)+c.limit+blockTokens-1)/blockTokens) * g.cache.blockBytes()
}

// shares says that a running sequence is computing a prefix of the call's prompt
// that the cache does not have yet.
func (g *generator) shares(c *call) bool {
	const worth = 8 // tokens
	have := -1
	prompt := c.req.Prompt[:len(c.req.Prompt)-1]
	for _, s := range g.live {
		if s.epoch != g.cache.epoch || s.pos >= len(s.call.req.Prompt) {
			continue
		}
		n := common(prompt, s.call.req.Prompt)
		if n < worth {
			continue
		}
		if have < 0 {
			_, have = g.cache.find(prompt)
		}
		if n >= have+worth {
			return true
		}
	}
	return false
}

// plan gives each running sequence its rows of the next step: one for those that
// decode, then what is left of MaxRows to prompts, oldest first. It returns false
// if there is nothing to compute.
func (g *generator) plan() bool {
	left := g.e.opt.MaxRows
	for _, s := range g.live {
		s.rows = 0
		if s.pos == len(s.tokens)-1 {
			s.rows = 1
			left--
		}
	}
	for _, s := range g.live {
		if s.rows == 0 && left > 0 {
			s.rows = min(left, len(s.tokens)-s.pos)
			left -= s.rows
		}
		g.cache.extend(s, s.pos+s.rows)
	}
	return len(g.live) > 0
}

// rowsPerDecoder is the number of rows from which a second core pays: the fewer
// rows go through a product, the more each costs.
const rowsPerDecoder = 8

// step computes the planned rows, on as many cores as pay, and hands out what
// was sampled.
func (g *generator) step() {
	rows := 0
	for _, s := range g.live {
		rows += s.rows
	}
	n := max(1, min(len(g.decoders), rows/rowsPerDecoder))
	parts, work := make([][]*sequence, n), make([]int, n)
	for _, s := range g.live {
		if s.rows == 0 {
			continue
		}
		w := slices.Index(work, slices.Min(work))
		parts[w] = append(parts[w], s)
		work[w] += s.rows * (1024 + s.pos)
	}
	var wg sync.WaitGroup
	for i := 1; i < n && len(parts[i]) > 0; i++ {
		wg.Go(func() { g.decoders[i].step(g.cur.model, parts[i]) })
	}
	g.decoders[0].step(g.cur.model, parts[0])
	wg.Wait()
	g.live = slices.DeleteFunc(g.live, g.finish)
}

// finish takes a sequence's step into account and says whether it was the last.
func (g *generator) finish(s *sequence) bool {
	if s.rows == 0 {
		return false
	}
	sampled := s.wants()
	g.cache.advance(s, s.pos+s.rows)
	switch {
	case !sampled:
		return false
	case s.out.bad:
		s.call.fail(fulgur.E(fulgur.KindInternal, "generating", "the model's logits are not finite: its weights have diverged; go back to an earlier checkpoint", nil))
	default:
		s.tokens = append(s.tokens, s.out.id)
		if !s.call.add(engine.Token{ID: s.out.id, LogProb: s.out.lp, Version: g.cur.version}) {
			return false
		}
	}
	g.cache.release(s)
	return true
}
