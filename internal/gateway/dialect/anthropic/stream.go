package anthropic

import (
	"slices"
	"strconv"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

// kind is that of the block that is open.
type kind uint8

const (
	none kind = iota
	thinking
	text
)

// stream writes one streamed answer. Blocks never overlap, and the SDKs take
// them only in order; pieces of tool calls may come in any, and whether their
// arguments are an object shows at their end. So they are kept for the close.
type stream struct {
	meta   dialect.Meta
	opened bool // message_start is written
	open   kind
	index  int    // of the open block, or the next
	late   bool   // a piece was the Last
	kept   []byte // events from that piece on
	tools  []pending
	buf    []byte
}

// pending is a tool call of which pieces have come.
type pending struct {
	index    int
	id, name string
	args     []byte
}

// Stream implements dialect.Dialect.
func (Dialect) Stream(_ *call.Request, m dialect.Meta) dialect.Stream { return &stream{meta: m} }

// event appends the event that is in s.buf.
func (s *stream) event(dst []byte, name string, data []byte) []byte {
	s.buf = data[:0]
	return sse.Append(dst, name, data)
}

// Delta implements dialect.Stream.
func (s *stream) Delta(dst []byte, d call.Delta) []byte {
	if s.late = s.late || d.Last; s.late {
		s.kept = s.write(s.kept, d)
		return dst
	}
	return s.write(dst, d)
}

func (s *stream) write(dst []byte, d call.Delta) []byte {
	dst = s.start(dst, d.PromptIDs)
	if d.Reasoning != "" {
		dst = s.to(dst, thinking)
		dst = s.delta(dst, `{"type":"thinking_delta","thinking":`, d.Reasoning)
	}
	if d.Text != "" {
		dst = s.to(dst, text)
		dst = s.delta(dst, `{"type":"text_delta","text":`, d.Text)
	}
	for _, t := range d.Tools {
		s.tool(t)
	}
	return dst
}

// start appends message_start if it is still to come.
func (s *stream) start(dst []byte, prompt []int32) []byte {
	if s.opened {
		return dst
	}
	s.opened = true
	b := append(s.buf, `{"type":"message_start","message":`...)
	b = appendHead(b, s.meta)
	b = append(b, `],"stop_reason":null,"stop_sequence":null,"usage":`...)
	b = appendUsage(b, fulgur.Usage{PromptTokens: len(prompt)}) // message_delta has the final word
	return s.event(dst, "message_start", append(b, "}}"...))
}

// to ends the open block and begins one of another kind; nothing happens if
// that kind is open.
func (s *stream) to(dst []byte, k kind) []byte {
	if s.open == k {
		return dst
	}
	if s.open == thinking {
		dst = s.delta(dst, `{"type":"signature_delta","signature":`, signature)
	}
	if s.open != none {
		dst = s.stop(dst)
	}
	s.open = k
	switch k {
	case thinking:
		return s.event(dst, "content_block_start", append(s.begin(), `{"type":"thinking","thinking":"","signature":""}}`...))
	case text:
		return s.event(dst, "content_block_start", append(s.begin(), `{"type":"text","text":""}}`...))
	}
	return dst
}

// begin is a content_block_start up to its block.
func (s *stream) begin() []byte {
	b := append(s.buf, `{"type":"content_block_start","index":`...)
	b = strconv.AppendInt(b, int64(s.index), 10)
	return append(b, `,"content_block":`...)
}

// delta appends a piece of the open block; head is the delta up to its value.
func (s *stream) delta(dst []byte, head, value string) []byte {
	b := append(s.buf, `{"type":"content_block_delta","index":`...)
	b = strconv.AppendInt(b, int64(s.index), 10)
	b = append(b, `,"delta":`...)
	b = append(b, head...)
	b = appendString(b, value)
	return s.event(dst, "content_block_delta", append(b, "}}"...))
}

// stop ends the open block.
func (s *stream) stop(dst []byte) []byte {
	b := append(s.buf, `{"type":"content_block_stop","index":`...)
	b = strconv.AppendInt(b, int64(s.index), 10)
	s.index++
	return s.event(dst, "content_block_stop", append(b, '}'))
}

// tool keeps a piece of a tool call.
func (s *stream) tool(d call.ToolDelta) {
	i := slices.IndexFunc(s.tools, func(p pending) bool { return p.index == d.Index })
	if i < 0 {
		i = len(s.tools)
		s.tools = append(s.tools, pending{index: d.Index})
	}
	p := &s.tools[i]
	if p.id == "" {
		p.id = d.ID
	}
	if p.name == "" {
		p.name = d.Name
	}
	p.args = append(p.args, d.Arguments...)
}

// KeepAlive implements dialect.Stream. Clients take a ping anywhere, also before
// message_start.
func (s *stream) KeepAlive(dst []byte) []byte {
	return append(dst, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

// Close implements dialect.Stream.
func (s *stream) Close(dst []byte, res *call.Result) []byte {
	dst = append(dst, s.kept...)
	dst = s.start(dst, res.PromptIDs)
	if s.open == none && len(s.tools) == 0 {
		dst = s.to(dst, text) // see AppendAnswer
	}
	dst = s.to(dst, none)
	slices.SortStableFunc(s.tools, func(a, b pending) int { return a.index - b.index })
	for i, t := range s.tools {
		b := appendToolUse(s.begin(), s.meta, i, fulgur.ToolCall{ID: t.id, Name: t.name})
		dst = s.event(dst, "content_block_start", append(b, "{}}}"...))
		dst = s.delta(dst, `{"type":"input_json_delta","partial_json":`, string(appendInput(nil, string(t.args))))
		dst = s.stop(dst)
	}
	b := append(s.buf, `{"type":"message_delta","delta":{`...)
	b = appendStop(b, res, len(s.tools) > 0)
	b = append(b, `},"usage":`...)
	b = appendUsage(b, usage(res))
	dst = s.event(dst, "message_delta", append(b, '}'))
	return sse.Append(dst, "message_stop", []byte(`{"type":"message_stop"}`))
}

// Fail implements dialect.Stream.
func (s *stream) Fail(dst []byte, f dialect.Failure) []byte {
	return s.event(dst, "error", Dialect{}.AppendError(s.buf, f))
}
