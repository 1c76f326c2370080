package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"

	"github.com/fulgur-rl/fulgur"
)

// turnsFormat starts the section of messages, tools and reply; a section that
// starts with { is the JSON of older records. JSON took a third of the time that a
// call's record took.
const turnsFormat = 1

var errTurns = errors.New("the messages are cut")

// size is about how many bytes appendTurns appends, but for those of tools.
func (t *turns) size() int {
	n := 64
	for i := range t.Messages {
		n += messageSize(&t.Messages[i])
	}
	return n
}

// appendTurns also says where the messages start and end in what it appended.
func appendTurns(b []byte, t *turns) (out []byte, from, to int) {
	start := len(b)
	b = append(b, turnsFormat)
	b = binary.AppendUvarint(b, uint64(len(t.Messages)))
	from = len(b) - start
	for i := range t.Messages {
		b = appendMessage(b, &t.Messages[i])
	}
	to = len(b) - start
	b = binary.AppendUvarint(b, uint64(len(t.Tools)))
	for i := range t.Tools {
		tool := &t.Tools[i]
		b = appendText(b, tool.Name)
		b = appendText(b, tool.Description)
		b = appendText(b, tool.Schema)
		b = appendText(b, tool.Raw)
	}
	if t.Reply == nil {
		return append(b, 0), from, to
	}
	return appendMessage(append(b, 1), t.Reply), from, to
}

func appendMessage(b []byte, m *fulgur.Message) []byte {
	for _, s := range [...]string{m.Role, m.Content, m.Reasoning, m.ToolCallID, m.Name} {
		b = appendText(b, s)
	}
	b = binary.AppendUvarint(b, uint64(len(m.ToolCalls)))
	for i := range m.ToolCalls {
		c := &m.ToolCalls[i]
		b = appendText(b, c.ID)
		b = appendText(b, c.Name)
		b = appendText(b, c.Arguments)
	}
	return b
}

func appendText[T ~string | ~[]byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// readTurns reads either form. Messages share the memory of those of before,
// an earlier call's, where they say the same: a history is then in memory once too.
func readTurns(b []byte, before []fulgur.Message) (t turns, err error) {
	if len(b) == 0 || b[0] != turnsFormat {
		return t, json.Unmarshal(b, &t)
	}
	r := &cutter{b: b[1:]}
	if n := r.count(); n > 0 {
		t.Messages = make([]fulgur.Message, 0, min(n, len(before)+64))
		for ; n > 0 && !r.bad; n-- {
			var like fulgur.Message
			if k := len(t.Messages); k < len(before) {
				like = before[k]
			}
			t.Messages = append(t.Messages, r.message(&like))
		}
	}
	for n := r.count(); n > 0 && !r.bad; n-- {
		tool := fulgur.Tool{Name: r.text(), Description: r.text()}
		tool.Schema, tool.Raw = r.raw(), r.raw()
		t.Tools = append(t.Tools, tool)
	}
	if r.count() == 1 {
		m := r.message(&fulgur.Message{})
		t.Reply = &m
	}
	if r.bad || len(r.b) > 0 {
		return turns{}, errTurns
	}
	return t, nil
}

// cutter reads from the front of b; bad says that it was not what it should be.
type cutter struct {
	b   []byte
	bad bool
}

// count reads a number of things that take at least a byte each.
func (r *cutter) count() int {
	n, w := binary.Uvarint(r.b)
	if w <= 0 || n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[w:]
	return int(n)
}

func (r *cutter) bytes() []byte {
	n := r.count()
	if n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *cutter) text() string { return string(r.bytes()) }

// same is text, and s itself where that is the same.
func (r *cutter) same(s string) string {
	if b := r.bytes(); string(b) != s {
		return string(b)
	}
	return s
}

func (r *cutter) raw() json.RawMessage {
	if b := r.bytes(); len(b) > 0 {
		return b
	}
	return nil
}

func (r *cutter) message(like *fulgur.Message) fulgur.Message {
	m := fulgur.Message{Role: r.same(like.Role), Content: r.same(like.Content), Reasoning: r.same(like.Reasoning), ToolCallID: r.same(like.ToolCallID), Name: r.same(like.Name)}
	for n := r.count(); n > 0 && !r.bad; n-- {
		var c fulgur.ToolCall
		if k := len(m.ToolCalls); k < len(like.ToolCalls) {
			c = like.ToolCalls[k]
		}
		m.ToolCalls = append(m.ToolCalls, fulgur.ToolCall{ID: r.same(c.ID), Name: r.same(c.Name), Arguments: r.same(c.Arguments)})
	}
	return m
}
