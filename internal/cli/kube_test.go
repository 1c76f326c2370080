package cli

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller/kube"
)

func TestProbeNetwork(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET "+streamPath, serveStream)
	open := httptest.NewServer(mux)
	defer open.Close()
	held := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := httptest.NewRecorder() // a proxy that buffers
		mux.ServeHTTP(all, r)
		_, _ = w.Write(all.Body.Bytes())
	}))
	defer held.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	other := l.Addr().String()

	if r := probeNetwork(t.Context(), open.URL, nil); r.Reached != "" || r.Streams != "" || len(r.Escaped) > 0 {
		t.Errorf("of a good way: %+v", r)
	}
	if r := probeNetwork(t.Context(), open.URL, map[string]string{"a neighbour": other}); len(r.Escaped) != 1 || r.Escaped[0] != "a neighbour ("+other+")" {
		t.Errorf("with a way out: %+v", r)
	}
	if r := probeNetwork(t.Context(), held.URL, nil); r.Reached != "" || !strings.Contains(r.Streams, "arrived within") {
		t.Errorf("behind a proxy that buffers: %+v", r)
	}
	raw, _ := json.Marshal(probeNetwork(t.Context(), open.URL, nil))
	var back kube.ProbeResult
	if err := json.Unmarshal(raw, &back); err != nil || back.Escaped == nil {
		t.Errorf("%s: %v", raw, err)
	}
}
