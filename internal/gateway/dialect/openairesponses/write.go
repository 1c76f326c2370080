package openairesponses

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// out is an item of an answer's output.
type out struct {
	kind   byte // 'r' reasoning, 'm' message, 'c' call
	index  int  // output_index
	text   []byte
	callID string
	tool   toolName // as the harness says it
	closed bool
	cut    bool // the token limit ended it
}

// answer is what an answer says besides its items: it repeats the request.
type answer struct {
	req    *call.Request
	meta   dialect.Meta
	echo   map[string]gjson.Result
	sealed bool                // the client wants encrypted_content
	names  map[string]toolName // of namesOf; nil until a tool is called
}

func newAnswer(req *call.Request, m dialect.Meta) *answer {
	a := &answer{req: req, meta: m, echo: map[string]gjson.Result{}}
	gjson.ParseBytes(req.Body).ForEach(func(k, v gjson.Result) bool {
		if k.Str != "input" && v.Type != gjson.Null {
			a.echo[k.Str] = v
		}
		return true
	})
	a.echo["include"].ForEach(func(_, v gjson.Result) bool {
		a.sealed = a.sealed || v.Str == "reasoning.encrypted_content"
		return true
	})
	return a
}

// called is what the harness calls the tool that the model called flat.
func (a *answer) called(flat string) toolName {
	if a.names == nil {
		a.names = namesOf(a.echo["tools"])
	}
	if n, ok := a.names[flat]; ok {
		return n
	}
	return toolName{name: flat}
}

// items makes the output of a whole reply. It is never empty: the harness is to
// send something back for this turn.
func (a *answer) items(m fulgur.Message) []*out {
	var list []*out
	if m.Reasoning != "" {
		list = append(list, &out{kind: 'r', text: []byte(m.Reasoning)})
	}
	if m.Content != "" || m.Reasoning == "" && len(m.ToolCalls) == 0 {
		list = append(list, &out{kind: 'm', text: []byte(m.Content)})
	}
	for _, c := range m.ToolCalls {
		list = append(list, &out{kind: 'c', text: []byte(c.Arguments), callID: c.ID, tool: a.called(c.Name)})
	}
	for i, it := range list {
		it.index = i
	}
	return list
}

// AppendAnswer implements dialect.Dialect. The record of a streamed call leaves
// out the request's tools and instructions, which it has beside it.
func (d Dialect) AppendAnswer(dst []byte, req *call.Request, m dialect.Meta, res *call.Result) []byte {
	switch {
	case res.Raw != nil && res.Wire == Name:
		return append(dst, res.Raw...)
	case res.Status >= 400:
		return d.AppendError(dst, upstreamFailure(res))
	}
	var reply fulgur.Message
	if res.Reply != nil {
		reply = *res.Reply
	}
	a := newAnswer(req, m)
	items := a.items(reply)
	items[len(items)-1].cut = incomplete(res.Finish) != ""
	return a.append(dst, end(res), items, !req.Stream)
}

// state is how far a response is, and how it came out.
type state struct {
	status string // in_progress, completed, incomplete, failed
	reason string // of incomplete
	usage  *fulgur.Usage
	fail   *dialect.Failure
}

func end(res *call.Result) state {
	s := state{status: "completed", usage: res.Usage}
	if s.reason = incomplete(res.Finish); s.reason != "" {
		s.status = "incomplete"
	}
	return s
}

func incomplete(finish string) string {
	switch finish {
	case "length":
		return "max_output_tokens"
	case "content_filter":
		return "content_filter"
	}
	return ""
}

