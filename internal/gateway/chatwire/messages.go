package chatwire

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// decode is json.Unmarshal. Of a chat request nearly all is its messages, some tens
// of kilobytes in each call, and reflection over them costs ten times what reading
// them costs: they are read here, and where one is in any way unusual, by encoding/json.
func decode(body []byte, into any) error {
	w, ok := into.(*Request)
	if !ok || !valid(unsafe.String(unsafe.SliceData(body), len(body))) {
		return json.Unmarshal(body, into)
	}
	rest, list := cutMessages(body)
	if rest == nil {
		return json.Unmarshal(body, into)
	}
	messages, ok := readMessages(list)
	if !ok {
		return json.Unmarshal(body, into)
	}
	err := json.Unmarshal(rest, into)
	w.Messages = messages // in rest they are null
	return err
}

// cutMessages takes the one list of messages out of valid JSON; nil if there is none.
func cutMessages(body []byte) (rest, list []byte) {
	all, _, err := members(body)
	if err != nil {
		return nil, nil
	}
	at := -1
	for i, m := range all {
		if strings.EqualFold(m.key, "messages") {
			if at >= 0 || m.key != "messages" {
				return nil, nil
			}
			at = i
		}
	}
	if at < 0 || body[all[at].start] != '[' {
		return nil, nil
	}
	m := all[at]
	rest = make([]byte, 0, len(body)-(m.end-m.start)+len("null"))
	rest = append(append(rest, body[:m.start]...), "null"...)
	return append(rest, body[m.end:]...), body[m.start:m.end]
}

// readMessages reads a valid list of messages; false: by other means.
func readMessages(list []byte) (out []Message, ok bool) {
	out = make([]Message, 0, bytes.Count(list, []byte(`"role"`)))
	for i := space(list, 1); i < len(list) && list[i] != ']'; {
		if list[i] == ',' {
			i = space(list, i+1)
			continue
		}
		end := value(list, i)
		if end <= i || list[i] != '{' {
			return nil, false
		}
		out = append(out, Message{})
		if !out[len(out)-1].read(list[i:end]) {
			return nil, false
		}
		i = space(list, end)
	}
	return out, true
}

// fields are the names of a message's fields: encoding/json takes them in any case.
var fields = [...]string{"role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name"}

func (m *Message) read(object []byte) bool {
	all, _, err := members(object)
	if err != nil {
		return false
	}
	for _, f := range all {
		raw := object[f.start:f.end]
		var to *string
		switch f.key {
		case "content":
			m.Content = raw
			continue
		case "tool_calls":
			if json.Unmarshal(raw, &m.ToolCalls) != nil {
				return false
			}
			continue
		case "role":
			to = &m.Role
		case "reasoning_content":
			to = &m.ReasoningContent
		case "reasoning":
			to = &m.Reasoning
		case "tool_call_id":
			to = &m.ToolCallID
		case "name":
			to = &m.Name
		default:
			for _, name := range fields {
				if strings.EqualFold(f.key, name) {
					return false
				}
			}
			continue
		}
		switch raw[0] {
		case '"':
			if *to, err = Unquote(raw); err != nil {
				return false
			}
		case 'n': // null leaves it
		default:
			return false
		}
	}
	return true
}

// Unquote reads a valid JSON string, as json.Unmarshal does.
func Unquote(raw []byte) (string, error) {
	body := raw[1 : len(raw)-1]
	i := bytes.IndexByte(body, '\\')
	if !utf8.Valid(body) {
		return slowly(raw)
	}
	if i < 0 {
		return string(body), nil
	}
	var out strings.Builder
	out.Grow(len(body))
	for ; i >= 0; i = bytes.IndexByte(body, '\\') {
		out.Write(body[:i])
		c := body[i+1]
		body = body[i+2:]
		switch c {
		case 'n':
			out.WriteByte('\n')
		case 't':
			out.WriteByte('\t')
		case 'r':
			out.WriteByte('\r')
		case 'b':
			out.WriteByte('\b')
		case 'f':
			out.WriteByte('\f')
		case 'u':
			r := hex4(body)
			if utf16.IsSurrogate(r) {
				return slowly(raw)
			}
			out.WriteRune(r)
			body = body[4:]
		default: // " \ /
			out.WriteByte(c)
		}
	}
	out.Write(body)
	return out.String(), nil
}

func slowly(raw []byte) (s string, err error) {
	err = json.Unmarshal(raw, &s)
	return s, err
}

// hex4 reads the four hexadecimal digits in front of b.
func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			c -= '0'
		case c <= 'F':
			c -= 'A' - 10
		default:
			c -= 'a' - 10
		}
		r = r<<4 | rune(c)
	}
	return r
}
