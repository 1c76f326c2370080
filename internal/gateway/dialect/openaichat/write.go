package openaichat

import (
	"strconv"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

// AppendAnswer implements dialect.Dialect. An answer that came in this dialect
// goes out as it is.
func (Dialect) AppendAnswer(dst []byte, req *call.Request, m dialect.Meta, res *call.Result) []byte {
	if res.Raw != nil && res.Wire == Name {
		if len(dst) == 0 {
			return res.Raw[:len(res.Raw):len(res.Raw)] // nobody changes it
		}
		return append(dst, res.Raw...)
	}
	dst = appendHead(dst, &chatwire.StreamID{Own: ownID(m)}, "chat.completion", m)
	dst = append(dst, `"choices":[{"index":0,"message":`...)
	var reply fulgur.Message
	if res.Reply != nil {
		reply = *res.Reply
	}
	dst = appendMessage(dst, reply)
	dst = append(dst, `,"logprobs":`...)
	if req.LogProbs {
		dst = appendLogProbs(dst, tokensOf(res))
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"finish_reason":`...)
	dst = chatwire.AppendFinish(dst, res.Finish)
	if req.TokenIDs {
		dst = append(dst, `,"token_ids":`...)
		dst = chatwire.AppendIDs(dst, res.SampledIDs)
	}
	dst = append(dst, "}]"...)
	if res.Usage != nil {
		dst = append(dst, `,"usage":`...)
		dst = chatwire.AppendUsage(dst, res.Usage)
	}
	if req.TokenIDs {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = chatwire.AppendIDs(dst, res.PromptIDs)
	}
	return append(dst, '}')
}

func tokensOf(res *call.Result) []call.Token {
	out := make([]call.Token, len(res.SampledIDs))
	for i, id := range res.SampledIDs {
		out[i].ID = id
		if i < len(res.LogProbs) {
			out[i].LogProb = res.LogProbs[i]
		}
		if i < len(res.TokenTexts) {
			out[i].Text = res.TokenTexts[i]
		}
	}
	return out
}

func ownID(m dialect.Meta) string { return "chatcmpl-" + m.ID }

func appendHead(dst []byte, id *chatwire.StreamID, object string, m dialect.Meta) []byte {
	dst = append(dst, `{"id":`...)
	dst = id.Append(dst)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"model":`...)
	dst = chatwire.AppendString(dst, m.Model)
	return append(dst, ',')
}

func appendMessage(dst []byte, m fulgur.Message) []byte {
	dst = append(dst, `{"role":"assistant","content":`...)
	if m.Content == "" && len(m.ToolCalls) > 0 {
		dst = append(dst, "null"...)
	} else {
		dst = chatwire.AppendString(dst, m.Content)
	}
	dst = append(dst, `,"refusal":null`...)
	if m.Reasoning != "" {
		dst = append(dst, `,"reasoning_content":`...)
		dst = chatwire.AppendString(dst, m.Reasoning)
	}
	return append(chatwire.AppendToolCalls(dst, m.ToolCalls), '}')
}

func appendLogProbs(dst []byte, tokens []call.Token) []byte {
	dst = append(dst, `{"content":[`...)
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"token":`...)
		dst = chatwire.AppendString(dst, t.Text)
		dst = append(dst, `,"logprob":`...)
		dst = chatwire.AppendFloat32(dst, t.LogProb)
		dst = append(dst, `,"bytes":[`...)
		for j := 0; j < len(t.Text); j++ {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, int64(t.Text[j]), 10)
		}
		dst = append(dst, `],"top_logprobs":[]}`...)
	}
	return append(dst, "]}"...)
}

// AppendError implements dialect.Dialect.
func (Dialect) AppendError(dst []byte, f dialect.Failure) []byte {
	return chatwire.AppendError(dst, f.Message, f.Type, f.Param, f.Code)
}

// AppendModels implements dialect.Dialect.
func (Dialect) AppendModels(dst []byte, models []string) []byte {
	return chatwire.AppendModels(dst, models)
}

// Stream implements dialect.Dialect.
func (Dialect) Stream(req *call.Request, m dialect.Meta) dialect.Stream {
	return &stream{req: req, meta: m, id: chatwire.StreamID{Own: ownID(m)}}
}

type stream struct {
	req    *call.Request
	meta   dialect.Meta
	id     chatwire.StreamID
	opened bool // the chunk with the role has gone out
	last   bool
	kept   []byte // from the piece that was Last on
}

// Delta implements dialect.Stream.
func (s *stream) Delta(dst []byte, d call.Delta) []byte {
	s.last = s.last || d.Last
	if s.last {
		s.kept = s.delta(s.kept, d)
		return dst
	}
	return s.delta(dst, d)
}

func (s *stream) delta(dst []byte, d call.Delta) []byte {
	if d.Raw != nil && d.Wire == Name {
		return s.relay(dst, d)
	}
	dst = s.open(dst, d.PromptIDs)
	if d.Text == "" && d.Reasoning == "" && len(d.Tools) == 0 && (len(d.Tokens) == 0 || !s.req.TokenIDs && !s.req.LogProbs) {
		return dst
	}
	dst = s.head(dst)
	dst = append(dst, `"choices":[{"index":0,"delta":`...)
	dst = appendDelta(dst, d)
	dst = append(dst, `,"logprobs":`...)
	if s.req.LogProbs {
		dst = appendLogProbs(dst, d.Tokens)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"finish_reason":null`...)
	if s.req.TokenIDs {
		dst = append(dst, `,"token_ids":[`...)
		for i, t := range d.Tokens {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, int64(t.ID), 10)
		}
		dst = append(dst, ']')
	}
	return append(dst, "}]}\n\n"...)
}

// relay passes an upstream's own chunk on.
func (s *stream) relay(dst []byte, d call.Delta) []byte {
	s.opened = true
	if d.UsageOnly && !s.req.IncludeUsage {
		return dst
	}
	return sse.Append(dst, "", s.id.Relay(d.Raw))
}

func (s *stream) head(dst []byte) []byte {
	return appendHead(append(dst, "data: "...), &s.id, "chat.completion.chunk", s.meta)
}

func (s *stream) open(dst []byte, prompt []int32) []byte {
	if s.opened {
		return dst
	}
	s.opened = true
	dst = s.head(dst)
	dst = append(dst, `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	if s.req.TokenIDs {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = chatwire.AppendIDs(dst, prompt)
	}
	return append(dst, "}\n\n"...)
}

func appendDelta(dst []byte, d call.Delta) []byte {
	dst = append(dst, '{')
	n := len(dst)
	comma := func() {
		if len(dst) > n {
			dst = append(dst, ',')
		}
	}
	if d.Text != "" {
		dst = append(dst, `"content":`...)
		dst = chatwire.AppendString(dst, d.Text)
	}
	if d.Reasoning != "" {
		comma()
		dst = append(dst, `"reasoning_content":`...)
		dst = chatwire.AppendString(dst, d.Reasoning)
	}
	for i, t := range d.Tools {
		if i == 0 {
			comma()
			dst = append(dst, `"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(t.Index), 10)
		if t.ID != "" {
			dst = append(dst, `,"id":`...)
			dst = chatwire.AppendString(dst, t.ID)
			dst = append(dst, `,"type":"function"`...)
		}
		dst = append(dst, `,"function":{`...)
		if t.Name != "" {
			dst = append(dst, `"name":`...)
			dst = chatwire.AppendString(dst, t.Name)
			dst = append(dst, ',')
		}
		dst = append(dst, `"arguments":`...)
		dst = chatwire.AppendString(dst, t.Arguments)
		dst = append(dst, "}}"...)
		if i == len(d.Tools)-1 {
			dst = append(dst, ']')
		}
	}
	return append(dst, '}')
}

// KeepAlive implements dialect.Stream: a chunk with an empty delta, the one
// thing that every chat client tried takes as a sign of life.
func (s *stream) KeepAlive(dst []byte) []byte {
	s.id.KeepAlive()
	dst = s.head(dst)
	return append(dst, `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

// Close implements dialect.Stream.
func (s *stream) Close(dst []byte, res *call.Result) []byte {
	if res.Relayed {
		dst = append(dst, s.kept...)
		return append(dst, "data: [DONE]\n\n"...)
	}
	dst = s.open(dst, res.PromptIDs)
	dst = append(dst, s.kept...)
	dst = s.head(dst)
	dst = append(dst, `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":`...)
	dst = chatwire.AppendFinish(dst, res.Finish)
	dst = append(dst, "}]}\n\n"...)
	if s.req.IncludeUsage && res.Usage != nil {
		dst = s.head(dst)
		dst = append(dst, `"choices":[],"usage":`...)
		dst = chatwire.AppendUsage(dst, res.Usage)
		dst = append(dst, "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

// Fail implements dialect.Stream.
func (s *stream) Fail(dst []byte, f dialect.Failure) []byte {
	dst = append(dst, "data: "...)
	dst = Dialect{}.AppendError(dst, f)
	return append(dst, "\n\n"...)
}
