package v1_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
)

var auth = map[string]string{"Authorization": "Bearer " + key}

func TestLaxScalarsAreReadAsV1ReadsThem(t *testing.T) {
	_, srv := serve(t)
	for _, c := range []struct {
		name, item string
		want       int
		has        string // in the answer
	}{
		{"a text for a number", `{"input":1,"config":{"timeout_seconds":"60"}}`, 201, `"timeout_seconds":60`},
		{"a float that is whole", `{"input":1,"config":{"timeout_seconds":60.0}}`, 201, `"timeout_seconds":60`},
		{"an exponent", `{"input":1,"config":{"timeout_seconds":6e1}}`, 201, `"timeout_seconds":60`},
		{"a fraction", `{"input":1,"config":{"timeout_seconds":60.5}}`, 422, "fractional"},
		{"a hostile exponent", `{"input":1,"config":{"timeout_seconds":1e999999999}}`, 422, "integer"},
		{"null", `{"input":1,"config":{"timeout_seconds":null}}`, 422, "int_type"},
		{"yes", `{"input":1,"is_train":"yes"}`, 201, `"is_train":true`},
		{"off", `{"input":1,"is_train":"OFF"}`, 201, `"is_train":false`},
		{"zero", `{"input":1,"is_train":0}`, 201, `"is_train":false`},
		{"two is no truth", `{"input":1,"is_train":2}`, 422, "bool_parsing"},
		{"a list is no truth", `{"input":1,"is_train":[]}`, 422, "bool_type"},
		{"a number is no text", `{"input":1,"rollout_id":5}`, 422, "string_type"},
		{"an index that is no integer", `{"input":1,"metadata":{"batch_idx":"x"}}`, 422, "int_parsing"},
		{"an index as text", `{"input":1,"metadata":{"batch_idx":"7","z":98765432109876543210}}`, 201, `"batch_idx":7`},
		{"big integers survive", `{"input":{"z":98765432109876543210,"a":1e-7}}`, 201, `{"z":98765432109876543210,"a":1e-7}`},
		{"no case folding", `{"input":1,"Input":2,"INPUT":3}`, 201, `"input":1`},
		{"an empty k8s", `{"input":1,"config":{"k8s":{}}}`, 201, `"k8s":{"job_template":null}`},
		{"an environment map of texts", `{"input":1,"config":{"local":{"env_map":{"A":1}}}}`, 422, "env_map"},
		{"no object", `7`, 422, "model_attributes_type"},
	} {
		status, body, _ := do(t, "POST", srv.URL+"/api/rollouts", "["+c.item+"]", auth)
		if status != c.want || !strings.Contains(body, c.has) {
			t.Errorf("%s: %d %s; want %d with %s", c.name, status, body, c.want, c.has)
		}
	}
}

func TestPathsMethodsAndBodies(t *testing.T) {
	_, srv := serve(t)
	if status, body, _ := do(t, "POST", srv.URL+"/api/rollouts", `[{"rollout_id":"a b%/é","input":1}]`, auth); status != 201 {
		t.Fatal(status, body)
	}
	with := func(k, v string) map[string]string { return map[string]string{"Authorization": "Bearer " + key, k: v} }
	for _, c := range []struct {
		name, method, path, body string
		headers                  map[string]string
		want                     int
		has                      string
	}{
		{"an encoded id", "GET", "/api/rollouts/a%20b%25%2F%C3%A9", "", auth, 200, `"rollout_id":"a b%/é"`},
		{"a trailing slash", "GET", "/api/rollouts/?state_in=queuing", "", auth, 307, ""},
		{"no content type", "POST", "/api/rollouts", "[]", with("Content-Type", ""), 422, "detail"},
		{"another content type", "POST", "/api/rollouts", "[]", with("Content-Type", "text/plain"), 422, "detail"},
		{"a content type with a charset", "POST", "/api/rollouts", "[]", with("Content-Type", "application/json; charset=utf-8"), 201, "[]"},
		{"two values", "POST", "/api/rollouts", "[] []", auth, 422, "json_invalid"},
		{"a limit of none", "GET", "/api/rollouts?state_in=queuing&limit=0", "", auth, 200, "[]"},
		{"health needs no key", "GET", "/healthz", "", nil, 200, `{"status":"ok"}`},
		{"a bad flag", "GET", "/api/rollouts/x/events?include_routed_experts=maybe", "", auth, 422, "bool_parsing"},
		{"delete of nothing", "DELETE", "/api/rollouts/nobody", "", auth, 204, ""},
		{"an empty id", "GET", "/api/rollouts//events", "", auth, 404, "Not Found"},
		{"status null", "PATCH", "/api/rollouts/a%20b%25%2F%C3%A9", `{"status":null}`, auth, 200, `"version":1`},
		{"a big body", "POST", "/api/models", `[{"model":"` + strings.Repeat("x", 65<<20) + `"}]`, auth, 413, "too large"},
	} {
		status, body, h := do(t, c.method, srv.URL+c.path, c.body, c.headers)
		if status != c.want || !strings.Contains(body, c.has) {
			t.Errorf("%s: %d %.300s; want %d with %s", c.name, status, body, c.want, c.has)
		}
		if status == 307 && h.Get("Location") != srv.URL+"/api/rollouts?state_in=queuing" {
			t.Errorf("%s: location %q", c.name, h.Get("Location"))
		}
	}
}

