package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/anthropic"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaicompletions"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openairesponses"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

// harnesses.md 3 and 7: in every dialect a retry gets its answer in the form it
// asks for, with text and tool call, and the sign of life that its harnesses
// take.
func TestRetryInEachDialect(t *testing.T) {
	const tool = `{"name":"add","description":"d","parameters":{"type":"object"}}`
	for is, c := range map[string]struct {
		path, body string // body without its braces
		life       string // in a held stream
		end        string // of a stream
	}{
		"chat": {"openai/v1/chat/completions", `"model":"policy","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":` + tool + `}]`,
			`"delta":{}`, "data: [DONE]\n\n"},
		"completions": {"openai/v1/completions", `"model":"policy","prompt":"hi"`, `"text":""`, "data: [DONE]\n\n"},
		"Responses": {"openai/v1/responses", `"model":"policy","input":"hi","tools":[{"type":"function",` + tool[1:] + `]`,
			"keepalive", "event: response.completed"},
		"Messages": {"anthropic/v1/messages", `"model":"policy","max_tokens":60,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"add","description":"d","input_schema":{"type":"object"}}]`,
			"event: ping", "event: message_stop"},
	} {
		for _, stream := range []bool{false, true} {
			name := is + ", unstreamed"
			first, again := "{"+c.body+`,"stream":true}`, "{"+c.body+"}"
			if stream {
				name, first, again = is+", streamed", again, first
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := newHouse(t, fastBeat, func(o *gateway.Options, b *book) {
					patient(o, b)
					o.Dialects = []dialect.Dialect{openaichat.Dialect{}, openaicompletions.Dialect{}, openairesponses.Dialect{}, anthropic.Dialect{}}
				})
				h.gen.Delay = 20 * time.Millisecond
				say := fulgur.Message{Content: "hello", ToolCalls: []fulgur.ToolCall{{Name: "add", Arguments: `{"a":1}`}}}
				if is == "completions" {
					say = fulgur.Message{Content: "hello" + strings.Repeat(".", 30)}
				}
				h.gen.Reply = func(engine.GenerateRequest) []int32 { return samplertest.Answer(say) }
				ctx, cancel := context.WithCancel(t.Context())
				left := make(chan struct{})
				go func() {
					defer close(left)
					post(t, ctx, h.url+"/"+c.path, agentKey, first)
				}()
				eventually(t, "it is sampling", func() bool { return h.gen.Live() == 1 })
				cancel()
				<-left
				h.orphaned(t)
				got := post(t, t.Context(), h.url+"/"+c.path, agentKey, again)
				if got.status != 200 || got.err != nil || !strings.Contains(got.body, "hello") || stream && !strings.Contains(got.body, c.end) {
					t.Errorf("%d %v %s", got.status, got.err, got.body)
				}
				if len(say.ToolCalls) > 0 && !strings.Contains(got.body, `"name":"add"`) {
					t.Errorf("no tool call: %s", got.body)
				}
				if r := h.last(t); h.gen.Calls() != 1 || len(h.all()) != 1 || r.Joined != 1 || !r.Trainable {
					t.Errorf("%d generations, record: %v %v", h.gen.Calls(), r.Joined, r.Untrainable)
				}
				// the same call, held
				h.gen.Delay = 0
				h.pause(t, fulgur.PauseRequest{Owner: "x"})
				held := make(chan reply, 1)
				go func() { held <- post(t, t.Context(), h.url+"/"+c.path, agentKey, again) }()
				eventually(t, "it is held", func() bool { return h.held(t) == 1 })
				time.Sleep(300 * time.Millisecond) // signs of life go out
				h.resume(t)
				if r := <-held; r.status != 200 || r.err != nil || !stream && !strings.Contains(r.body, "hello") || stream && (!strings.Contains(r.body, c.life) || !strings.Contains(r.body, c.end)) {
					t.Errorf("held: %d %v %s", r.status, r.err, r.body)
				}
			})
		}
	}
}
