package storetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Talk is an agent's conversation as a gateway records it: per call 315 new
// prompt ids (the answer's 200 and a tool's output) and about 1.3 KB of text, told
// in the request, in what was sent, in the messages, and as ids in the response.
// After 100 calls a request is 130 KB and a prompt 32,000 ids.
type Talk struct {
	rng      *rand.Rand
	ids      []int32
	messages []fulgur.Message
	bodies   [][]byte // of messages
	text     []byte   // of ids
	k        int
}

const sampledPerCall, toolPerCall = 200, 115

// NewTalk returns a conversation of its own for each seed.
func NewTalk(seed uint64) *Talk {
	t := &Talk{rng: rand.New(rand.NewPCG(seed, 1))}
	t.grow(512)
	t.say("system", "You are a coding agent. Use the tools. Finish with submit.")
	t.say("user", "Fix the failing test in the repository. "+t.prose(600))
	return t
}

func (t *Talk) grow(n int) {
	for range n {
		t.ids = append(t.ids, t.rng.Int32N(150000))
		if len(t.text) > 0 {
			t.text = append(t.text, ',')
		}
		t.text = strconv.AppendInt(t.text, int64(t.ids[len(t.ids)-1]), 10)
	}
}

func (t *Talk) say(role, content string) {
	t.messages = append(t.messages, fulgur.Message{Role: role, Content: content})
	b, _ := json.Marshal(map[string]string{"role": role, "content": content})
	t.bodies = append(t.bodies, b)
}

func (t *Talk) prose(n int) string {
	words := strings.Fields("the test fails because a value is parsed twice so we look at parser and then run it again with more output")
	var sb strings.Builder
	for sb.Len() < n {
		sb.WriteString(words[t.rng.IntN(len(words))] + " ")
	}
	return sb.String()
}

func (t *Talk) code(n int) string {
	var sb strings.Builder
	for sb.Len() < n {
		fmt.Fprintf(&sb, "    if x[%d] == \"k%d\":\n\treturn self._v.get('%s', %d)  # é\n", t.rng.IntN(100), t.rng.IntN(1000), t.prose(12), t.rng.IntN(9999))
	}
	return sb.String()
}

// Call makes the next call of the conversation.
func (t *Talk) Call(r fulgur.RolloutID) *fulgur.Call {
	const tools = `],"tools":[{"type":"function","function":{"name":"bash","description":"Run a command","parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}}]`
	c := &fulgur.Call{ID: fulgur.CallID(fmt.Sprintf("%s.%d", r, t.k)), Rollout: r, Attempt: "0", Index: t.k, Mode: fulgur.ModeTrain, Dialect: "openai-chat", Model: "policy",
		Endpoint: fulgur.Endpoint{Model: "policy", Kind: fulgur.EndpointChat, URL: "http://127.0.0.1:9000/v1"}, Messages: t.messages[:len(t.messages):len(t.messages)],
		Sampling: fulgur.Sampling{Temperature: 1, MaxTokens: 1024}, FinishReason: "stop", HTTPStatus: 200, Fate: fulgur.FateDelivered, Trainable: true, StartedAt: time.UnixMicro(1700000000000000).UTC(), Latency: time.Second}
	head := fmt.Sprintf(`{"model":"policy","user":"conv-%s-%d","max_tokens":1024,"messages":[`, r, t.k)
	body := head + string(bytes.Join(t.bodies, []byte{','})) + tools
	c.Request, c.Sent = json.RawMessage(body+"}"), json.RawMessage(body+`,"temperature":1.0,"logprobs":true,"return_token_ids":true}`)
	c.PromptIDs = t.ids[:len(t.ids):len(t.ids)]
	prompt, before := len(t.text), len(t.ids)
	t.grow(sampledPerCall)
	c.SampledIDs = t.ids[before:len(t.ids):len(t.ids)]
	answer := t.prose(300)
	res := fmt.Appendf(nil, `{"id":"chatcmpl-%x","object":"chat.completion","created":1700000000,"model":"policy","prompt_token_ids":[%s],"choices":[{"index":0,"finish_reason":"stop","stop_reason":null,"token_ids":[%s],"message":{"role":"assistant","content":%q,"tool_calls":[]},"logprobs":{"content":[`,
		t.rng.Int64(), t.text[:prompt], t.text[prompt+1:], answer)
	for i, id := range c.SampledIDs {
		c.LogProbs = append(c.LogProbs, -t.rng.Float32()*3)
		res = fmt.Appendf(res, `{"token":" w%d","logprob":%.6f,"bytes":null,"top_logprobs":[]}`, id, c.LogProbs[i])
		if i < sampledPerCall-1 {
			res = append(res, ',')
		}
	}
	c.Response = fmt.Appendf(res, `]}}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, before, sampledPerCall)
	c.Usage = &fulgur.Usage{PromptTokens: before, CompletionTokens: sampledPerCall}
	c.Reply = &fulgur.Message{Role: "assistant", Content: answer}
	t.say("assistant", answer)
	t.say("user", t.code(800))
	t.grow(toolPerCall)
	t.k++
	return c
}
