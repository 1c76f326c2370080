package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
)

// caseServer is fulgur serve with a policy "m" whose model server answers as a test
// says; default: every call with the same tokens.
type caseServer struct {
	*child
	url  string
	api  *client.Client
	up   *httptest.Server
	hits atomic.Int64
}

const servedAnswer = `{"prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[3],` +
	`"logprobs":{"content":[{"logprob":-0.5}]}}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`

// serveCases starts it; its record is in dir, so that another can go on with it.
func serveCases(t *testing.T, dir string, answer http.HandlerFunc) *caseServer {
	t.Helper()
	s := &caseServer{}
	s.up = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		if answer != nil {
			answer(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, servedAnswer)
	}))
	t.Cleanup(s.up.Close)
	s.restart(t, dir)
	s.post(t, "/api/models", `[{"model":"m","endpoint":"`+s.up.URL+`/v1"}]`, 201)
	return s
}

// restart starts the server on the record of dir.
func (s *caseServer) restart(t *testing.T, dir string) {
	t.Helper()
	s.child = start(t, dir, nil, "serve", "--listen", "127.0.0.1:0", "--key", "K", "--model", "m", "--retry-backoff", "1ms", "--store", "sqlite:"+filepath.Join(dir, "x.db"))
	s.url = s.says("listening on ")
	api, err := client.New(s.url, "K", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.api = api
}

func (s *caseServer) send(t *testing.T, method, path, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// post posts with the server key and returns the answer.
func (s *caseServer) post(t *testing.T, path, body string, want int) string {
	t.Helper()
	status, answer := s.send(t, "POST", path, "K", body)
	if status != want {
		t.Errorf("POST %s %s: %d %s, want %d", path, body, status, answer, want)
	}
	return answer
}

// open makes rollouts of a run and opens their first attempts.
func (s *caseServer) open(t *testing.T, run fulgur.RunID, ids ...fulgur.RolloutID) []fulgur.OpenedAttempt {
	t.Helper()
	specs := make([]fulgur.RolloutSpec, len(ids))
	for i, id := range ids {
		specs[i] = fulgur.RolloutSpec{ID: id, Run: run, Input: json.RawMessage("1"), IsTrain: true, Rewards: fulgur.RewardsAgent}
	}
	if _, err := s.api.CreateRollouts(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	out, err := s.api.OpenAttempts(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// chat makes one call by the key alone.
func (s *caseServer) chat(t *testing.T, key, text string) (int, string) {
	t.Helper()
	return s.send(t, "POST", "/openai/v1/chat/completions", key, `{"model":"m","messages":[{"role":"user","content":"`+text+`"}]}`)
}

// rewards are the values of the rewards that v1's trainer reads.
func (s *caseServer) rewards(t *testing.T, id fulgur.RolloutID) (out []float64, calls int) {
	t.Helper()
	_, body := s.send(t, "GET", "/api/rollouts/"+string(id)+"/events?format=triplet", "K", "")
	var list []struct {
		Type string `json:"event_type"`
		Data struct {
			Value float64 `json:"value"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, e := range list {
		if e.Type == "reward" {
			out = append(out, e.Data.Value)
		} else {
			calls++
		}
	}
	return out, calls
}

// ST-05, ST-06 over v1's routes: what comes after a rollout's end changes nothing,
// whoever sends it, and stops the agent; the first cause stays.
func TestAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := serveCases(t, t.TempDir(), nil)
	s.post(t, "/api/rollouts", `[{"rollout_id":"v1","input":1}]`, 201)
	cred := s.open(t, fulgur.DefaultRun, "own")[0].Credential
	for _, id := range []string{"v1", "own"} {
		s.post(t, "/api/rollouts/"+id+"/attempt/0/events", `{"event_type":"reward","data":{"value":0.25}}`, 200)
		for _, patch := range []string{`{"state":"running","last_attempt_id":"0"}`, `{"state":"failed","error_message":"timeout"}`} {
			if status, answer := s.send(t, "PATCH", "/api/rollouts/"+id, "K", `{"status":`+patch+`}`); status != 200 && (id == "v1" || strings.Contains(patch, "failed")) {
				t.Fatalf("%s %s: %d %s", id, patch, status, answer)
			}
		}
		hits := s.hits.Load()
		s.post(t, "/api/rollouts/"+id+"/attempt/0/events", `{"event_type":"reward","data":{"value":1}}`, 200) // v1's answer; it does not count
		for i, want := range []int{410, 410, 400} {
			status, answer := s.send(t, "POST", "/proxy/rollout/"+id+"/attempt/0/mode/train/openai/v1/chat/completions", "K", `{"messages":[{"role":"user","content":"x"}]}`)
			if status != want || !strings.Contains(answer, "has ended") {
				t.Errorf("%s: late call %d: %d %s", id, i, status, answer)
			}
		}
		if s.hits.Load() != hits {
			t.Errorf("%s: a late call reached the model server", id)
		}
		// Fulgur's reward stays; v1's trainer is shown what its own hooks post then
		if values, calls := s.rewards(t, fulgur.RolloutID(id)); fmt.Sprint(values) != "[0.25 1]" || calls != 0 {
			t.Errorf("%s: v1's trainer reads rewards %v and %d calls", id, values, calls)
		}
		for _, patch := range []string{`{"error_message":"exit code -9"}`, `{"error_message":null}`, `{"last_attempt_id":"7"}`, `{"state":"succeeded"}`} {
			if status, answer := s.send(t, "PATCH", "/api/rollouts/"+id, "K", `{"status":`+patch+`}`); status != 409 {
				t.Errorf("%s: PATCH %s: %d %s", id, patch, status, answer)
			}
		}
		r, err := s.api.Rollout(t.Context(), fulgur.RolloutID(id))
		if err != nil || r.State != fulgur.Failed || r.Error != "timeout" || r.Outcome.Message != "timeout" || r.LastAttempt != "0" || r.Reward == nil || *r.Reward != 0.25 {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
		events, err := s.api.Events(t.Context(), fulgur.RolloutID(id), "0")
		if err != nil || len(events) != 2 || events[1].Unused != fulgur.UnusedLate {
			t.Errorf("%s: events %+v, %v", id, events, err)
		}
	}
	s.post(t, "/api/rollouts/own/attempt/7/events", `{"event_type":"reward","data":{"value":9}}`, 404)
	if status, _ := s.send(t, "POST", "/api/rollouts/own/attempt/0/events", cred, `{"event_type":"reward","data":{"value":9}}`); status != 410 {
		t.Errorf("the agent's own late reward: %d", status)
	}
	if status, answer := s.chat(t, cred, "x"); status != 400 || !strings.Contains(answer, "context_length_exceeded") { // the fourth
		t.Errorf("the agent's own late call: %d %s", status, answer)
	}
}

// ST-01, ST-02: model calls without prompt ids, or with malformed ones, are each a
// record of their own in every view.
func TestOddPromptIDs(t *testing.T) {
	t.Parallel()
	answers := []string{`"prompt_token_ids":[],`, `"prompt_token_ids":[],`, `"prompt_token_ids":[[1]],`, `"prompt_token_ids":"x",`, ``, `"prompt_token_ids":[1.5,null],`}
	var n atomic.Int64
	s := serveCases(t, t.TempDir(), func(w http.ResponseWriter, r *http.Request) {
		i := n.Add(1) - 1
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.NewReplacer(`"prompt_token_ids":[1,2],`, answers[i], `"token_ids":[3]`, fmt.Sprintf(`"token_ids":[%d]`, i)).Replace(servedAnswer))
	})
	cred := s.open(t, fulgur.DefaultRun, "r")[0].Credential
	for range answers {
		if status, answer := s.chat(t, cred, "x"); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	for _, data := range []string{`{"response":{"prompt_token_ids":[[1]],"choices":[{"token_ids":[7]}]}}`, `{"response":7}`, `{"response":{"choices":7}}`} {
		s.post(t, "/api/rollouts/r/attempt/0/events", `{"event_type":"model_request","data":`+data+`}`, 200)
	}
	for _, format := range []string{"", "?format=triplet"} {
		status, body := s.send(t, "GET", "/api/rollouts/r/events"+format, "K", "")
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 || len(list) != len(answers)+3 {
			t.Errorf("%s: %d, %d events, %v: %s", format, status, len(list), err, body)
		}
	}
	calls, err := s.api.Calls(t.Context(), "r", "0")
	if err != nil || len(calls) != len(answers) {
		t.Fatalf("%d calls, %v", len(calls), err)
	}
	for i, c := range calls {
		if c.Trainable || c.Untrainable[0] != fulgur.UntrainableNoIDs || fmt.Sprint(c.SampledIDs) != fmt.Sprintf("[%d]", i) {
			t.Errorf("call %d: %v, sampled %v", i, c.Untrainable, c.SampledIDs)
		}
	}
}

// ST-04: a rollout's second execution is an attempt of its own. Only its calls and
// reward count; those of the first are still there.
func TestSecondExecution(t *testing.T) {
	t.Parallel()
	s := serveCases(t, t.TempDir(), nil)
	ctx := t.Context()
	run := func(a fulgur.OpenedAttempt, want fulgur.AttemptID) {
		t.Helper()
		if a.ID != want {
			t.Fatalf("attempt %s, want %s", a.ID, want)
		}
		for i := range 3 {
			if status, answer := s.chat(t, a.Credential, fmt.Sprint(i)); status != 200 {
				t.Fatalf("%d %s", status, answer)
			}
		}
	}
	first := s.open(t, fulgur.DefaultRun, "r")[0]
	run(first, "0")
	s.post(t, "/api/rollouts/r/attempt/0/events", `{"event_type":"reward","data":{"value":-1}}`, 200)
	lost := fulgur.Outcome{Class: fulgur.OutcomeInfrastructure, Reason: "lost"}
	if _, err := s.api.ReportAttempt(ctx, "r", "0", fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Retry: true, Outcome: &lost}); err != nil {
		t.Fatal(err)
	}
	second, err := s.api.OpenAttempt(ctx, "r")
	if err != nil {
		t.Fatal(err)
	}
	run(second, "1")
	if status, _ := s.chat(t, first.Credential, "x"); status != 410 {
		t.Errorf("the first execution still calls: %d", status)
	}
	s.post(t, "/api/rollouts/r/attempt/1/events", `{"event_type":"reward","data":{"value":1}}`, 200)
	s.post(t, "/api/rollouts/r/attempt/0/events", `{"event_type":"reward","data":{"value":9}}`, 200)
	if _, err := s.api.ReportAttempt(ctx, "r", "1", fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Outcome: &fulgur.Outcome{Class: fulgur.OutcomeOK, Reason: "exit"}}); err != nil {
		t.Fatal(err)
	}
	records, err := s.api.Records(ctx, []fulgur.RolloutID{"r"})
	if err != nil || len(records) != 1 || len(records[0].Calls) != 3 || records[0].Calls[0].Attempt != "1" || *records[0].Rollout.Reward != 1 {
		t.Errorf("what trains: %+v, %v", records, err)
	}
	if values, calls := s.rewards(t, "r"); fmt.Sprint(values) != "[1]" || calls != 1 { // v1 keeps the last of one prompt
		t.Errorf("v1's trainer reads rewards %v and %d calls", values, calls)
	}
	if all, err := s.api.Calls(ctx, "r", ""); err != nil || len(all) != 6 {
		t.Errorf("%d calls on record, %v", len(all), err)
	}
}

// ST-08: the server is killed with 50 rollouts running. Started again it knows
// them all, their credentials are good, and they end as if nothing had been.
func TestRestartWithRolloutsRunning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serveCases(t, dir, nil)
	ids := make([]fulgur.RolloutID, 50)
	for i := range ids {
		ids[i] = fulgur.RolloutID(fmt.Sprint("r", i))
	}
	opened := s.open(t, fulgur.DefaultRun, ids...)
	for _, a := range opened {
		if status, answer := s.chat(t, a.Credential, "before"); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	s.kill()
	<-s.done
	s.restart(t, dir)
	for _, a := range opened {
		if status, answer := s.chat(t, a.Credential, "after"); status != 200 {
			t.Fatalf("%s after the restart: %d %s", a.Rollout, status, answer)
		}
		s.post(t, "/api/rollouts/"+string(a.Rollout)+"/attempt/0/events", `{"event_type":"reward","data":{"value":1}}`, 200)
		if status, answer := s.send(t, "PATCH", "/api/rollouts/"+string(a.Rollout), "K", `{"status":{"state":"succeeded"}}`); status != 200 {
			t.Errorf("%d %s", status, answer)
		}
	}
	records, err := s.api.Records(t.Context(), ids)
	if err != nil || len(records) != len(ids) {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, r := range records {
		if r.Rollout.State != fulgur.Succeeded || *r.Rollout.Reward != 1 || len(r.Calls) != 2 || r.Calls[1].Index != 1 {
			t.Errorf("%s: %s with %d calls", r.Rollout.ID, r.Rollout.State, len(r.Calls))
		}
	}
}

// ST-11: of two trainers of one run the second is refused; those of two runs on one
// server do not touch each other's models or pauses.
func TestTwoTrainersOnOneServer(t *testing.T) {
	t.Parallel()
	s := serveCases(t, t.TempDir(), nil)
	ctx := t.Context()
	creds := map[fulgur.RunID]string{}
	for _, run := range []fulgur.RunID{"a", "b"} {
		if err := s.api.PutRun(ctx, fulgur.Run{ID: run, Model: "m"}); err != nil {
			t.Fatal(err)
		}
		if err := s.api.PutEndpoints(ctx, run, "m", []fulgur.Endpoint{{Model: "m", Kind: fulgur.EndpointChat, URL: s.up.URL + "/v1", Version: 1}}); err != nil {
			t.Fatal(err)
		}
		creds[run] = s.open(t, run, fulgur.RolloutID("r-"+run))[0].Credential
	}
	if _, err := s.api.AcquireLease(ctx, "a", "trainer", "one", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := s.api.AcquireLease(ctx, "a", "trainer", "two", time.Minute); fulgur.KindOf(err) != fulgur.KindConflict {
		t.Errorf("a second trainer of run a: %v", err)
	}
	if _, err := s.api.PauseCalls(ctx, "a", fulgur.PauseRequest{Owner: "one", Refuse: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.api.PutEndpoints(ctx, "a", "m", nil); err != nil {
		t.Fatal(err)
	}
	if status, answer := s.chat(t, creds["b"], "x"); status != 200 {
		t.Errorf("run b while a is updated: %d %s", status, answer)
	}
	if _, err := s.api.ResumeCalls(ctx, "a", "two"); fulgur.KindOf(err) != fulgur.KindConflict {
		t.Errorf("another's resume: %v", err)
	}
	if err := s.api.PutEndpoints(ctx, "a", "m", []fulgur.Endpoint{{Model: "m", Kind: fulgur.EndpointChat, URL: s.up.URL + "/v1", Version: 2}}); err != nil {
		t.Fatal(err)
	}
	if status, _ := s.chat(t, creds["a"], "x"); status != 429 {
		t.Errorf("run a in its pause: %d", status)
	}
	if _, err := s.api.ResumeCalls(ctx, "a", "one"); err != nil {
		t.Fatal(err)
	}
	if status, answer := s.chat(t, creds["a"], "x"); status != 200 {
		t.Errorf("run a after it: %d %s", status, answer)
	}
	for run, version := range map[fulgur.RunID]fulgur.PolicyVersion{"a": 2, "b": 1} {
		if calls, err := s.api.Calls(ctx, fulgur.RolloutID("r-"+run), ""); err != nil || len(calls) != 1 || calls[0].Version() != version {
			t.Errorf("run %s: %+v, %v", run, calls, err)
		}
	}
}

// GW-26 through the whole server: the calls of two rollouts take turns on one
// connection, by path and by key.
func TestOneConnectionForTwoRollouts(t *testing.T) {
	t.Parallel()
	s := serveCases(t, t.TempDir(), nil)
	opened := s.open(t, fulgur.DefaultRun, "a", "b")
	var dials atomic.Int64
	tr := &http.Transport{MaxConnsPerHost: 1, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	defer tr.CloseIdleConnections()
	const each = 200
	var wg sync.WaitGroup
	for _, a := range opened {
		wg.Go(func() {
			for i := range each {
				key, path := a.Credential, "/openai/v1/chat/completions"
				if i%3 > 0 {
					path = "/proxy/rollout/" + string(a.Rollout) + "/attempt/0/mode/train" + path
				}
				if i%3 == 2 {
					key = "K"
				}
				req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+path, strings.NewReader(fmt.Sprintf(`{"messages":[{"role":"user","content":"I am %s"}]}`, a.Rollout)))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+key)
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("status %d", resp.StatusCode)
				}
			}
		})
	}
	wg.Wait()
	if dials.Load() != 1 {
		t.Errorf("%d connections", dials.Load())
	}
	for _, a := range opened {
		calls, err := s.api.Calls(t.Context(), a.Rollout, "0")
		if err != nil || len(calls) != each {
			t.Errorf("%s: %d calls, %v", a.Rollout, len(calls), err)
		}
		for _, c := range calls {
			if c.Messages[0].Content != "I am "+string(a.Rollout) {
				t.Errorf("a call of %q is on record for %s", c.Messages[0].Content, a.Rollout)
			}
		}
	}
}
