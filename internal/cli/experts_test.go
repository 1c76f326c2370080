package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// R3: with --routed-experts they are asked for in training, kept from the agent,
// and given to v1's trainer at the call that covers the trajectory, text
// completions included.
func TestServeRoutedExperts(t *testing.T) {
	t.Parallel()
	turn := 0
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"return_routed_experts":true`) {
			t.Errorf("not asked for: %s", body)
		}
		w.Header().Set("Content-Type", "application/json")
		prompt, routes := "[1", "[0],[1]"
		for i := range turn {
			prompt += fmt.Sprintf(",%d,%d", 2+2*i, 3+2*i)
			routes += ",[2],[3]"
		}
		turn++
		switch r.URL.Path {
		case "/v1/chat/completions":
			fmt.Fprintf(w, `{"prompt_token_ids":%s],"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[%d],"logprobs":{"content":[{"logprob":-1}]},"routed_experts":[%s]}]}`, prompt, 2*turn, routes)
		case "/v1/completions":
			fmt.Fprintf(w, `{"choices":[{"index":0,"text":"ok","finish_reason":"stop","prompt_token_ids":%s],"token_ids":[%d],"logprobs":{"token_logprobs":[-1]},"routed_experts":[%s]}]}`, prompt, 2*turn, routes)
		}
	}))
	defer up.Close()
	server := start(t, t.TempDir(), nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--model", "m", "--routed-experts")
	url := server.says("listening on ")
	for path, body := range map[string]string{"/api/models": `[{"model":"m","endpoint":"` + up.URL + `/v1"}]`, "/api/rollouts": `[{"rollout_id":"r","input":1}]`} {
		if status, answer := ask(t, url+path, "K", body); status != 201 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
	}
	for _, path := range []string{"chat/completions", "completions", "chat/completions"} {
		status, answer := ask(t, url+"/proxy/rollout/r/attempt/0/mode/train/openai/v1/"+path, "K", `{"messages":[{"role":"user","content":"x"}],"prompt":"x"}`)
		if status != 200 || !strings.Contains(answer, `"token_ids":[`) || strings.Contains(answer, "experts") {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/rollouts/r/events?format=triplet", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer K")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	view, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(view), `"response_log_probs":[-1]`); n != 3 || strings.Count(string(view), "routed_experts") != 1 ||
		!strings.Contains(string(view), `"routed_experts":[[0],[1],[2],[3],[2],[3]]`) {
		t.Errorf("%s", view)
	}
	server.signal(os.Interrupt)
	server.ends(soon, exitOK)
}
