package tokens

import (
	"context"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// rawPrompt gives the tokens of a prompt that no template touches: ids as they
// are, or a text's. It goes on from no conversation.
func (s *Sampler) rawPrompt(o *call.Order) (Prompt, error) {
	ids := o.Prompt.IDs
	if ids == nil {
		ids = s.o.Renderer.EncodeRaw(o.Prompt.Text)
	}
	if len(ids) == 0 {
		return Prompt{}, fulgur.E(fulgur.KindInvalid, op(o), "prompt must not be empty", nil)
	}
	return Prompt{IDs: ids}, nil
}

var _ sampler.Counter = (*Sampler)(nil)

// Count implements sampler.Counter: the tokens of the prompt that Sample would
// use, those of a known conversation included.
func (s *Sampler) Count(ctx context.Context, o *call.Order) (int, error) {
	if err := unreadable(o); err != nil {
		return 0, err
	}
	p, err := s.prompt(ctx, o)
	return len(p.IDs), err
}

// rawReply reads an answer that is text and nothing else.
type rawReply struct {
	r    Renderer
	stop []int32
	held []int32 // tokens of a character that is not whole yet
	text strings.Builder
}

// maxHeld bounds held: what is no character after so many tokens never will be.
const maxHeld = 8

// Feed implements Reply.
func (p *rawReply) Feed(id int32) call.Delta {
	if slices.Contains(p.stop, id) {
		return call.Delta{}
	}
	p.held = append(p.held, id)
	text := p.r.Decode(p.held)
	if (strings.HasSuffix(text, "\ufffd") || !utf8.ValidString(text)) && len(p.held) < maxHeld {
		return call.Delta{}
	}
	return p.take(text)
}

func (p *rawReply) take(text string) call.Delta {
	p.held, text = p.held[:0], strings.ToValidUTF8(text, "\ufffd")
	p.text.WriteString(text)
	return call.Delta{Text: text}
}

// Finish implements Reply.
func (p *rawReply) Finish(string) (call.Delta, fulgur.Message, bool) {
	var last call.Delta
	if len(p.held) > 0 {
		last = p.take(p.r.Decode(p.held))
	}
	return last, fulgur.Message{Content: p.text.String()}, false
}
