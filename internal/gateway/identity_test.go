package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

func TestWhoMayCallWhat(t *testing.T) {
	h := newHouse(t)
	h.rollout("r2", false, "other-key")
	const p = "/proxy/rollout/%s/attempt/%s/mode/%s/openai/v1/chat/completions"
	path := func(ro, at, mode string) string { return fmt.Sprintf(p, ro, at, mode) }
	for _, c := range []struct {
		is, path, key string
		status        int
		says          string
	}{
		{"an attempt's credential on its own path", path("r1", "0", "train"), agentKey, 200, ""},
		{"the key alone", "/openai/v1/chat/completions", agentKey, 200, ""},
		{"the server key on an attempt's path, as v1", path("r1", "0", "train"), serverKey, 200, ""},
		{"the server key on any attempt, as v1", path("r1", "7", "val"), serverKey, 200, ""},
		{"the server key without a rollout: plain serving", "/v1/chat/completions", serverKey, 200, ""},
		{"a credential on another rollout's path", path("r2", "0", "val"), agentKey, 403, "another rollout"},
		{"a credential on another attempt's path", path("r1", "1", "train"), agentKey, 403, "another rollout or attempt"},
		{"a credential on the other mode's path", path("r1", "0", "val"), agentKey, 403, "mode train"},
		{"no key", path("r1", "0", "train"), "", 401, `{"detail":"Invalid or missing API key"}`},
		{"no key, key form", "/openai/v1/chat/completions", "", 401, "Invalid or missing API key"},
		{"a wrong key", "/openai/v1/chat/completions", "nope", 401, "Invalid or missing API key"},
		{"an unknown rollout", path("r9", "0", "train"), serverKey, 404, `{"detail":"Rollout not found: r9"}`},
		{"an unknown mode", path("r1", "0", "test"), serverKey, 404, `{"detail":"Unsupported proxy mode: test"}`},
		{"an unknown path", "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/embeddings", serverKey, 404, `{"detail":"Unsupported upstream path: embeddings"}`},
		{"a route that is not there", "/api/hello", serverKey, 404, "Not Found"},
	} {
		t.Run(c.is, func(t *testing.T) {
			got := post(t, t.Context(), h.url+c.path, c.key, hi)
			if got.status != c.status || !strings.Contains(got.body, c.says) {
				t.Errorf("got %d %s, want %d with %q", got.status, got.body, c.status, c.says)
			}
		})
	}
	if n := len(h.all()); n != 4 {
		t.Errorf("%d calls on record, want the 4 of rollouts that were answered", n)
	}
}

func TestEmptyServerKeyStillEnforcesCredentials(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.ServerKey = "" })
	h.rollout("r2", true, "other-key")
	base := h.url + "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions"
	for key, want := range map[string]int{"": 200, "sk-anything": 200, agentKey: 200, "other-key": 403} {
		if got := post(t, t.Context(), base, key, hi); got.status != want {
			t.Errorf("key %q: got %d %s, want %d", key, got.status, got.body, want)
		}
	}
}

// ST-05: a late call gets 410, so that the agent stops; the third one the error
// that ends every harness.
func TestEndedAttempt(t *testing.T) {
	h := newHouse(t)
	h.end(agentKey)
	for i, want := range []struct {
		status int
		code   string
	}{{410, "gone"}, {410, "gone"}, {400, "context_length_exceeded"}, {400, "context_length_exceeded"}} {
		got := h.chat(t, agentKey, hi)
		if got.status != want.status || got.code() != want.code || got.header.Get("X-Should-Retry") != "false" {
			t.Errorf("request %d: got %d %s %v", i, got.status, got.body, got.header)
		}
	}
	if len(h.all()) != 0 {
		t.Error("a late call is on record as one of the attempt")
	}
}

func TestModelsRoute(t *testing.T) {
	h := newHouse(t)
	for _, p := range []string{"/v1/models", "/openai/v1/models", "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/models"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+p, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Api-Key", agentKey)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %d", p, resp.StatusCode)
		}
	}
}

