package v2_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
	v2 "github.com/fulgur-rl/fulgur/internal/api/v2"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

func serve(t *testing.T, o v2.Options) (*store.Store, *httptest.Server) {
	t.Helper()
	s, err := store.Open(t.Context(), sqlite.New(filepath.Join(t.TempDir(), "s.db"), sqlite.Options{}), store.Options{ServerKey: "key"})
	if err != nil {
		t.Fatal(err)
	}
	o.Store, o.Capabilities = s, api.Capabilities{Version: "1.2.3", Features: []string{"sqlite"}}
	srv := httptest.NewServer(v2.New(o))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, srv
}

func request(t *testing.T, method, url, key, body string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

func attempt(t *testing.T, s *store.Store, id fulgur.RolloutID) string {
	t.Helper()
	_, err := s.CreateRollouts(t.Context(), []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage(`{"answer":42}`)}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.OpenAttempt(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return a.Credential
}

func TestCredentialsOpenWhatIsTheirsAndNothingElse(t *testing.T) {
	s, srv := serve(t, v2.Options{})
	cred, other := attempt(t, s, "mine"), attempt(t, s, "other")
	base := srv.URL + "/api/v2"
	for _, c := range []struct {
		name, method, path, key, body string
		want                          int
	}{
		{"no key", "GET", "/runs", "", "", 401},
		{"a wrong key, before the body is looked at", "POST", "/rollouts", "nope", "{", 401},
		{"the server key", "GET", "/runs", "key", "", 200},
		{"an attempt reads no rollout", "GET", "/rollouts/mine", cred, "", 403},
		{"nor its calls", "GET", "/rollouts/mine/calls", cred, "", 403},
		{"nor the watch", "GET", "/watch", cred, "", 403},
		{"nor opens an attempt", "POST", "/rollouts/mine/attempts", cred, "", 403},
		{"nor sets its reward", "POST", "/rollouts/mine/reward", cred, `{"attempt":"0","value":1,"source":"me"}`, 403},
		{"nor pauses", "POST", "/runs/default/pause", cred, `{"owner":"me","lease":1,"drain":0,"refuse":false,"reason":""}`, 403},
		{"it posts its events", "POST", "/rollouts/mine/attempts/0/events", cred, `{"type":"note","data":{"n":1}}`, 201},
		{"none that is larger than one may be", "POST", "/rollouts/mine/attempts/0/events", cred, `{"type":"note","data":"` + strings.Repeat("x", 2<<20) + `"}`, 413},
		{"nor what is not for it to send", "POST", "/rollouts", cred, strings.Repeat("x", 2<<20+1), 413},
		{"not another's", "POST", "/rollouts/mine/attempts/0/events", other, `{"type":"note"}`, 403},
		{"no forged model call", "POST", "/rollouts/mine/attempts/0/events", cred, `{"type":"model_request"}`, 403},
		{"an unknown route", "GET", "/nothing", "key", "", 404},
		{"a wrong method", "PATCH", "/runs", "key", "", 405},
		{"an unknown field", "POST", "/runs/default/resume", "key", `{"owner":"x","extra":1}`, 422},
		{"no gateway here", "GET", "/runs/default/pause", "key", "", 400},
	} {
		code, body, h := request(t, c.method, base+c.path, c.key, c.body)
		if code != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, code, body, c.want)
		}
		var p struct{ Detail string }
		if code >= 400 && (json.Unmarshal([]byte(body), &p) != nil || p.Detail == "" || !strings.HasPrefix(h.Get("Content-Type"), "application/problem+json")) {
			t.Errorf("%s: no problem: %s %s", c.name, h.Get("Content-Type"), body)
		}
	}
	// A reward of a graded run is taken, and kept as unused.
	_, body, _ := request(t, "POST", base+"/rollouts/mine/attempts/0/events", cred, `{"type":"reward","data":{"value":1}}`)
	if !strings.Contains(body, `"unused":"the run grades`) {
		t.Error(body)
	}
	if _, err := s.EndRollout(t.Context(), "mine", fulgur.Outcome{Class: fulgur.OutcomeAgent, Reason: "timeout"}); err != nil {
		t.Fatal(err)
	}
	if code, body, _ := request(t, "POST", base+"/rollouts/mine/attempts/0/events", cred, `{"type":"note"}`); code != http.StatusGone {
		t.Errorf("after the end: %d %s", code, body)
	}
}

