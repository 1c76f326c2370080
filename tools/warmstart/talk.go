package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
)

// talk holds conversations between the agent's harness and a policy as the
// gateway renders them: the tokens of training are those of deployment.
type talk struct {
	r     *render.Renderer
	words *tokenizer.Tokenizer
	tools []fulgur.Tool
	end   int32 // closes a turn
}

// newTalk reads tokenizer and template of a model folder.
func newTalk(folder fs.FS) (*talk, error) {
	r, err := render.Load(folder, render.Options{})
	if err != nil {
		return nil, err
	}
	file, err := fs.ReadFile(folder, "tokenizer.json")
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %w", err)
	}
	words, err := tokenizer.Parse(file)
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %w", err)
	}
	var offered []json.RawMessage
	if err := json.Unmarshal([]byte(loop.Tools), &offered); err != nil {
		return nil, fmt.Errorf("reading the agent's tools: %w", err)
	}
	t := &talk{r: r, words: words, end: special(turnEnd)}
	for _, raw := range offered {
		var o struct {
			Function struct {
				Name, Description string
				Parameters        json.RawMessage
			}
		}
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, fmt.Errorf("reading the agent's tools: %w", err)
		}
		t.tools = append(t.tools, fulgur.Tool{Name: o.Function.Name, Description: o.Function.Description, Schema: o.Function.Parameters, Raw: raw})
	}
	return t, nil
}

// conversation is one conversation with its exact tokens.
type conversation struct {
	messages []fulgur.Message
	tokens   []int32
	sampled  []bool // for each token: the policy said it
	calls    int
	feedback string // what the harness answered last
	final    string // the last message
}

func (c *conversation) add(ids []int32, sampled bool) {
	c.tokens = append(c.tokens, ids...)
	c.sampled = append(c.sampled, slices.Repeat([]bool{sampled}, len(ids))...)
}

// hears adds what the harness says.
func (c *conversation) hears(messages []loop.Message) {
	for _, m := range messages {
		c.messages = append(c.messages, fulgur.Message{Role: m.Role, Content: m.Content, ToolCallID: m.ToolCallID})
		c.feedback = m.Content
	}
}

// converse lets the harness talk with a policy, which returns its next turn's
// tokens, until the harness stops or the context is full.
func (t *talk) converse(ctx context.Context, question string, say func(*conversation) ([]int32, error)) (*conversation, error) {
	c := &conversation{}
	c.hears(loop.Start(question))
	c.feedback = ""
	prompt, err := t.r.Render(c.messages, t.tools)
	if err != nil {
		return nil, err
	}
	c.add(prompt, false)
	for ctx.Err() == nil {
		said, err := say(c)
		if err != nil {
			return nil, err
		}
		c.calls++
		known := render.Known{Tools: t.tools, PromptIDs: slices.Clone(c.tokens), SampledIDs: said}
		c.add(said, true)
		reply, _ := t.r.Parse(said, t.tools)
		m := loop.Message{Role: reply.Role, Content: reply.Content}
		for i := range reply.ToolCalls {
			call := &reply.ToolCalls[i]
			call.ID = fmt.Sprintf("call_%d_%d", c.calls, i)
			m.ToolCalls = append(m.ToolCalls, loop.ToolCall{ID: call.ID, Type: "function", Function: loop.Function{Name: call.Name, Arguments: call.Arguments}})
		}
		c.messages, c.final = append(c.messages, reply), reply.Content
		answer := loop.Next(m)
		if len(answer) == 0 || c.calls == loop.DefaultMaxCalls {
			return c, nil
		}
		known.Messages = slices.Clone(c.messages)
		c.hears(answer)
		next, err := t.r.Extend(known, c.messages, t.tools, render.HistoryDeployed)
		if err != nil {
			return nil, err
		}
		if next.Break != "" {
			return nil, fmt.Errorf("the template breaks a conversation (%s) after %q: it must only append", next.Break, t.r.Decode(c.tokens))
		}
		if len(next.IDs) >= contextLength {
			return c, nil
		}
		c.add(next.IDs[next.Known:], false)
	}
	return nil, fmt.Errorf("talking about %q: %w", question, ctx.Err())
}

// demonstrate lets a demonstrator be the policy.
func (t *talk) demonstrate(ctx context.Context, s *story, d *demonstrator) (*conversation, error) {
	return t.converse(ctx, s.question, func(c *conversation) ([]int32, error) {
		// Encode makes the tags of tool calls tokens, as they are in no text of others.
		return append(t.words.Encode(nil, d.say(c.feedback)), t.end), nil
	})
}
