package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openaichat"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// other is a second API: the chat dialect's words at other paths, with counts
// and a list of its own, as Anthropic's.
type other struct{ openaichat.Dialect }

var _ interface {
	dialect.Counter
	dialect.Lister
} = other{}

func (other) Name() string         { return openaichat.Name } // so that a relay takes it
func (other) Paths() []string      { return []string{"anthropic/v1/messages"} }
func (other) CountPaths() []string { return []string{"anthropic/v1/messages/count_tokens"} }
func (other) AppendCount(dst []byte, n int) []byte {
	return fmt.Appendf(dst, `{"input_tokens":%d}`, n)
}
func (other) Lists(header func(string) string) bool { return header("anthropic-version") != "" }
func (other) AppendError(dst []byte, f dialect.Failure) []byte {
	b, _ := json.Marshal(f.Message)
	return fmt.Appendf(dst, `{"type":"error","error":{"type":"other_%s","message":%s}}`, f.Type, b)
}
func (other) AppendModels(dst []byte, names []string) []byte {
	b, _ := json.Marshal(names[0])
	return fmt.Appendf(dst, `{"data":[{"type":"model","id":%s}],"has_more":false}`, b)
}

// counter is a sampler that can count.
type counter struct{ sampler.Sampler }

func (counter) Count(_ context.Context, o *call.Order) (int, error) {
	return len(o.Messages[0].Content), o.Invalid
}

func twoDialects(o *gateway.Options, _ *book) {
	o.Dialects = []dialect.Dialect{openaichat.Dialect{}, other{}}
	for k, s := range o.Samplers {
		o.Samplers[k] = counter{s}
	}
}

func ask(t *testing.T, method, url, key, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = io.Copy(&b, resp.Body)
	return reply{resp.StatusCode, resp.Header, b.String(), err}
}

