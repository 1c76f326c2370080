package chat

import (
	"context"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// splice puts the gateway's fields into the client's bytes.
func (s *Sampler) splice(o *call.Order) ([]byte, error) {
	members, err := membersOf(o)
	if err != nil {
		return nil, notObject(o, err)
	}
	fields := []chatwire.Field{{Key: "model", Value: chatwire.AppendString(nil, o.Target)}}
	if o.ForceTemperature {
		fields = append(fields, chatwire.Field{Key: "temperature", Value: chatwire.AppendFloat(nil, o.Sampling.Temperature)})
	}
	fields = append(fields, forced(o)...)
	if !o.Frozen {
		fields = append(fields, chatwire.Field{Key: "return_token_ids", Value: []byte("true")})
	}
	if o.NeedLogProbs {
		fields = append(fields, chatwire.Field{Key: "logprobs", Value: []byte("true")})
	}
	if s.asksExperts(o) {
		fields = append(fields, chatwire.Field{Key: "return_routed_experts", Value: []byte("true")})
	}
	if o.CapTokens > 0 && (o.Wishes.MaxTokens == nil || *o.Wishes.MaxTokens > o.CapTokens) {
		key := "max_tokens"
		if o.Dialect == Wire && chatwire.GetAt(o.Body, members, "max_completion_tokens") != nil {
			key = "max_completion_tokens"
		}
		fields = append(fields, chatwire.Field{Key: key, Value: strconv.AppendInt(nil, int64(o.CapTokens), 10)})
	}
	switch {
	case o.Stream && s.asksExperts(o):
		// vLLM's chunks have no routed experts: the answer comes whole, and the
		// dialect makes a stream of it.
		fields = append(fields, chatwire.Field{Key: "stream", Value: []byte("false")})
		if chatwire.GetAt(o.Body, members, "stream_options") != nil { // goes with streams only
			fields = append(fields, chatwire.Field{Key: "stream_options", Value: []byte("null")})
		}
	case o.Stream && !o.IncludeUsage: // the record needs it; the dialect keeps it from the client
		opts := chatwire.GetAt(o.Body, members, "stream_options")
		if len(opts) == 0 || opts[0] != '{' {
			opts = []byte("{}")
		}
		opts, err := chatwire.Splice(opts, chatwire.Field{Key: "include_usage", Value: []byte("true")})
		if err != nil {
			return nil, notObject(o, err)
		}
		fields = append(fields, chatwire.Field{Key: "stream_options", Value: opts})
	}
	return chatwire.SpliceAt(o.Body, members, fields...), nil
}

// membersOf are those of the client's body: where the dialect has not found them, it is
// read again.
func membersOf(o *call.Order) ([]call.Member, error) {
	if o.Members == nil {
		return chatwire.Members(o.Body)
	}
	return o.Members, nil
}

func notObject(o *call.Order, err error) error {
	return fulgur.E(fulgur.KindInvalid, op(o), "Request body must be a JSON object", err)
}

func (s *Sampler) asksExperts(o *call.Order) bool {
	return s.experts && o.Mode == fulgur.ModeTrain && !o.Frozen
}

// convertible says what of a request a chat completion written of its normal
// form would leave out: that is refused, never dropped.
func convertible(o *call.Order) error {
	unsupported := func(what string) error {
		return fulgur.E(fulgur.KindUnsupported, op(o), "This API can't pass on what the request has: "+what+". Leave it out, or use chat completions", nil)
	}
	switch {
	case o.Invalid != nil:
		return o.Invalid
	case len(o.Relayed) > 0:
		return unsupported(o.Relayed[0])
	case o.N > 1:
		return unsupported("several answers")
	case o.TopLogProbs > 0:
		return unsupported("top_logprobs")
	case len(o.Wishes.Others) > len(o.Neutral): // what the run forces is left out
		return unsupported(strings.Join(o.Wishes.Others, ", "))
	case o.Prompt != nil:
		return unsupported("a raw prompt")
	}
	for _, c := range o.Constrained {
		if !strings.HasPrefix(c, "tool_choice") {
			return unsupported(c)
		}
	}
	return nil
}

// convert writes a chat completions request of an order's normal form.
func (s *Sampler) convert(ctx context.Context, o *call.Order) ([]byte, error) {
	if err := convertible(o); err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(o.Body)+len(o.Body)/4+512)
	b = append(b, `{"model":`...)
	b = chatwire.AppendString(b, o.Target)
	b = appendMessages(b, o.Messages)
	b = appendTools(b, o.Tools, o.ToolChoice)
	b = appendSampling(b, o, s.room(ctx, o))
	if !o.Frozen {
		b = append(b, `,"return_token_ids":true`...)
	}
	if o.NeedLogProbs || o.LogProbs {
		b = append(b, `,"logprobs":true`...)
	}
	if s.asksExperts(o) {
		b = append(b, `,"return_routed_experts":true`...)
	}
	if o.Stream && !s.asksExperts(o) {
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	return append(b, '}'), nil
}

func appendMessages(b []byte, list []fulgur.Message) []byte {
	b = append(b, `,"messages":[`...)
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendMessage(b, &list[i])
	}
	return append(b, ']')
}