func attempt(t *testing.T, s *store.Store, spec fulgur.RolloutSpec) string {
	t.Helper()
	if _, err := s.CreateRollouts(t.Context(), []fulgur.RolloutSpec{spec}); err != nil {
		t.Fatal(err)
	}
	a, err := s.OpenAttempt(t.Context(), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	return a.Credential
}

func TestAnAgentPostsItsOwnEventsInAnyRunAndNothingElse(t *testing.T) {
	s, srv := serve(t)
	if err := s.PutRun(t.Context(), fulgur.Run{ID: "calc", Model: "m"}); err != nil {
		t.Fatal(err)
	}
	cred := attempt(t, s, fulgur.RolloutSpec{ID: "r", Run: "calc", Input: json.RawMessage(`{"answer":42}`), Rewards: fulgur.RewardsAgent})
	me := map[string]string{"Authorization": "Bearer " + cred}
	post := "/api/rollouts/r/attempt/0/events"
	for _, c := range []struct {
		name, method, path, body string
		headers                  map[string]string
		want                     int
	}{
		{"its event", "POST", post, `{"event_type":"note"}`, me, 200},
		{"with the other header", "POST", post, `{"event_type":"note"}`, map[string]string{"x-api-key": cred}, 200},
		{"its reward", "POST", post, `{"event_type":"reward","data":{"value":0.5}}`, me, 200},
		{"a forged model call", "POST", post, `{"event_type":"model_request","data":{}}`, me, 403},
		{"a reward that is NaN", "POST", post, `{"event_type":"reward","data":{"value":NaN}}`, me, 200},
		{"another attempt's", "POST", "/api/rollouts/r/attempt/1/events", `{"event_type":"note"}`, me, 403},
		{"its rollout, with the answer", "GET", "/api/rollouts/r", "", me, 403},
		{"its status", "PATCH", "/api/rollouts/r", `{"status":{"state":"succeeded"}}`, me, 403},
		{"a pause", "POST", "/proxy/pause", `{}`, me, 403},
		{"another run's rollout is not v1's", "GET", "/api/rollouts/r", "", auth, 404},
		{"nor to be deleted", "DELETE", "/api/rollouts/r", "", auth, 204},
	} {
		if status, body, _ := do(t, c.method, srv.URL+c.path, c.body, c.headers); status != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, status, body, c.want)
		}
	}
	r, err := s.Rollout(t.Context(), "r")
	if err != nil || r.Reward == nil || *r.Reward != 0.5 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.EndRollout(t.Context(), "r", fulgur.Outcome{Class: fulgur.OutcomeAgent, Reason: "timeout"}); err != nil {
		t.Fatal(err)
	}
	status, body, h := do(t, "POST", srv.URL+post, `{"event_type":"note"}`, me)
	if status != http.StatusGone || h.Get("X-Should-Retry") != "false" {
		t.Errorf("after the end: %d %s %v", status, body, h)
	}
}