// Harnesses set base URLs with and without /v1, put paths of their own in front,
// and speak one API at the other's prefix.
func TestPathsOfHarnesses(t *testing.T) {
	h := newHouse(t, twoDialects)
	const own = "/proxy/rollout/r1/attempt/0/mode/train"
	for _, path := range []string{
		"/openai/v1/chat/completions", "/openai/chat/completions", "/openai/v1/v1/chat/completions", "/v1/chat/completions", "/chat/completions",
		own + "/openai/v1/chat/completions", own + "/openai/chat/completions", own + "/chat/completions", own + "/v1/chat/completions",
		"/anthropic/v1/messages?beta=true", "/anthropic/messages", "/anthropic/v1/v1/messages", "/v1/messages", "/messages", "/openai/v1/messages",
		own + "/anthropic/v1/messages", own + "/anthropic/v1/v1/messages", own + "/v1/messages", own + "/anything/at/all/v1/messages",
		"/anything/at/all/v1/messages", "/openai/v1/chat/completions/",
	} {
		if got := ask(t, http.MethodPost, h.url+path, agentKey, hi); got.status != 200 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	for _, c := range h.all() {
		if c.Rollout != "r1" || c.Attempt != "0" || c.Mode != "train" {
			t.Errorf("a call of %s/%s %s", c.Rollout, c.Attempt, c.Mode)
		}
	}
}

// GW-03: count_tokens answers, and is no call.
func TestCountTokens(t *testing.T) {
	h := newHouse(t, twoDialects)
	for _, path := range []string{"/anthropic/v1/messages/count_tokens?beta=true", "/v1/messages/count_tokens", "/proxy/rollout/r1/attempt/0/mode/train/anthropic/v1/messages/count_tokens"} {
		if got := ask(t, http.MethodPost, h.url+path, agentKey, `{"messages":[{"role":"user","content":"12345"}]}`); got.status != 200 || got.body != `{"input_tokens":5}` {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	for body, says := range map[string]string{`[]`: "JSON object", `{"messages":[{"content":"x"}]}`: "role is missing"} {
		if got := ask(t, http.MethodPost, h.url+"/v1/messages/count_tokens", agentKey, body); got.status != 400 || !strings.Contains(got.body, says) || !strings.Contains(got.body, "other_invalid") {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	if len(h.all()) != 0 || h.gen.Calls() != 0 {
		t.Error("a count is on record as a call")
	}
	h = newHouse(t, func(o *gateway.Options, _ *book) { o.Dialects = []dialect.Dialect{openaichat.Dialect{}, other{}} })
	h.endpoints[0].Kind = "chat" // whose sampler does not count
	if got := ask(t, http.MethodPost, h.url+"/v1/messages/count_tokens", agentKey, hi); got.status != 400 && got.status != 502 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// Lists of models in the shape of who asks; one model by its name.
func TestModelsInBothShapes(t *testing.T) {
	h := newHouse(t, twoDialects)
	const own = "/proxy/rollout/r1/attempt/0/mode/train"
	version := []string{"anthropic-version", "2023-06-01"}
	for _, c := range []struct {
		path   string
		header []string
		status int
		says   string
	}{
		{"/v1/models", nil, 200, `"object":"list"`},
		{"/openai/models", nil, 200, `"object":"list"`},
		{"/models", nil, 200, `"object":"list"`},
		{"/v1/models", version, 200, `"has_more"`},
		{"/anthropic/v1/models?limit=20", nil, 200, `"has_more"`},
		{own + "/anthropic/v1/models", version, 200, `"has_more"`},
		{own + "/openai/v1/models", nil, 200, `"object":"list"`},
		{"/v1/models/policy", nil, 200, `{"id":"policy","object":"model"`},
		{"/v1/models/policy", version, 200, `{"type":"model","id":"policy"}`},
		{"/v1/models/gpt-4o", nil, 404, `ask for 'policy'`},
		{"/anthropic/v1/models/org/model", nil, 404, `other_not_found_error`},
	} {
		got := ask(t, http.MethodGet, h.url+c.path, agentKey, "", c.header...)
		if got.status != c.status || !strings.Contains(got.body, c.says) {
			t.Errorf("%s %v: %d %s", c.path, c.header, got.status, got.body)
		}
	}
}

// What is not there is a quick 404 in the words of the prefix's API, whoever
// asks; Claude Code asks HEAD /api/hello.
func TestUnknownPaths(t *testing.T) {
	h := newHouse(t, twoDialects)
	const own = "/proxy/rollout/r1/attempt/0/mode/train"
	for _, c := range []struct {
		method, path, key string
		status            int
		says              string
	}{
		{"GET", "/anthropic/api/hello", "", 404, `"type":"other_not_found_error"`},
		{"HEAD", "/anthropic/api/hello", "", 404, ""},
		{"HEAD", own + "/anthropic/api/hello", "", 404, ""},
		{"GET", "/openai/v1/assistants", agentKey, 404, `"type":"not_found_error"`},
		{"GET", own + "/anthropic/v1/organizations", agentKey, 404, `"type":"other_not_found_error"`},
		{"POST", "/anthropic/v1/complete", agentKey, 404, `"type":"other_not_found_error"`},
		{"POST", own + "/openai/v1/embeddings", agentKey, 404, "Unsupported upstream path: embeddings"},
		{"GET", "/anthropic/v1/messages", agentKey, 405, `"type":"other_`},
		{"GET", own + "/openai/v1/chat/completions", serverKey, 405, `{"detail":"Method Not Allowed"}`},
		{"POST", "/anthropic/v1/messages", "", 401, `"type":"other_authentication_error"`},
		{"POST", own + "/anthropic/v1/messages", "", 401, `"type":"other_authentication_error"`},
	} {
		got := ask(t, c.method, h.url+c.path, c.key, "")
		if got.status != c.status || !strings.Contains(got.body, c.says) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.method, c.path, got.status, got.body, c.status, c.says)
		}
	}
}

// ST-05 in the other API's words.
func TestEndedAttemptInItsDialect(t *testing.T) {
	h := newHouse(t, twoDialects)
	h.end(agentKey)
	for i, status := range []int{410, 410, 400, 400} {
		got := ask(t, http.MethodPost, h.url+"/anthropic/v1/messages", agentKey, hi)
		if got.status != status || !strings.Contains(got.body, `{"type":"error","error":{"type":"other_`) || got.header.Get("X-Should-Retry") != "false" {
			t.Errorf("request %d: %d %s", i, got.status, got.body)
		}
		if status == 400 && (!strings.Contains(got.body, "maximum context length") || !strings.Contains(got.body, "prompt is too long")) {
			t.Errorf("request %d: %s", i, got.body)
		}
	}
}
