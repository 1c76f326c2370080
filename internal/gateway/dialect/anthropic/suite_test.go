package anthropic_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/anthropic"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/dialecttest"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

// answer is a message as a client reads it, whole or put together from events.
type answer struct {
	ID, Type, Role, Model string
	Content               []content
	StopReason            *string `json:"stop_reason"`
	StopSequence          *string `json:"stop_sequence"`
	Usage                 *counts
}

type content struct {
	Type, Text, Thinking, Signature, ID, Name string
	Input                                     json.RawMessage
}

type counts struct {
	Input  int `json:"input_tokens"`
	Output int `json:"output_tokens"`
	Read   int `json:"cache_read_input_tokens"`
	Made   int `json:"cache_creation_input_tokens"`
}

func (a answer) reply() (r dialecttest.Reply) {
	for _, b := range a.Content {
		r.Text += b.Text
		if b.Type == "tool_use" {
			r.Tools = append(r.Tools, fulgur.ToolCall{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		}
	}
	if a.StopReason != nil {
		r.Finish = *a.StopReason
	}
	if a.Usage != nil {
		r.Usage = &fulgur.Usage{PromptTokens: a.Usage.Input + a.Usage.Read, CompletionTokens: a.Usage.Output, CachedTokens: a.Usage.Read}
	}
	return r
}

func whole(t *testing.T, body []byte) (a answer) {
	t.Helper()
	if err := json.Unmarshal(body, &a); err != nil || a.Type != "message" || a.Role != "assistant" || a.Usage == nil || len(a.Content) == 0 {
		t.Fatalf("%v: %s", err, body)
	}
	return a
}

// accumulate puts a stream together as strictly as any client does (GW-03):
// one message_start, blocks by index one after the other, deltas of the block's
// own kind, one message_delta, one message_stop, pings anywhere. Done: the
// terminal event was there.
func accumulate(t *testing.T, events []sse.Event) (a answer, done bool) {
	t.Helper()
	open, input, ended := false, "", false
	for _, e := range events {
		var v struct {
			Type         string
			Index        *int
			Message      *answer
			ContentBlock *content `json:"content_block"`
			Delta        struct {
				Type, Text, Thinking, Signature string
				PartialJSON                     string  `json:"partial_json"`
				StopReason                      *string `json:"stop_reason"`
				StopSequence                    *string `json:"stop_sequence"`
			}
			Usage *counts
		}
		if err := json.Unmarshal(e.Data, &v); err != nil || v.Type != e.Name {
			t.Fatalf("event %s: %v: %s", e.Name, err, e.Data)
		}
		bad := func(why string) { t.Errorf("%s: %s %s", why, e.Name, e.Data) }
		if done {
			bad("behind the end")
		}
		if v.Type == "ping" {
			continue
		}
		if (a.ID == "") != (v.Type == "message_start") {
			bad("message_start is not the first, or there are two")
		}
		if ended && v.Type != "message_stop" {
			bad("behind message_delta")
		}
		last := len(a.Content) - 1
		if v.Index != nil && v.Type != "content_block_start" && (*v.Index != last || !open) {
			bad("not of the open block")
			continue
		}
		switch v.Type {
		case "message_start":
			a = *v.Message
			if a.StopReason != nil || len(a.Content) != 0 || a.Usage == nil {
				bad("more than a beginning")
			}
		case "content_block_start":
			if open || *v.Index != len(a.Content) {
				bad("blocks overlap, or leave a gap")
			}
			if b := v.ContentBlock; b.Text+b.Thinking+b.Signature != "" || b.Type == "tool_use" && string(b.Input) != "{}" {
				bad("more than a beginning")
			}
			a.Content = append(a.Content, *v.ContentBlock)
			open, input = true, ""
		case "content_block_delta":
			b := &a.Content[last]
			if want := map[string]string{"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking", "input_json_delta": "tool_use"}[v.Delta.Type]; b.Type != want || b.Signature != "" {
				bad("not of this kind of block")
			}
			b.Text += v.Delta.Text
			b.Thinking += v.Delta.Thinking
			b.Signature += v.Delta.Signature
			input += v.Delta.PartialJSON
		case "content_block_stop":
			open = false
			if b := &a.Content[last]; b.Type == "tool_use" {
				b.Input = json.RawMessage(input)
			} else if b.Type == "thinking" && b.Signature == "" {
				bad("no signature")
			}
		case "message_delta":
			if open {
				bad("a block is open")
			}
			a.StopReason, a.StopSequence, a.Usage, ended = v.Delta.StopReason, v.Delta.StopSequence, v.Usage, true
		case "message_stop":
			if !ended {
				bad("no message_delta before")
			}
			done = true
		default:
			bad("unknown event")
		}
	}
	return a, done
}

func TestSuite(t *testing.T) {
	dialecttest.Run(t, dialecttest.Subject{
		Dialect:     anthropic.Dialect{},
		Finish:      map[string]string{"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"},
		AlwaysUsage: true,
		Request: func(text string, stream, _ bool) string {
			q, _ := json.Marshal(text)
			return fmt.Sprintf(`{"model":"m","max_tokens":9,"stream":%t,"messages":[{"role":"user","content":%s}]}`, stream, q)
		},
		ReadAnswer: func(t *testing.T, body []byte) dialecttest.Reply { return whole(t, body).reply() },
		ReadEvents: func(t *testing.T, events []sse.Event) (dialecttest.Reply, bool) {
			a, done := accumulate(t, events)
			return a.reply(), done
		},
	})
}
