package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestServeTinker: an endpoint whose address begins with tinker+ is sampled from
// over the Tinker API, within the limits of the model's config.
func TestServeTinker(t *testing.T) {
	t.Parallel()
	var asked atomic.Value // the request to sample
	var strange atomic.Bool
	tinker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		answers := map[string]string{
			"client/config": `{}`, "create_session": `{"session_id":"s"}`, "session_heartbeat": `{}`,
			"create_sampling_session": `{"sampling_session_id":"p"}`, "asample": `{"request_id":"1"}`,
			"retrieve_future": `{"sequences":[{"tokens":[20,21],"logprobs":[-0.5,-0.25],"stop_reason":"length"}]}`,
		}
		verb := strings.TrimPrefix(r.URL.Path, "/api/v1/")
		if verb == "asample" {
			asked.Store(string(body))
		}
		if strange.Load() { // an id that the model does not have
			answers["retrieve_future"] = `{"sequences":[{"tokens":[20,152000],"logprobs":[-0.5,-0.25],"stop_reason":"length"}]}`
		}
		w.Header().Set("Content-Type", "application/json")
		if answers[verb] == "" {
			w.WriteHeader(404)
		}
		fmt.Fprint(w, answers[verb])
	}))
	defer tinker.Close()
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--model-dir", "builtin:calc", "--store", "sqlite:"+filepath.Join(t.TempDir(), "x.db"))
	url := server.says("listening on ")
	if status, answer := send(t, "PUT", url+"/api/v2/runs/default/models", "", `{"model":"m","endpoints":[{"model":"m","kind":"tokens","url":"tinker+`+tinker.URL+`?base_model=b","version":4}]}`); status/100 != 2 {
		t.Fatalf("status %d: %s", status, answer)
	}
	if status, answer := ask(t, url+"/api/rollouts", "", `[{"rollout_id":"r1","input":{"q":1},"is_train":true}]`); status/100 != 2 {
		t.Fatalf("status %d: %s", status, answer)
	}
	const path = "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions"
	if status, answer := ask(t, url+path, "", strings.Replace(chatBody, "MODEL", "m", 1)); status != 200 || !strings.Contains(answer, `"completion_tokens":2`) {
		t.Fatalf("status %d: %s", status, answer)
	}
	status, answer := send(t, "GET", url+"/api/v2/rollouts/r1/calls", "", "")
	for _, s := range []string{`"sampled_ids":[20,21]`, `"log_probs":[-0.5,-0.25]`, `"version":4`, `"trainable":true`} {
		if status != 200 || !strings.Contains(strings.ReplaceAll(answer, " ", ""), s) {
			t.Errorf("the record has no %s: %s", s, answer)
		}
	}
	// Ids beyond the vocabulary: answered, kept, never trained on, and the
	// conversation goes on from its text.
	strange.Store(true)
	if status, answer := ask(t, url+path, "", strings.Replace(chatBody, "MODEL", "m", 1)); status != 200 {
		t.Fatalf("status %d: %s", status, answer)
	}
	_, answer = send(t, "GET", url+"/api/v2/rollouts/r1/calls", "", "")
	for _, s := range []string{`"sampled_ids":[20,152000]`, `"untrainable":["bad_token_ids"]`} {
		if !strings.Contains(strings.ReplaceAll(answer, " ", ""), s) {
			t.Errorf("the record has no %s: %s", s, answer)
		}
	}
	var calls []struct {
		Reply struct{ Content string }
	}
	if err := json.Unmarshal([]byte(answer), &calls); err != nil || len(calls) != 2 {
		t.Fatalf("%v: %s", err, answer)
	}
	strange.Store(false)
	for _, c := range calls {
		reply, err := json.Marshal(c.Reply.Content)
		if err != nil {
			t.Fatal(err)
		}
		on := strings.Replace(strings.Replace(chatBody, "MODEL", "m", 1), `}]`, `},{"role":"assistant","content":`+string(reply)+`},{"role":"user","content":"and?"}]`, 1)
		if status, answer := ask(t, url+path, "", on); status != 200 {
			t.Errorf("going on: status %d: %s", status, answer)
		}
	}
	var q struct {
		Params struct {
			MaxTokens int   `json:"max_tokens"`
			Stop      []int `json:"stop"`
		} `json:"sampling_params"`
	}
	if err := json.Unmarshal([]byte(asked.Load().(string)), &q); err != nil || q.Params.MaxTokens < 1 || len(q.Params.Stop) == 0 {
		t.Errorf("asked %s", asked.Load())
	}
	server.signal(os.Interrupt)
	server.ends(soon, exitOK, "no --key")
}
