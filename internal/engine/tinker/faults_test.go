package tinker_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/tinker"
	"github.com/fulgur-rl/fulgur/internal/engine/wire"
)

var ask = engine.GenerateRequest{Prompt: []int32{1, 2}, MaxTokens: 3, Temperature: 1, Seed: 4}

// nth answers the first requests of a route as told: "drop", "lose" (done, but the
// answer is lost), or a status with a body.
func nth(f *fake, verb string, answers ...string) {
	var n atomic.Int32
	f.before = func(w http.ResponseWriter, v string, body []byte) bool {
		if v != verb {
			return false
		}
		i := int(n.Add(1)) - 1
		if i >= len(answers) && answers[len(answers)-1] != "…" {
			return false
		}
		a := answers[min(i, len(answers)-1)]
		if a == "…" {
			a = answers[len(answers)-2]
		}
		switch {
		case a == "":
			return false
		case a == "drop":
			panic(http.ErrAbortHandler)
		case strings.HasPrefix(a, "200 "):
			w.Header().Set("Content-Type", wire.JSON)
			_, _ = io.WriteString(w, a[4:])
		default:
			fail(w, int(a[0]-'0')*100+int(a[1]-'0')*10+int(a[2]-'0'), a[3:])
		}
		return true
	}
}

// GW-11, GW-13: tries are bounded, and repeated under the same name only while
// the server may not have taken the request.
func TestFaults(t *testing.T) {
	const again = `200 {"type":"try_again","request_id":"1","queue_state":"active"}`
	for is, c := range map[string]struct {
		verb    string
		answers []string
		kind    fulgur.Kind
		seqs    []int64 // of the requests to sample
		retries int
	}{
		"all is well":                                        {"", nil, "", []int64{0}, 0},
		"too many requests, then fine":                       {"asample", []string{"429", "503"}, "", []int64{0, 0, 0}, 2},
		"the connection breaks at the request":               {"asample", []string{"drop"}, "", []int64{0, 0}, 1},
		"the name is taken":                                  {"asample", []string{"409"}, "", []int64{0, 1}, 1},
		"what is to be sampled is not there":                 {"asample", []string{"404"}, fulgur.KindUpstream, []int64{0}, 0},
		"always busy":                                        {"asample", []string{"503", "…"}, fulgur.KindUnavailable, []int64{0, 0, 0, 0}, 3},
		"the account is paused":                              {"asample", []string{"402"}, fulgur.KindUnavailable, []int64{0}, 0},
		"the request is refused":                             {"asample", []string{"422 no"}, fulgur.KindInvalid, []int64{0}, 0},
		"the prompt is too long":                             {"asample", []string{"400 This model's maximum context length is 3"}, fulgur.KindContextFull, []int64{0}, 0},
		"the key is refused":                                 {"create_session", []string{"401"}, fulgur.KindUpstream, nil, 0},
		"keys are to be exchanged":                           {"client/config", []string{`200 {"pjwt_auth_enabled":true}`}, fulgur.KindUpstream, nil, 0},
		"no session is given":                                {"create_session", []string{`200 {"error_message":"full"}`}, fulgur.KindUpstream, nil, 0},
		"the session ends before it is used":                 {"create_sampling_session", []string{"404"}, "", []int64{0}, 0},
		"no request is given":                                {"asample", []string{`200 {}`}, fulgur.KindUpstream, []int64{0}, 0},
		"a result that takes long":                           {"retrieve_future", []string{again, "408", again, "drop", "500"}, "", []int64{0}, 0},
		"the result is lost":                                 {"retrieve_future", []string{"410"}, "", []int64{0, 1}, 1},
		"the server can't sample, its fault":                 {"retrieve_future", []string{`200 {"error":"broken","category":"server"}`}, fulgur.KindUpstream, []int64{0}, 0},
		"the server can't sample, ours":                      {"retrieve_future", []string{`200 {"error":"wrong","category":"user"}`}, fulgur.KindInvalid, []int64{0}, 0},
		"400 by a proxy, once":                               {"retrieve_future", []string{"400 noise"}, "", []int64{0}, 0},
		"400 for good":                                       {"retrieve_future", []string{"400 broken", "400 broken"}, fulgur.KindUpstream, []int64{0}, 0},
		"an endless 500 (SkyRL 0.3 with NaN)":                {"retrieve_future", []string{"500", "…"}, fulgur.KindUpstream, []int64{0}, 0},
		"the result's size only":                             {"retrieve_future", []string{`200 {"status":"complete_metadata","response_payload_size":1}`}, fulgur.KindUpstream, []int64{0}, 0},
		"a result of rubbish":                                {"retrieve_future", []string{`200 {`}, fulgur.KindUpstream, []int64{0}, 0},
		"a result that ended for no reason":                  {"retrieve_future", []string{`200 {"sequences":[{"tokens":[1],"logprobs":[-1]}]}`}, fulgur.KindUpstream, []int64{0}, 0},
		"a result with too few log probs":                    {"retrieve_future", []string{`200 {"sequences":[{"tokens":[1,2],"logprobs":[-1],"stop_reason":"stop"}]}`}, fulgur.KindUpstream, []int64{0}, 0},
		"a result without sequences":                         {"retrieve_future", []string{`200 {"sequences":[]}`}, fulgur.KindUpstream, []int64{0}, 0},
		"the other routes' flags are not there but it works": {"client/dynamic_config", []string{"405"}, "", []int64{0}, 0},
	} {
		t.Run(is, func(t *testing.T) {
			f := newFake(dice{50})
			if c.verb != "" {
				nth(f, c.verb, c.answers...)
			}
			client, url := f.start(t, tinker.Options{Tries: 4})
			out, err := open(t, client, url).Generate(t.Context(), ask, nil)
			if fulgur.KindOf(err) != c.kind || out.Retries != c.retries {
				t.Errorf("%v, %d retries", err, out.Retries)
			}
			if (err == nil) != (len(out.Tokens) == 3 && out.FinishReason == "length") {
				t.Errorf("%+v and %v", out, err)
			}
			var seqs []int64
			for _, q := range f.samples(t) {
				seqs = append(seqs, q.SeqID)
			}
			if d := cmp.Diff(c.seqs, seqs); d != "" {
				t.Errorf("seq_ids (-want +got): %s", d)
			}
		})
	}
}