func appendMessage(b []byte, m *fulgur.Message) []byte {
	field := func(key, value string) {
		if value != "" {
			b = append(append(append(b, `,"`...), key...), `":`...)
			b = chatwire.AppendString(b, value)
		}
	}
	role := m.Role
	if role == "developer" { // templates of open models drop or refuse it
		role = "system"
	}
	b = append(b, `{"role":`...)
	b = chatwire.AppendString(b, role)
	b = append(b, `,"content":`...)
	if m.Content == "" && len(m.ToolCalls) > 0 {
		b = append(b, "null"...)
	} else {
		b = chatwire.AppendString(b, m.Content)
	}
	field("reasoning_content", m.Reasoning)
	field("reasoning", m.Reasoning) // what vLLM of today reads, and hands to templates under both names
	field("tool_call_id", m.ToolCallID)
	field("name", m.Name)
	return append(chatwire.AppendToolCalls(b, m.ToolCalls), '}')
}

// appendTools appends tools with the bytes of their schemas, whose order of keys
// reaches the chat template. A choice without tools is an error to servers.
func appendTools(b []byte, tools []fulgur.Tool, choice string) []byte {
	if len(tools) == 0 {
		return b
	}
	for i, t := range tools {
		if i == 0 {
			b = append(b, `,"tools":[`...)
		} else {
			b = append(b, ',')
		}
		b = append(b, `{"type":"function","function":{"name":`...)
		b = chatwire.AppendString(b, t.Name)
		if t.Description != "" {
			b = append(b, `,"description":`...)
			b = chatwire.AppendString(b, t.Description)
		}
		if len(t.Schema) > 0 {
			b = append(b, `,"parameters":`...)
			b = append(b, t.Schema...)
		}
		b = append(b, "}}"...)
	}
	b = append(b, ']')
	if choice == "" {
		return b
	}
	b = append(b, `,"tool_choice":`...)
	if name, ok := strings.CutPrefix(choice, "function "); ok {
		b = append(b, `{"type":"function","function":{"name":`...)
		b = chatwire.AppendString(b, name)
		return append(b, "}}"...)
	}
	return chatwire.AppendString(b, choice)
}

func appendSampling(b []byte, o *call.Order, maxTokens int) []byte {
	s := &o.Sampling
	number := func(key string, v int64) {
		b = append(append(append(b, `,"`...), key...), `":`...)
		b = strconv.AppendInt(b, v, 10)
	}
	b = append(b, `,"temperature":`...)
	b = chatwire.AppendFloat(b, s.Temperature)
	if s.TopP > 0 && s.TopP < 1 {
		b = append(b, `,"top_p":`...)
		b = chatwire.AppendFloat(b, s.TopP)
	}
	if s.TopK > 0 {
		number("top_k", int64(s.TopK))
	}
	if maxTokens > 0 {
		number("max_tokens", int64(maxTokens))
	}
	if o.Wishes.Seed != nil {
		number("seed", *o.Wishes.Seed)
	}
	for i, stop := range s.Stop {
		if i == 0 {
			b = append(b, `,"stop":[`...)
		} else {
			b = append(b, ',')
		}
		b = chatwire.AppendString(b, stop)
		if i == len(s.Stop)-1 {
			b = append(b, ']')
		}
	}
	return b
}
