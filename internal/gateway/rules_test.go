package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/route"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/chat"
)

// titleCall is opencode's first call, as recorded: its own system prompt, two
// user messages in a row, no tools, the same model and session.
const titleCall = `{"model":"policy","max_tokens":4096,"messages":[{"role":"system","content":"You are a title generator. You output ONLY a thread title. Nothing else.\n\n<task>…"},` +
	`{"role":"user","content":"Generate a title for this conversation:\n"},{"role":"user","content":"\"make hello.txt\""}],"stream":false}`

const withTools = `,"tools":[{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}]}`

func ruled(config string) func(*gateway.Options, *book) {
	return func(_ *gateway.Options, b *book) { b.config = []byte(config) }
}

// Calls that are not the agent's own conversation are labelled by the run's
// rules, answered, and kept out of training.
func TestAuxiliaryRules(t *testing.T) {
	const rules = `{"auxiliary":[
		{"name":"title","no_tools":true,"system":"(?i)^You are a title generator\\b"},
		{"name":"small","model":".*haiku.*"},
		{"name":"quota","max_tokens":1},
		{"name":"guardian","header":"X-OpenAI-Subagent: ^guard"},
		{"name":"helper","header":"x-helper","train":true},
		{"name":"other-model","other_model":true}]}`
	h := newHouse(t, ruled(rules))
	for _, c := range []struct {
		is, body string
		header   []string
		want     string
		trains   bool
	}{
		{"the agent's own", hi, nil, "", true},
		{"no model is named", `{"messages":[{"role":"user","content":"hi"}]}`, nil, "", true},
		{"opencode's title call", titleCall, nil, "title", false},
		{"the same words with tools", strings.TrimSuffix(titleCall, "}") + withTools, nil, "", true},
		{"a small model's name", `{"model":"claude-haiku-4-5","messages":[{"role":"user","content":"x"}]}`, nil, "small", false},
		{"another model's name", `{"model":"gpt-4o-mini","messages":[{"role":"user","content":"x"}]}`, nil, "other-model", false},
		{"one token is asked for", `{"model":"policy","max_tokens":1,"messages":[{"role":"user","content":"quota"}]}`, nil, "quota", false},
		{"a header's value", hi, []string{"x-openai-subagent", "guardian"}, "guardian", false},
		{"another value of it", hi, []string{"x-openai-subagent", "review"}, "", true},
		{"an exception counts as the agent's own", `{"model":"gpt-4o","messages":[{"role":"user","content":"x"}]}`, []string{"X-Helper", "1"}, "", true},
		{"a system message in the middle", `{"model":"policy","messages":[{"role":"user","content":"x"},{"role":"system","content":"You are a title generator"},{"role":"user","content":"x"}]}`, nil, "", true},
	} {
		t.Run(c.is, func(t *testing.T) {
			got := ask(t, http.MethodPost, h.url+"/openai/v1/chat/completions", agentKey, c.body, c.header...)
			if got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			r := h.last(t)
			if r.Auxiliary != c.want || r.Trainable != c.trains || slices.Contains(r.Untrainable, fulgur.UntrainableAuxiliary) == c.trains {
				t.Errorf("labelled %q, trains %t (%v); want %q, %t", r.Auxiliary, r.Trainable, r.Untrainable, c.want, c.trains)
			}
		})
	}
}

// A run's record may be without rules: then the server's count, but for v1's
// peers. Rules that can't be read are no rules of the run's.
func TestWhoseRulesCount(t *testing.T) {
	server := gateway.Rules{Auxiliary: []gateway.AuxiliaryRule{{Name: "servers", OtherModel: true}}}
	const body = `{"model":"gpt-4o","messages":[{"role":"user","content":"x"}]}`
	const own = "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions"
	for is, c := range map[string]struct{ config, key, want string }{
		"no record":                {``, agentKey, "servers"},
		"no record, v1":            {``, serverKey, ""},
		"a record without the key": {`{"seed":1}`, agentKey, "servers"},
		"no rules":                 {`{"auxiliary":[]}`, agentKey, ""},
		"its own":                  {`{"auxiliary":[{"name":"runs","other_model":true}]}`, agentKey, "runs"},
		"its own, v1":              {`{"auxiliary":[{"name":"runs","other_model":true}]}`, serverKey, "runs"},
		"nonsense":                 {`{"auxiliary":[{"name":"runs","system":"("}]}`, agentKey, "servers"},
		"a rule without condition": {`{"auxiliary":[{"name":"runs"}]}`, agentKey, "servers"},
	} {
		t.Run(is, func(t *testing.T) {
			h := newHouse(t, ruled(c.config), func(o *gateway.Options, _ *book) { o.Rules = server })
			if got := ask(t, http.MethodPost, h.url+own, c.key, body); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if r := h.last(t); r.Auxiliary != c.want {
				t.Errorf("labelled %q, want %q", r.Auxiliary, c.want)
			}
		})
	}
}

