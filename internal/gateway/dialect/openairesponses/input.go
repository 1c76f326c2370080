package openairesponses

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/fulgur-rl/fulgur"
)

// input reads the conversation.
func (r *reader) input(v gjson.Result) {
	switch {
	case v.Type == gjson.String:
		r.add(fulgur.Message{Role: "user", Content: text(v)})
		return
	case !v.IsArray():
		r.complain("input", "input must be a string or a list of items")
		return
	}
	i := 0
	v.ForEach(func(_, it gjson.Result) bool {
		r.item(fmt.Sprintf("input[%d]", i), it)
		i++
		return true
	})
	if i == 0 {
		r.complain("input", "input must have at least one item")
	}
}

// item is what is read of an item of the input.
type item struct {
	kind, role, callID, name, space      string
	content, summary, arguments, encoded gjson.Result
	input, output                        gjson.Result
}

func (r *reader) fields(at string, v gjson.Result) (it item) {
	v.ForEach(func(k, v gjson.Result) bool {
		str := func() string { return r.str(v, at+"."+k.Str) }
		switch k.Str {
		case "type":
			it.kind = str()
		case "role":
			it.role = str()
		case "call_id":
			it.callID = str()
		case "name":
			it.name = str()
		case "namespace":
			it.space = str()
		case "content":
			it.content = v
		case "summary":
			it.summary = v
		case "arguments":
			it.arguments = v
		case "encrypted_content":
			it.encoded = v
		case "input":
			it.input = v
		case "output":
			it.output = v
		}
		return true
	})
	return it
}

// item takes one item into the messages. What an assistant said in a row, its
// reasoning and its calls among it, is one turn.
func (r *reader) item(at string, v gjson.Result) {
	if !v.IsObject() {
		r.complain(at, at+" must be an object")
		return
	}
	it := r.fields(at, v)
	switch it.kind {
	case "", "message":
		r.message(at, &it)
	case "reasoning":
		m := r.turn()
		m.Reasoning += reasoning(&it)
	case "function_call":
		r.call(at, &it, r.str(it.arguments, at+".arguments"))
	case "custom_tool_call":
		r.call(at, &it, customArguments(r.str(it.input, at+".input")))
	case "function_call_output", "custom_tool_call_output":
		r.add(fulgur.Message{Role: "tool", ToolCallID: it.callID, Content: r.content(at+".output", it.output)})
	case "item_reference":
		r.complain(at, at+" is an item_reference, which is not supported: items are not stored. Send the item itself")
	default:
		r.req.Relayed = append(r.req.Relayed, "an input item of type "+it.kind)
	}
}

func (r *reader) message(at string, it *item) {
	switch it.role {
	case "assistant":
		m := r.turn()
		m.Content += r.content(at+".content", it.content)
	case "user", "system", "developer":
		r.add(fulgur.Message{Role: it.role, Content: r.content(at+".content", it.content)})
	default:
		r.complain(at+".role", at+".role must be user, assistant, system or developer")
	}
}

func (r *reader) call(at string, it *item, arguments string) {
	if it.name == "" {
		r.complain(at+".name", at+" has no name")
	}
	m := r.turn()
	m.ToolCalls = append(m.ToolCalls, fulgur.ToolCall{ID: it.callID, Name: flatten(it.space, it.name), Arguments: arguments})
}

func (r *reader) add(m fulgur.Message) { r.req.Messages = append(r.req.Messages, m) }

// turn is the assistant's turn that is going on, or a new one.
func (r *reader) turn() *fulgur.Message {
	if n := len(r.req.Messages); n == 0 || r.req.Messages[n-1].Role != "assistant" {
		r.add(fulgur.Message{Role: "assistant"})
	}
	return &r.req.Messages[len(r.req.Messages)-1]
}

// content is the text of a message's or an output's content: a string, a list
// of parts, or null.
func (r *reader) content(at string, v gjson.Result) string {
	switch {
	case !v.Exists() || v.Type == gjson.Null:
		return ""
	case v.Type == gjson.String:
		return text(v)
	case !v.IsArray():
		r.complain(at, at+" must be a string, a list of parts, or null")
		return ""
	}
	var b strings.Builder
	relayed := ""
	v.ForEach(func(_, part gjson.Result) bool {
		switch kind := text(part.Get("type")); kind {
		case "input_text", "output_text", "text":
			b.WriteString(r.str(part.Get("text"), at+".text"))
		case "refusal":
			b.WriteString(r.str(part.Get("refusal"), at+".refusal"))
		case "":
			r.complain(at, at+" has a part without a type")
		default:
			if relayed == "" {
				relayed = "a content block of type " + kind
			}
		}
		return true
	})
	if relayed != "" {
		r.req.Relayed = append(r.req.Relayed, relayed)
	}
	return b.String()
}

// sealPrefix marks encrypted_content that this dialect wrote.
const sealPrefix = "fulgur1."

// seal puts reasoning into encrypted_content, for clients that ask for it and
// then send nothing else back. It is not secret: the summary beside it says the same.
func seal(reasoning string) string {
	return sealPrefix + base64.RawURLEncoding.EncodeToString([]byte(reasoning))
}

// reasoning is the text of a reasoning item: what was sealed, else its content,
// else its summary. Another server's encrypted content says nothing to us.
func reasoning(it *item) string {
	if s, ok := strings.CutPrefix(text(it.encoded), sealPrefix); ok {
		if b, err := base64.RawURLEncoding.DecodeString(s); err == nil && utf8.Valid(b) {
			return string(b)
		}
	}
	var parts []string
	for _, list := range []gjson.Result{it.content, it.summary} {
		list.ForEach(func(_, p gjson.Result) bool {
			if s := text(p.Get("text")); s != "" {
				parts = append(parts, s)
			}
			return true
		})
		if len(parts) > 0 {
			break
		}
	}
	return strings.Join(parts, "\n\n")
}
