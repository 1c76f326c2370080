package gateway_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

func params(msgs ...openai.ChatCompletionMessageParamUnion) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    "policy",
		Messages: msgs,
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
			Name: "add", Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{"a": map[string]any{"type": "number"}}},
		})},
	}
}

var twoCalls = fulgur.Message{Content: "let me see", ToolCalls: []fulgur.ToolCall{
	{Name: "add", Arguments: `{"a":"北京"}`}, {Name: "add", Arguments: `{"a": 2}`}}}

// GW-02: the official SDK, streaming and not: text, and two parallel tool calls;
// a streamed call records the same as an unstreamed one.
func TestOpenAISDK(t *testing.T) {
	h := newHouse(t)
	h.gen.Reply = func(req engine.GenerateRequest) []int32 {
		if len(req.Prompt)%2 == 0 {
			return samplertest.Answer(fulgur.Message{Content: "done"})
		}
		return samplertest.Answer(twoCalls)
	}
	for _, base := range []string{"/openai/v1/", "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/", "/v1/"} {
		client := openai.NewClient(option.WithBaseURL(h.url+base), option.WithAPIKey(agentKey))
		for _, text := range []string{"go", "go!"} {
			p := params(openai.UserMessage(text))
			got, err := client.Chat.Completions.New(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			plain := h.last(t)
			stream := client.Chat.Completions.NewStreaming(t.Context(), p)
			acc := openai.ChatCompletionAccumulator{}
			for stream.Next() {
				if !acc.AddChunk(stream.Current()) {
					t.Fatalf("%s: the SDK does not take chunk %s", base, stream.Current().RawJSON())
				}
			}
			if err := stream.Err(); err != nil {
				t.Fatal(err)
			}
			streamed := h.last(t)
			a, b := got.Choices[0], acc.Choices[0]
			if a.Message.Content != b.Message.Content || a.FinishReason != b.FinishReason || len(a.Message.ToolCalls) != len(b.Message.ToolCalls) {
				t.Errorf("streamed and unstreamed differ: %+v, %+v", a, b)
			}
			if text == "go" && len(a.Message.ToolCalls)+len(b.Message.ToolCalls) != 4 && a.Message.Content != "done" {
				t.Errorf("want two tool calls, got %+v", a.Message)
			}
			if got.Usage.CompletionTokens != int64(len(plain.SampledIDs)) || got.Usage.PromptTokens != int64(len(plain.PromptIDs)) {
				t.Errorf("usage is %+v, the record has %d and %d ids", got.Usage, len(plain.PromptIDs), len(plain.SampledIDs))
			}
			diff := cmp.Diff(plain, streamed, cmpopts.IgnoreFields(fulgur.Call{}, "ID", "Seq", "Index", "Stream", "Request", "Response", "Sampling.Seed", "StartedAt", "Latency"),
				cmpopts.IgnoreFields(fulgur.ToolCall{}, "ID"))
			if diff != "" {
				t.Errorf("%s: streamed record differs from unstreamed (-plain +streamed):\n%s", base, diff)
			}
			if !plain.Trainable || plain.Rollout != "r1" || plain.Attempt != "0" || len(plain.LogProbs) != len(plain.SampledIDs) {
				t.Errorf("record is not whole: %+v", plain)
			}
		}
	}
	if n := len(h.all()); n != 12 {
		t.Errorf("%d calls on record, want 12", n)
	}
	for i, c := range h.all() {
		if c.Index != i {
			t.Errorf("call %d has index %d", i, c.Index)
		}
	}
}

// The tokens of a turn are those of the next turn's prompt, with the tool's
// result behind them, whatever the harness makes of the arguments' spelling.
func TestTokensAreReusedOverTurns(t *testing.T) {
	h := newHouse(t)
	answer := samplertest.Answer(fulgur.Message{Content: "x", ToolCalls: []fulgur.ToolCall{{Name: "add", Arguments: `{ "a" : 1 }`}}})
	h.gen.Reply = func(engine.GenerateRequest) []int32 { return answer }
	h.chat(t, agentKey, `{"messages":[{"role":"user","content":"go"}]}`)
	h.chat(t, agentKey, `{"messages":[{"role":"user","content":"go"},{"role":"assistant","content":[{"type":"text","text":"x"}],`+
		`"tool_calls":[{"id":"k","type":"function","function":{"name":"add","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"k","content":"3"}]}`)
	all := h.all()
	if len(all) != 2 {
		t.Fatalf("%d calls", len(all))
	}
	want := append(append([]int32(nil), all[0].PromptIDs...), all[0].SampledIDs...)
	if got := all[1].PromptIDs; len(got) <= len(want) || cmp.Diff(want, got[:len(want)]) != "" {
		t.Errorf("second prompt does not start with first prompt and answer")
	}
}
