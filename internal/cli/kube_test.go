package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/controller/kube"
)

// gatewayStandIn answers as a gateway does that a probe asks.
func gatewayStandIn(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(answerProbes())
	t.Cleanup(s.Close)
	return s
}

// proxy is one before up; through changes what it answers to a stream.
func proxy(t *testing.T, up string, through func(*http.Response) error) string {
	t.Helper()
	u, err := url.Parse(up)
	if err != nil {
		t.Fatal(err)
	}
	p := httputil.NewSingleHostReverseProxy(u) // passes event streams on at once
	p.ModifyResponse = func(r *http.Response) error {
		if through == nil || !strings.HasSuffix(r.Request.URL.Path, streamPath) {
			return nil
		}
		return through(r)
	}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return s.URL
}

// blocks passes a body on in blocks of so many bytes, as a proxy's buffers do.
type blocks struct {
	io.ReadCloser
	size int
	rest []byte
}

func (b *blocks) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		b.rest = make([]byte, b.size)
		n, err := io.ReadFull(b.ReadCloser, b.rest)
		if b.rest = b.rest[:n]; n == 0 {
			return 0, err
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func TestStreamsShowWhatIsBetween(t *testing.T) {
	up := gatewayStandIn(t)
	hold := func(size int) func(*http.Response) error {
		return func(r *http.Response) error {
			r.Body = &blocks{ReadCloser: r.Body, size: size}
			return nil
		}
	}
	part := len("data: 0\n\n")
	for name, test := range map[string]struct {
		through func(*http.Response) error
		want    string
	}{
		"a proxy that passes on what it gets":        {nil, ""},
		"a proxy that buffers all":                   {hold(1 << 12), "3 of 4 parts, sent over 450ms, were held back"},
		"a proxy with a buffer of two parts":         {hold(2 * part), "2 of 4 parts, sent over 450ms, were held back"},
		"a proxy that knows no such path":            {func(r *http.Response) error { r.StatusCode, r.Status = 404, "404 Not Found"; return nil }, "is answered with 404 Not Found"},
		"a proxy whose upstream is down for streams": {func(r *http.Response) error { r.StatusCode, r.Status = 502, "502 Bad Gateway"; return nil }, "is answered with 502 Bad Gateway"},
		"a proxy that cuts answers off": {func(r *http.Response) error {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(r.Body, int64(2*part)), r.Body}
			return nil
		}, "of 4 parts of"},
		"a page of somebody else's": {func(r *http.Response) error {
			r.Body = io.NopCloser(strings.NewReader("<html>welcome</html>"))
			return nil
		}, "something else answers there"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := probeNetwork(t.Context(), proxy(t, up.URL, test.through), nil)
			if found.Reached != "" || (found.Streams == "") != (test.want == "") || !strings.Contains(found.Streams, test.want) {
				t.Errorf("%+v, want %q", found, test.want)
			}
		})
	}
}

// dns answers whatever it is asked.
func dns(t *testing.T) string {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := l.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = l.WriteTo(buf[:n], from)
		}
	}()
	return l.LocalAddr().String()
}

func TestProbeNetwork(t *testing.T) {
	up := gatewayStandIn(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	targets := []target{{"a neighbour", "tcp", l.Addr().String()}, {"a resolver", "udp", dns(t)}, {"nobody", "tcp", "127.0.0.1:1"}, {"silence", "udp", silent.LocalAddr().String()}}
	found := probeNetwork(t.Context(), up.URL, targets)
	if want := []string{targets[0].String(), targets[1].String()}; found.Reached != "" || found.Streams != "" || !slices.Equal(found.Escaped, want) {
		t.Errorf("%+v, want %q escaped", found, want)
	}
	if want := []string{targets[2].String(), targets[3].String()}; !slices.Equal(found.Closed, want) {
		t.Errorf("closed %q, want %q", found.Closed, want)
	}
	raw, _ := json.Marshal(probeNetwork(t.Context(), up.URL, nil))
	var back kube.ProbeResult
	if err := json.Unmarshal(raw, &back); err != nil || back.Escaped == nil {
		t.Errorf("%s: %v", raw, err)
	}
}

// Each address that a probe is to find closed is named, where the pod knows of it.
func TestEscapesNameTheCluster(t *testing.T) {
	vars := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "NODE_IP": "10.0.0.4"}
	var names []string
	for _, e := range escapes(func(n string) string { return vars[n] }) {
		names = append(names, e.String())
	}
	all := strings.Join(names, "; ")
	for _, want := range []string{"the internet (1.1.1.1:443)", "a resolver of the internet (8.8.8.8:53, UDP)", "the cloud's metadata (169.254.169.254:80)", "the API server (10.96.0.1:443)", "its node's kubelet (10.0.0.4:10250)"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among %s", want, all)
		}
	}
}

// A neighbour listens where it says; the copy that images run is the program itself.
func TestProbesHelpers(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "fulgur", kube.ProbeCommand, "--neighbour")
	cmd.Env = append(os.Environ(), "POD_IP=127.0.0.1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	line := make([]byte, 64)
	n, _ := out.Read(line)
	at := strings.TrimSpace(string(line[:n]))
	raw, err := exec.Command("fulgur", kube.ProbeCommand, gatewayStandIn(t).URL, "--try", "another agent="+at).Output()
	var found kube.ProbeResult
	if err := errors.Join(err, json.Unmarshal(raw, &found)); err != nil || !slices.Contains(found.Escaped, "another agent ("+at+")") {
		t.Errorf("%v: %s", err, raw)
	}
	file := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("fulgur", kube.ProbeCommand, "--install", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	self, _ := os.ReadFile(mustLook(t, "fulgur"))
	if twin, _ := os.ReadFile(file); !bytes.Equal(twin, self) {
		t.Error("the copy is another")
	}
	if st, err := os.Stat(file); err != nil || st.Mode()&0o111 != 0o111 {
		t.Errorf("%v, %v: not everybody may run it", st, err)
	}
}
