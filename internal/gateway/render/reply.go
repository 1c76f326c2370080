package render

import (
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/parser"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
)

// Delta is what a token adds to the reply. One field is set; a tool call comes
// whole, without an ID.
type Delta = parser.Delta

// Reply turns sampled tokens into a message while they come. It is for one
// goroutine.
type Reply struct {
	r      *Renderer
	stream *tokenizer.Stream
	parser *parser.Parser
	later  strings.Builder
}

// Reply returns a reply at its beginning. Tool calls are looked for if the call
// offered tools.
func (r *Renderer) Reply(tools []fulgur.Tool) *Reply {
	return &Reply{r: r, stream: r.tok.NewStream(), parser: parser.New(r.parserOptions(tools))}
}

// Feed takes the next sampled id. A stop token adds nothing.
func (p *Reply) Feed(id int32) []Delta {
	if slices.Contains(p.r.stop, id) {
		return nil
	}
	if text := p.stream.Feed(id); text != "" {
		return p.parser.Feed(text)
	}
	return nil
}

// Later is Feed where nobody waits for the deltas: Finish returns them.
func (p *Reply) Later(id int32) {
	if !slices.Contains(p.r.stop, id) {
		p.later.WriteString(p.stream.Feed(id))
	}
}

// Finish ends the reply, and returns what was withheld (text that might have
// become a tool call), the whole message, and whether it holds a tool call that
// could not be read: that is then part of the content, as it was sampled.
func (p *Reply) Finish() (last []Delta, m fulgur.Message, malformed bool) {
	if text := p.later.String() + p.stream.Flush(); text != "" {
		last = p.parser.Feed(text)
	}
	rest, m, malformed := p.parser.Finish()
	return append(last, rest...), m, malformed
}

// Parse is a Reply of all ids at once.
func (r *Renderer) Parse(ids []int32, tools []fulgur.Tool) (fulgur.Message, bool) {
	p := r.Reply(tools)
	for _, id := range ids {
		p.Feed(id)
	}
	_, m, malformed := p.Finish()
	return m, malformed
}
