package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Whoever sends half a body and then nothing holds no socket for long, whether the
// body is read or not; whoever has sent all of it may wait for his answer.
func TestBodiesThatDoNotArrive(t *testing.T) {
	left := make(chan error, 1)
	srv := httptest.NewServer(BoundBodies(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/read":
			if _, err := io.ReadAll(r.Body); err != nil {
				w.WriteHeader(http.StatusRequestTimeout)
			}
		case "/slow":
			_, _ = io.ReadAll(r.Body)
			select {
			case <-r.Context().Done():
			case <-time.After(500 * time.Millisecond):
			}
			left <- r.Context().Err()
		}
	}), 200*time.Millisecond))
	t.Cleanup(srv.Close)
	for _, c := range []struct {
		path, head, body string
		status           int
	}{
		{"/unread", "Content-Length: 100", "{", 200},
		{"/unread", "Transfer-Encoding: chunked", "5\r\nab", 200},
		{"/read", "Content-Length: 100", "{", 408},
		{"/slow", "Content-Length: 2", "{}", 200},
	} {
		t.Run(c.path+" "+c.head, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", c.path, c.head, c.body)
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			if err != nil || resp.StatusCode != c.status {
				t.Fatalf("%+v %v", resp, err)
			}
			if c.path == "/slow" {
				if err := <-left; err != nil {
					t.Errorf("a client that stays is taken for gone: %v", err)
				}
				return
			}
			if _, err := r.ReadByte(); err != io.EOF {
				t.Errorf("the connection stays: %v", err)
			}
		})
	}
}

// A large body that keeps coming may take longer than the limit; a small one may not.
func TestBodiesThatArriveSlowly(t *testing.T) {
	const limit = time.Second
	srv := httptest.NewServer(BoundBodies(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusRequestTimeout)
		}
	}), limit))
	t.Cleanup(srv.Close)
	for piece, status := range map[int]int{bodyShare: 200, 1000: 408} {
		t.Run(fmt.Sprint(piece), func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 3*piece)
			for range 3 {
				_, _ = io.WriteString(conn, strings.Repeat("x", piece)) // the answer says whether it was taken
				time.Sleep(limit * 6 / 10)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != status {
				t.Errorf("%+v %v, want %d", resp, err, status)
			}
		})
	}
}
