package cli

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A relay beside an agent takes few of its connections at once: each is memory and a
// descriptor of what hands the agent's work over at the end.
func TestARelayTakesFewConnections(t *testing.T) {
	t.Parallel()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Seen", r.Header.Get("Authorization"))
	}))
	defer gateway.Close()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := start(t, dir, nil, "relay", "--listen", "127.0.0.1:0", "--upstream", gateway.URL, "--key-file", "key")
	addr := relay.notes("relaying ")
	addr = addr[:len(addr)-len(" to "+gateway.URL)]
	var all []net.Conn
	for range 257 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		all = append(all, c)
	}
	last := all[256]
	if _, err := last.Write([]byte("GET /x HTTP/1.1\r\nHost: g\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = last.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	in := bufio.NewReader(last)
	if _, err := in.Peek(1); err == nil {
		t.Fatal("it was answered beside 256 others")
	}
	_ = all[0].Close()
	_ = last.SetReadDeadline(time.Now().Add(30 * time.Second))
	answer, err := http.ReadResponse(bufio.NewReader(last), nil)
	if err != nil || answer.Header.Get("Seen") != "Bearer secret" {
		t.Errorf("%v, %v when one had left", answer, err)
	}
}
