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
	dst = appendHead(dst, nil, m)
	dst = appendChoice(dst, req, text, tokens, res.PromptIDs, &at, res.Finish)
	dst = append(dst, ']')
	if res.Usage != nil {
		dst = append(dst, `,"usage":`...)
		dst = chatwire.AppendUsage(dst, res.Usage)
	}
	return append(dst, '}')
}

// appendHead begins an answer or a chunk, up to its first choice. id is JSON,
// nil for our own.
func appendHead(dst, id []byte, m dialect.Meta) []byte {
	dst = append(dst, `{"id":`...)
	if len(id) > 0 {
		dst = append(dst, id...)
	} else {
		dst = chatwire.AppendString(dst, "cmpl-"+m.ID)
	}
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
	return &stream{req: req, meta: m}
}

type stream struct {
	req   *call.Request
	meta  dialect.Meta
	begun bool   // our first chunk has been written
	alive bool   // a keep-alive went out before the upstream's first event
	id    []byte // JSON, of the upstream's events
	at    int    // bytes of tokens' texts so far
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

// relay passes an upstream's own chunk on. If keep-alives with our id went out
// before, its id is made ours: clients drop chunks of another id.
func (s *stream) relay(dst []byte, d call.Delta) []byte {
	if d.UsageOnly && !s.req.IncludeUsage {
		return dst
	}
	raw := d.Raw
	if s.alive {
		id := chatwire.AppendString(nil, "cmpl-"+s.meta.ID)
		if out, err := chatwire.Splice(raw, chatwire.Field{Key: "id", Value: id}); err == nil {
			raw = out
		}
	} else if s.id == nil {
		s.id = append([]byte(nil), chatwire.Get(raw, "id")...)
	}
	return sse.Append(dst, "", raw)
}

func (s *stream) head(dst []byte) []byte { return appendHead(append(dst, "data: "...), s.id, s.meta) }

// KeepAlive implements dialect.Stream: a chunk with an empty text.
func (s *stream) KeepAlive(dst []byte) []byte {
	s.alive = s.alive || s.id == nil
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
