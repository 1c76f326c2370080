package anthropic

import (
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// signature stands in thinking blocks. Clients drop blocks without one, and
// send it back unread.
const signature = "ZnVsZ3Vy"

// AppendAnswer implements dialect.Dialect. Empty text is no block, as the API
// refuses it in what comes back; an answer with nothing in it has one all the
// same, since clients read the first block without asking.
func (Dialect) AppendAnswer(dst []byte, _ *call.Request, m dialect.Meta, res *call.Result) []byte {
	var reply fulgur.Message
	if res.Reply != nil {
		reply = *res.Reply
	}
	dst = appendHead(dst, m)
	n := len(dst)
	next := func() {
		if len(dst) > n {
			dst = append(dst, ',')
		}
	}
	if reply.Reasoning != "" {
		dst = append(dst, `{"type":"thinking","thinking":`...)
		dst = appendString(dst, reply.Reasoning)
		dst = append(dst, `,"signature":"`+signature+`"}`...)
	}
	if reply.Content != "" || reply.Reasoning == "" && len(reply.ToolCalls) == 0 {
		next()
		dst = append(dst, `{"type":"text","text":`...)
		dst = appendString(dst, reply.Content)
		dst = append(dst, '}')
	}
	for i, c := range reply.ToolCalls {
		next()
		dst = appendToolUse(dst, m, i, c)
		dst = appendInput(dst, c.Arguments)
		dst = append(dst, '}')
	}
	dst = append(dst, `],`...)
	dst = appendStop(dst, res, len(reply.ToolCalls) > 0)
	dst = append(dst, `,"usage":`...)
	dst = appendUsage(dst, usage(res))
	return append(dst, '}')
}

// appendHead begins a message, up to the inside of its content.
func appendHead(dst []byte, m dialect.Meta) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, "msg_"+m.ID)
	dst = append(dst, `,"type":"message","role":"assistant","model":`...)
	dst = appendString(dst, m.Model)
	return append(dst, `,"content":[`...)
}

// appendToolUse begins a tool_use block, up to its input. A call that has no id
// gets one that no other call of the conversation has: results refer to it, and
// Claude Code drops a call whose id it has seen.
func appendToolUse(dst []byte, m dialect.Meta, i int, c fulgur.ToolCall) []byte {
	if c.ID == "" {
		c.ID = "toolu_" + m.ID + "_" + strconv.Itoa(i)
	}
	dst = append(dst, `{"type":"tool_use","id":`...)
	dst = appendString(dst, c.ID)
	dst = append(dst, `,"name":`...)
	dst = appendString(dst, c.Name)
	return append(dst, `,"input":`...)
}

// appendStop appends the two fields that say why the answer ended. tool_use is
// said if and only if there is a call: clients wait for one, or would not look.
func appendStop(dst []byte, res *call.Result, tools bool) []byte {
	reason := `"end_turn"`
	sequence := ""
	switch {
	case res.Finish == "":
		reason = "null"
	case res.Finish == "length":
		reason = `"max_tokens"`
	case res.Finish == "content_filter":
		reason = `"refusal"`
	case tools:
		reason = `"tool_use"`
	case res.Stopped != "":
		reason, sequence = `"stop_sequence"`, res.Stopped
	}
	dst = append(dst, `"stop_reason":`...)
	dst = append(dst, reason...)
	dst = append(dst, `,"stop_sequence":`...)
	if sequence == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, sequence)
}

// usage is the result's, or what its tokens say: this API always has one.
func usage(res *call.Result) fulgur.Usage {
	if res.Usage != nil {
		return *res.Usage
	}
	return fulgur.Usage{PromptTokens: len(res.PromptIDs), CompletionTokens: len(res.SampledIDs)}
}

// appendUsage appends counts. In this API input_tokens are those that no cache had.
func appendUsage(dst []byte, u fulgur.Usage) []byte {
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(max(0, u.PromptTokens-u.CachedTokens)), 10)
	dst = append(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.CachedTokens), 10)
	dst = append(dst, `,"output_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.CompletionTokens), 10)
	return append(dst, '}')
}

const (
	codeContext = "context_length_exceeded"
	tooLong     = "prompt is too long"
)

// AppendError implements dialect.Dialect. The API has no codes: what programs
// branch on is the type, the status, and for a full context the message. The
// code is an extra field.
func (Dialect) AppendError(dst []byte, f dialect.Failure) []byte {
	msg := f.Message
	if f.Code == codeContext {
		if !strings.Contains(strings.ToLower(msg), tooLong) {
			msg = tooLong + ": " + msg
		}
		if !strings.Contains(msg, codeContext) {
			msg += " (" + codeContext + ")"
		}
	}
	typ := f.Type
	if typ == "" {
		typ = errorType(f.Status)
	}
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = appendString(dst, typ)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, msg)
	if f.Code != "" {
		dst = append(dst, `,"code":`...)
		dst = appendString(dst, f.Code)
	}
	return append(dst, "}}"...)
}

// errorType is what the API calls an error of a status
// (https://platform.claude.com/docs/en/api/errors).
func errorType(status int) string {
	switch status {
	case 400, 410:
		return "invalid_request_error"
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 504:
		return "timeout_error"
	case 529:
		return "overloaded_error"
	}
	return "api_error"
}

// AppendCount implements dialect.Counter.
func (Dialect) AppendCount(dst []byte, tokens int) []byte {
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(tokens), 10)
	return append(dst, '}')
}

// AppendModels implements dialect.Dialect. The API says an epoch for models
// whose date is not known.
func (Dialect) AppendModels(dst []byte, models []string) []byte {
	dst = append(dst, `{"data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"type":"model","id":`...)
		dst = appendString(dst, m)
		dst = append(dst, `,"display_name":`...)
		dst = appendString(dst, m)
		dst = append(dst, `,"created_at":"1970-01-01T00:00:00Z"}`...)
	}
	dst = append(dst, `],"has_more":false,"first_id":`...)
	if len(models) == 0 {
		return append(dst, `null,"last_id":null}`...)
	}
	dst = appendString(dst, models[0])
	dst = append(dst, `,"last_id":`...)
	dst = appendString(dst, models[len(models)-1])
	return append(dst, '}')
}
