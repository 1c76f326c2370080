package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// The sizes of a call. Small: 2.4 KB in, 5.9 KB out (600 prompt ids, 20 sampled).
// Agent-sized: 65 KB in, 147 KB out (16,400 prompt ids, 500 sampled with log probs).
type size struct {
	name  string
	bytes int // of the request, about
}

var (
	small = size{"small", 2000}
	agent = size{"agent", 64 << 10}
)

type object = map[string]any

var tools = []any{object{"type": "function", "function": object{"name": "bash", "description": "Run a command",
	"parameters": object{"type": "object", "properties": object{"command": object{"type": "string"}}, "required": []string{"command"}}}}}

// request is a body like an agent's: a system prompt, tools, and a history of tool
// calls and their outputs, grown until it has s.bytes.
func (s size) request() []byte {
	rng := rand.New(rand.NewPCG(uint64(s.bytes), 0))
	messages := []object{
		{"role": "system", "content": "You are a coding agent. Use the tools. Finish with submit."},
		{"role": "user", "content": "Fix the failing test in the repository. " + prose(rng, min(600, s.bytes/4))},
	}
	body := object{"model": model, "messages": messages, "temperature": 0.6, "max_tokens": 1024, "tools": tools}
	for turn := 0; ; turn++ {
		b, _ := json.Marshal(body)
		if len(b) >= s.bytes {
			return b
		}
		id := fmt.Sprintf("call_%d", turn)
		messages = append(messages,
			object{"role": "assistant", "content": prose(rng, 120), "tool_calls": []any{object{"id": id, "type": "function",
				"function": object{"name": "bash", "arguments": `{"command":"sed -n '1,40p' src/file.py"}`}}}},
			object{"role": "tool", "tool_call_id": id, "content": code(rng, min(1800, max(100, s.bytes-len(b)-500)))})
		body["messages"] = messages
	}
}

func prose(rng *rand.Rand, n int) string {
	words := strings.Fields("the test fails because a value is parsed twice so we look at parser and then run it again with more output")
	var sb strings.Builder
	for sb.Len() < n {
		sb.WriteString(words[rng.IntN(len(words))])
		sb.WriteByte(' ')
	}
	return sb.String()
}

func code(rng *rand.Rand, n int) string {
	var sb strings.Builder
	for sb.Len() < n {
		fmt.Fprintf(&sb, "    if x[%d] == \"k%d\":\n\treturn self._v.get('%s', %d)  # é\n", rng.IntN(100), rng.IntN(1000), prose(rng, 12), rng.IntN(9999))
	}
	return sb.String()
}

const vocabulary = 150000

// responder answers as a model server with token ids and log probs does: the prompt's
// ids (one for every four bytes of the request), the sampled ids, a log prob for each.
type responder struct {
	ids     string // prompt ids, each with a comma before it
	off     []int  // off[k]: length of the first k of them
	tail    string
	sampled int
}

func newResponder(sampled int) *responder {
	r := &responder{off: []int{0}, sampled: sampled}
	rng := rand.New(rand.NewPCG(7, uint64(sampled)))
	var sb strings.Builder
	for range 64 << 10 {
		sb.WriteByte(',')
		sb.WriteString(strconv.Itoa(rng.IntN(vocabulary)))
		r.off = append(r.off, sb.Len())
	}
	r.ids = sb.String()
	ids, content := make([]int, sampled), make([]object, sampled)
	for i := range ids {
		ids[i] = rng.IntN(vocabulary)
		content[i] = object{"token": fmt.Sprintf(" w%d", i), "logprob": -rng.Float64() * 3, "bytes": nil, "top_logprobs": []any{}}
	}
	b, _ := json.Marshal([]any{object{"index": 0, "finish_reason": "stop", "stop_reason": nil, "token_ids": ids,
		"message": object{"role": "assistant", "content": prose(rng, sampled*4), "tool_calls": []any{}}, "logprobs": object{"content": content}}})
	r.tail = `],"choices":` + string(b) + `,"usage":{"prompt_tokens":`
	return r
}

// response is the answer number n, to a request of so many bytes. Its first prompt id
// is n: no two answers are the same.
func (r *responder) response(n int64, request int) []byte {
	k := min(request/4, len(r.off)-1)
	buf := make([]byte, 0, 300+r.off[k]+len(r.tail))
	buf = append(buf, `{"id":"chatcmpl-`...)
	buf = strconv.AppendInt(buf, n, 10)
	buf = append(buf, `","object":"chat.completion","created":1700000000,"model":"`+model+`","prompt_token_ids":[`...)
	buf = strconv.AppendInt(buf, n%vocabulary, 10)
	buf = append(buf, r.ids[:r.off[k]]...)
	buf = append(buf, r.tail...)
	return appendUsage(buf, k+1, r.sampled)
}

func appendUsage(b []byte, prompt, sampled int) []byte {
	return fmt.Appendf(b, `%d,"completion_tokens":%d,"total_tokens":%d}}`, prompt, sampled, prompt+sampled)
}