func TestCallsAreShownAsModelRequests(t *testing.T) {
	s, srv := serve(t)
	if _, err := s.CreateRollouts(t.Context(), []fulgur.RolloutSpec{{ID: "r", Run: fulgur.DefaultRun, Input: json.RawMessage("1")}}); err != nil {
		t.Fatal(err)
	}
	n := 0
	add := func(c fulgur.Call) {
		t.Helper()
		n++
		c.ID, c.Rollout, c.Attempt = fulgur.CallID(string(rune('a'+n))), "r", "0"
		c.Endpoint = fulgur.Endpoint{Model: "m", Kind: fulgur.EndpointChat, URL: "http://up/v1", Version: 2}
		c.StartedAt, c.Latency = time.Unix(1700000000, 0), 1500*time.Microsecond
		if err := s.AppendCall(t.Context(), &c); err != nil {
			t.Fatal(err)
		}
	}
	answer := `{"prompt_token_ids":[1,2],"choices":[{"token_ids":[3],"finish_reason":"stop","logprobs":{"content":[{"logprob":-0.5}]}}],"usage":{"prompt_tokens":2}}`
	add(fulgur.Call{Request: json.RawMessage(`{"model":"gpt"}`), Sent: json.RawMessage(`{"model":"m"}`), Response: json.RawMessage(answer), HTTPStatus: 200, Fate: fulgur.FateDelivered})
	add(fulgur.Call{Response: json.RawMessage(answer), HTTPStatus: 200, Fate: fulgur.FateLeft})                                                        // v1 records none whose client left
	add(fulgur.Call{Response: json.RawMessage(answer), HTTPStatus: 200, Fate: fulgur.FateDelivered, Untrainable: []string{fulgur.UntrainableAborted}}) // nor aborted ones
	add(fulgur.Call{Response: json.RawMessage(answer), HTTPStatus: 200, PromptIDs: []int32{1, 2}, SampledIDs: []int32{3}, LogProbs: []float32{-0.5},
		Fate: fulgur.FateDelivered, Untrainable: []string{fulgur.UntrainableFrozen}}) // nor a judge's
	add(fulgur.Call{HTTPStatus: 504, Error: "timed out", Fate: fulgur.FateRefused})                                                                              // nor those without an answer
	add(fulgur.Call{Response: json.RawMessage(`{"text":"NaN \" NaN","choices":[{"token_ids":[9],"logprobs":{"content":[{"logprob":NaN}]}}]}`), HTTPStatus: 200}) // NaN becomes null
	if _, err := s.AppendEvent(t.Context(), fulgur.Event{Rollout: "r", Attempt: "0", Type: "reward", Data: json.RawMessage(`{"value":1,"note":"x"}`)}); err != nil {
		t.Fatal(err)
	}
	add(fulgur.Call{Response: json.RawMessage(`[{"prompt_token_ids":[7],"choices":[{"token_ids":[1],"logprobs":{"content":[{"logprob":-1}]}}]},{"choices":[{"token_ids":[2],"logprobs":{"content":[{"logprob":-2}]}}]}]`), HTTPStatus: 200})

	type item struct {
		Type string          `json:"event_type"`
		Data json.RawMessage `json:"data"`
	}
	read := func(query string) (out []item) {
		t.Helper()
		status, body, _ := do(t, "GET", srv.URL+"/api/rollouts/r/events"+query, "", auth)
		if err := json.Unmarshal([]byte(body), &out); err != nil || status != 200 {
			t.Fatal(status, err, body)
		}
		return out
	}
	raw := read("")
	if len(raw) != 4 || raw[2].Type != "reward" {
		t.Fatalf("%d events: %s", len(raw), raw)
	}
	for i, want := range map[int]string{
		0: `{"model":"m","model_version":2,"request":{"model":"m"},"response":` + answer + `,"server":{"model":"m","endpoint":"http://up/v1","version":2},` +
			`"latency_ms":1.5,"http_status":200,"status":"ok","retry_count":0,"routed_experts":null,"usage":{"prompt_tokens":2},"finish_reason":"stop"}`,
		1: `{"model":"m","model_version":2,"request":null,"response":{"text":"NaN \" NaN","choices":[{"token_ids":[9],"logprobs":{"content":[{"logprob":null}]}}]},` +
			`"server":{"model":"m","endpoint":"http://up/v1","version":2},"latency_ms":1.5,"http_status":200,"status":"ok","retry_count":0,"routed_experts":null,"usage":null,"finish_reason":null}`,
	} {
		if string(raw[i].Data) != want {
			t.Errorf("event %d:\n%s, want\n%s", i, raw[i].Data, want)
		}
	}
	trip := read("?format=triplet")
	for i, want := range []string{
		`{"prompt_token_ids":[1,2],"response_token_ids":[3],"response_log_probs":[-0.5],"server":{"model":"m","version":2},"http_status":200,"status":"ok"}`,
		`{"prompt_token_ids":[],"response_token_ids":[9],"response_log_probs":null,"server":{"model":"m","version":2},"http_status":200,"status":"ok"}`,
		`{"value":1}`,
		`{"prompt_token_ids":[7],"response_token_ids":[1,2],"response_log_probs":[-1,-2],"server":{"model":"m","version":2},"http_status":200,"status":"ok"}`,
	} {
		if string(trip[i].Data) != want {
			t.Errorf("triplet %d: %s, want %s", i, trip[i].Data, want)
		}
	}
	if only := read("?event_type=reward"); len(only) != 1 {
		t.Errorf("rewards: %v", only)
	}
}
