package gateway_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
)

// upstream is a chat server that answers as a test tells it.
type upstream struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	heads  []http.Header
	hits   atomic.Int64
}

func newUpstream(t *testing.T, answer http.HandlerFunc) *upstream {
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.bodies, u.heads = append(u.bodies, string(b)), append(u.heads, r.Header.Clone())
		u.mu.Unlock()
		u.hits.Add(1)
		answer(w, r)
	}))
	t.Cleanup(u.Close)
	return u
}

func chatHouse(t *testing.T, answer http.HandlerFunc, change ...func(*gateway.Options, *book)) (*house, *upstream) {
	t.Helper()
	u := newUpstream(t, answer)
	h := newHouse(t, change...)
	h.endpoints = []fulgur.Endpoint{{Model: "policy", Kind: fulgur.EndpointChat, URL: u.URL + "/v1/", Key: "upstream-key", Version: 2}}
	return h, u
}

func jsonAnswer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
}

func events(list ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range list {
			_, _ = io.WriteString(w, e)
			w.(http.Flusher).Flush()
			time.Sleep(2 * time.Millisecond)
		}
	}
}

const goodAnswer = `{"id":"c","object":"chat.completion","model":"served","prompt_token_ids":[1,2,3],"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},` +
	`"logprobs":{"content":[{"token":"o","logprob":-0.5},{"token":"k","logprob":-0.25}]},"finish_reason":"stop","token_ids":[7,8]}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`

// GW-05: the upstream gets the client's bytes, key order, big numbers and all;
// only the gateway's own fields change.
func TestBytesAreSpliced(t *testing.T) {
	h, u := chatHouse(t, jsonAnswer(goodAnswer))
	body := `{ "tools":[{"type":"function","function":{"parameters":{"type":"object","properties":{"path":{},"body":{}, "keys":{}},"required":["path"]},"name":"f"}}],` + "\n\t" +
		`"model":"gpt-4o","temperature":0.2,"x_big":98765432109876543210,"x_f":1e-07,"logprobs":false,"user":"\u00e9漢","messages":[{"role":"user","content":"a \"model\": x"}]  }`
	got := h.chat(t, agentKey, body)
	if got.status != 200 || got.body != goodAnswer {
		t.Errorf("%d %s", got.status, got.body)
	}
	want := strings.NewReplacer(`"gpt-4o"`, `"policy"`, `"temperature":0.2`, `"temperature":1`, `"logprobs":false`, `"logprobs":true`).Replace(body)
	want = strings.TrimSuffix(want, "}") + `,"return_token_ids":true,"max_tokens":64}`
	if u.bodies[0] != want {
		t.Errorf("upstream got\n%s\nwant\n%s", u.bodies[0], want)
	}
	if hd := u.heads[0]; hd.Get("Authorization") != "Bearer upstream-key" || hd.Get("Content-Type") != "application/json" || hd.Get("X-Api-Key") != "" {
		t.Errorf("headers: %v", hd)
	}
	c := h.last(t)
	if string(c.Request) != body || string(c.Sent) != want || string(c.Response) != goodAnswer || c.Endpoint.Key != "" {
		t.Errorf("record: %s\n%s\n%s", c.Request, c.Sent, c.Response)
	}
	if !c.Trainable || fmt.Sprint(c.PromptIDs, c.SampledIDs, c.LogProbs, c.Spans) != "[1 2 3] [7 8] [-0.5 -0.25] [{0 2}]" {
		t.Errorf("record: %+v", c)
	}
}