// VeRL hands a result out once: where that answer is lost, it is asked anew.
func TestResultHandedOutOnce(t *testing.T) {
	f := newFake(dice{50})
	f.once = true
	var lost atomic.Bool
	f.before = func(w http.ResponseWriter, verb string, body []byte) bool {
		if verb != "retrieve_future" || lost.Swap(true) {
			return false
		}
		f.mu.Lock()
		clear(f.futures)
		f.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	client, url := f.start(t, tinker.Options{})
	out, err := open(t, client, url).Generate(t.Context(), ask, nil)
	if err != nil || len(out.Tokens) != 3 || out.Retries != 1 {
		t.Errorf("%v %+v", err, out)
	}
}

func TestServerRestarts(t *testing.T) {
	f := newFake(dice{50})
	client, url := f.start(t, tinker.Options{})
	g := open(t, client, url)
	for range 2 {
		if _, err := g.Generate(t.Context(), ask, nil); err != nil {
			t.Fatal(err)
		}
	}
	f.restart()
	if _, err := g.Generate(t.Context(), ask, nil); err != nil {
		t.Fatal(err)
	}
	start := []string{"client/config", "client/dynamic_config", "create_session", "create_sampling_session"}
	call := []string{"asample", "retrieve_future"}
	want := slices.Concat(start, call, call, []string{"asample", "create_sampling_session"}, start, call)
	if d := cmp.Diff(want, f.verbs()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// stuck never ends by itself.
type stuck struct{ left chan struct{} }

func (s stuck) Generate(ctx context.Context, _ engine.GenerateRequest, _ func(engine.Token) error) (engine.Generation, error) {
	<-ctx.Done()
	close(s.left)
	return engine.Generation{}, ctx.Err()
}

func TestFutureThatNeverEnds(t *testing.T) {
	for is, c := range map[string]struct {
		total, leave time.Duration
		kind         fulgur.Kind
	}{
		"the client gives up":  {150 * time.Millisecond, time.Minute, fulgur.KindTimeout},
		"the caller leaves":    {time.Minute, 150 * time.Millisecond, fulgur.KindCanceled},
		"its deadline is over": {time.Minute, -150 * time.Millisecond, fulgur.KindTimeout},
	} {
		t.Run(is, func(t *testing.T) {
			gen := stuck{make(chan struct{})}
			f := newFake(gen)
			f.cancels, f.wait = true, 20*time.Millisecond
			client, url := f.start(t, tinker.Options{Total: c.total, Poll: 10 * time.Millisecond})
			ctx, cancel := context.WithCancel(t.Context())
			if c.leave < 0 {
				ctx, cancel = context.WithTimeout(t.Context(), -c.leave)
			}
			defer cancel()
			if c.leave > 0 {
				defer time.AfterFunc(c.leave, cancel).Stop()
			}
			out, err := open(t, client, url).Generate(ctx, ask, nil)
			if fulgur.KindOf(err) != c.kind || len(out.Tokens) > 0 || out.FinishReason != "" {
				t.Errorf("%v %+v", err, out)
			}
			if c.kind == fulgur.KindCanceled && !errors.Is(err, context.Canceled) {
				t.Errorf("%v does not say that it was cancelled", err)
			}
			<-gen.left // the server was told
		})
	}
}

func TestParameters(t *testing.T) {
	f := newFake(dice{50})
	client, url := f.start(t, tinker.Options{})
	g := open(t, client, url+"?base_model=tiny")
	for is, c := range map[string]struct {
		req  engine.GenerateRequest
		want wire.SamplingParams
		nan  bool
	}{
		"the defaults": {engine.GenerateRequest{MaxTokens: 2, Temperature: 1},
			wire.SamplingParams{MaxTokens: 2, Temperature: 1, TopK: -1, TopP: 1, Stop: []int32{}}, false},
		"all that there is, and log probs of another temperature": {engine.GenerateRequest{MaxTokens: 2, Temperature: .5, TopK: 7, TopP: .9, StopIDs: []int32{60}, Seed: math.MaxInt32},
			wire.SamplingParams{MaxTokens: 2, Temperature: .5, TopK: 7, TopP: .9, Stop: []int32{60}, Seed: math.MaxInt32}, true},
		"a seed that is no int32": {engine.GenerateRequest{MaxTokens: 2, Seed: 1<<31 | 5},
			wire.SamplingParams{MaxTokens: 2, TopK: -1, TopP: 1, Stop: []int32{}, Seed: 4}, false},
		"no limit: what the server's context has room for": {engine.GenerateRequest{},
			wire.SamplingParams{MaxTokens: 78, TopK: -1, TopP: 1, Stop: []int32{}}, false},
	} {
		c.req.Prompt = ask.Prompt
		out, err := g.Generate(t.Context(), c.req, nil)
		if err != nil {
			t.Fatalf("%s: %v", is, err)
		}
		all := f.samples(t)
		if d := cmp.Diff(c.want, all[len(all)-1].Params); d != "" {
			t.Errorf("%s (-want +got):\n%s", is, d)
		}
		if nan := math.IsNaN(float64(out.Tokens[0].LogProb)); nan != c.nan {
			t.Errorf("%s: log prob %v", is, out.Tokens[0].LogProb)
		}
	}
	if _, err := g.Generate(t.Context(), engine.GenerateRequest{Prompt: make([]int32, 80)}, nil); fulgur.KindOf(err) != fulgur.KindContextFull {
		t.Errorf("a prompt over the server's context: %v", err)
	}
	for _, r := range f.seen {
		if r.Key != "tml-key" {
			t.Errorf("%s was asked with key %q", r.Verb, r.Key)
		}
	}
}

// One session at a server is shared by its models, kept alive, and left to end
// when nobody uses it.
func TestSession(t *testing.T) {
	f := newFake(dice{50})
	client, url := f.start(t, tinker.Options{Heartbeat: 10 * time.Millisecond, Idle: time.Second})
	for _, q := range []string{"?base_model=tiny", "?model_path=tinker://m/sampler_weights/1", "?base_model=tiny"} {
		if _, err := open(t, client, url+q).Generate(t.Context(), ask, nil); err != nil {
			t.Fatal(err)
		}
	}
	count := func(verb string) (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, r := range f.seen {
			if r.Verb == verb {
				n++
			}
		}
		return n
	}
	if s, m := count("create_session"), count("create_sampling_session"); s != 1 || m != 2 {
		t.Errorf("%d sessions, %d sampling sessions, want 1 and 2", s, m)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		before := count("session_heartbeat")
		time.Sleep(400 * time.Millisecond)
		if n := count("session_heartbeat"); n > 0 && n == before {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("heartbeats of a session that nobody uses go on, or there are none")
		}
	}
	if _, err := open(t, client, url).Generate(t.Context(), ask, nil); err != nil {
		t.Fatal(err)
	}
	if n := count("create_session"); n != 2 {
		t.Errorf("%d sessions, want a second one after the first was left", n)
	}
}

func TestManyAtOnce(t *testing.T) {
	f := newFake(dice{50})
	client, url := f.start(t, tinker.Options{})
	g := open(t, client, url)
	errs := make(chan error)
	for range 50 {
		go func() {
			_, err := g.Generate(t.Context(), ask, nil)
			errs <- err
		}()
	}
	for range 50 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	seqs := map[int64]bool{}
	for _, q := range f.samples(t) {
		seqs[q.SeqID] = true
	}
	if len(seqs) != 50 {
		t.Errorf("%d names for 50 requests", len(seqs))
	}
}
