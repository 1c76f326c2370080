package openaicompletions_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/dialecttest"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaicompletions"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

type wire struct {
	Object  string
	Choices []struct {
		Text         *string
		FinishReason string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	}
}

func read(t *testing.T, body []byte, r *dialecttest.Reply) {
	t.Helper()
	var w wire
	if err := json.Unmarshal(body, &w); err != nil || w.Choices == nil || w.Object != "text_completion" {
		t.Fatalf("%v: %s", err, body)
	}
	if w.Usage != nil {
		r.Usage = &fulgur.Usage{PromptTokens: w.Usage.PromptTokens, CompletionTokens: w.Usage.CompletionTokens}
	}
	for _, c := range w.Choices {
		r.Text += *c.Text
		r.Finish += c.FinishReason
	}
}

func TestSuite(t *testing.T) {
	dialecttest.Run(t, dialecttest.Subject{
		Dialect: openaicompletions.Dialect{},
		Raw:     true,
		Finish:  map[string]string{"stop": "stop", "length": "length"},
		Request: func(text string, stream, usage bool) string {
			q, _ := json.Marshal(text)
			return fmt.Sprintf(`{"model":"m","stream":%t,"stream_options":{"include_usage":%t},"prompt":%s}`, stream, usage, q)
		},
		ReadAnswer: func(t *testing.T, body []byte) (r dialecttest.Reply) {
			read(t, body, &r)
			return r
		},
		ReadEvents: func(t *testing.T, events []sse.Event) (r dialecttest.Reply, done bool) {
			for _, e := range events {
				if done {
					t.Errorf("behind [DONE]: %s", e.Data)
				}
				if string(e.Data) == "[DONE]" {
					done = true
					continue
				}
				read(t, e.Data, &r)
			}
			return r, done
		},
	})
}

// The requests that vLLM was asked, and forms of a prompt.
func TestParsePrompts(t *testing.T) {
	for is, c := range map[string]struct {
		body    string
		prompt  *call.Prompt
		says    string // what is wrong
		refused bool   // by the gateway, not left to the upstream
	}{
		"a text":             {`{"prompt":"say hi"}`, &call.Prompt{Text: "say hi"}, "", false},
		"token ids":          {`{"prompt":[1,20,300]}`, &call.Prompt{IDs: []int32{1, 20, 300}}, "", false},
		"a list of one text": {`{"prompt":["x"]}`, &call.Prompt{Text: "x"}, "", false},
		"a list of ids":      {`{"prompt":[[7,8]]}`, &call.Prompt{IDs: []int32{7, 8}}, "", false},
		"two texts":          {`{"prompt":["x","y"]}`, nil, "2 prompts", true},
		"two lists of ids":   {`{"prompt":[[1],[2]]}`, nil, "2 prompts", true},
		"no prompt":          {`{}`, &call.Prompt{}, "prompt is missing", false},
		"an empty text":      {`{"prompt":""}`, &call.Prompt{}, "must not be empty", false},
		"no ids":             {`{"prompt":[]}`, &call.Prompt{}, "must not be empty", false},
		"an id below 0":      {`{"prompt":[1,-2]}`, &call.Prompt{}, "token id", false},
		"an object":          {`{"prompt":{}}`, &call.Prompt{}, "prompt must be", false},
		"words for max":      {`{"prompt":"x","max_tokens":"5"}`, &call.Prompt{Text: "x"}, "max_tokens", false},
		"no tokens":          {`{"prompt":"x","max_tokens":0}`, &call.Prompt{Text: "x"}, "max_tokens", false},
		"a cold temperature": {`{"prompt":"x","temperature":-1}`, &call.Prompt{Text: "x"}, "temperature", false},
		"no answers":         {`{"prompt":"x","n":0}`, &call.Prompt{Text: "x"}, "n must", false},
		"log probs in words": {`{"prompt":"x","logprobs":"all"}`, &call.Prompt{Text: "x"}, "logprobs", false},
		"stop as a number":   {`{"prompt":"x","stop":1}`, &call.Prompt{Text: "x"}, "stop", false},
	} {
		t.Run(is, func(t *testing.T) {
			req, err := openaicompletions.Dialect{}.Parse([]byte(c.body))
			if c.refused {
				if fulgur.KindOf(err).HTTPStatus() != 400 || !strings.Contains(fulgur.PublicMessage(err), c.says) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.prompt, req.Prompt); diff != "" {
				t.Error(diff)
			}
			if (req.Invalid == nil) != (c.says == "") || req.Invalid != nil && !strings.Contains(fulgur.PublicMessage(req.Invalid), c.says) {
				t.Errorf("invalid: %v, want %q", req.Invalid, c.says)
			}
		})
	}
}