// GW-07, GW-08: characters and events cut anywhere, chunks without choices, and
// usage that only goes to clients that asked for it.
func TestTornStream(t *testing.T) {
	text := `data: {"choices":[{"index":0,"delta":{"content":"北"},"token_ids":[7],"logprobs":{"content":[{"logprob":-0.5}]},"finish_reason":null}]}` + "\n\n"
	cut := strings.Index(text, "北") + 1
	stream := []string{
		`data: {"choices":[]}` + "\n", "\n: ping\r\n\r\n",
		`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2,3]}` + "\n\n",
		text[:cut], text[cut:],
		`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"k","function":{"name":"f","arguments":"{\"a\":\"`, "\xe5", "\x8c", "\x97" + `\"}"}}]},"token_ids":[8],"logprobs":{"content":[{"logprob":-0.25}]},"finish_reason":"tool_calls"}]}` + "\r\n\r\n",
		`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}` + "\n\n",
		"data: [DO", "NE]\n\n",
	}
	for _, ask := range []bool{true, false} {
		h, u := chatHouse(t, events(stream...))
		opts := ""
		if ask {
			opts = `"stream_options":{"include_usage":true},`
		}
		got := h.chat(t, agentKey, `{"stream":true,`+opts+`"messages":[{"role":"user","content":"x"}]}`)
		if !strings.Contains(u.bodies[0], `"stream_options":{"include_usage":true}`) {
			t.Errorf("usage is not asked for: %s", u.bodies[0])
		}
		if strings.ContainsRune(got.body, '\ufffd') || !strings.Contains(got.body, `"content":"北"`) || !strings.Contains(got.body, `{\"a\":\"北\"}`) {
			t.Errorf("text is damaged: %s", got.body)
		}
		if strings.Contains(got.body, `"usage"`) != ask || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
			t.Errorf("asked for usage %t: %s", ask, got.body)
		}
		for frame := range strings.SplitSeq(strings.TrimSuffix(got.body, "\n\n"), "\n\n") {
			if data := strings.TrimPrefix(frame, "data: "); data != "[DONE]" && !json.Valid([]byte(data)) {
				t.Errorf("a frame is not one JSON event: %q", frame)
			}
		}
		c := h.last(t)
		if !c.Trainable || c.Reply.Content != "北" || c.Reply.ToolCalls[0].Arguments != `{"a":"北"}` || c.Usage == nil || fmt.Sprint(c.SampledIDs) != "[7 8]" || !json.Valid(c.Response) {
			t.Errorf("record: %+v", c)
		}
	}
}

// GW-01, GW-19, GW-20: what an upstream leaves out or gets wrong is on record
// as such, and the client gets its answer all the same.
func TestInexactAnswers(t *testing.T) {
	swap := func(old, repl string) string {
		if !strings.Contains(goodAnswer, old) {
			t.Fatal(old)
		}
		return strings.Replace(goodAnswer, old, repl, 1)
	}
	for is, c := range map[string]struct {
		answer string
		reason string
	}{
		"GW-19 token_ids null":            {swap(`"token_ids":[7,8]`, `"token_ids":null`), fulgur.UntrainableNoIDs},
		"GW-19 no prompt ids":             {swap(`"prompt_token_ids":[1,2,3],`, ``), fulgur.UntrainableNoIDs},
		"GW-19 log probs null":            {swap(`{"content":[{"token":"o","logprob":-0.5},{"token":"k","logprob":-0.25}]}`, `null`), fulgur.UntrainableLogProbs},
		"GW-20 NaN":                       {swap(`-0.25`, `NaN`), fulgur.UntrainableLogProbs},
		"GW-20 -Infinity":                 {swap(`-0.25`, `-Infinity`), fulgur.UntrainableLogProbs},
		"GW-20 the sentinel":              {swap(`-0.25`, `-9999.0`), fulgur.UntrainableLogProbs},
		"bytes that are no UTF-8":         {swap(`"ok"`, "\"o\xffk\""), ""},
		"a log prob above 0":              {swap(`-0.25`, `0.25`), fulgur.UntrainableLogProbs},
		"GW-01 fewer ids than usage says": {swap(`"completion_tokens":2`, `"completion_tokens":27`), fulgur.UntrainableCount},
		"fewer log probs than ids":        {swap(`,{"token":"k","logprob":-0.25}`, ``), fulgur.UntrainableLogProbs},
		"ids that are no integers":        {swap(`[7,8]`, `[7,"8"]`), fulgur.UntrainableNoIDs},
		"no finish reason":                {swap(`"finish_reason":"stop"`, `"finish_reason":null`), "no_finish_reason"},
		"usage of a wrong type":           {swap(`{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}`, `"none"`), ""},
		"no choices":                      {`{"object":"chat.completion","choices":[],"usage":"none"}`, fulgur.UntrainableError},
	} {
		t.Run(is, func(t *testing.T) {
			h, _ := chatHouse(t, jsonAnswer(c.answer))
			got := h.chat(t, agentKey, hi)
			if got.status != 200 || !json.Valid([]byte(got.body)) || !utf8.ValidString(got.body) {
				t.Errorf("client got %d %q", got.status, got.body)
			}
			r := h.last(t)
			if !json.Valid(r.Response) || !utf8.Valid(r.Response) {
				t.Errorf("on record: %q", r.Response)
			}
			if c.reason == "" && !r.Trainable || c.reason != "" && (r.Trainable || !slices.Contains(r.Untrainable, c.reason)) {
				t.Errorf("untrainable %v, want %q", r.Untrainable, c.reason)
			}
		})
	}
}