// append appends a response object. whole: with the request's tools and
// instructions, which may be long.
func (a *answer) append(dst []byte, s state, items []*out, whole bool) []byte {
	dst = str(append(dst, `{"id":`...), "resp_"+a.meta.ID)
	dst = append(dst, `,"object":"response","created_at":`...)
	dst = strconv.AppendInt(dst, a.meta.Created, 10)
	dst = str(append(dst, `,"status":`...), s.status)
	dst = append(dst, `,"background":false,"error":`...)
	if s.fail != nil {
		dst = str(append(dst, `{"code":`...), failedCode(s.fail))
		dst = append(str(append(dst, `,"message":`...), s.fail.Message), '}')
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"incomplete_details":`...)
	if s.reason != "" {
		dst = append(str(append(dst, `{"reason":`...), s.reason), '}')
	} else {
		dst = append(dst, "null"...)
	}
	dst = a.repeat(dst, "instructions", "null", whole)
	dst = a.repeat(dst, "max_output_tokens", "null", true)
	dst = str(append(dst, `,"model":`...), a.meta.Model)
	dst = append(dst, `,"output":[`...)
	for i, it := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = a.item(dst, it, true)
	}
	dst = append(dst, `]`...)
	dst = a.repeat(dst, "parallel_tool_calls", "true", true)
	dst = append(dst, `,"previous_response_id":null`...)
	dst = a.repeat(dst, "reasoning", `{"effort":null,"summary":null}`, true)
	dst = append(dst, `,"store":false`...)
	dst = a.repeat(dst, "temperature", "1", true)
	dst = a.repeat(dst, "text", `{"format":{"type":"text"}}`, true)
	dst = a.repeat(dst, "tool_choice", `"auto"`, true)
	dst = a.repeat(dst, "tools", "[]", whole)
	dst = a.repeat(dst, "top_p", "1", true)
	dst = append(dst, `,"truncation":"disabled","usage":`...)
	dst = appendUsage(dst, s.usage)
	dst = a.repeat(dst, "user", "null", true)
	dst = a.repeat(dst, "metadata", "{}", true)
	return append(dst, '}')
}

// repeat appends a field as the request has it, or its default.
func (a *answer) repeat(dst []byte, key, otherwise string, asked bool) []byte {
	dst = append(str(append(dst, ','), key), ':')
	raw := a.echo[key].Raw
	switch {
	case raw == "" || !asked:
		return append(dst, otherwise...)
	case bytes.ContainsAny([]byte(raw), "\r\n"): // an event is one line
		var b bytes.Buffer
		if json.Compact(&b, []byte(raw)) == nil {
			return append(dst, b.Bytes()...)
		}
	}
	return append(dst, raw...)
}

func (a *answer) id(it *out) string {
	prefix := "fc_"
	switch {
	case it.kind == 'r':
		prefix = "rs_"
	case it.kind == 'm':
		prefix = "msg_"
	case it.tool.custom:
		prefix = "ctc_"
	}
	return prefix + a.meta.ID + "_" + strconv.Itoa(it.index)
}

// item appends an item: as it is at its end, or as it is when it is added.
func (a *answer) item(dst []byte, it *out, done bool) []byte {
	status := "in_progress"
	switch {
	case it.cut:
		status = "incomplete"
	case done:
		status = "completed"
	}
	dst = str(append(dst, `{"id":`...), a.id(it))
	switch it.kind {
	case 'r':
		dst = append(dst, `,"type":"reasoning","summary":[`...)
		if done {
			dst = appendSummary(dst, it.text)
		}
		dst = append(dst, ']')
		if done && a.sealed {
			dst = str(append(dst, `,"encrypted_content":`...), seal(string(it.text)))
		}
		return append(dst, '}')
	case 'm':
		dst = str(append(dst, `,"type":"message","status":`...), status)
		dst = append(dst, `,"role":"assistant","content":[`...)
		if done {
			dst = appendPart(dst, it.text)
		}
		return append(dst, "]}"...)
	}
	return a.call(dst, it, status, done)
}

func (a *answer) call(dst []byte, it *out, status string, done bool) []byte {
	kind, field := "function_call", "arguments"
	if it.tool.custom {
		kind, field = "custom_tool_call", "input"
	}
	dst = str(append(dst, `,"type":`...), kind)
	dst = str(append(dst, `,"status":`...), status)
	callID := it.callID
	if callID == "" {
		callID = "call_" + a.meta.ID + "_" + strconv.Itoa(it.index)
	}
	dst = str(append(dst, `,"call_id":`...), callID)
	if it.tool.space != "" {
		dst = str(append(dst, `,"namespace":`...), it.tool.space)
	}
	dst = str(append(dst, `,"name":`...), it.tool.name)
	dst = append(str(append(dst, ','), field), ':')
	value := ""
	if done {
		value = it.said()
	}
	return append(str(dst, value), '}')
}

// said is a call's arguments, word by word, or a custom tool's input.
func (it *out) said() string {
	if it.tool.custom {
		return customInput(string(it.text))
	}
	return string(it.text)
}

func appendSummary(dst, text []byte) []byte {
	return append(str(append(dst, `{"type":"summary_text","text":`...), string(text)), '}')
}

func appendPart(dst, text []byte) []byte {
	dst = str(append(dst, `{"type":"output_text","text":`...), string(text))
	return append(dst, `,"annotations":[],"logprobs":[]}`...)
}

func appendUsage(dst []byte, u *fulgur.Usage) []byte {
	if u == nil {
		return append(dst, "null"...)
	}
	dst = strconv.AppendInt(append(dst, `{"input_tokens":`...), int64(u.PromptTokens), 10)
	dst = strconv.AppendInt(append(dst, `,"input_tokens_details":{"cached_tokens":`...), int64(u.CachedTokens), 10)
	dst = strconv.AppendInt(append(dst, `},"output_tokens":`...), int64(u.CompletionTokens), 10)
	dst = strconv.AppendInt(append(dst, `,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":`...), int64(u.PromptTokens+u.CompletionTokens), 10)
	return append(dst, '}')
}

func str(dst []byte, s string) []byte { return gjson.AppendJSONString(dst, s) }

// upstreamFailure reads the error of a model server that speaks another dialect.
func upstreamFailure(res *call.Result) dialect.Failure {
	f := dialect.Failure{Status: res.Status, Type: "api_error", Message: res.Fault}
	if res.Status < 500 {
		f.Type = "invalid_request_error"
	}
	if res.Status == 429 {
		f.Type = "rate_limit_error"
	}
	if json.Valid(res.Raw) { // gjson takes any depth, on the stack
		e := gjson.ParseBytes(res.Raw)
		if inner := e.Get("error"); inner.IsObject() {
			e = inner
		}
		for _, x := range []struct {
			to   *string
			from string
		}{{&f.Message, "message"}, {&f.Type, "type"}, {&f.Code, "code"}, {&f.Param, "param"}} {
			if v := text(e.Get(x.from)); v != "" {
				*x.to = v
			}
		}
	}
	if f.Message == "" {
		f.Message = "The model server answered with status " + strconv.Itoa(res.Status)
	}
	return f
}

// failedCode is the code of a failed response: of the few that clients know,
// the one that says whether to try again.
func failedCode(f *dialect.Failure) string {
	switch {
	case f.Code == "context_length_exceeded":
		return f.Code
	case f.Status == 429:
		return "rate_limit_exceeded"
	case f.Type == "invalid_request_error":
		return "invalid_prompt"
	}
	return "server_error"
}

// AppendError implements dialect.Dialect: OpenAI's shape, with the one field
// more that Anthropic's SDKs look for.
func (Dialect) AppendError(dst []byte, f dialect.Failure) []byte {
	return append(appendErrorObject(append(dst, `{"type":"error","error":`...), f), '}')
}

func appendErrorObject(dst []byte, f dialect.Failure) []byte {
	dst = str(append(dst, `{"message":`...), f.Message)
	dst = str(append(dst, `,"type":`...), f.Type)
	dst = orNull(append(dst, `,"param":`...), f.Param)
	dst = orNull(append(dst, `,"code":`...), f.Code)
	return append(dst, '}')
}

func orNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return str(dst, s)
}

// AppendModels implements dialect.Dialect.
func (Dialect) AppendModels(dst []byte, models []string) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = str(append(dst, `{"id":`...), m)
		dst = append(dst, `,"object":"model","created":0,"owned_by":"fulgur"}`...)
	}
	return append(dst, "]}"...)
}
