package openairesponses

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

// Stream implements dialect.Dialect.
func (Dialect) Stream(req *call.Request, m dialect.Meta) dialect.Stream {
	return &stream{req: req, meta: m}
}

type stream struct {
	req  *call.Request
	meta dialect.Meta
	a    *answer // nil until something has gone out

	seq     int
	items   []*out
	current *out         // the reasoning or message that is being written; nil if none
	calls   map[int]*out // by the sampler's index
	last    bool
	kept    []call.Delta // from the piece that was Last on
}

// Delta implements dialect.Stream.
func (s *stream) Delta(dst []byte, d call.Delta) []byte {
	if s.last = s.last || d.Last; s.last {
		s.kept = append(s.kept, d)
		return dst
	}
	return s.delta(dst, d)
}

func (s *stream) delta(dst []byte, d call.Delta) []byte {
	if d.Raw != nil && d.Wire == Name {
		return sse.Append(dst, gjson.GetBytes(d.Raw, "type").Str, d.Raw)
	}
	dst = s.open(dst)
	if d.Reasoning != "" {
		dst = s.write(dst, 'r', d.Reasoning)
	}
	if d.Text != "" {
		dst = s.write(dst, 'm', d.Text)
	}
	for _, t := range d.Tools {
		dst = s.tool(dst, t)
	}
	return dst
}

// event begins an event; end ends it.
func (s *stream) event(dst []byte, name string) []byte {
	dst = append(append(dst, "event: "...), name...)
	dst = append(append(dst, "\ndata: {\"type\":\""...), name...)
	dst = strconv.AppendInt(append(dst, `","sequence_number":`...), int64(s.seq), 10)
	s.seq++
	return dst
}

const endEvent = "}\n\n"

// of begins an event of an item's.
func (s *stream) of(dst []byte, name string, it *out) []byte {
	dst = str(append(s.event(dst, name), `,"item_id":`...), s.a.id(it))
	return strconv.AppendInt(append(dst, `,"output_index":`...), int64(it.index), 10)
}

// response is an event with the response in it.
func (s *stream) response(dst []byte, name string, st state, items []*out, whole bool) []byte {
	dst = append(s.event(dst, name), `,"response":`...)
	return append(s.a.append(dst, st, items, whole), endEvent...)
}

// open begins the stream.
func (s *stream) open(dst []byte) []byte {
	if s.a != nil {
		return dst
	}
	s.a = newAnswer(s.req, s.meta)
	dst = s.response(dst, "response.created", state{status: "in_progress"}, nil, false)
	return s.response(dst, "response.in_progress", state{status: "in_progress"}, nil, false)
}

func (s *stream) add(dst []byte, it *out) []byte {
	it.index = len(s.items)
	s.items = append(s.items, it)
	return s.whole(dst, "response.output_item.added", it, false)
}

func (s *stream) whole(dst []byte, name string, it *out, done bool) []byte {
	dst = strconv.AppendInt(append(s.event(dst, name), `,"output_index":`...), int64(it.index), 10)
	return append(s.a.item(append(dst, `,"item":`...), it, done), endEvent...)
}

// write appends a piece of reasoning or text. If the other kind was being
// written, that item ends: clients follow one at a time.
func (s *stream) write(dst []byte, kind byte, text string) []byte {
	if s.current == nil || s.current.kind != kind {
		dst = s.close(dst, s.current)
		s.current = &out{kind: kind}
		dst = s.add(dst, s.current)
		if kind == 'r' {
			dst = s.of(dst, "response.reasoning_summary_part.added", s.current)
			dst = append(appendSummary(append(dst, `,"summary_index":0,"part":`...), nil), endEvent...)
		} else {
			dst = s.of(dst, "response.content_part.added", s.current)
			dst = append(appendPart(append(dst, `,"content_index":0,"part":`...), nil), endEvent...)
		}
	}
	s.current.text = append(s.current.text, text...)
	if kind == 'r' {
		dst = s.of(dst, "response.reasoning_summary_text.delta", s.current)
		return append(str(append(dst, `,"summary_index":0,"delta":`...), text), endEvent...)
	}
	if text == "" {
		return dst // an empty message has no pieces
	}
	dst = s.of(dst, "response.output_text.delta", s.current)
	dst = str(append(dst, `,"content_index":0,"delta":`...), text)
	return append(append(dst, `,"logprobs":[]`...), endEvent...)
}

