package chatwire

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// decode is json.Unmarshal. Of a chat request nearly all is its messages and tools, some
// tens of kilobytes in each call, and reflection over them costs ten times what reading
// them costs: they are read here, and where one is in any way unusual, by encoding/json.
// all are the body's members; nil where it was not needed to find them, and then nobody
// has looked whether it is UTF-8.
func decode(body []byte, into any) (all []call.Member, err error) {
	w, ok := into.(*Request)
	if !ok {
		return nil, json.Unmarshal(body, into)
	}
	r := requestReader{textReader: textReader{scanner: scanner{b: body, most: fulgur.MaxNesting}}}
	if !r.read() || r.torn || !r.utf8() {
		return nil, json.Unmarshal(body, into)
	}
	if len(r.taken) < len(r.all) {
		rest := make([]byte, 0, 1024)
		at := 0
		for _, i := range r.taken {
			m := r.all[i]
			rest = append(append(rest, body[at:m.Start]...), "null"...)
			at = m.End
		}
		err = json.Unmarshal(append(rest, body[at:]...), into)
	}
	w.Messages, w.Members = r.messages, r.all // in rest they are null
	if r.tools != nil {
		w.Tools = r.tools
	}
	if r.model != "" {
		w.Model = r.model
	}
	if r.maxTokens > 0 {
		n := r.maxTokens // a pointer into r would keep all of it, while the call waits
		w.MaxTokens = &n
	}
	return r.all, err
}

// requestReader reads what is long in chat requests.
type requestReader struct {
	textReader
	all      []call.Member
	taken    []int // of all: those that encoding/json need not see
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
	r.all = make([]call.Member, 0, 16)
	r.taken = make([]int, 0, 4)
	lists := 0
	for more := r.enter('}'); more && !r.odd; more = r.next('}') {
		key := r.key()
		c := r.peek()
		m, taken := call.Member{Key: key, Start: r.i}, true
		switch {
		case key == "messages" && c == '[':
			lists++
			r.list()
		case key == "tools" && c == '[':
			r.skip()
			r.odd = r.odd || r.tools != nil
			r.tools = r.b[m.Start:r.i]
		case key == "model" && c == '"' && r.model == "":
			r.field(&r.model)
		case key == "max_tokens" && c >= '1' && c <= '9' && r.maxTokens == 0:
			from, to := r.skip()
			n, err := strconv.Atoi(string(r.b[from:to]))
			taken = err == nil // what is no whole number is refused in encoding/json's words
			if taken {
				r.maxTokens = n
			}
		default:
			// Not a list, or again.
			r.odd = r.odd || key == "messages" || key == "model" && r.model != "" || key == "max_tokens" && r.maxTokens > 0
			for _, k := range [...]string{"messages", "tools", "model", "max_tokens"} {
				r.odd = r.odd || key != k && strings.EqualFold(key, k)
			}
			r.skip()
			taken = false
		}
		if taken {
			r.taken = append(r.taken, len(r.all))
		}
		m.End = r.i
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
			r.content(m)
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

// content reads a message's content: it is most of the body, so a text is not read again
// for what it says.
func (r *requestReader) content(m *Message) {
	m.plain = r.peek() == '"'
	if !m.plain {
		from, to := r.skip()
		m.Content, m.text = r.b[from:to:to], ""
		return
	}
	from := r.i
	m.text = r.plainText()
	m.Content = r.b[from:r.i:r.i]
}

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
	*to = r.plainText()
}
