package chat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

var (
	errBroken       = errors.New("upstream's stream ended before its answer did")
	errTooLong      = errors.New("upstream's stream is longer than is taken")
	errUpstreamSaid = errors.New("upstream's stream carries an error")
)

// maxRead is the most that is read of a stream at once.
const maxRead = 32 << 10

// streamed reads a streamed answer, and names its failure. again: nothing of it
// has been passed on.
func (x *exchange) streamed(ctx, try context.Context, resp *http.Response, alive func()) (again bool, err error) {
	began, err := x.stream(resp, alive)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, errBroken) || errors.Is(err, errUpstreamSaid):
		x.res.Fault = err.Error()
		again = !began && errors.Is(err, errBroken) // an error that it tells it would tell again
		return again, fulgur.E(fulgur.KindUpstream, op(x.o), "Upstream model server broke off its answer", err)
	}
	return !began, x.failure(ctx, try, err)
}

// stream passes a streamed answer on, and makes a result of it. began: a piece
// of it has been passed on, so it can't be tried again.
func (x *exchange) stream(resp *http.Response, alive func()) (began bool, err error) {
	res := x.res
	res.Status, res.ContentType, res.Wire, res.Experts = resp.StatusCode, "", x.wire, nil
	t := &tee{acc: newAccumulator(res, x.o), res: res, emit: x.emit, wire: x.wire}
	var parser sse.Parser
	buf := make([]byte, 4<<10) // a stream keeps it: most events are short
	for total := 0; !t.done; {
		n, rerr := resp.Body.Read(buf)
		alive()
		if total += n; total > maxAnswer {
			t.acc.end()
			return t.began, errTooLong
		}
		if err := parser.Feed(buf[:n], t.event); err != nil {
			t.acc.end()
			return t.began, err
		}
		if n == len(buf) && n < maxRead {
			buf = make([]byte, 2*n)
		}
		if rerr == io.EOF && !t.done {
			if res.Finish == "" {
				t.acc.end()
				return t.began, errBroken
			}
			break // a server that forgets [DONE]
		}
		if rerr != nil && !t.done {
			t.acc.end()
			return t.began, rerr
		}
	}
	t.acc.end()
	if res.Finish == "" {
		return t.began, errBroken
	}
	sampler.Finish(resp)
	if x.wire != "" {
		res.Raw, res.Relayed = t.whole(), true
	}
	return t.began, nil
}

// tee passes chunks on and reads them.
type tee struct {
	acc   *accumulator
	res   *call.Result
	emit  func(call.Delta) error
	wire  string // of what is passed on; "": pieces with fields
	began bool
	done  bool
	head  chatwire.Answer // of the first chunk
}

func (t *tee) event(ev sse.Event) error {
	// What comes behind the end is no part of the answer, whether or not it was read with it.
	if t.done || string(ev.Data) == "[DONE]" {
		t.done = true
		return nil
	}
	a, ok := chatwire.Take(ev.Data, t.acc.o.LogProbs) // the data is ours to keep
	if !ok {
		return fmt.Errorf("%w: an event that is not JSON", errUpstreamSaid)
	}
	if a.Error != "" {
		return fmt.Errorf("%w: %.300s", errUpstreamSaid, a.Error)
	}
	if t.res.Experts == nil {
		t.res.Experts = a.Experts
	}
	if t.head.ID == "" {
		t.head = chatwire.Answer{ID: a.ID, Created: a.Created, Model: a.Model}
	}
	prompted, sampled := len(t.res.PromptIDs) > 0, len(t.res.SampledIDs)
	logs, texts := len(t.res.LogProbs), len(t.res.TokenTexts)
	t.acc.head(&a)
	d := call.Delta{Wire: t.wire, UsageOnly: len(a.Choices) == 0 && a.Usage != nil}
	for i := range a.Choices {
		c := &a.Choices[i]
		d.Last = d.Last || c.Finish != ""
		if c.Index != 0 {
			continue
		}
		t.acc.choice(c, false)
		if t.wire == "" {
			show(&d, c)
		}
	}
	if t.wire != "" {
		d.Raw = a.Body
	} else {
		d.Tokens = tokensOf(t.res.SampledIDs[sampled:], t.res.LogProbs[logs:], t.res.TokenTexts[texts:])
		if !prompted {
			d.PromptIDs = t.res.PromptIDs
		}
	}
	t.began = true
	return t.emit(d)
}

// show makes fields of what a piece of a choice says.
func show(d *call.Delta, c *chatwire.Choice) {
	d.Text, d.Reasoning = d.Text+c.Text, d.Reasoning+c.Reasoning
	for _, k := range c.ToolCalls {
		if k.Index >= 0 && k.Index < maxTools {
			d.Tools = append(d.Tools, call.ToolDelta{Index: k.Index, ID: k.ID, Name: k.Function.Name, Arguments: k.Function.Arguments})
		}
	}
}

// tokensOf joins ids with what is there of their log probs and texts.
func tokensOf(ids []int32, logProbs []float32, texts []string) []call.Token {
	out := make([]call.Token, len(ids))
	for i, id := range ids {
		out[i] = call.Token{ID: id, LogProb: float32(math.NaN())}
		if i < len(logProbs) {
			out[i].LogProb = logProbs[i]
		}
		if i < len(texts) {
			out[i].Text = texts[i]
		}
	}
	return out
}
