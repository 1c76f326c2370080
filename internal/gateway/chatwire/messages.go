package chatwire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// decode is json.Unmarshal. Of a chat request nearly all is its messages and tools, some
// tens of kilobytes in each call, and reflection over them costs ten times what reading
// them costs: they are read here, and where one is in any way unusual, by encoding/json.
// all are the body's members; nil where it was not needed to find them.
func decode(body []byte, into any) (all []member, err error) {
	w, ok := into.(*Request)
	if !ok {
		return nil, json.Unmarshal(body, into)
	}
	r := requestReader{scanner: scanner{b: body}}
	if !r.read() {
		return nil, json.Unmarshal(body, into)
	}
	if r.taken < len(r.all) {
		rest := make([]byte, 0, 1024)
		at := 0
		for _, m := range r.all {
			if m.taken {
				rest = append(append(rest, body[at:m.start]...), "null"...)
				at = m.end
			}
		}
		err = json.Unmarshal(append(rest, body[at:]...), into)
	}
	w.Messages = r.messages // in rest they are null
	if r.tools != nil {
		w.Tools = r.tools
	}
	if r.model != "" {
		w.Model = r.model
	}
	if r.maxTokens > 0 {
		w.MaxTokens = &r.maxTokens
	}
	return r.all, err
}

// requestReader reads what is long in chat requests.
type requestReader struct {
	scanner
	all      []member
	taken    int // members that encoding/json need not see
	messages []Message
	tools    []byte
	odd      bool // it is not as usual

	// What nearly all requests have besides: with no more, all of it is read here.
	model     string
	maxTokens int
}

// read reads a request; false: it is to be read by other means.
func (r *requestReader) read() bool {
	if r.peek() != '{' {
		return false
	}
	r.all = make([]member, 0, 16)
	lists := 0
	for more := r.enter('}'); more && !r.odd; more = r.next('}') {
		key := r.key()
		c := r.peek()
		m := member{key: key, start: r.i}
		switch {
		case key == "messages" && c == '[':
			lists++
			r.list()
			m.taken = true
		case key == "tools" && c == '[':
			r.skip()
			r.odd = r.odd || r.tools != nil
			r.tools = r.b[m.start:r.i]
			m.taken = true
		case key == "model" && c == '"' && r.model == "":
			r.field(&r.model)
			m.taken = true
		case key == "max_tokens" && c >= '1' && c <= '9' && r.maxTokens == 0:
			from, to := r.skip()
			n, err := strconv.Atoi(string(r.b[from:to]))
			m.taken = err == nil // what is no whole number is refused in encoding/json's words
			if m.taken {
				r.maxTokens = n
			}
		default:
			// Not a list, or again.
			r.odd = r.odd || key == "messages" || key == "model" && r.model != "" || key == "max_tokens" && r.maxTokens > 0
			for _, k := range [...]string{"messages", "tools", "model", "max_tokens"} {
				r.odd = r.odd || key != k && strings.EqualFold(key, k)
			}
			r.skip()
		}
		if m.taken {
			r.taken++
		}
		m.end = r.i
		r.all = append(r.all, m)
	}
	return lists == 1 && !r.odd && r.ended()
}

// list reads the messages.
func (r *requestReader) list() {
	r.messages = make([]Message, 0, 8)
	for more := r.enter(']'); more && !r.odd; more = r.next(']') {
		if r.peek() != '{' {
			r.odd = true
			return
		}
		r.messages = append(r.messages, Message{})
		r.message(&r.messages[len(r.messages)-1])
	}
}

func (r *requestReader) message(m *Message) {
	for more := r.enter('}'); more && !r.odd; more = r.next('}') {
		switch key := r.key(); key {
		case "content":
			from, to := r.skip()
			m.Content = r.b[from:to:to]
		case "tool_calls":
			r.toolCalls(m)
		case "role":
			r.field(&m.Role)
		case "reasoning_content":
			r.field(&m.ReasoningContent)
		case "reasoning":
			r.field(&m.Reasoning)
		case "tool_call_id":
			r.field(&m.ToolCallID)
		case "name":
			r.field(&m.Name)
		default:
			r.other(key, "role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name")
		}
	}
}