// tool appends a piece of a tool call. A call's item ends with the stream: a
// harness that acts on whole items does not act on a call that then fails. A
// custom tool's input is known only when its JSON is whole.
func (s *stream) tool(dst []byte, t call.ToolDelta) []byte {
	it := s.calls[t.Index]
	if it == nil {
		dst = s.close(dst, s.current)
		s.current = nil
		it = &out{kind: 'c', callID: t.ID, tool: s.a.called(t.Name)}
		if s.calls == nil {
			s.calls = map[int]*out{}
		}
		s.calls[t.Index] = it
		dst = s.add(dst, it)
	}
	it.text = append(it.text, t.Arguments...)
	if t.Arguments == "" || it.tool.custom {
		return dst
	}
	return s.argument(dst, it, t.Arguments)
}

func (s *stream) argument(dst []byte, it *out, piece string) []byte {
	dst = s.of(dst, callEvent(it)+".delta", it)
	return append(str(append(dst, `,"delta":`...), piece), endEvent...)
}

func callEvent(it *out) string {
	if it.tool.custom {
		return "response.custom_tool_call_input"
	}
	return "response.function_call_arguments"
}

// close ends an item, once.
func (s *stream) close(dst []byte, it *out) []byte {
	if it == nil || it.closed {
		return dst
	}
	it.closed = true
	switch it.kind {
	case 'r':
		dst = s.of(dst, "response.reasoning_summary_text.done", it)
		dst = append(str(append(dst, `,"summary_index":0,"text":`...), string(it.text)), endEvent...)
		dst = s.of(dst, "response.reasoning_summary_part.done", it)
		dst = append(appendSummary(append(dst, `,"summary_index":0,"part":`...), it.text), endEvent...)
	case 'm':
		dst = s.of(dst, "response.output_text.done", it)
		dst = str(append(dst, `,"content_index":0,"text":`...), string(it.text))
		dst = append(append(dst, `,"logprobs":[]`...), endEvent...)
		dst = s.of(dst, "response.content_part.done", it)
		dst = append(appendPart(append(dst, `,"content_index":0,"part":`...), it.text), endEvent...)
	default:
		field := `,"arguments":`
		if it.tool.custom {
			field = `,"input":`
			dst = s.argument(dst, it, it.said())
		}
		dst = s.of(dst, callEvent(it)+".done", it)
		if !it.tool.custom {
			dst = str(append(dst, `,"name":`...), it.tool.name)
		}
		dst = append(str(append(dst, field...), it.said()), endEvent...)
	}
	return s.whole(dst, "response.output_item.done", it, true)
}

// KeepAlive implements dialect.Stream: an event of an unknown type, which every
// Responses client tried takes as a sign of life. Clients that collect a
// response want to see its creation first.
func (s *stream) KeepAlive(dst []byte) []byte {
	return append(s.event(s.open(dst), "keepalive"), endEvent...)
}

// Close implements dialect.Stream.
func (s *stream) Close(dst []byte, res *call.Result) []byte {
	if !res.Relayed {
		dst = s.open(dst)
	}
	for _, d := range s.kept {
		dst = s.delta(dst, d)
	}
	if res.Relayed {
		return dst
	}
	if len(s.items) == 0 {
		dst = s.write(dst, 'm', "")
	}
	st := end(res)
	s.items[len(s.items)-1].cut = st.reason != ""
	for _, it := range s.items {
		dst = s.close(dst, it)
	}
	return s.response(dst, "response."+st.status, st, s.items, true)
}

// Fail implements dialect.Stream. Codex reads response.failed, the SDKs raise
// what has an error in it.
func (s *stream) Fail(dst []byte, f dialect.Failure) []byte {
	dst = s.open(dst)
	dst = s.response(dst, "response.failed", state{status: "failed", fail: &f}, nil, false)
	dst = orNull(append(s.event(dst, "error"), `,"code":`...), f.Code)
	dst = str(append(dst, `,"message":`...), f.Message)
	dst = orNull(append(dst, `,"param":`...), f.Param)
	return append(appendErrorObject(append(dst, `,"error":`...), f), endEvent...)
}
