package openaicompletions

import (
	"strconv"

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
	tokens := make([]call.Token, len(res.SampledIDs))
	for i, id := range res.SampledIDs {
		tokens[i].ID = id
		if i < len(res.LogProbs) {
			tokens[i].LogProb = res.LogProbs[i]
		}
		if i < len(res.TokenTexts) {
			tokens[i].Text = res.TokenTexts[i]
		}
	}
	text := ""
	if res.Reply != nil {
		text = res.Reply.Content
	}
	at := 0
	dst = appendHead(dst, &chatwire.StreamID{Own: ownID(m)}, m)
	dst = appendChoice(dst, req, text, tokens, res.PromptIDs, &at, res.Finish)
	dst = append(dst, ']')
	if res.Usage != nil {
		dst = append(dst, `,"usage":`...)
		dst = chatwire.AppendUsage(dst, res.Usage)
	}
	return append(dst, '}')
}

func ownID(m dialect.Meta) string { return "cmpl-" + m.ID }

// appendHead begins an answer or a chunk, up to its first choice.
func appendHead(dst []byte, id *chatwire.StreamID, m dialect.Meta) []byte {
	dst = append(dst, `{"id":`...)
	dst = id.Append(dst)
	dst = append(dst, `,"object":"text_completion","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"model":`...)
	dst = chatwire.AppendString(dst, m.Model)
	return append(dst, `,"choices":[`...)
}

// appendChoice appends the one choice, or a piece of it; at counts the bytes of
// the tokens' texts.
func appendChoice(dst []byte, req *call.Request, text string, tokens []call.Token, prompt []int32, at *int, finish string) []byte {
	dst = append(dst, `{"index":0,"text":`...)
	dst = chatwire.AppendString(dst, text)
	dst = append(dst, `,"logprobs":`...)
	if req.LogProbs {
		dst = appendLogProbs(dst, tokens, at)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"finish_reason":`...)
	dst = chatwire.AppendFinish(dst, finish)
	if req.TokenIDs {
		dst = append(dst, `,"token_ids":[`...)
		for i, t := range tokens {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, int64(t.ID), 10)
		}
		dst = append(dst, ']')
		if prompt != nil {
			dst = append(dst, `,"prompt_token_ids":`...)
			dst = chatwire.AppendIDs(dst, prompt)
		}
	}
	return append(dst, '}')
}

func appendLogProbs(dst []byte, tokens []call.Token, at *int) []byte {
	list := func(name string, each func(t call.Token)) {
		dst = append(dst, name...)
		for i, t := range tokens {
			if i > 0 {
				dst = append(dst, ',')
			}
			each(t)
		}
	}
	list(`{"tokens":[`, func(t call.Token) { dst = chatwire.AppendString(dst, t.Text) })
	list(`],"token_logprobs":[`, func(t call.Token) { dst = chatwire.AppendFloat32(dst, t.LogProb) })
	list(`],"text_offset":[`, func(t call.Token) {
		dst = strconv.AppendInt(dst, int64(*at), 10)
		*at += len(t.Text)
	})
	return append(dst, `],"top_logprobs":null}`...)
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
	req   *call.Request
	meta  dialect.Meta
	id    chatwire.StreamID
	begun bool // our first chunk has been written
	at    int  // bytes of tokens' texts so far
	last  bool
	kept  []byte // from the piece that was Last on
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
	first := !s.begun && s.req.TokenIDs && d.PromptIDs != nil
	if d.Text == "" && !first && (len(d.Tokens) == 0 || !s.req.TokenIDs && !s.req.LogProbs) {
		return dst
	}
	var prompt []int32
	if first {
		prompt = d.PromptIDs
	}
	s.begun = true
	dst = s.head(dst)
	dst = appendChoice(dst, s.req, d.Text, d.Tokens, prompt, &s.at, "")
	return append(dst, "]}\n\n"...)
}

// relay passes an upstream's own chunk on.
func (s *stream) relay(dst []byte, d call.Delta) []byte {
	if d.UsageOnly && !s.req.IncludeUsage {
		return dst
	}
	return sse.Append(dst, "", s.id.Relay(d.Raw))
}

func (s *stream) head(dst []byte) []byte { return appendHead(append(dst, "data: "...), &s.id, s.meta) }

// KeepAlive implements dialect.Stream: a chunk with an empty text.
func (s *stream) KeepAlive(dst []byte) []byte {
	s.id.KeepAlive()
	dst = s.head(dst)
	return append(dst, `{"index":0,"text":"","logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

// Close implements dialect.Stream.
func (s *stream) Close(dst []byte, res *call.Result) []byte {
	dst = append(dst, s.kept...)
	if res.Relayed {
		return append(dst, "data: [DONE]\n\n"...)
	}
	dst = s.head(dst)
	dst = append(dst, `{"index":0,"text":"","logprobs":null,"finish_reason":`...)
	dst = chatwire.AppendFinish(dst, res.Finish)
	dst = append(dst, "}]}\n\n"...)
	if s.req.IncludeUsage && res.Usage != nil {
		dst = s.head(dst)
		dst = append(dst, `],"usage":`...)
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
