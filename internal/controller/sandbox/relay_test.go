package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// relayTo starts a relay to a handler, and returns its URL.
func relayTo(t *testing.T, h http.HandlerFunc, p Pass) string {
	t.Helper()
	up := httptest.NewServer(h)
	t.Cleanup(up.Close)
	return relayAt(t, up.URL, p)
}

func relayAt(t *testing.T, upstream string, p Pass) string {
	t.Helper()
	r, err := NewRelay(upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	r.Let(p)
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return s.URL
}

var everything = Pass{Key: "real", Paths: []string{"/"}}

func TestRelayAddsTheCredentialAndPassesBytes(t *testing.T) {
	body := make([]byte, 5<<20)
	_, _ = rand.Read(body)
	url := relayTo(t, func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if a := r.Header.Get("Authorization"); a != "Bearer real" {
			t.Errorf("authorization %q", a)
		}
		if r.Header.Get("X-Api-Key") != "" || r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Accept-Encoding") != "odd" || r.Header.Get("Anthropic-Version") != "1" {
			t.Errorf("headers %v", r.Header)
		}
		if r.RequestURI != "/openai/v1/x%2Fy?a=%zz;b" {
			t.Errorf("request %s", r.RequestURI)
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(201)
		_, _ = w.Write(body)
	}, everything)
	req, _ := http.NewRequest("POST", url+"/openai/v1/x%2Fy?a=%zz;b", bytes.NewReader(body))
	for k, v := range map[string]string{"Authorization": "Bearer " + Placeholder, "X-Api-Key": Placeholder, "Accept-Encoding": "odd", "Anthropic-Version": "1"} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, body) || resp.StatusCode != 201 || resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("status %d, %d bytes, %v, %v", resp.StatusCode, len(got), resp.Header, err)
	}
}

func TestRelayStreamsBothWays(t *testing.T) {
	url := relayTo(t, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		in := bufio.NewReader(r.Body)
		for { // each line is answered before the next one is sent
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = io.WriteString(w, "data: "+line)
			_ = c.Flush()
		}
	}, everything)
	r, w := io.Pipe()
	req, _ := http.NewRequest("POST", url+"/x", r)
	answered := make(chan *http.Response, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
		}
		answered <- resp
	}()
	_, _ = io.WriteString(w, "0\n")
	resp := <-answered
	defer resp.Body.Close()
	out := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := out.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		_, _ = fmt.Fprintf(w, "%d\n", i+1)
	}
	_ = w.Close()
}

func TestClientThatLeavesTheRelayLeavesTheGateway(t *testing.T) {
	left := make(chan struct{})
	url := relayTo(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	}, everything)
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", url+"/x", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.ReadFull(resp.Body, make([]byte, 5))
	cancel()
	select {
	case <-left:
	case <-time.After(5 * time.Second):
		t.Error("the gateway goes on")
	}
}

func TestAnswerThatBreaksOffBreaksOffAtTheAgent(t *testing.T) {
	url := relayTo(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, everything)
	resp, err := http.Get(url + "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err == nil || string(b) != "half" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestRelayLetsOnlyItsPathsThrough(t *testing.T) {
	url := relayTo(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) },
		Pass{Key: "real", Paths: []string{"/proxy/rollout/a/attempt/0/mode/train/openai/v1/", "/api/rollouts/a/attempt/0/events"}})
	for path, want := range map[string]int{
		"/proxy/rollout/a/attempt/0/mode/train/openai/v1/chat/completions": 200,
		"/api/rollouts/a/attempt/0/events":                                 200,
		"/api/rollouts/a/attempt/0/events/x":                               403,
		"/api/rollouts/a":                                                  403,
		"/proxy/rollout/b/attempt/0/mode/train/openai/v1/x":                403,
		"/proxy/rollout/a/attempt/0/mode/train/openai/v1/../../../../../x": 403,
		"/proxy/rollout/a/attempt/0/mode/train/openai/v1/%2e%2e/x":         403,
		"/proxy/rollout/a/attempt/0/mode/train/openai/v1//x":               403,
		"/metrics": 403,
		"/":        403,
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, resp.StatusCode, want)
		}
		_ = c.Close()
	}
}

func TestGatewayThatIsStartedAgainIsWaitedFor(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "gateway.sock")
	url := relayAt(t, "unix:"+sock, everything)
	answered := make(chan error, 1)
	go func() {
		resp, err := http.Get(url + "/x")
		if err == nil {
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if string(b) != "here" {
				err = errors.New(resp.Status)
			}
		}
		answered <- err
	}()
	time.Sleep(250 * time.Millisecond) // it asks, and nobody is there
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })}
	defer s.Close()
	go func() { _ = s.Serve(l) }()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestRelayRefusesWhatIsNoGateway(t *testing.T) {
	for _, u := range []string{"", "gateway:8080", "ftp://x", "unix:", "http://"} {
		if _, err := NewRelay(u); err == nil {
			t.Errorf("%q was taken", u)
		}
	}
}

func TestVariablesThroughTheRelay(t *testing.T) {
	env, pass := Through("http://10.0.0.5:8080/", map[string]string{
		"OPENAI_BASE_URL": "http://10.0.0.5:8080/proxy/rollout/a%2Fb/openai/v1", "OPENAI_API_KEY": "k-1", "AGL_EVENT_URL": "http://10.0.0.5:8080/api/events",
		"OTHER": "http://10.0.0.5:80801/x", "TEXT": "the key is not k here", "HEADER": "Bearer k-1",
	}, []string{"k-1", ""})
	if d := cmp.Diff(map[string]string{
		"OPENAI_BASE_URL": "http://127.0.0.1:41457/proxy/rollout/a%2Fb/openai/v1", "OPENAI_API_KEY": Placeholder, "AGL_EVENT_URL": "http://127.0.0.1:41457/api/events",
		"OTHER": "http://10.0.0.5:80801/x", "TEXT": "the key is not k here", "HEADER": "Bearer " + Placeholder,
	}, env); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(Pass{Key: "k-1", Paths: []string{"/anthropic/", "/api/events", "/api/events/", "/openai/", "/proxy/rollout/a%2Fb/openai/v1", "/proxy/rollout/a%2Fb/openai/v1/"}}, pass); d != "" {
		t.Error(d)
	}
}
