package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/fulgur-rl/fulgur/examples/calc"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/serve"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
)

// The scripted model as its server knows it.
const (
	modelName    = "scripted"
	modelVersion = 3
)

// aside is the reply to a request that offers no tools, where the script has some.
const aside = "A title, say."

// step is one reply of a scripted model.
type step struct {
	text  string
	calls []toolCall
}

// toolCall is a call of a tool; args is JSON.
type toolCall struct{ name, args string }

// written is the step as the built-in model writes it.
func (s step) written() string {
	var b strings.Builder
	b.WriteString(s.text)
	for _, c := range s.calls {
		fmt.Fprintf(&b, "\n<tool_call>{\"name\":%q,\"arguments\":%s}</tool_call>", c.name, c.args)
	}
	return b.String()
}

// model is a model server that follows a script. It takes tokens (vLLM's
// completions with token ids) and messages (chat completions with token ids), and
// replies by the number of turns it has taken in the conversation, so that a
// repeated request gets the same reply. To a request that offers no tools it
// gives the aside: harnesses ask for titles so.
type model struct {
	URL   string
	tok   *tokenizer.Tokenizer
	end   int32
	steps []step
	tool  string // of the main conversation; "": the script needs none

	mu     sync.Mutex
	asked  []int // the step of each request, in order; -1: an aside
	before func(step int)
}

// newModel starts a scripted model. before, if not nil, is called ahead of each
// reply.
func newModel(t *testing.T, tool string, steps []step, before func(step int)) *model {
	t.Helper()
	b, err := calc.Files.ReadFile("model/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	m := &model{steps: steps, tool: tool, before: before}
	if m.tok, err = tokenizer.Parse(b); err != nil {
		t.Fatal(err)
	}
	end, ok := m.tok.ID("<|im_end|>")
	if !ok {
		t.Fatal("the built-in model has no <|im_end|>")
	}
	m.end = end
	mux := http.NewServeMux()
	mux.Handle("/v1/", serve.New(m, serve.Options{Model: modelName, ContextLength: 1 << 18, VocabSize: m.tok.VocabSize()}))
	mux.HandleFunc("POST /v1/chat/completions", m.chat)
	mux.HandleFunc("POST /tokenize", m.tokenize)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	m.URL = s.URL + "/v1"
	return m
}

// steps that were asked for, in order.
func (m *model) taken() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]int(nil), m.asked...)
}

// next picks the reply.
func (m *model) next(turns int, isAside bool) (string, step) {
	at := min(max(turns, 0), len(m.steps)-1)
	s := m.steps[at]
	if isAside {
		at, s = -1, step{text: aside}
	}
	m.mu.Lock()
	m.asked = append(m.asked, at)
	m.mu.Unlock()
	if m.before != nil {
		m.before(at)
	}
	return s.written(), s
}

// Generate implements engine.Generator.
func (m *model) Generate(ctx context.Context, req engine.GenerateRequest, emit func(engine.Token) error) (engine.Generation, error) {
	prompt := m.tok.Decode(req.Prompt)
	turns := strings.Count(prompt, "<|im_start|>assistant\n") - 1
	head, _, _ := strings.Cut(prompt, "<|im_end|>")
	text, _ := m.next(turns, m.tool != "" && !strings.Contains(head, "\n"+m.tool+"("))
	out := engine.Generation{FinishReason: "stop"}
	for _, id := range append(m.tok.Encode(nil, text), m.end) {
		if req.MaxTokens > 0 && len(out.Tokens) == req.MaxTokens {
			out.FinishReason = "length"
			break
		}
		t := engine.Token{ID: id, LogProb: logProbOf(id), Version: modelVersion}
		out.Tokens = append(out.Tokens, t)
		if emit != nil {
			if err := emit(t); err != nil {
				return out, err
			}
		}
	}
	return out, ctx.Err()
}

// logProbOf makes a log prob that tells tokens apart.
func logProbOf(id int32) float32 { return -0.25 - float32(id%8)/16 }

// chatRequest is what the model reads of a chat request.
type chatRequest struct {
	Stream   bool
	Tools    []json.RawMessage
	Messages []turn
}

