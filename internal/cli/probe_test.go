package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestProbe: what a model server lacks for training is said and counted when it
// is registered, not found out by calls that do not train (GW-19, UI-06).
func TestProbe(t *testing.T) {
	t.Parallel()
	// A server that knows nothing of return_token_ids, and gives log probs.
	var asked atomic.Int64
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"1","object":"chat.completion","created":1,"model":"plain","choices":[{"index":0,"message":{"role":"assistant","content":"Red."},
			"logprobs":{"content":[{"token":"Red","logprob":-0.5},{"token":".","logprob":-0.25}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`)
	}))
	defer plain.Close()
	engine := start(t, t.TempDir(), nil, "engine", "serve", "--listen", "127.0.0.1:0")
	engineURL := engine.says("listening on ")
	dir := t.TempDir()
	args := []string{"serve", "--listen", "127.0.0.1:0", "--key", "K", "--store", "sqlite:x.db", "--model-dir", "builtin:calc"}
	server := start(t, dir, nil, args...)
	url := server.says("listening on ")
	put := func(model, kind, at string) {
		t.Helper()
		body := fmt.Sprintf(`{"model":%q,"endpoints":[{"model":%q,"kind":%q,"url":"%s/v1","version":1}]}`, model, model, kind, at)
		if status, answer := callServer(t, "PUT", url+"/api/v2/runs/default/models", body, "Authorization", "Bearer K"); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	put("plain", "chat", plain.URL)
	server.notes("calls to the model server " + plain.URL + "/v1 (plain, chat) will not train")
	server.notes("sampled token ids  missing")
	server.notes("token counts       yes")
	put("policy", "tokens", engineURL)
	server.notes("does not answer a call")
	put("builtin:calc", "tokens", engineURL)
	server.notes("gives=\"all that training needs\" log_probs=\"of the temperature that is asked for\"")
	put("builtin:calc", "tokens", engineURL) // known

	// While calls are paused nothing reaches a model server, no probe either.
	pause := func(what string) {
		t.Helper()
		if status, answer := callServer(t, "POST", url+"/api/v2/runs/default/"+what, `{"owner":"me"}`, "Authorization", "Bearer K"); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	before := asked.Load()
	pause("pause")
	put("later", "chat", plain.URL)
	for held := ""; !strings.Contains(held, `"held":1`); {
		_, held = callServer(t, "GET", url+"/api/v2/runs/default/pause", "", "Authorization", "Bearer K")
	}
	if n := asked.Load(); n != before {
		t.Errorf("%d calls reached the server on pause", n-before)
	}
	pause("resume")
	server.notes("(later, chat) will not train")
	_, metrics := callServer(t, "GET", url+"/metrics", "", "Authorization", "Bearer K")
	for _, want := range []string{`fulgur_gateway_probes_total{found="lacking"} 2`, `fulgur_gateway_probes_total{found="failed"} 1`, `fulgur_gateway_probes_total{found="whole"} 1`,
		`fulgur_gateway_endpoint_lacks{endpoint="` + plain.URL + `/v1",lack="sampled token ids"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	if status, calls := callServer(t, "GET", url+"/api/v2/runs", "", "Authorization", "Bearer K"); status != 200 || strings.Contains(calls, "Name a colour") {
		t.Errorf("%d %s", status, calls)
	}
	server.signal(os.Interrupt)
	server.ends(20*time.Second, exitOK, "stopping: what is recorded is kept")

	// What is on record is looked at when a server starts.
	server = start(t, dir, nil, args...)
	server.notes("(plain, chat) will not train")
	server.signal(os.Interrupt)
	server.ends(20*time.Second, exitOK)
	start(t, dir, nil, append(args, "--probe=false")...).says("listening on ")
}
