package tokens

import (
	"bufio"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// vLLM's recorded stream of a token-id prompt, torn into single bytes, and its
// errors, as it sent them.
func TestVLLMCompletions(t *testing.T) {
	f, err := os.Open("testdata/vllm.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	seen := 0
	for sc.Scan() {
		var e struct {
			Name     string
			Response struct {
				Status int
				JSON   json.RawMessage
				SSE    string
			}
		}
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.Response.SSE == "" && e.Response.Status == 200 {
			continue
		}
		seen++
		t.Run(e.Name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(e.Response.Status)
				_, _ = w.Write(e.Response.JSON)
				for i := range len(e.Response.SSE) {
					_, _ = w.Write([]byte{e.Response.SSE[i]})
					w.(http.Flusher).Flush()
				}
			}))
			defer srv.Close()
			client := sampler.NewClient()
			defer client.CloseIdleConnections()
			r := NewRemote(client, fulgur.Endpoint{URL: srv.URL + "/v1", Model: "tiny", Version: 9}, sampler.Retry{Backoff: time.Millisecond})
			var streamed []engine.Token
			out, err := r.Generate(t.Context(), engine.GenerateRequest{Prompt: []int32{1, 20, 300, 44}, MaxTokens: 3}, func(k engine.Token) error {
				streamed = append(streamed, k)
				return nil
			})
			if e.Response.Status != 200 {
				if fulgur.KindOf(err) != fulgur.KindInvalid || r.Retries != 0 {
					t.Errorf("%v after %d retries", err, r.Retries)
				}
				return
			}
			want := []engine.Token{{ID: 101, LogProb: -1.45553457736969, Version: 9}, {ID: 394, LogProb: -1.0998343229293823, Version: 9}, {ID: 326, LogProb: -1.606532096862793, Version: 9}}
			if err != nil || out.FinishReason != "length" || cmp.Diff(want, out.Tokens) != "" || cmp.Diff(want, streamed) != "" {
				t.Errorf("%v %+v", err, out)
			}
		})
	}
	if seen < 3 {
		t.Errorf("%d exchanges, want the stream and the errors", seen)
	}
}

// GW-11, GW-13: tries are bounded, are made only while no token has come, and
// not for what another try can't help.
func TestRemoteTries(t *testing.T) {
	ok := "data: {\"choices\":[{\"token_ids\":[5],\"logprobs\":{\"token_logprobs\":[null]},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	for is, c := range map[string]struct {
		answers []string // status:body; "drop"
		calls   int
		kind    fulgur.Kind
	}{
		"busy, then fine":           {[]string{"503:", "429:", ok}, 3, ""},
		"dropped, then fine":        {[]string{"drop", ok}, 2, ""},
		"always busy":               {[]string{"503:"}, 3, fulgur.KindUnavailable},
		"a wrong request":           {[]string{"400:"}, 1, fulgur.KindInvalid},
		"the context is full":       {[]string{"400:maximum context length"}, 1, fulgur.KindContextFull},
		"cut after the first token": {[]string{"data: {\"choices\":[{\"token_ids\":[5]}]}\n\n"}, 1, fulgur.KindUpstream},
		"an event of rubbish":       {[]string{"data: {\n\n"}, 1, fulgur.KindUpstream},
	} {
		t.Run(is, func(t *testing.T) {
			calls := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				a := c.answers[min(calls, len(c.answers)-1)]
				calls++
				switch {
				case a == "drop":
					panic(http.ErrAbortHandler)
				case a[3] == ':' && a[0] != 'd':
					status := int(a[0]-'0')*100 + int(a[1]-'0')*10 + int(a[2]-'0')
					w.WriteHeader(status)
					_, _ = w.Write([]byte(a[4:]))
				default:
					_, _ = w.Write([]byte(a))
					w.(http.Flusher).Flush()
					if a != ok {
						panic(http.ErrAbortHandler)
					}
				}
			}))
			defer srv.Close()
			client := sampler.NewClient()
			defer client.CloseIdleConnections()
			r := NewRemote(client, fulgur.Endpoint{URL: srv.URL + "/v1"}, sampler.Retry{Tries: 3, Backoff: time.Millisecond})
			out, err := r.Generate(t.Context(), engine.GenerateRequest{Prompt: []int32{1}, MaxTokens: 3}, nil)
			if fulgur.KindOf(err) != c.kind || calls != c.calls || r.Retries != calls-1 {
				t.Errorf("%v after %d calls, %d retries", err, calls, r.Retries)
			}
			if c.kind == "" && (len(out.Tokens) != 1 || !math.IsNaN(float64(out.Tokens[0].LogProb))) {
				t.Errorf("%+v", out)
			}
		})
	}
}