func TestTheDescriptionCoversEveryRouteAndNeedsNoNetwork(t *testing.T) {
	_, srv := serve(t, v2.Options{})
	code, body, _ := request(t, "GET", srv.URL+"/api/v2/openapi.json", "", "")
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			Responses map[string]struct{ Content map[string]any }
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil || code != 200 || !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Fatalf("%d %v %s", code, err, doc.OpenAPI)
	}
	var got []string
	for path, methods := range doc.Paths {
		for m, op := range methods {
			got = append(got, strings.ToUpper(m)+" "+strings.TrimPrefix(path, v2.Prefix))
			if len(op.Responses) == 0 {
				t.Errorf("%s %s has no answer", m, path)
			}
		}
	}
	for _, want := range []string{"GET /runs", "PUT /runs/{run}", "POST /runs/{run}/pause", "PUT /runs/{run}/models", "POST /rollouts", "GET /rollouts/{id}",
		"POST /rollouts/{id}/attempts", "POST /rollouts/{id}/attempts/{attempt}/report", "POST /rollouts/{id}/reward", "GET /calls/{call}", "GET /watch", "GET /capabilities"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not described; %v are", want, got)
		}
	}
	code, page, _ := request(t, "GET", srv.URL+"/docs", "", "")
	if code != 200 || strings.Contains(page, "https://") || strings.Contains(page, "http://") {
		t.Errorf("the docs page: %d, or it loads something", code)
	}
	if _, body, _ := request(t, "GET", srv.URL+"/api/v2/capabilities", "key", ""); !strings.Contains(body, `"version":"1.2.3"`) {
		t.Error(body)
	}
}

func TestAWatchShowsLifeAndGoesOnFromAnID(t *testing.T) {
	s, srv := serve(t, v2.Options{Heartbeat: 20 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	open := func(last string) *bufio.Scanner {
		req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/api/v2/watch?after=0&run=default", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("x-api-key", "key")
		if last != "" {
			req.Header.Set("Last-Event-ID", last)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
			t.Fatal(ct)
		}
		return bufio.NewScanner(resp.Body)
	}
	find := func(lines *bufio.Scanner, prefix string) string {
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				return rest
			}
		}
		t.Fatalf("no %q: %v", prefix, lines.Err())
		return ""
	}
	lines := open("")
	id := find(lines, "id: ") // the run default's own change
	find(lines, ": still here")
	attempt(t, s, "r")
	next := find(lines, "id: ")
	data := find(lines, "data: ")
	if !strings.Contains(data, `"rollout":"r"`) || next == id {
		t.Errorf("after %s: %s %s", id, next, data)
	}
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again := open(fmt.Sprint(head))
	find(again, ": still here") // nothing is told twice
}

// gate is a gateway's pause, as far as the routes need one.
type gate struct{ got fulgur.PauseRequest }

func (g *gate) PauseCalls(_ context.Context, run fulgur.RunID, p fulgur.PauseRequest) (fulgur.Pause, error) {
	g.got = p
	return fulgur.Pause{Run: run, Paused: true, Owner: p.Owner, Reason: p.Reason, InFlight: 2}, nil
}

func (g *gate) ResumeCalls(_ context.Context, run fulgur.RunID, owner string) (fulgur.Pause, error) {
	if owner != g.got.Owner {
		return fulgur.Pause{}, fulgur.E(fulgur.KindConflict, "resume", "paused by "+g.got.Owner, nil)
	}
	return fulgur.Pause{Run: run}, nil
}

func (g *gate) PauseState(_ context.Context, run fulgur.RunID) (fulgur.Pause, error) {
	return fulgur.Pause{Run: run, Held: 3}, nil
}

func (g *gate) Activities(ctx context.Context, keys []fulgur.AttemptKey) ([]fulgur.Activity, error) {
	out := make([]fulgur.Activity, len(keys))
	for i, k := range keys {
		out[i], _ = g.Activity(ctx, k.Rollout, k.Attempt)
	}
	return out, nil
}

func (g *gate) Activity(context.Context, fulgur.RolloutID, fulgur.AttemptID) (fulgur.Activity, error) {
	return fulgur.Activity{Calls: 4, Held: time.Second}, nil
}