// upstreamModel is a model server that keeps what it was sent.
type upstreamModel struct {
	mu     sync.Mutex
	bodies []string
	keys   []string
	status int
	url    string
}

func newUpstreamModel(t *testing.T) *upstreamModel {
	u := &upstreamModel{status: 200}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.bodies, u.keys = append(u.bodies, string(b)), append(u.keys, r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(u.status)
		fmt.Fprint(w, goodAnswer)
	}))
	t.Cleanup(srv.Close)
	u.url = srv.URL + "/v1"
	return u
}

func (u *upstreamModel) calls() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.bodies)
}

// Frozen models have their own key, never train, and an attempt reaches only
// those that the run opened to agents; the others' names are the policy's.
func TestFrozenModels(t *testing.T) {
	judge, helper := newUpstreamModel(t), newUpstreamModel(t)
	frozen := func(o *gateway.Options, b *book) {
		o.Plain = false
		b.config = []byte(`{"models":[{"name":"judge"},{"name":"helper","agents":true}],
			"auxiliary":[{"name":"title","system":"^You are a title generator","route":"judge"}]}`)
		b.models = map[string][]fulgur.Endpoint{
			"judge":  {{Model: "judge", Kind: fulgur.EndpointChat, URL: judge.url, Key: "judge-key"}},
			"helper": {{Model: "helper", Kind: fulgur.EndpointChat, URL: helper.url, Key: "helper-key"}},
		}
	}
	h := newHouse(t, frozen)
	body := func(model string) string {
		return fmt.Sprintf(`{"model":%q,"temperature":0.3,"frequency_penalty":1,"messages":[{"role":"user","content":"x"}]}`, model)
	}
	for _, c := range []struct {
		is, path, key, body string
		status              int
		of                  string // the endpoint's model; "": none is on record
		reasons             []string
	}{
		{"the policy", "/v1/chat/completions", agentKey, hi, 200, "policy", nil},
		{"an agent asks for the judge", "/v1/chat/completions", agentKey, body("judge"), 200, "policy", []string{fulgur.UntrainableSampling}},
		{"an agent asks for what is opened to it", "/v1/chat/completions", agentKey, body("helper"), 200, "helper", []string{fulgur.UntrainableFrozen, fulgur.UntrainableAuxiliary}},
		{"a rule leads there", "/v1/chat/completions", agentKey, titleCall, 200, "judge", []string{fulgur.UntrainableFrozen, fulgur.UntrainableAuxiliary}},
		{"the server key asks for the judge", "/openai/v1/chat/completions", serverKey, body("judge"), 200, "", nil},
		{"the server key asks for the policy", "/openai/v1/chat/completions", serverKey, body("policy"), 403, "", nil},
		{"the server key asks for what is not there", "/openai/v1/chat/completions", serverKey, body("gpt-4o"), 503, "", nil},
	} {
		t.Run(c.is, func(t *testing.T) {
			before := len(h.all())
			got := ask(t, http.MethodPost, h.url+c.path, c.key, c.body)
			if got.status != c.status {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if c.of == "" {
				if len(h.all()) != before {
					t.Error("on record")
				}
				return
			}
			r := h.last(t)
			if r.Endpoint.Model != c.of || r.Endpoint.Key != "" {
				t.Errorf("went to %+v, want %s", r.Endpoint, c.of)
			}
			for _, want := range c.reasons {
				if !slices.Contains(r.Untrainable, want) {
					t.Errorf("untrainable %v, want %s", r.Untrainable, want)
				}
			}
			if r.Trainable != (len(c.reasons) == 0) {
				t.Errorf("trains: %t %v", r.Trainable, r.Untrainable)
			}
			if c.of == "helper" && (r.Sampling.Temperature != 0.3 || !slices.Equal(r.Sampling.Others, []string{"frequency_penalty"})) {
				t.Errorf("sampled with %+v", r.Sampling)
			}
		})
	}
	if sent := strings.Join(append(judge.bodies, helper.bodies...), ""); strings.Contains(sent, "return_token_ids") || !strings.Contains(sent, `"temperature":0.3`) {
		t.Errorf("somebody else's server is sent %s", sent)
	}
	if judge.calls() != 2 || judge.keys[0] != "Bearer judge-key" || helper.calls() != 1 || helper.keys[0] != "Bearer helper-key" {
		t.Errorf("judge %d %v, helper %d %v", judge.calls(), judge.keys, helper.calls(), helper.keys)
	}
	h.models["another/theirs"] = h.models["judge"]
	for run, want := range map[string]int{"another": 200, "default": 503} {
		if got := ask(t, http.MethodPost, h.url+"/v1/chat/completions", serverKey, body("theirs"), "X-Fulgur-Run", run); got.status != want {
			t.Errorf("a model of another run, asked for in %s: %d %s", run, got.status, got.body)
		}
	}
	if got := ask(t, http.MethodGet, h.url+"/v1/models/helper", agentKey, ""); got.status != 200 {
		t.Errorf("the opened model is not listed: %d %s", got.status, got.body)
	}
	if got := ask(t, http.MethodGet, h.url+"/v1/models/judge", agentKey, ""); got.status != 404 {
		t.Errorf("the judge is listed: %d %s", got.status, got.body)
	}
}

// GW-25 with sampling.enforce: force: what differs from the run's is replaced,
// and the call trains.
func TestForcedSampling(t *testing.T) {
	h := newHouse(t, ruled(`{"sampling":{"enforce":"force"}}`))
	body := `{"model":"policy","temperature":0.2,"top_p":0.8,"top_k":5,"frequency_penalty":1,"logit_bias":{"5":1},"logprobs":false,"messages":[{"role":"user","content":"x"}]}`
	if got := h.chat(t, agentKey, body); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	r := h.last(t)
	if s := r.Sampling; !r.Trainable || s.Temperature != 1 || s.TopP != 0 || s.TopK != 0 || len(s.Others) != 0 {
		t.Errorf("sampled with %+v; untrainable %v", s, r.Untrainable)
	}
}

// The same where the call is relayed: the upstream is sent the run's sampling,
// what the run fixes and the client left open too.
func TestForcedSamplingUpstream(t *testing.T) {
	u := newUpstreamModel(t)
	h := newHouse(t, func(_ *gateway.Options, b *book) {
		b.config = []byte(`{"sampling":{"enforce":"force"}}`)
		b.endpoints = []fulgur.Endpoint{{Model: "policy", Kind: fulgur.EndpointChat, URL: u.url}}
		r := b.rollouts["r1"]
		r.Sampling = &fulgur.Sampling{Temperature: 1, TopP: 0.9}
		b.rollouts["r1"] = r
	})
	for body, want := range map[string][]string{
		`{"model":"policy","top_p":0.5,"top_k":5,"frequency_penalty":1.5,"repetition_penalty":2,"logit_bias":{"5":1},"messages":[{"role":"user","content":"x"}]}`: {
			`"temperature":1`, `"top_p":0.9`, `"top_k":-1`, `"frequency_penalty":0`, `"repetition_penalty":1`, `"logit_bias":null`},
		hi: {`"temperature":1`, `"top_p":0.9`},
	} {
		if got := h.chat(t, agentKey, body); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		sent := u.bodies[len(u.bodies)-1]
		for _, w := range want {
			if !strings.Contains(strings.ReplaceAll(sent, " ", ""), w) {
				t.Errorf("upstream was sent %s, without %s", sent, w)
			}
		}
		if r := h.last(t); r.Sampling.TopP != 0.9 || slices.Contains(r.Untrainable, fulgur.UntrainableSampling) {
			t.Errorf("sampled with %+v; untrainable %v", r.Sampling, r.Untrainable)
		}
	}
}

// A model with several servers: a rollout stays on its own, a server that fails
// gets no calls until it is back, and each call is on record with the version
// that its server had when it was admitted.
func TestSeveralEndpoints(t *testing.T) {
	const backoff = 300 * time.Millisecond
	servers := map[string]*upstreamModel{}
	var eps []fulgur.Endpoint
	for i := range 3 {
		u := newUpstreamModel(t)
		servers[u.url] = u
		eps = append(eps, fulgur.Endpoint{Model: "policy", Kind: fulgur.EndpointChat, URL: u.url, Version: fulgur.PolicyVersion(10 + i)})
	}
	h := newHouse(t, func(o *gateway.Options, b *book) {
		b.endpoints = eps
		o.Route = route.Options{Failures: 2, Backoff: backoff}
		o.Samplers[fulgur.EndpointChat] = chat.New(chat.Options{Retry: sampler.Retry{Tries: 1, Backoff: time.Millisecond}})
	})
	call := func() (string, int) {
		got := h.chat(t, agentKey, hi)
		r := h.last(t)
		for _, ep := range eps {
			if ep.URL == r.Endpoint.URL && ep.Version != r.Endpoint.Version {
				t.Errorf("%s is on record with version %d", ep.URL, r.Endpoint.Version)
			}
		}
		return r.Endpoint.URL, got.status
	}
	own, _ := call()
	for range 5 {
		if at, status := call(); at != own || status != 200 {
			t.Fatalf("the rollout moved from %s to %s (%d)", own, at, status)
		}
	}
	set := func(status int) {
		servers[own].mu.Lock()
		defer servers[own].mu.Unlock()
		servers[own].status = status
	}
	set(503)
	start := time.Now() // the ejection lasts from then on at least
	for range 2 {
		if at, status := call(); at != own || status != 503 {
			t.Fatalf("%s %d", at, status)
		}
	}
	for range 20 {
		if at, status := call(); (at == own || status != 200) && time.Since(start) < backoff {
			t.Fatalf("a call went to the failed server: %s %d", at, status)
		}
	}
	set(200)
	eventually(t, "the rollout is back at its server", func() bool { at, _ := call(); return at == own })
}

// What rules and limits do is counted.
func TestRulesAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	h := newHouse(t, ruled(`{"sampling":{"enforce":"force"},"auxiliary":[{"name":"other-model","other_model":true}]}`),
		func(o *gateway.Options, _ *book) { o.Metrics, o.MaxRate, o.Burst = reg, 0.001, 2 })
	h.chat(t, agentKey, `{"model":"policy","temperature":0.2,"top_p":0.8,"frequency_penalty":1,"messages":[{"role":"user","content":"x"}]}`)
	h.chat(t, agentKey, `{"model":"gpt-4o","messages":[{"role":"user","content":"x"}]}`)
	h.chat(t, agentKey, hi)
	got := counters(t, reg)
	for key, want := range map[string]float64{"auxiliary_total other-model": 1, "forced_total temperature": 1, "forced_total top_p": 1,
		"forced_total frequency_penalty": 1, "untrainable_total auxiliary": 1, "refused_total rate": 1} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}

// GW-22: a model's endpoints are replaced while a call is under way. It ends
// where it began, and is on record with the version of its admission; the next
// one goes to the new ones.
func TestEndpointsReplacedUnderACall(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-goOn
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, goodAnswer)
	}))
	defer slow.Close()
	next := newUpstreamModel(t)
	ep := func(url string, v fulgur.PolicyVersion) []fulgur.Endpoint {
		return []fulgur.Endpoint{{Model: "policy", Kind: fulgur.EndpointChat, URL: url, Version: v}}
	}
	h := newHouse(t, func(_ *gateway.Options, b *book) { b.endpoints = ep(slow.URL+"/v1", 1) })
	first := make(chan reply)
	go func() { first <- h.chat(t, agentKey, hi) }()
	<-began
	h.mu.Lock()
	h.endpoints = ep(next.url, 2)
	h.mu.Unlock()
	if got := h.chat(t, agentKey, `{"model":"policy","messages":[{"role":"user","content":"again"}]}`); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	close(goOn)
	if got := <-first; got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	all := h.all()
	if len(all) != 2 || all[0].Version() != 2 || all[1].Version() != 1 || all[1].Endpoint.URL != slow.URL+"/v1" {
		t.Errorf("on record: %+v", all)
	}
}