// GW-01: a tool parser swallowed the ids of a streamed call's chunks. The client
// gets its stream, and the call does not train.
func TestSwallowedTokens(t *testing.T) {
	piece := func(more string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}` + more + `}]}` + "\n\n"
	}
	probs := func(n int) string {
		return `,"logprobs":{"content":[` + strings.TrimSuffix(strings.Repeat(`{"logprob":-1},`, n), ",") + `]}`
	}
	h, _ := chatHouse(t, events(`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2]}`+"\n\n",
		piece(`,"token_ids":[1,2,3,4,5]`+probs(5)), piece(""), piece(`,"token_ids":[6,7,8,9,10,11]`+probs(6)), piece(""), piece(`,"finish_reason":"tool_calls"`),
		`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":27}}`+"\n\n", "data: [DONE]\n\n"))
	got := h.chat(t, agentKey, hiStream)
	if got.status != 200 || strings.Count(got.body, "tool_calls") != 6 || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
		t.Errorf("client got %d %s", got.status, got.body)
	}
	if c := h.last(t); c.Trainable || fmt.Sprint(c.Untrainable) != "["+fulgur.UntrainableCount+"]" || len(c.SampledIDs) != 11 || c.Usage.CompletionTokens != 27 {
		t.Errorf("record: %v, %d ids, %+v", c.Untrainable, len(c.SampledIDs), c.Usage)
	}
}