// read reads a chat request: the assistant's turns in it, and its prompt's tokens.
func (m *model) read(w http.ResponseWriter, r *http.Request) (q chatRequest, turns int, prompt []int32, ok bool) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	if err != nil {
		http.Error(w, `{"error":{"message":"this is not a chat request","type":"BadRequestError","param":null,"code":400}}`, http.StatusBadRequest)
		return q, 0, nil, false
	}
	var b strings.Builder
	for _, t := range q.Tools {
		b.Write(t)
	}
	for _, x := range q.Messages {
		if x.Role == "assistant" {
			turns++
		}
		b.WriteString(x.written())
	}
	return q, turns, m.tok.Encode(nil, b.String()+"<|im_start|>assistant\n"), true
}

// tokenize counts a chat request's tokens, as vLLM's route of that name does.
func (m *model) tokenize(w http.ResponseWriter, r *http.Request) {
	if _, _, prompt, ok := m.read(w, r); ok {
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(prompt), "max_model_len": 1 << 18, "tokens": prompt})
	}
}

// chat answers as vLLM does for return_token_ids and logprobs.
func (m *model) chat(w http.ResponseWriter, r *http.Request) {
	q, turns, prompt, ok := m.read(w, r)
	if !ok {
		return
	}
	text, s := m.next(turns, m.tool != "" && len(q.Tools) == 0)
	ids := append(m.tok.Encode(nil, text), m.end)
	usage := map[string]int{"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
	finish := "stop"
	calls := []map[string]any{}
	for i, c := range s.calls {
		finish = "tool_calls"
		calls = append(calls, map[string]any{"index": i, "id": fmt.Sprintf("call_%d_%d", turns, i), "type": "function",
			"function": map[string]string{"name": c.name, "arguments": c.args}})
	}
	message := map[string]any{"role": "assistant", "content": s.text}
	if len(calls) > 0 {
		message["tool_calls"] = calls
	}
	head := map[string]any{"id": "chatcmpl-1", "created": 1, "model": modelName}
	if !q.Stream {
		head["object"], head["prompt_token_ids"], head["usage"] = "chat.completion", prompt, usage
		head["choices"] = []any{map[string]any{"index": 0, "message": message, "finish_reason": finish, "token_ids": ids, "logprobs": logProbs(ids)}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(head)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	head["object"] = "chat.completion.chunk"
	send := func(choices ...map[string]any) {
		head["choices"] = append([]map[string]any{}, choices...) // never null
		b, _ := json.Marshal(head)
		_, _ = fmt.Fprintf(w, "data: %s\n\n", b)
		w.(http.Flusher).Flush()
		delete(head, "prompt_token_ids")
	}
	head["prompt_token_ids"] = prompt
	send(map[string]any{"index": 0, "delta": map[string]any{"role": "assistant", "content": ""}})
	send(map[string]any{"index": 0, "delta": map[string]any{"content": s.text}, "token_ids": ids, "logprobs": logProbs(ids)})
	for _, c := range calls {
		send(map[string]any{"index": 0, "delta": map[string]any{"tool_calls": []any{c}}})
	}
	send(map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": finish, "token_ids": []int{}})
	head["usage"] = usage
	send()
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// turn is a turn of a chat request.
type turn struct {
	Role      string
	Content   json.RawMessage
	ToolCalls []struct {
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

// written is the turn as a chat template writes it, so that a prompt which sends
// a reply back extends that reply's tokens.
func (x turn) written() string {
	var s step
	if json.Unmarshal(x.Content, &s.text) != nil { // null, or blocks
		s.text = string(x.Content)
	}
	for _, c := range x.ToolCalls {
		s.calls = append(s.calls, toolCall{c.Function.Name, c.Function.Arguments})
	}
	return "<|im_start|>" + x.Role + "\n" + s.written() + "<|im_end|>\n"
}

func logProbs(ids []int32) any {
	var content []map[string]any
	for _, id := range ids {
		content = append(content, map[string]any{"token": "", "logprob": logProbOf(id), "top_logprobs": []any{}})
	}
	return map[string]any{"content": content}
}