func (r *requestReader) toolCalls(m *Message) {
	switch c := r.peek(); {
	case c == 'n' && m.ToolCalls == nil:
		r.skip()
		return
	case c != '[' || m.ToolCalls != nil: // a key that stands twice
		r.odd = true
		return
	}
	m.ToolCalls = []ToolCall{}
	for more := r.enter(']'); more && !r.odd; more = r.next(']') {
		if r.peek() != '{' {
			r.odd = true
			return
		}
		m.ToolCalls = append(m.ToolCalls, ToolCall{})
		r.toolCall(&m.ToolCalls[len(m.ToolCalls)-1])
	}
}

func (r *requestReader) toolCall(c *ToolCall) {
	for more := r.enter('}'); more && !r.odd; more = r.next('}') {
		switch key := r.key(); key {
		case "id":
			r.field(&c.ID)
		case "type":
			r.field(&c.Type)
		case "function":
			if r.peek() != '{' {
				r.odd = true
				return
			}
			for more := r.enter('}'); more && !r.odd; more = r.next('}') {
				switch key := r.key(); key {
				case "name":
					r.field(&c.Function.Name)
				case "arguments":
					r.field(&c.Function.Arguments)
				default:
					r.other(key, "name", "arguments")
				}
			}
		default:
			r.other(key, "id", "type", "function", "index")
		}
	}
}

// other passes over a member that is none of those; encoding/json takes these in any case.
func (r *requestReader) other(key string, names ...string) {
	for _, n := range names {
		r.odd = r.odd || strings.EqualFold(key, n)
	}
	r.skip()
}

// words are what short fields mostly say: they take no memory then.
var words = [...]string{"user", "assistant", "tool", "system", "function", "developer"}

// field reads a string; null leaves what is there.
func (r *requestReader) field(to *string) {
	switch r.peek() {
	case '"':
	case 'n':
		r.skip()
		return
	default:
		r.odd = true
		return
	}
	start := r.i
	if from, end, escaped := r.quoted(); !escaped {
		in := r.cut(from, end)
		for _, w := range words {
			if in == w {
				*to = w
				return
			}
		}
	}
	if r.bad {
		return
	}
	var err error
	if *to, err = Unquote(r.b[start:r.i]); err != nil {
		r.odd = true
	}
}

// Unquote reads a valid JSON string, as json.Unmarshal does.
func Unquote(raw []byte) (string, error) {
	in := raw[1 : len(raw)-1]
	i := bytes.IndexByte(in, '\\')
	if i < 0 {
		if !validUTF8(in) {
			return slowly(raw)
		}
		return string(in), nil
	}
	// Eight bytes at a time are copied, as far as there is no escape in them: texts of
	// code have one in every line or two.
	out := make([]byte, len(in)+8)
	copy(out, in[:i])
	first, n, high := i, i, uint64(0)
	for i < len(in) {
		if i+8 <= len(in) {
			x := load(in, i)
			high |= x
			binary.LittleEndian.PutUint64(out[n:], x)
			k := bits.TrailingZeros64(zeroes(x^ones*'\\')) / 8
			i, n = i+k, n+k
			if k == 8 {
				continue
			}
		} else if c := in[i]; c != '\\' {
			high |= uint64(c)
			out[n] = c
			i, n = i+1, n+1
			continue
		}
		c := in[i+1]
		i += 2
		switch c {
		case 'n':
			c = '\n'
		case 't':
			c = '\t'
		case 'r':
			c = '\r'
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'u':
			r := hex4(in[i:])
			if utf16.IsSurrogate(r) {
				return slowly(raw)
			}
			n += utf8.EncodeRune(out[n:], r)
			i += 4
			continue
		} // " \ / stand for themselves
		out[n] = c
		n++
	}
	if (high&highs != 0 || !validUTF8(in[:first])) && !validUTF8(in) {
		return slowly(raw)
	}
	return unsafe.String(unsafe.SliceData(out), n), nil
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