// GW-20 in a stream: each event is JSON, and the record flags the log probs.
func TestBadLogProbsInAStream(t *testing.T) {
	for _, bad := range []string{"NaN", "-Infinity", "-9999.0", "null"} {
		h, _ := chatHouse(t, events(`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2]}`+"\n\n",
			`data: {"choices":[{"index":0,"delta":{"content":"NaN"},"token_ids":[7],"logprobs":{"content":[{"token":"NaN","logprob":`+bad+`}]}}]}`+"\n\n",
			`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n"))
		got := h.chat(t, agentKey, hiStream)
		if got.status != 200 || !strings.Contains(got.body, `"content":"NaN"`) || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
			t.Errorf("%s: client got %d %s", bad, got.status, got.body)
		}
		for frame := range strings.SplitSeq(strings.TrimSuffix(got.body, "\n\n"), "\n\n") {
			if data := strings.TrimPrefix(frame, "data: "); data != "[DONE]" && !json.Valid([]byte(data)) {
				t.Errorf("%s: %q", bad, frame)
			}
		}
		if c := h.last(t); c.Trainable || c.Untrainable[0] != fulgur.UntrainableLogProbs || fmt.Sprint(c.SampledIDs) != "[7]" || !json.Valid(c.Response) {
			t.Errorf("%s: record %v %v %s", bad, c.Untrainable, c.SampledIDs, c.Response)
		}
	}
}

// GW-19: without log probs being asked for, a call trains without them.
func TestLogProbsNotAskedFor(t *testing.T) {
	h, u := chatHouse(t, jsonAnswer(strings.Replace(goodAnswer, `{"content":[{"token":"o","logprob":-0.5},{"token":"k","logprob":-0.25}]}`, "null", 1)),
		func(o *gateway.Options, _ *book) { o.NoLogProbs = true })
	h.chat(t, agentKey, hi)
	if c := h.last(t); !c.Trainable || len(c.LogProbs) != 0 || fmt.Sprint(c.SampledIDs) != "[7 8]" || strings.Contains(u.bodies[0], "logprobs") {
		t.Errorf("record %+v of %s", c, u.bodies[0])
	}
}

// GW-17, GW-18: encodings agree with headers; what is not JSON keeps status,
// type and body, and is marked.
func TestOddBodies(t *testing.T) {
	for is, c := range map[string]struct {
		status      int
		ctype, body string
		gzip        bool
		trainable   bool
	}{
		"GW-17 gzip":            {200, "application/json", goodAnswer, true, true},
		"GW-18 an HTML error":   {422, "text/html", "<html>bad gateway</html>", false, false},
		"GW-18 plain text":      {200, "text/plain", "hello", false, false},
		"GW-18 a list":          {200, "application/json", "[]", false, false},
		"an empty body":         {200, "application/json", "", false, false},
		"a redirect":            {307, "text/plain", "", false, false},
		"a charset":             {200, "application/json; charset=utf-8", goodAnswer, false, true},
		"an error of the model": {400, "application/json", `{"error":{"message":"context length"}}`, false, false},
	} {
		t.Run(is, func(t *testing.T) {
			h, u := chatHouse(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", c.ctype)
				w.Header().Set("Location", "http://127.0.0.1:9/")
				b := []byte(c.body)
				if c.gzip {
					var z bytes.Buffer
					zw := gzip.NewWriter(&z)
					_, _ = zw.Write(b)
					_ = zw.Close()
					b = z.Bytes()
					w.Header().Set("Content-Encoding", "gzip")
				}
				w.WriteHeader(c.status)
				_, _ = w.Write(b)
			})
			for _, accept := range []string{"gzip", "identity"} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/openai/v1/chat/completions", strings.NewReader(hi))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+agentKey)
				req.Header.Set("Accept-Encoding", accept)
				resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != c.status || string(b) != c.body || resp.Header.Get("Content-Encoding") != "" {
					t.Errorf("client got %d %v %q", resp.StatusCode, resp.Header, b)
				}
			}
			r := h.last(t)
			if r.Trainable != c.trainable || r.HTTPStatus != c.status || !c.trainable && r.Error == "" {
				t.Errorf("record: %d %v %q", r.HTTPStatus, r.Untrainable, r.Error)
			}
			if n := u.hits.Load(); n != 2 {
				t.Errorf("%d upstream calls for 2", n)
			}
			// v1 has {} in the place of what is no JSON
			v1 := post(t, t.Context(), h.url+"/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions", serverKey, hi)
			want := c.body
			if !strings.HasPrefix(c.ctype, "application/json") || c.body == "" {
				want = "{}"
			}
			if v1.status != c.status || v1.body != want || v1.header.Get("Content-Type") != "application/json" {
				t.Errorf("v1 got %d %v %q", v1.status, v1.header, v1.body)
			}
		})
	}
}

// A streamed call whose upstream answers 200 with what is no answer is told of
// it: its client would take a body without events for an empty answer.
func TestOddBodiesForStreams(t *testing.T) {
	for is, body := range map[string][2]string{
		"an HTML page": {"text/html", "<html>sign in</html>"}, "nothing": {"application/json", ""},
		"half an answer": {"application/json", goodAnswer[:len(goodAnswer)/2]}, "no choices": {"application/json", `{"choices":[]}`},
		"no first choice": {"application/json", strings.Replace(goodAnswer, `"index":0`, `"index":5`, 1)},
	} {
		h, _ := chatHouse(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", body[0])
			_, _ = io.WriteString(w, body[1])
		})
		got := h.chat(t, agentKey, `{"stream":true,"messages":[{"role":"user","content":"hi"}]}`)
		if got.status != 502 || got.code() != "upstream" {
			t.Errorf("%s: the client got %d %s", is, got.status, got.body)
		}
		if r := h.last(t); r.Trainable || r.HTTPStatus != 502 || r.Fate != fulgur.FateRefused || r.Error == "" {
			t.Errorf("%s: on record as %d %s %v %q", is, r.HTTPStatus, r.Fate, r.Untrainable, r.Error)
		}
	}
}

// A stream that ends early or carries an error never looks whole to the client.
func TestBrokenStream(t *testing.T) {
	first := `data: {"choices":[{"index":0,"delta":{"content":"x"},"token_ids":[7]}]}` + "\n\n"
	for is, tail := range map[string]string{
		"ends early":       "",
		"carries an error": `data: {"error":{"message":"engine died"}}` + "\n\n",
		"DONE without end": "data: [DONE]\n\n",
		"what is no JSON":  "data: {nope\n\n",
	} {
		t.Run(is, func(t *testing.T) {
			h, u := chatHouse(t, events(first, tail))
			got := h.chat(t, agentKey, hiStream)
			if got.err == nil || strings.Contains(got.body, "[DONE]") || !strings.Contains(got.body, `"content":"x"`) || !strings.Contains(got.body, `"error":{"message"`) {
				t.Errorf("client got %v %s", got.err, got.body)
			}
			if u.hits.Load() != 1 {
				t.Errorf("%d tries of what has begun", u.hits.Load())
			}
			if r := h.last(t); r.Trainable || r.Error == "" || fmt.Sprint(r.SampledIDs) != "[7]" || r.HTTPStatus != 502 {
				t.Errorf("record: %+v", r)
			}
		})
	}
}

// A chat server that does not stream still gives a stream.
func TestStreamFromAServerThatDoesNot(t *testing.T) {
	h, _ := chatHouse(t, jsonAnswer(goodAnswer))
	got := h.chat(t, agentKey, hiStream)
	if got.status != 200 || !strings.Contains(got.body, `"content":"ok"`) || !strings.Contains(got.body, `"finish_reason":"stop"`) || !strings.HasSuffix(got.body, "[DONE]\n\n") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if c := h.last(t); !c.Trainable || string(c.Response) != goodAnswer {
		t.Errorf("record: %+v", c)
	}
}

// GW-22: the set of endpoints is looked up at admission, also after a hold.
func TestNoEndpoint(t *testing.T) {
	h := newHouse(t)
	ep := h.endpoints
	h.endpoints = nil
	got := h.chat(t, agentKey, hi)
	if got.status != 503 || !strings.Contains(got.body, "No servers available for model 'policy'") || got.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
	h.mu.Lock()
	h.endpoints = ep
	h.mu.Unlock()
	if got := h.chat(t, agentKey, hi); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// GW-21: n=2 is refused in training, passed on in validation.
func TestSeveralAnswers(t *testing.T) {
	h, u := chatHouse(t, jsonAnswer(goodAnswer))
	h.rollout("v", false, "val-key")
	body := `{"n":2,"messages":[{"role":"user","content":"x"}]}`
	if got := h.chat(t, agentKey, body); got.status != 400 || u.hits.Load() != 0 {
		t.Errorf("train: %d %s", got.status, got.body)
	}
	for _, wrong := range []string{`"n":"2"`, `"n":2.0`, `"n":true`, `"n":[2]`, `"stream":"yes"`, `"stream":1`} { // which some servers take for 2, and for true
		for key, path := range map[string]string{agentKey: "/openai/v1/chat/completions", "val-key": "/proxy/rollout/v/attempt/0/mode/val/openai/v1/chat/completions"} {
			got := post(t, t.Context(), h.url+path, key, `{`+wrong+`,"messages":[{"role":"user","content":"x"}]}`)
			if got.status != 400 || !strings.Contains(got.body, "must be") || u.hits.Load() != 0 {
				t.Errorf("%s: %d %s", wrong, got.status, got.body)
			}
		}
	}
	if got := h.chat(t, "val-key", body); got.status != 200 || !slices.Contains(h.last(t).Untrainable, fulgur.UntrainableMode) {
		t.Errorf("validation: %d %s", got.status, got.body)
	}
}

// waits answers nothing until gate is closed or the caller has left.
func waits(gate chan struct{}) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	}
}

// An upstream that refuses the gateway's own key is the gateway's failure: the
// agent's key is another, and nothing that the server says of keys reaches it.
func TestUpstreamRefusesOurKey(t *testing.T) {
	for _, status := range []int{401, 403} {
		for _, stream := range []string{"false", "true"} {
			h, _ := chatHouse(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"error":{"message":"Incorrect API key provided: upst*****-key","code":"invalid_api_key"}}`)
			})
			got := h.chat(t, agentKey, `{"stream":`+stream+`,"messages":[{"role":"user","content":"x"}]}`)
			if got.status != 502 || strings.Contains(got.body, "upst*") || !strings.Contains(got.body, "key of its endpoint") {
				t.Errorf("%d, stream %s: %d %s", status, stream, got.status, got.body)
			}
			if got := post(t, t.Context(), h.url+"/proxy/rollout/r1/attempt/0/mode/train/openai/v1/chat/completions", serverKey, hi); got.status != status {
				t.Errorf("v1, %d: %d %s", status, got.status, got.body)
			}
		}
	}
}
