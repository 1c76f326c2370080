// Package openairesponses is the dialect of OpenAI's Responses API
// (https://platform.openai.com/docs/api-reference/responses), as Codex and the
// SDKs speak it. Nothing is stored under a response's id: each request carries
// its whole conversation, and one that counts on stored state is refused.
package openairesponses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// Name is the dialect's name, and that of the wire format it can relay.
const Name = "openai-responses"

// Dialect is the Responses dialect.
type Dialect struct{}

var _ dialect.Dialect = Dialect{}

// Name implements dialect.Dialect.
func (Dialect) Name() string { return Name }

// Paths implements dialect.Dialect.
func (Dialect) Paths() []string { return []string{"openai/v1/responses"} }

const op = "read responses request"

func invalid(msg string) *fulgur.Error { return fulgur.E(fulgur.KindInvalid, op, msg, nil) }

// reader makes a request of a body that is a JSON object.
type reader struct {
	req   *call.Request
	names map[string]toolName // of the tools, by the name that the model sees
}

// complain marks the request; the first complaint is kept.
func (r *reader) complain(param, msg string) {
	if r.req.Invalid == nil {
		r.req.Invalid = fulgur.E(fulgur.KindInvalid, op, msg, &dialect.FieldError{Param: param})
	}
}

// Parse implements dialect.Dialect. Unknown fields are ignored; null and absent
// are one.
func (Dialect) Parse(body []byte) (*call.Request, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	if !utf8.Valid(body) || !json.Valid(body) { // bounds the depth too, which gjson does not
		return nil, invalid("Invalid JSON in request body")
	}
	if fulgur.TooDeep(body) {
		return nil, invalid(chatwire.Deep)
	}
	root := gjson.ParseBytes(body)
	if !root.IsObject() {
		return nil, invalid("Request body must be a JSON object")
	}
	if again := chatwire.Twice(body); again != "" {
		return nil, invalid(again)
	}
	fields := map[string]gjson.Result{}
	root.ForEach(func(k, v gjson.Result) bool {
		name := text(k)
		if v.Type != gjson.Null {
			fields[name] = v
		} else {
			fields[name] = gjson.Result{}
		}
		return true
	})
	r := &reader{req: &call.Request{Body: body, Dialect: Name, N: 1}, names: map[string]toolName{}}
	r.fill(fields)
	return r.req, nil
}

func (r *reader) fill(f map[string]gjson.Result) {
	r.refuseState(f)
	r.req.Model = r.str(f["model"], "model")
	r.req.Stream = r.flag(f["stream"], "stream")
	r.req.IncludeUsage = r.req.Stream // the last event always has it
	r.wishes(f)
	r.tools(f["tools"])
	r.toolChoice(f["tool_choice"])
	if t := text(f["text"].Get("format.type")); t != "" && t != "text" {
		r.req.Constrained = append(r.req.Constrained, "text.format "+t)
	}
	if s := r.str(f["instructions"], "instructions"); s != "" {
		r.req.Messages = append(r.req.Messages, fulgur.Message{Role: "system", Content: s})
	}
	r.input(f["input"])
}

// refuseState complains about what this gateway would have to remember, or to
// look up. Ignoring it would answer another question than was asked (GW-04).
func (r *reader) refuseState(f map[string]gjson.Result) {
	for _, x := range []struct{ param, msg string }{
		{"previous_response_id", "previous_response_id is not supported: responses are not stored. Send the whole conversation in input"},
		{"conversation", "conversation is not supported: conversations are not stored. Send the whole conversation in input"},
		{"prompt", "prompt is not supported: there are no stored prompts. Send instructions and input"},
	} {
		if v := f[x.param]; v.Exists() && v.Raw != `""` {
			r.complain(x.param, x.msg)
		}
	}
	if r.flag(f["background"], "background") {
		r.complain("background", "background is not supported: responses are not stored. Wait for the answer, or stream it")
	}
	f["include"].ForEach(func(_, v gjson.Result) bool {
		if text(v) == "message.output_text.logprobs" {
			r.complain("include", "message.output_text.logprobs is not offered by this API: ask chat completions for logprobs")
		}
		return true
	})
	if n := r.number(f["top_logprobs"], "top_logprobs"); n != nil && *n > 0 {
		r.complain("top_logprobs", "top_logprobs is not offered: leave it out")
	}
}

func (r *reader) wishes(f map[string]gjson.Result) {
	w := &r.req.Wishes
	w.Temperature = r.number(f["temperature"], "temperature")
	w.TopP = r.number(f["top_p"], "top_p")
	if w.Temperature != nil && *w.Temperature < 0 {
		r.complain("temperature", "temperature must be at least 0")
	}
	n := r.number(f["max_output_tokens"], "max_output_tokens")
	if n == nil {
		return
	}
	if *n < 1 || *n > 1<<31 || *n != float64(int(*n)) {
		r.complain("max_output_tokens", "max_output_tokens must be a whole number, and at least 1")
		return
	}
	m := int(*n)
	w.MaxTokens = &m
}

// toolChoice reads a word or an object that names a tool.
func (r *reader) toolChoice(v gjson.Result) {
	switch {
	case !v.Exists():
		return
	case v.Type == gjson.String:
		r.req.ToolChoice = text(v)
	case !v.IsObject():
		r.complain("tool_choice", "tool_choice must be a word or an object")
		return
	default:
		switch kind := text(v.Get("type")); kind {
		case "function", "custom":
			r.req.ToolChoice = "function " + flatten(text(v.Get("namespace")), text(v.Get("name")))
		case "allowed_tools":
			r.req.ToolChoice = text(v.Get("mode"))
			r.req.Constrained = append(r.req.Constrained, "tool_choice allowed_tools")
		default: // a built-in tool, which is not offered
			r.complain("tool_choice", fmt.Sprintf("tool_choice asks for %q, which is not offered: choose a function", kind))
		}
	}
	if c := r.req.ToolChoice; c != "" && c != "auto" && c != "none" {
		r.req.Constrained = append(r.req.Constrained, "tool_choice "+c)
	}
}

// str reads a string; absent is "".
func (r *reader) str(v gjson.Result, param string) string {
	if v.Exists() && v.Type != gjson.Null && v.Type != gjson.String {
		r.complain(param, fmt.Sprintf("The field %q must be a string", param))
		return ""
	}
	return text(v)
}

func (r *reader) flag(v gjson.Result, param string) bool {
	if v.Exists() && v.Type != gjson.Null && !v.IsBool() {
		r.complain(param, fmt.Sprintf("The field %q must be true or false", param))
	}
	return v.Type == gjson.True
}

func (r *reader) number(v gjson.Result, param string) *float64 {
	switch {
	case !v.Exists() || v.Type == gjson.Null:
		return nil
	case v.Type != gjson.Number:
		r.complain(param, fmt.Sprintf("The field %q must be a number", param))
		return nil
	case math.IsInf(v.Num, 0): // 1e999: JSON has such numbers, no record and no server takes them
		r.complain(param, fmt.Sprintf("The field %q is too large a number", param))
		return nil
	}
	return &v.Num
}

// text is a string's value, "" for any other type. gjson drops a character
// behind half of a surrogate pair, so escapes like that are left to encoding/json.
func text(v gjson.Result) string {
	if v.Type != gjson.String {
		return ""
	}
	if strings.Contains(v.Raw, `\ud`) || strings.Contains(v.Raw, `\uD`) {
		var s string
		if json.Unmarshal([]byte(v.Raw), &s) == nil {
			return s
		}
	}
	return v.Str
}
