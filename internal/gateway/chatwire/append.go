package chatwire

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD; nothing is escaped that need not be.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == '\u2028' || r == '\u2029' {
			dst = append(dst, s[start:i]...)
			switch r {
			case '\u2028':
				dst = append(dst, `\u2028`...)
			case '\u2029':
				dst = append(dst, `\u2029`...)
			default:
				dst = append(dst, `\ufffd`...)
			}
			start = i + n
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// AppendFloat appends a JSON number, null if v is not finite: JSON has no NaN.
func AppendFloat(dst []byte, v float64) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, 64)
}

// AppendFloat32 is AppendFloat with the fewest digits that give v back.
func AppendFloat32(dst []byte, v float32) []byte {
	if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, float64(v), 'g', -1, 32)
}

// AppendIDs appends a list of token ids.
func AppendIDs(dst []byte, ids []int32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	return append(dst, ']')
}

// AppendUsage appends how many tokens a call took.
func AppendUsage(dst []byte, u *fulgur.Usage) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.CompletionTokens), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens+u.CompletionTokens), 10)
	dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.CachedTokens), 10)
	return append(dst, "}}"...)
}

// AppendFinish appends a finish reason; "" is null.
func AppendFinish(dst []byte, finish string) []byte { return appendOrNull(dst, finish) }

func appendOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendString(dst, s)
}

// AppendError appends an error body in OpenAI's shape, with the one field more
// that Anthropic's SDKs look for.
func AppendError(dst []byte, message, kind, param, code string) []byte {
	dst = append(dst, `{"type":"error","error":{"message":`...)
	dst = AppendString(dst, message)
	dst = append(dst, `,"type":`...)
	dst = AppendString(dst, kind)
	dst = append(dst, `,"param":`...)
	dst = appendOrNull(dst, param)
	dst = append(dst, `,"code":`...)
	dst = appendOrNull(dst, code)
	return append(dst, "}}"...)
}

// AppendModels appends a list of models.
func AppendModels(dst []byte, models []string) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"id":`...)
		dst = AppendString(dst, m)
		dst = append(dst, `,"object":"model","created":0,"owned_by":"fulgur"}`...)
	}
	return append(dst, "]}"...)
}

// AppendToolCalls appends the member tool_calls, with the comma before it, as a chat
// message has it; nothing where there is no call.
func AppendToolCalls(dst []byte, calls []fulgur.ToolCall) []byte {
	for i, c := range calls {
		if i == 0 {
			dst = append(dst, `,"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"id":`...)
		dst = AppendString(dst, c.ID)
		dst = append(dst, `,"type":"function","function":{"name":`...)
		dst = AppendString(dst, c.Name)
		dst = append(dst, `,"arguments":`...)
		dst = AppendString(dst, c.Arguments)
		dst = append(dst, "}}"...)
		if i == len(calls)-1 {
			dst = append(dst, ']')
		}
	}
	return dst
}
