package v1_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	v1 "github.com/fulgur-rl/fulgur/internal/api/v1"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

const key = "transcript-key-1"

// pauser is v1's pause without a gateway behind it.
type pauser struct {
	mu sync.Mutex
	p  v1.Pause
}

func (p *pauser) PauseAll(after int, reason *string) v1.Pause {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.p.Paused, p.p.RetryAfterSeconds, p.p.Reason = true, after, reason
	return p.p
}

func (p *pauser) ResumeAll() v1.Pause {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.p.Paused, p.p.Reason = false, nil
	return p.p
}

func (p *pauser) StateAll() v1.Pause {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.p
}

func serve(t *testing.T) (*store.Store, *httptest.Server) {
	t.Helper()
	s, err := store.Open(t.Context(), sqlite.New(filepath.Join(t.TempDir(), "s.db"), sqlite.Options{}), store.Options{ServerKey: key})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(v1.New(v1.Options{Store: s, Pauser: &pauser{p: v1.Pause{RetryAfterSeconds: 5}}}))
	t.Cleanup(func() {
		srv.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, srv
}

type exchange struct {
	Name    string
	Request struct {
		Method, Path, Auth string
		Headers            map[string]string
		Body               json.RawMessage
		Raw                *string
	}
	Response struct {
		Status int
		Body   json.RawMessage
	}
	Capture map[string]string
}

// do sends a request and returns status, body and header; redirects are not followed.
func do(t *testing.T, method, url, body string, headers map[string]string) (int, string, http.Header) {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range headers {
		req.Header.Set(k, v)
		if v == "" {
			req.Header.Del(k)
		}
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
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

func TestGoldenTranscriptIsAnsweredAsV1DoesIt(t *testing.T) {
	_, srv := serve(t)
	f, err := os.Open("testdata/transcript.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names := []string{"{{KEY}}", key, "{{UP}}", "http://127.0.0.1:9"}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		var x exchange
		if err := json.Unmarshal([]byte(strings.NewReplacer(names...).Replace(lines.Text())), &x); err != nil {
			t.Fatal(err)
		}
		headers := x.Request.Headers
		if headers == nil {
			headers = map[string]string{}
		}
		if x.Request.Auth != "none" {
			headers["Authorization"] = "Bearer " + key
		}
		body := string(x.Request.Body)
		if x.Request.Raw != nil {
			body = *x.Request.Raw
		}
		status, got, _ := do(t, x.Request.Method, srv.URL+x.Request.Path, body, headers)
		if status != x.Response.Status {
			t.Errorf("%s: status %d, want %d: %s", x.Name, status, x.Response.Status, got)
			continue
		}
		if len(x.Response.Body) == 0 || status == http.StatusUnprocessableEntity {
			continue
		}
		var have, want any
		if err := json.Unmarshal([]byte(got), &have); err != nil {
			t.Errorf("%s: %v in %s", x.Name, err, got)
			continue
		}
		if err := json.Unmarshal(x.Response.Body, &want); err != nil {
			t.Fatal(err)
		}
		for as, where := range x.Capture {
			var i int
			var field string
			if _, err := fmt.Sscanf(strings.ReplaceAll(where, "/", " "), "%d %s", &i, &field); err != nil {
				t.Fatal(err)
			}
			id := have.([]any)[i].(map[string]any)[field].(string)
			names = append(names, "{{"+as+"}}", id)
			want.([]any)[i].(map[string]any)[field] = id
		}
		if d := differ(want, have, ""); d != "" {
			t.Errorf("%s: %s", x.Name, d)
		}
	}
	if err := lines.Err(); err != nil || n < 100 {
		t.Errorf("%d exchanges, %v", n, err)
	}
	t.Logf("transcript.jsonl: %d exchanges", n)
}

// differ says where have is not want.
func differ(want, have any, where string) string {
	switch w := want.(type) {
	case string:
		if strings.HasPrefix(w, "<") && strings.HasSuffix(w, ">") {
			if _, ok := have.(float64); w == "<float>" && !ok {
				return fmt.Sprintf("%s: %v is no number", where, have)
			}
			return ""
		}
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok || len(h) != len(w) {
			return fmt.Sprintf("%s: %v, want %v", where, have, want)
		}
		for k := range w {
			if d := differ(w[k], h[k], where+"."+k); d != "" {
				return d
			}
		}
		return ""
	case []any:
		h, ok := have.([]any)
		if !ok || len(h) != len(w) {
			return fmt.Sprintf("%s: %v, want %v", where, have, want)
		}
		for i := range w {
			if d := differ(w[i], h[i], fmt.Sprintf("%s[%d]", where, i)); d != "" {
				return d
			}
		}
		return ""
	}
	if !reflect.DeepEqual(want, have) {
		return fmt.Sprintf("%s: %v, want %v", where, have, want)
	}
	return ""
}