func TestMalformedRequests(t *testing.T) {
	h := newHouse(t, func(o *gateway.Options, _ *book) { o.MaxBody = 1 << 20 })
	for is, c := range map[string]struct {
		body   string
		status int
		says   string
	}{
		"not JSON":                       {`{"messages": [`, 400, "Invalid JSON"},
		"GW-18 a list":                   {`[]`, 400, "must be a JSON object"},
		"bad UTF-8":                      {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, "Invalid JSON"},
		"a key that stands twice":        {`{"model":"a","messages":[],"model":"b"}`, 400, `\"model\" stands twice`},
		"a key twice in a message":       {`{"messages":[{"role":"user","content":"what is on record"},{"role":"user","content":"a","content":"b"}]}`, 400, `\"messages[1].content\" stands twice`},
		"a tool call of two functions":   {`{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"1"},"Function":{"arguments":"2"}}]}]}`, 400, `\"messages[0].tool_calls[0].Function\" stands twice`},
		"no messages":                    {`{}`, 400, "messages"},
		"messages of a wrong type":       {`{"messages":"hi"}`, 400, `\"messages\" has the wrong type`},
		"a role that is missing":         {`{"messages":[{"content":"x"}]}`, 400, "role is missing"},
		"an image":                       {`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, 400, "image_url"},
		"GW-21 n above one":              {`{"n":2,"messages":[{"role":"user","content":"x"}]}`, 400, "n must be 1"},
		"a forced tool":                  {`{"tool_choice":"required","messages":[{"role":"user","content":"x"}]}`, 400, "can't be forced"},
		"a JSON schema":                  {`{"response_format":{"type":"json_schema"},"messages":[{"role":"user","content":"x"}]}`, 400, "response_format"},
		"GW-24 a body above the limit":   {`{"messages":[{"role":"user","content":"` + strings.Repeat("x", 1<<20) + `"}]}`, 413, "larger than"},
		"GW-23 a prompt above the model": {`{"messages":[{"role":"user","content":"` + strings.Repeat("x", 5000) + `"}]}`, 400, "context_length_exceeded"},
		"max_tokens of nothing":          {`{"max_tokens":0,"messages":[{"role":"user","content":"x"}]}`, 400, "max_tokens"},
	} {
		t.Run(is, func(t *testing.T) {
			got := h.chat(t, agentKey, c.body)
			if got.status != c.status || !strings.Contains(got.body, c.says) {
				t.Errorf("got %d %s, want %d with %q", got.status, got.body, c.status, c.says)
			}
			if !strings.Contains(got.body, `"error":{"message":`) || !strings.Contains(got.body, `"type":"error"`) {
				t.Errorf("not an error that the SDKs read: %s", got.body)
			}
		})
	}
	if h.gen.Calls() != 0 {
		t.Errorf("%d generations", h.gen.Calls())
	}
}

func TestUnusualButFineRequests(t *testing.T) {
	h := newHouse(t)
	for is, body := range map[string]string{
		"unknown fields":        `{"x":1,"metadata":{"a":"b"},"messages":[{"role":"user","content":"x","cache_control":{"type":"ephemeral"}}]}`,
		"content null and []":   `{"messages":[{"role":"system","content":null},{"role":"user","content":[]},{"role":"assistant"},{"role":"user","content":"x"}]}`,
		"GW-23 max_tokens high": `{"max_tokens":128000,"messages":[{"role":"user","content":"x"}]}`,
		"tools without a function": `{"tools":[],"tool_choice":"auto","parallel_tool_calls":true,"messages":[{"role":"user","content":"x"}],` +
			`"response_format":{"type":"text"},"stop":null,"n":1,"user":"u","store":false}`,
	} {
		t.Run(is, func(t *testing.T) {
			if got := h.chat(t, agentKey, body); got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
}

// GW-25: what a run fixes is forced or capped; what makes the distribution
// another one marks the call. The record says what was really used.
func TestSamplingContract(t *testing.T) {
	h := newHouse(t)
	h.gen.Reply = samplertest.Say(fulgur.Message{Content: "ok"})
	for is, c := range map[string]struct {
		wish string
		want fulgur.Sampling
		off  bool
	}{
		"nothing":            {``, fulgur.Sampling{Temperature: 1, MaxTokens: 64}, false},
		"a temperature":      {`"temperature":0.2,`, fulgur.Sampling{Temperature: 1, MaxTokens: 64}, false},
		"fewer tokens":       {`"max_completion_tokens":9,`, fulgur.Sampling{Temperature: 1, MaxTokens: 9}, false},
		"more tokens":        {`"max_tokens":32000,`, fulgur.Sampling{Temperature: 1, MaxTokens: 64}, false},
		"top_p":              {`"top_p":0.8,`, fulgur.Sampling{Temperature: 1, MaxTokens: 64, TopP: 0.8}, true},
		"top_p of 1":         {`"top_p":1,`, fulgur.Sampling{Temperature: 1, MaxTokens: 64, TopP: 1}, false},
		"a penalty":          {`"frequency_penalty":1,`, fulgur.Sampling{Temperature: 1, MaxTokens: 64}, true},
		"neutral penalties":  {`"frequency_penalty":0,"presence_penalty":0,"logit_bias":{},`, fulgur.Sampling{Temperature: 1, MaxTokens: 64}, false},
		"a seed, not obeyed": {`"seed":5,`, fulgur.Sampling{Temperature: 1, MaxTokens: 64}, false},
		"stop strings":       {`"stop":["k"],`, fulgur.Sampling{Temperature: 1, MaxTokens: 64, Stop: []string{"k"}}, false},
		"log probs unwished": {`"logprobs":false,`, fulgur.Sampling{Temperature: 1, MaxTokens: 64}, false},
	} {
		t.Run(is, func(t *testing.T) {
			got := h.chat(t, agentKey, `{`+c.wish+`"messages":[{"role":"user","content":"x"}]}`)
			if got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			r := h.last(t)
			s := r.Sampling
			if s.Seed == 0 || s.Seed == 5 {
				t.Errorf("seed is %d", s.Seed)
			}
			s.Seed = 0
			if fmt.Sprint(s) != fmt.Sprint(c.want) {
				t.Errorf("sampled with %+v, want %+v", s, c.want)
			}
			if off := strings.Contains(strings.Join(r.Untrainable, " "), fulgur.UntrainableSampling); off != c.off || r.Trainable == c.off {
				t.Errorf("off contract %t (%v), want %t", off, r.Untrainable, c.off)
			}
		})
	}
}

// A stop string is cut from the text, not from the ids.
func TestStopStrings(t *testing.T) {
	h := newHouse(t)
	h.gen.Reply = samplertest.Say(fulgur.Message{Content: "one two STOP three"})
	for _, stream := range []bool{false, true} {
		got := h.chat(t, agentKey, fmt.Sprintf(`{"stream":%t,"stop":["STOP","never"],"messages":[{"role":"user","content":"x"}]}`, stream))
		if got.status != 200 || strings.Contains(got.body, "ST") {
			t.Errorf("%d %s", got.status, got.body)
		}
		r := h.last(t)
		if r.Reply.Content != "one two " || len(r.SampledIDs) != len("one two STOP") || r.FinishReason != "stop" || !r.Trainable {
			t.Errorf("record: %q, %d ids, %s, %v", r.Reply.Content, len(r.SampledIDs), r.FinishReason, r.Untrainable)
		}
	}
}

// Each call of a rollout has its own random numbers, the same in each run, also
// behind a restart.
func TestSeedsAndIndexesGoOnAfterRestart(t *testing.T) {
	var seeds [2][]uint64
	for run := range seeds {
		h := newHouse(t)
		for i := range 3 {
			if run == 1 && i == 2 { // the gateway forgets
				h2 := newHouse(t, func(o *gateway.Options, b *book) { b.calls = h.all() })
				h2.chat(t, agentKey, hi)
				h = h2
			} else {
				h.chat(t, agentKey, hi)
			}
		}
		for i, c := range h.all() {
			seeds[run] = append(seeds[run], c.Sampling.Seed)
			if c.Index != i {
				t.Errorf("call %d has index %d", i, c.Index)
			}
		}
	}
	if fmt.Sprint(seeds[0]) != fmt.Sprint(seeds[1]) || seeds[0][0] == seeds[0][1] {
		t.Errorf("seeds differ or repeat: %v", seeds)
	}
}

// GW-26: each record lands on the rollout of its own path or key.
func TestNoCrossing(t *testing.T) {
	h := newHouse(t)
	h.gen.Reply = func(req engine.GenerateRequest) []int32 { // says what the prompt said
		text := samplertest.Bytes{}.Decode(req.Prompt)
		return samplertest.Answer(fulgur.Message{Content: text})
	}
	const rollouts, each = 20, 50
	var wg sync.WaitGroup
	for i := range rollouts {
		id := fulgur.RolloutID(fmt.Sprintf("x%d", i))
		h.rollout(id, true, "key-"+string(id))
		wg.Go(func() {
			for range each {
				body := fmt.Sprintf(`{"messages":[{"role":"user","content":"I am %s."}]}`, id)
				if got := h.chat(t, "key-"+string(id), body); !strings.Contains(got.body, fmt.Sprintf("I am %s.", id)) {
					t.Errorf("%s got %s", id, got.body)
				}
			}
		})
	}
	wg.Wait()
	if n := len(h.all()); n != rollouts*each {
		t.Errorf("%d calls on record", n)
	}
	for _, c := range h.all() {
		if c.Messages[0].Content != fmt.Sprintf("I am %s.", c.Rollout) {
			t.Errorf("a call of %q is on record for %s", c.Messages[0].Content, c.Rollout)
		}
	}
}
