package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// callServer makes one request with headers (name, value, …) and returns status and
// body; its body and answer are JSON or text.
func callServer(t *testing.T, method, url, body string, header ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// openAttempt makes a rollout of v1's run and an attempt, as docs/tinker.md does
// with curl, and returns the attempt's credential.
func openAttempt(t *testing.T, url, id string) string {
	t.Helper()
	status, body := callServer(t, "POST", url+"/api/v2/rollouts", `[{"id":"`+id+`","run":"default","input":{"question":"?"},"is_train":true}]`, "Authorization", "Bearer K")
	if status != http.StatusCreated {
		t.Fatalf("creating a rollout: %d %s", status, body)
	}
	status, body = callServer(t, "POST", url+"/api/v2/rollouts/"+id+"/attempts", "", "Authorization", "Bearer K")
	var a fulgur.OpenedAttempt
	if err := json.Unmarshal([]byte(body), &a); err != nil || a.Credential == "" {
		t.Fatalf("opening an attempt: %d %s", status, body)
	}
	return a.Credential
}

// TestWhoMaySee: /metrics is the server key's, in either header; one right key is
// enough everywhere, whatever the other header holds.
func TestWhoMaySee(t *testing.T) {
	t.Parallel()
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--store", "sqlite::memory:", "--model-dir", "builtin:calc")
	url := server.says("listening on ")
	agent := openAttempt(t, url, "r1")
	event := "/api/v2/rollouts/r1/attempts/0/events"
	for name, c := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		says               string
	}{
		"metrics without a key":                   {"GET", "/metrics", "", nil, 401, "give the server key"},
		"metrics with a wrong key":                {"GET", "/metrics", "", []string{"Authorization", "Bearer no"}, 401, "give the server key"},
		"metrics with an agent's":                 {"GET", "/metrics", "", []string{"Authorization", "Bearer " + agent}, 403, "server key"},
		"metrics with the server key":             {"GET", "/metrics", "", []string{"Authorization", "Bearer K"}, 200, "fulgur_gateway_in_flight"},
		"metrics with it in the other header":     {"GET", "/metrics", "", []string{"X-Api-Key", "K"}, 200, "fulgur_gateway_in_flight"},
		"v2: wrong bearer, right x-api-key":       {"GET", "/api/v2/runs", "", []string{"Authorization", "Bearer no", "X-Api-Key", "K"}, 200, `"default"`},
		"v2: right bearer, wrong x-api-key":       {"GET", "/api/v2/runs", "", []string{"Authorization", "Bearer K", "X-Api-Key", "no"}, 200, `"default"`},
		"v2: an agent's bearer, the server's key": {"GET", "/api/v2/runs", "", []string{"Authorization", "Bearer " + agent, "X-Api-Key", "K"}, 200, `"default"`},
		"v2: both wrong":                          {"GET", "/api/v2/runs", "", []string{"Authorization", "Bearer no", "X-Api-Key", "no"}, 401, "Invalid or missing"},
		"v2: no bearer but another scheme":        {"GET", "/api/v2/runs", "", []string{"Authorization", "Basic Szo=", "X-Api-Key", "K"}, 200, `"default"`},
		"v2: an agent's event, stale bearer":      {"POST", event, `{"type":"note"}`, []string{"Authorization", "Bearer no", "X-Api-Key", agent}, 201, "note"},
		"v2: a body that is not as described":     {"POST", "/api/v2/rollouts", `[{"id":"x"}]`, []string{"X-Api-Key", "K"}, 422, `"kind":"invalid"`},
		"v1: wrong bearer, right x-api-key":       {"GET", "/api/rollouts/r1", "", []string{"Authorization", "Bearer no", "X-Api-Key", "K"}, 200, "r1"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := callServer(t, c.method, url+c.path, c.body, c.header...)
			if status != c.status || !strings.Contains(body, c.says) {
				t.Errorf("%d %.300s; want %d with %q", status, body, c.status, c.says)
			}
		})
	}
}

