package tinker_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/tinker"
)

// exchange is a recorded one: the official SDK against SkyRL on a CPU.
type exchange struct {
	Step    string
	Path    string
	Request struct {
		Body *struct{ JSON json.RawMessage }
	}
	Response struct {
		Status  int
		Headers map[string]string
		Body    struct {
			JSON     json.RawMessage
			Text     string
			Protobuf []byte `json:"protobuf_b64"`
			Decoded  struct {
				Sequences []recorded
			}
		}
	}
}

type recorded struct {
	StopReason string `json:"stop_reason"`
	Tokens     []int32
	LogProbs   []float32
}

func (e *exchange) verb() string { return strings.TrimPrefix(e.Path, "/api/v1/") }

func (e *exchange) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", e.Response.Headers["content-type"])
	w.WriteHeader(e.Response.Status)
	b := e.Response.Body
	for _, part := range [][]byte{b.Protobuf, b.JSON, []byte(b.Text)} {
		_, _ = w.Write(part)
	}
}

// sequences of a result, from what the recording says that its bytes mean.
func (e *exchange) sequences(t *testing.T) []recorded {
	t.Helper()
	out := e.Response.Body.Decoded.Sequences
	if e.Response.Body.JSON != nil {
		var a struct{ Sequences []recorded }
		if err := json.Unmarshal(e.Response.Body.JSON, &a); err != nil {
			t.Fatal(err)
		}
		out = a.Sequences
	}
	for i := range out {
		out[i].StopReason = strings.ToLower(strings.TrimPrefix(out[i].StopReason, "STOP_REASON_"))
	}
	return out
}

func readTranscript(t *testing.T, name string) []exchange {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []exchange
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var e exchange
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// find returns the n-th exchange of a step (any, if it is empty) on a route.
func find(t *testing.T, list []exchange, step, verb string, n int) *exchange {
	t.Helper()
	for i := range list {
		if e := &list[i]; e.verb() == verb && (step == "" || e.Step == step) {
			if n == 0 {
				return e
			}
			n--
		}
	}
	t.Fatalf("%s of step %q is not in the recording", verb, step)
	return nil
}

// replay serves a step as it was recorded, with the recorded start of a session,
// and keeps what it was asked.
type replay struct {
	mu     sync.Mutex
	answer map[string][]*exchange // by route; the last one is repeated
	asked  map[string][]json.RawMessage
}

func (r *replay) before(w http.ResponseWriter, verb string, body []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[verb] = append(r.asked[verb], body)
	list := r.answer[verb]
	if len(list) == 0 {
		return false
	}
	if len(list) > 1 {
		r.answer[verb] = list[1:]
	}
	list[0].write(w)
	return true
}

var transcripts = []string{"testdata/skyrl.jsonl", "testdata/skyrl-json.jsonl"}

func TestRecordedSampling(t *testing.T) {
	prompt := []int32{1, 20, 300, 44}
	stops := make([]int32, 100)
	for i := range stops {
		stops[i] = int32(i)
	}
	const ofModel, ofPath = "create_sampling_client base model", "create_sampling_client from path"
	for step, c := range map[string]struct {
		session string // the step that opened the sampling session
		req     engine.GenerateRequest
		kind    fulgur.Kind // of the error; "": none
	}{
		"sample greedy":                              {ofPath, engine.GenerateRequest{MaxTokens: 8}, ""},
		"sample from named checkpoint":               {ofPath, engine.GenerateRequest{MaxTokens: 8}, ""},
		"sample from base model":                     {ofModel, engine.GenerateRequest{MaxTokens: 8}, ""},
		"sample with stop token ids":                 {ofPath, engine.GenerateRequest{MaxTokens: 8, Temperature: 1, Seed: 5, StopIDs: stops}, ""},
		"sample x3 temperature 0.7 top_p top_k seed": {ofPath, engine.GenerateRequest{MaxTokens: 8, Temperature: .7, TopP: .9, TopK: 20, Seed: 11}, fulgur.KindUpstream},
	} {
		for _, file := range transcripts {
			t.Run(step+" in "+file, func(t *testing.T) {
				list := readTranscript(t, file)
				r := &replay{asked: map[string][]json.RawMessage{}, answer: map[string][]*exchange{}}
				for _, verb := range []string{"client/config", "create_session"} {
					r.answer[verb] = []*exchange{find(t, list, "", verb, 0)}
				}
				opened := find(t, list, c.session, "create_sampling_session", 0)
				asked, result := find(t, list, step, "asample", 0), find(t, list, step, "retrieve_future", 0)
				r.answer["create_sampling_session"], r.answer["asample"], r.answer["retrieve_future"] = []*exchange{opened}, []*exchange{asked}, []*exchange{result}
				f := newFake(nil)
				f.before = r.before
				client, url := f.start(t, tinker.Options{})
				url += map[string]string{ofModel: "?base_model=tiny-llama", ofPath: "?model_path=" + pathOf(t, opened)}[c.session]
				c.req.Prompt = prompt
				out, err := open(t, client, url).Generate(t.Context(), c.req, nil)
				if fulgur.KindOf(err) != c.kind {
					t.Fatalf("%v, want kind %q", err, c.kind)
				}
				for _, verb := range []string{"client/config", "create_session", "create_sampling_session", "asample"} {
					same(t, verb, find(t, list, map[string]string{"asample": step, "create_sampling_session": c.session}[verb], verb, 0), r.asked[verb][0])
				}
				if id := f.samples(t)[0].SamplingSessionID; !strings.Contains(string(opened.Response.Body.JSON), `"`+id+`"`) {
					t.Errorf("sampled in session %s, opened was %s", id, opened.Response.Body.JSON)
				}
				if c.kind != "" {
					return
				}
				want := result.sequences(t)[0]
				var got recorded
				for _, k := range out.Tokens {
					got.Tokens, got.LogProbs = append(got.Tokens, k.ID), append(got.LogProbs, k.LogProb)
					if k.Version != 5 {
						t.Errorf("version %d", k.Version)
					}
				}
				got.StopReason = out.FinishReason
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("(-recorded +got):\n%s", d)
				}
			})
		}
	}
}

