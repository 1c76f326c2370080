package sampler

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// counted counts the connections to a server.
func counted(t *testing.T, h http.HandlerFunc) (s *httptest.Server, opened *atomic.Int32, closed chan struct{}) {
	opened, closed = new(atomic.Int32), make(chan struct{}, 16)
	s = httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			opened.Add(1)
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, opened, closed
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	if r.URL.Path == "/chunked" {
		w.(http.Flusher).Flush()
	}
	fmt.Fprintf(w, "%s %s %d %s", r.Method, r.URL.RequestURI(), len(b), r.Header.Get("X"))
}

// Calls of any size, however they are answered, share one connection.
func TestDirectReuses(t *testing.T) {
	s, opened, _ := counted(t, echo)
	client := NewClient()
	defer client.CloseIdleConnections()
	for _, path := range []string{"/plain", "/chunked?a=b"} {
		for _, size := range []int{0, 5, 8 << 10, 8<<10 + 1, maxInline, 4 << 20} {
			req, err := http.NewRequest("POST", s.URL+path, strings.NewReader(strings.Repeat("x", size)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X", "y")
			r, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r.Body)
			if want := fmt.Sprintf("POST %s %d y", path, size); err != nil || string(b) != want {
				t.Errorf("%q, %v, want %q", b, err, want)
			}
			_ = r.Body.Close()
		}
	}
	if n := opened.Load(); n > 3 { // of a large body the end may be told after that of its answer
		t.Errorf("%d connections", n)
	}
}

// An answer that comes before the request was written whole is the answer.
func TestDirectEarlyAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	release := make(chan struct{})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
			go func() { <-release; _ = c.Close() }() // it reads no more of it
		}
	}()
	defer close(release)
	client := NewClient()
	defer client.CloseIdleConnections()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+l.Addr().String(), strings.NewReader(strings.Repeat("x", 32<<20)))
		r, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		if r.StatusCode != 413 || string(b) != "no" || err != nil {
			t.Errorf("%d %q %v", r.StatusCode, b, err)
		}
		_ = r.Body.Close()
	}
}

// A request counts as written when all of it is, also one whose body is written on while
// its answer is awaited; and when it can't be.
func TestDirectTellsWhenARequestIsWritten(t *testing.T) {
	for name, size := range map[string]int{"short": 10, "long": 32 << 20} {
		read := make(chan struct{})
		s, _, _ := counted(t, func(w http.ResponseWriter, r *http.Request) {
			<-read
			echo(w, r)
		})
		client := NewClient()
		wrote := make(chan error, 1)
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) { wrote <- i.Err }})
		req, _ := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader(strings.Repeat("x", size)))
		go func() {
			if size > maxInline { // more than sockets hold
				select {
				case <-wrote:
					t.Errorf("%s: told before the server has read it", name)
				case <-time.After(50 * time.Millisecond):
				}
			}
			close(read)
		}()
		r, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		if err := <-wrote; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		client.CloseIdleConnections()
	}
	s, _, _ := counted(t, func(_ http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	wrote := make(chan error, 1)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) { wrote <- i.Err }})
	req, _ := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader(strings.Repeat("x", 32<<20)))
	if r, err := NewClient().Do(req); err == nil {
		t.Errorf("%+v", r)
	}
	<-wrote
}

// Who is cancelled, before or in the answer, closes the connection, and says why.
func TestDirectCancels(t *testing.T) {
	reached := make(chan struct{}, 2)
	s, _, closed := counted(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		if r.URL.Path == "/in" {
			_, _ = io.WriteString(w, "a")
			w.(http.Flusher).Flush()
		}
		reached <- struct{}{}
		<-r.Context().Done()
	})
	why := errors.New("why")
	for _, path := range []string{"/before", "/in"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { <-reached; cancel(why) }()
		req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+path, strings.NewReader("{}"))
		r, err := NewClient().Do(req)
		if err == nil {
			_, err = io.ReadAll(r.Body)
			_ = r.Body.Close()
		}
		if !errors.Is(err, why) {
			t.Errorf("%s: %v", path, err)
		}
		<-closed
	}
}

// A connection that the server closed while it was idle is no failure of the next call.
func TestDirectDeadConnections(t *testing.T) {
	s, opened, _ := counted(t, echo)
	client := NewClient()
	defer client.CloseIdleConnections()
	for i := range 3 {
		r, err := client.Post(s.URL, "", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		s.CloseClientConnections()
		if n := opened.Load(); int(n) != i+1 {
			t.Errorf("%d connections after %d calls", n, i+1)
		}
	}
}

// What is no HTTP is an error, soon.
func TestDirectOddAnswers(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"nothing":             {"", "EOF"},
		"no HTTP":             {"SSH-2.0\r\n\r\n", "malformed"},
		"a head without end":  {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead), "too long"},
		"a body that is torn": {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "EOF"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c2, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(c2))
			_, _ = io.WriteString(c2, c.answer)
			_ = c2.Close()
		}()
		r, err := NewClient().Post("http://"+l.Addr().String(), "", nil)
		if err == nil {
			_, err = io.ReadAll(r.Body)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		_ = l.Close()
	}
}

// A stream whose last event has been read gives its connection back; one that is left
// before that does not, nor one that goes on.
func TestDirectFinish(t *testing.T) {
	for name, c := range map[string]struct {
		finish bool
		after  time.Duration // how long the server goes on
		want   int32         // connections of two calls
	}{
		"finished":              {true, 10 * time.Millisecond, 1},
		"closed":                {false, 10 * time.Millisecond, 2},
		"finished, but goes on": {true, time.Minute, 2},
	} {
		s, opened, closed := counted(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-time.After(c.after):
			case <-r.Context().Done():
			}
		})
		client := NewClient()
		defer client.CloseIdleConnections()
		for i := range 2 {
			r, err := client.Post(s.URL, "", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r.Body, make([]byte, 14)); err != nil {
				t.Fatal(err)
			}
			if c.finish {
				Finish(r)
			}
			_ = r.Body.Close()
			if i == 0 && c.want == 1 {
				waitIdle(t, client)
			} else if i == 0 {
				<-closed
			}
		}
		if n := opened.Load(); n != c.want {
			t.Errorf("%s: %d connections, want %d", name, n, c.want)
		}
	}
}

// waitIdle waits until a client has a connection to spare.
func waitIdle(t *testing.T, client *http.Client) {
	t.Helper()
	d := client.Transport.(*direct)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		d.mu.Lock()
		n := len(d.idle)
		d.mu.Unlock()
		if n > 0 {
			return
		}
	}
	t.Fatal("no connection was given back")
}