func TestParseParameters(t *testing.T) {
	req, err := openaicompletions.Dialect{}.Parse([]byte(`{"model":"m","prompt":"x","max_tokens":3,"logprobs":5,"stop":["a",""],"top_k":3,"seed":9,
		"echo":true,"suffix":"s","best_of":2,"presence_penalty":1,"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true}}`))
	if err != nil || req.Invalid != nil {
		t.Fatal(err, req.Invalid)
	}
	got := fmt.Sprint(req.Stream, req.IncludeUsage, req.LogProbs, req.TopLogProbs, req.TokenIDs, *req.Wishes.MaxTokens, req.Wishes.Stop, *req.Wishes.TopK, *req.Wishes.Seed, req.Wishes.Others, req.Relayed)
	if want := "true true true 5 true 3 [a] 3 9 [presence_penalty best_of] [echo suffix best_of]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for in, want := range map[string]string{`null`: "false 0", `false`: "false 0", `true`: "true 0", `0`: "true 0", `1`: "true 0", `2`: "true 2"} {
		req, err := openaicompletions.Dialect{}.Parse([]byte(`{"prompt":"x","logprobs":` + in + `}`))
		if err != nil || fmt.Sprint(req.LogProbs, req.TopLogProbs) != want || *req.Wishes.MaxTokens != 16 {
			t.Errorf("logprobs %s: %v %d", in, req.LogProbs, req.TopLogProbs)
		}
	}
}

// What a client reads of ids and log probs has the shape of vLLM's recorded
// answers, whole and in pieces.
func TestShapeOfVLLM(t *testing.T) {
	f, err := os.Open("testdata/vllm.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type completion struct {
		Choices []struct {
			Index    int
			Text     string
			LogProbs struct {
				Tokens        []string  `json:"tokens"`
				TokenLogProbs []float32 `json:"token_logprobs"`
				TextOffset    []int     `json:"text_offset"`
			}
			FinishReason   *string `json:"finish_reason"`
			TokenIDs       []int32 `json:"token_ids"`
			PromptTokenIDs []int32 `json:"prompt_token_ids"`
		}
		Usage map[string]any
	}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	n := 0
	for ; sc.Scan(); n++ {
		var e struct {
			Name              string
			Request, Response struct{ JSON json.RawMessage }
		}
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		req, err := openaicompletions.Dialect{}.Parse(e.Request.JSON)
		if err != nil || req.Invalid != nil {
			t.Fatalf("%s: %v %v", e.Name, err, req.Invalid)
		}
		var theirs, ours completion
		if err := json.Unmarshal(e.Response.JSON, &theirs); err != nil {
			t.Fatal(err)
		}
		c := theirs.Choices[0]
		res := &call.Result{Status: 200, Reply: &fulgur.Message{Content: c.Text}, PromptIDs: c.PromptTokenIDs, SampledIDs: c.TokenIDs,
			LogProbs: c.LogProbs.TokenLogProbs, TokenTexts: c.LogProbs.Tokens, Finish: *c.FinishReason,
			Usage: &fulgur.Usage{PromptTokens: len(c.PromptTokenIDs), CompletionTokens: len(c.TokenIDs)}}
		if err := json.Unmarshal(openaicompletions.Dialect{}.AppendAnswer(nil, req, dialect.Meta{}, res), &ours); err != nil {
			t.Fatal(err)
		}
		for u := range ours.Usage {
			theirs.Usage[u] = ours.Usage[u] // null details
		}
		for u, v := range theirs.Usage {
			if v == nil {
				delete(theirs.Usage, u)
			}
		}
		theirs.Choices[0].LogProbs.TextOffset, ours.Choices[0].LogProbs.TextOffset = nil, nil // theirs count the text so far, odd for half characters
		if diff := cmp.Diff(theirs, ours); diff != "" {
			t.Errorf("%s (-vLLM +ours):\n%s", e.Name, diff)
		}
	}
	if err := sc.Err(); err != nil || n != 3 {
		t.Errorf("%d answers, %v", n, err)
	}
}

// Keep-alives before an upstream's first chunk do not make clients drop what follows.
func TestRelayAfterKeepAlive(t *testing.T) {
	req, err := openaicompletions.Dialect{}.Parse([]byte(`{"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	s := openaicompletions.Dialect{}.Stream(req, dialect.Meta{ID: "ours"})
	b := s.KeepAlive(nil)
	b = s.Delta(b, call.Delta{Wire: "openai-completions", Raw: []byte(`{"id":"theirs","choices":[]}`)})
	b = s.Delta(b, call.Delta{Wire: "openai-completions", Raw: []byte(`{"usage":{},"choices":[]}`), UsageOnly: true})
	if strings.Count(string(b), `"id":"cmpl-ours"`) != 2 || strings.Contains(string(b), "usage") {
		t.Errorf("%s", b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"prompt":["x"],"stop":["a"],"logprobs":true,"max_tokens":1e9}`))
	f.Add([]byte(`{"prompt":[[1,null]],"n":-1,"echo":1,"best_of":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := openaicompletions.Dialect{}.Parse(body)
		if err == nil && (!json.Valid(req.Body) || req.Prompt == nil || req.Wishes.MaxTokens == nil) {
			t.Errorf("%q is taken", body)
		}
	})
}