func pathOf(t *testing.T, opened *exchange) string {
	t.Helper()
	var q struct {
		ModelPath string `json:"model_path"`
	}
	if err := json.Unmarshal(opened.Request.Body.JSON, &q); err != nil {
		t.Fatal(err)
	}
	return q.ModelPath
}

// same says that what was asked is what the SDK asked, but for what only we
// send (seed and stop are always said), for numbers of sequence, and for what the
// recording leaves out.
func same(t *testing.T, verb string, want *exchange, got json.RawMessage) {
	t.Helper()
	var a, b map[string]any
	if err := json.Unmarshal(want.Request.Body.JSON, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(got, &b); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"num_samples", "seq_id", "sampling_session_seq_id", "sampling_session_id", "sdk_version"} {
		if _, sent := b[k]; a[k] != nil && !sent {
			t.Errorf("%s: %s is not sent", verb, k)
		}
		delete(a, k)
		delete(b, k)
	}
	for _, m := range []map[string]any{a, b} {
		if p, ok := m["sampling_params"].(map[string]any); ok {
			if p["temperature"] == 0.0 {
				delete(p, "seed")
			}
			delete(p, "stop")
		}
	}
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("%s (-SDK +ours):\n%s", verb, d)
	}
}

// SkyRL's errors, as it answered them.
func TestRecordedErrors(t *testing.T) {
	for step, c := range map[string]struct {
		verb  string
		calls int // of verb
		kind  fulgur.Kind
		says  string
	}{
		"sample topk_prompt_logprobs":       {"retrieve_future", 2, fulgur.KindUpstream, "not supported by the JAX backend"},
		"error: unknown future":             {"retrieve_future", 3, fulgur.KindUpstream, "Future not found"},
		"error: non-numeric future id":      {"retrieve_future", 3, fulgur.KindUpstream, "Internal Server Error"},
		"error: asample no source":          {"asample", 1, fulgur.KindInvalid, "exactly one of"},
		"error: asample unknown path":       {"asample", 1, fulgur.KindUpstream, "Model not found"},
		"error: asample max_tokens missing": {"asample", 1, fulgur.KindInvalid, "currently required"},
	} {
		t.Run(step, func(t *testing.T) {
			r := &replay{asked: map[string][]json.RawMessage{}, answer: map[string][]*exchange{}}
			r.answer[c.verb] = []*exchange{find(t, readTranscript(t, transcripts[0]), step, c.verb, 0)}
			f := newFake(dice{50})
			f.before = r.before
			client, url := f.start(t, tinker.Options{Tries: 3})
			_, err := open(t, client, url).Generate(t.Context(), engine.GenerateRequest{Prompt: []int32{1}, MaxTokens: 3}, nil)
			if fulgur.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want kind %q", err, c.kind)
			}
			if n := len(r.asked[c.verb]); n != c.calls {
				t.Errorf("%d calls of %s, want %d", n, c.verb, c.calls)
			}
		})
	}
}
