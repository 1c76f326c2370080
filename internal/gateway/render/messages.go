package render

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/jinja"
)

const opRender = "render the conversation"

// text runs the template over messages and tools.
func (r *Renderer) text(msgs []fulgur.Message, tools []fulgur.Tool, generate bool) (jinja.Output, error) {
	ms := make([]jinja.Value, len(msgs))
	for i, m := range msgs {
		if m.Role == "" {
			return jinja.Output{}, fulgur.E(fulgur.KindInvalid, opRender, fmt.Sprintf("message %d has no role", i), nil)
		}
		ms[i] = r.message(m)
	}
	ts, err := r.toolValues(tools)
	if err != nil {
		return jinja.Output{}, err
	}
	return r.run(jinja.NewList(ms...), ts, generate)
}

func (r *Renderer) run(msgs, tools jinja.Value, generate bool) (jinja.Output, error) {
	vars := jinja.NewDict().Set("messages", msgs).Set("tools", tools).Set("documents", nil).Set("add_generation_prompt", generate)
	for _, v := range r.vars {
		vars.Set(v.name, v.v)
	}
	out, err := r.tmpl.Render(vars, jinja.RenderOptions{Now: r.opt.Now, Limits: r.opt.Limits})
	if err != nil {
		return out, fulgur.E(fulgur.KindInvalid, opRender, explain(err), err)
	}
	return out, nil
}

// explain says whose fault a template's failure may be.
func explain(err error) string {
	var e *jinja.Error
	if !errors.As(err, &e) {
		return "the model's chat template failed"
	}
	switch e.Kind {
	case jinja.KindRaise:
		return "the model's chat template refuses these messages: " + e.Msg
	case jinja.KindLimit:
		return fmt.Sprintf("the model's chat template used too much, at line %d: %s", e.Line, e.Msg)
	}
	return fmt.Sprintf("the model's chat template can't render these messages or tools (line %d: %s)", e.Line, e.Msg)
}

// message turns a message into what chat templates expect: OpenAI's form.
func (r *Renderer) message(m fulgur.Message) jinja.Value {
	d := jinja.NewDict().Set("role", role(m.Role))
	if m.Content == "" && len(m.ToolCalls) > 0 && r.nilEmpty {
		d.Set("content", nil)
	} else {
		d.Set("content", jinja.Data(m.Content))
	}
	if m.Reasoning != "" { // templates ask for one name or the other
		d.Set("reasoning_content", jinja.Data(m.Reasoning)).Set("thinking", jinja.Data(m.Reasoning))
	}
	if len(m.ToolCalls) > 0 {
		calls := make([]jinja.Value, len(m.ToolCalls))
		for i, c := range m.ToolCalls {
			call := jinja.NewDict()
			if c.ID != "" {
				call.Set("id", jinja.Data(c.ID))
			}
			calls[i] = call.Set("type", jinja.Text("function")).
				Set("function", jinja.NewDict().Set("name", jinja.Data(c.Name)).Set("arguments", r.arguments(c.Arguments)))
		}
		d.Set("tool_calls", jinja.NewList(calls...))
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", jinja.Data(m.ToolCallID))
	}
	if m.Name != "" {
		d.Set("name", jinja.Data(m.Name))
	}
	return d
}

// role is text of the template where it is one of the usual ones.
func role(s string) jinja.Value {
	switch s {
	case "system", "developer", "user", "assistant", "tool":
		return jinja.Text(s)
	}
	return jinja.Data(s)
}

// arguments are an object in order, or the text where the template wants that,
// or where it is no JSON.
func (r *Renderer) arguments(s string) jinja.Value {
	if r.rawArgs {
		return jinja.Data(s)
	}
	if s == "" {
		return jinja.NewDict()
	}
	v, err := jinja.FromJSON([]byte(s))
	if err != nil {
		return jinja.Data(s)
	}
	return v
}

// toolsCache keeps the last tools: a harness sends the same ones in each call.
type toolsCache struct {
	tools []fulgur.Tool
	v     jinja.Value
}

func sameTools(a, b []fulgur.Tool) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Description != b[i].Description || !bytes.Equal(a[i].Schema, b[i].Schema) || !bytes.Equal(a[i].Raw, b[i].Raw) {
			return false
		}
	}
	return true
}

// toolValues turns tools into OpenAI's form. None at all are none.
func (r *Renderer) toolValues(tools []fulgur.Tool) (jinja.Value, error) {
	if len(tools) == 0 {
		return nil, nil
	}
	if c := r.lastTools.Load(); c != nil && sameTools(c.tools, tools) {
		return c.v, nil
	}
	out := make([]jinja.Value, len(tools))
	kept := make([]fulgur.Tool, len(tools))
	for i, t := range tools {
		v, err := toolValue(t)
		if err != nil {
			return nil, fulgur.E(fulgur.KindInvalid, opRender, fmt.Sprintf("tool %d (%s) is no valid tool: its JSON can't be read", i, t.Name), err)
		}
		out[i] = v
		t.Schema, t.Raw = bytes.Clone(t.Schema), bytes.Clone(t.Raw)
		kept[i] = t
	}
	v := jinja.NewList(out...)
	r.lastTools.Store(&toolsCache{kept, v})
	return v, nil
}

func toolValue(t fulgur.Tool) (jinja.Value, error) {
	if len(t.Raw) > 0 {
		v, err := jinja.FromJSON(t.Raw)
		if err != nil {
			return nil, err
		}
		if d, ok := v.(*jinja.Dict); ok {
			if _, ok := d.Get("function"); ok {
				return d, nil
			}
		}
	}
	f := jinja.NewDict().Set("name", jinja.Data(t.Name))
	if t.Description != "" {
		f.Set("description", jinja.Data(t.Description))
	}
	if len(t.Schema) > 0 {
		schema, err := jinja.FromJSON(t.Schema)
		if err != nil {
			return nil, err
		}
		f.Set("parameters", schema)
	}
	return jinja.NewDict().Set("type", jinja.Text("function")).Set("function", f), nil
}

// Continue returns the tokens of a prompt whose last message, the assistant's,
// is to be gone on with: the rendering ends behind its content. A template that
// does not show that content is KindInvalid.
func (r *Renderer) Continue(msgs []fulgur.Message, tools []fulgur.Tool) ([]int32, error) {
	if len(msgs) == 0 {
		return nil, fulgur.E(fulgur.KindInvalid, opRender, "there is no message to go on with", nil)
	}
	out, err := r.text(msgs, tools, false)
	if err == nil {
		out, err = cutBehind(out, msgs[len(msgs)-1].Content)
	}
	if err != nil {
		return nil, err
	}
	return r.encode(nil, out, 0), nil
}

// cutBehind ends a rendering behind the last place where content stands, with
// its trailing space if the template kept that.
func cutBehind(out jinja.Output, content string) (jinja.Output, error) {
	bare := strings.TrimSpace(content)
	i := strings.LastIndex(out.Text, bare)
	if i < 0 || bare == "" {
		return out, fulgur.E(fulgur.KindInvalid, opRender, "the last message can't be gone on with: the chat template does not show its content", nil)
	}
	if spaced := strings.TrimLeftFunc(content, unicode.IsSpace); strings.HasPrefix(out.Text[i:], spaced) {
		bare = spaced
	}
	end := i + len(bare)
	var data []jinja.Span
	for _, s := range out.Data {
		if s.Start < end {
			data = append(data, jinja.Span{Start: s.Start, End: min(s.End, end)})
		}
	}
	return jinja.Output{Text: out.Text[:end], Data: data}, nil
}