// TestEventsOfOneAttempt: an agent can't fill the disk with events, however small
// they are, nor after a restart; others of its run and the server key can go on.
func TestEventsOfOneAttempt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"serve", "--listen", "127.0.0.1:0", "--key", "K", "--store", "sqlite:x.db", "--attempt-events", "3", "--attempt-event-bytes", "2000"}
	server := start(t, dir, nil, args...)
	url := server.says("listening on ")
	one, two := openAttempt(t, url, "r1"), openAttempt(t, url, "r2")
	post := func(rollout, key string, data string) (int, string) {
		return callServer(t, "POST", url+"/api/v2/rollouts/"+rollout+"/attempts/0/events", `{"type":"note","data":{"n":"`+data+`"}}`, "Authorization", "Bearer "+key)
	}
	v1 := func(key string) (int, string) {
		return callServer(t, "POST", url+"/api/rollouts/r1/attempt/0/events", `{"event_type":"note","data":{}}`, "Authorization", "Bearer "+key)
	}
	for range 2 {
		if status, body := post("r1", one, "x"); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	if status, body := v1(one); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := v1(one); status != 413 || !strings.Contains(body, "posted 3 events") {
		t.Errorf("the fourth over v1: %d %s", status, body)
	}
	if status, body := post("r2", two, strings.Repeat("x", 1900)); status != 201 {
		t.Errorf("another attempt's: %d %s", status, body)
	}
	if status, body := post("r2", two, strings.Repeat("x", 200)); status != 413 || !strings.Contains(body, "2000 in all") {
		t.Errorf("above the bytes: %d %s", status, body)
	}
	if status, body := post("r1", "K", "x"); status != 201 {
		t.Errorf("the server key: %d %s", status, body)
	}
	if status, body := callServer(t, "GET", url+"/metrics", "", "Authorization", "Bearer K"); status != 200 ||
		!strings.Contains(body, `fulgur_api_events_refused_total{limit="count"} 1`) || !strings.Contains(body, `fulgur_api_events_refused_total{limit="bytes"} 1`) {
		t.Errorf("the metrics do not count them: %d", status)
	}
	server.kill()
	url = start(t, dir, nil, args...).says("listening on ")
	if status, body := post("r1", one, "x"); status != 413 {
		t.Errorf("after a restart: %d %s", status, body)
	}
}

// TestModelsOfNoName: a run whose policy has no name (v1's) lists the models that
// are registered, for agents too.
func TestModelsOfNoName(t *testing.T) {
	t.Parallel()
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--store", "sqlite::memory:", "--probe=false")
	url := server.says("listening on ")
	agent := openAttempt(t, url, "r1")
	if status, body := callServer(t, "GET", url+"/v1/models", "", "Authorization", "Bearer "+agent); status != 200 || !strings.Contains(body, `"data":[]`) {
		t.Errorf("nothing is registered: %d %s", status, body)
	}
	asked := make(chan string, 10)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Model string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		asked <- body.Model
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"Red."},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`)
	}))
	defer up.Close()
	status, body := callServer(t, "PUT", url+"/api/v2/runs/default/models", `{"model":"policy","endpoints":[
		{"model":"policy","kind":"chat","url":"`+up.URL+`/v1","version":1},{"model":"policy","kind":"chat","url":"`+up.URL+`/other/v1","version":1}]}`, "Authorization", "Bearer K")
	if status != 200 {
		t.Fatalf("registering: %d %s", status, body)
	}
	if status, body := callServer(t, "POST", url+"/v1/chat/completions", `{"model":"policy","messages":[{"role":"user","content":"?"}]}`, "Authorization", "Bearer "+agent); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if name := <-asked; name != "policy" {
		t.Errorf("the model server was asked for %q", name)
	}
	for _, key := range []string{"K", agent} {
		if status, body := callServer(t, "GET", url+"/v1/models", "", "Authorization", "Bearer "+key); status != 200 || strings.Count(body, `"id"`) != 1 || !strings.Contains(body, `"id":"policy"`) {
			t.Errorf("%d %s", status, body)
		}
	}
	if status, body := callServer(t, "GET", url+"/v1/models/other", "", "Authorization", "Bearer "+agent); status != 404 || !strings.Contains(body, "ask for 'policy'") {
		t.Errorf("%d %s", status, body)
	}
}
