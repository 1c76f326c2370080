package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
)

type talk struct {
	tok *tokenizer.Tokenizer
	end int32
}

type conversation struct {
	tokens  []int32
	sampled []bool
	calls   int
	final   string
}

func newTalk(files map[string][]byte) (*talk, error) {
	t, err := tokenizer.Parse(files["tokenizer.json"])
	if err != nil {
		return nil, err
	}
	return &talk{tok: t, end: special(turnEnd)}, nil
}

func (c *conversation) add(ids []int32, sampled bool) {
	c.tokens = append(c.tokens, ids...)
	for range ids {
		c.sampled = append(c.sampled, sampled)
	}
}

func (t *talk) demonstrate(ctx context.Context, s *story, d *demonstrator) (*conversation, error) {
	feedback := ""
	return t.converse(ctx, s.question, func(c *conversation) ([]int32, error) {
		if c.calls > 0 {
			feedback = c.final
		}
		return append(t.tok.Encode(nil, d.say(feedback)), t.end), nil
	})
}

func (t *talk) converse(ctx context.Context, question string, say func(*conversation) ([]int32, error)) (*conversation, error) {
	c := &conversation{}
	c.add(t.tok.Encode(nil, "<|im_start|>system\n"+loop.System+"\ncalc(expression): one operation per call<|im_end|>\n<|im_start|>user\n"+question+"<|im_end|>\n<|im_start|>assistant\n"), false)
	for {
		ids, err := say(c)
		if err != nil {
			return nil, err
		}
		c.calls++
		c.add(ids, true)
		text := ""
		if n := len(ids); n > 0 && ids[n-1] == t.end {
			text = t.tok.Decode(ids[:n-1])
		} else {
			text = t.tok.Decode(ids)
		}
		m := parse(text)
		next := loop.Next(m)
		if len(next) == 0 || c.calls == loop.DefaultMaxCalls || len(c.tokens) > contextLength-90 {
			c.final = m.Content
			return c, nil
		}
		close := "\n"
		if ids[len(ids)-1] != t.end {
			close = "<|im_end|>\n"
		}
		for _, f := range next {
			close += fmt.Sprintf("<|im_start|>%s\n%s<|im_end|>\n", f.Role, f.Content)
		}
		c.add(t.tok.Encode(nil, close+"<|im_start|>assistant\n"), false)
		c.final = next[0].Content
	}
}

func parse(text string) loop.Message {
	m := loop.Message{Content: text}
	i := strings.Index(text, "<tool_call>")
	j := strings.Index(text, "</tool_call>")
	if i < 0 || j < i {
		return m
	}
	var c struct {
		Name      string
		Arguments json.RawMessage
	}
	if json.Unmarshal([]byte(text[i+11:j]), &c) != nil || c.Name == "" {
		return m
	}
	return loop.Message{Content: text[:i], ToolCalls: []loop.ToolCall{{ID: "1", Function: loop.Function{Name: c.Name, Arguments: string(c.Arguments)}}}}
}
