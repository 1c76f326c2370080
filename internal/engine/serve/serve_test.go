package serve_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/serve"
)

// count samples the prompt's last id plus one, plus two, …; the policy is
// updated after the second token.
type count struct{ fail error }

func (c count) Generate(ctx context.Context, req engine.GenerateRequest, emit func(engine.Token) error) (engine.Generation, error) {
	out := engine.Generation{FinishReason: "length", CachedTokens: 1}
	for i := range req.MaxTokens {
		if c.fail != nil && i == 3 {
			return out, c.fail
		}
		t := engine.Token{ID: req.Prompt[len(req.Prompt)-1] + int32(i) + 1, LogProb: -0.5, Version: fulgur.PolicyVersion(i / 2)}
		out.Tokens = append(out.Tokens, t)
		if emit != nil {
			if err := emit(t); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

func ask(t *testing.T, h http.Handler, key, body string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(b)
}

var options = serve.Options{Model: "m", Key: "k", ContextLength: 100, VocabSize: 50}

func TestCompletions(t *testing.T) {
	s := serve.New(count{}, options)
	status, body := ask(t, s, "k", `{"model":"m","prompt":[1,2],"max_tokens":3,"logprobs":1,"return_token_ids":true}`)
	for _, want := range []string{`"token_ids":[3,4,5]`, `"prompt_token_ids":[1,2]`, `"token_logprobs":[-0.5,-0.5,-0.5]`, `"finish_reason":"length"`, `"policy_version":0`,
		`"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}`} {
		if status != 200 || !strings.Contains(body, want) || !json.Valid([]byte(body)) {
			t.Errorf("%d, no %s in %s", status, want, body)
		}
	}
	status, body = ask(t, s, "k", `{"model":"m","prompt":[1,2],"max_tokens":4,"stream":true,"return_token_ids":true}`)
	for _, want := range []string{`"policy_version":0`, `"policy_version":1`, `"prompt_token_ids":[1,2]`, `"finish_reason":"length"`} {
		if status != 200 || strings.Count(body, want) < 1 {
			t.Errorf("stream: %d, no %s in %s", status, want, body)
		}
	}
	if !strings.HasSuffix(body, "data: [DONE]\n\n") || strings.Contains(body, "usage") {
		t.Errorf("stream: %s", body)
	}
}

func TestRefusals(t *testing.T) {
	s := serve.New(count{}, options)
	for is, c := range map[string]struct {
		key, body string
		status    int
		says      string
	}{
		"no key":            {"", `{}`, 401, "API key"},
		"not JSON":          {"k", `{nope`, 400, "completions request"},
		"text for a prompt": {"k", `{"model":"m","prompt":"hi"}`, 400, "token ids"},
		"an unknown model":  {"k", `{"model":"x","prompt":[1]}`, 404, "does not exist"},
		"an empty prompt":   {"k", `{"model":"m","prompt":[]}`, 400, "at least one"},
		"an id too high":    {"k", `{"model":"m","prompt":[1,50]}`, 400, "Token id 50 is out of vocabulary"},
		"a prompt too long": {"k", `{"model":"m","prompt":[` + strings.Repeat("1,", 99) + `1]}`, 400, "maximum context length is 100"},
		"a negative warmth": {"k", `{"model":"m","prompt":[1],"temperature":-1}`, 400, "temperature"},
		"no tokens":         {"k", `{"model":"m","prompt":[1],"max_tokens":0}`, 400, "max_tokens"},
		"several answers":   {"k", `{"model":"m","prompt":[1],"n":2}`, 400, "n must be 1"},
	} {
		t.Run(is, func(t *testing.T) {
			status, body := ask(t, s, c.key, c.body)
			if status != c.status || !strings.Contains(body, c.says) || !strings.Contains(body, `{"error":{"message"`) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

func TestFailureInTheMiddle(t *testing.T) {
	s := serve.New(count{fail: errors.New("broke")}, options)
	if status, _ := ask(t, s, "k", `{"model":"m","prompt":[1],"max_tokens":9}`); status != 500 {
		t.Errorf("status %d", status)
	}
	if _, body := ask(t, s, "k", `{"model":"m","prompt":[1],"max_tokens":9,"stream":true}`); strings.Contains(body, "[DONE]") || !strings.Contains(body, `"error"`) {
		t.Errorf("stream: %s", body)
	}
}

func TestModelsAndHealth(t *testing.T) {
	s := serve.New(count{}, options)
	for path, want := range map[string]string{"/health": "", "/v1/models": `"max_model_len":100`} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer k")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestAStreamThatIsShownToNobodyIsSentInOnePiece(t *testing.T) {
	s := serve.New(count{}, options)
	for interval, events := range map[string]int{"": 2, `,"stream_interval_ms":5000`: 1} {
		_, body := ask(t, s, "k", `{"model":"m","prompt":[1,2],"max_tokens":2,"return_token_ids":true,"stream":true`+interval+`}`)
		if n := strings.Count(body, `,"token_ids":[`); n != events || !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("%d events with tokens, want %d: %s", n, events, body)
		}
	}
}
