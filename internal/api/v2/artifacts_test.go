package v2_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	v2 "github.com/fulgur-rl/fulgur/internal/api/v2"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
)

func TestArtifactsAreLeftOnceAndReadByWhoMay(t *testing.T) {
	s, srv := serve(t, v2.Options{MaxArtifact: 1000})
	cred, other := attempt(t, s, "mine"), attempt(t, s, "other")
	key := fulgur.AttemptKey{Rollout: "mine", Attempt: "0"}
	if _, _, err := s.PutArtifact(t.Context(), key, "tests", "a secret", strings.NewReader("copy"), 1000); err != nil {
		t.Fatal(err)
	}
	path := srv.URL + "/api/v2/rollouts/mine/attempts/0/artifacts/"
	for _, c := range []struct {
		name, method, artifact, key, body string
		want                              int
	}{
		{"no key", "PUT", "workspace", "", "tar", 401},
		{"a wrong key", "PUT", "workspace", "fk-nobodys", "tar", 401},
		{"another attempt's credential", "PUT", "workspace", other, "tar", 403},
		{"its own", "PUT", "workspace", cred, "tar", 201},
		{"a retry", "PUT", "workspace", cred, "tar", 200},
		{"other bytes", "PUT", "workspace", cred, "rat", 409},
		{"other bytes, with the server key", "PUT", "workspace", "key", "rat", 409},
		{"a name that is none", "PUT", "Work", "key", "rat", 400},
		{"more than one may leave", "PUT", "more", cred, strings.Repeat("x", 994), 413},
		{"the server may", "PUT", "more", "key", strings.Repeat("x", 994), 201},
		{"but there is no room then", "PUT", "least", cred, "", 413},
		{"the server makes room", "DELETE", "more", "key", "", 200},
		{"as much as one may leave", "PUT", "more", cred, strings.Repeat("x", 993), 201},
		{"an attempt reads nothing", "GET", "workspace", cred, "", 403},
		{"nor what is for its tests", "GET", "tests", cred, "", 403},
		{"nor lists", "GET", "", cred, "", 404},
		{"nor removes", "DELETE", "workspace", cred, "", 403},
		{"the secret of another artifact", "GET", "workspace", "a secret", "", 401},
		{"the secret that it was left with", "GET", "tests", "a secret", "", 200},
		{"which puts nothing", "PUT", "tests", "a secret", "copy", 401},
		{"the server key", "GET", "workspace", "key", "", 200},
		{"what is not there", "GET", "nothing", "key", "", 404},
		{"the server removes", "DELETE", "tests", "key", "", 200},
		{"and again", "DELETE", "tests", "key", "", 200},
		{"what was removed", "GET", "tests", "a secret", "", 401},
	} {
		code, body, _ := request(t, c.method, path+c.artifact, c.key, c.body)
		if code != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, code, body, c.want)
		}
	}
	if _, err := s.EndRollout(t.Context(), "mine", fulgur.Outcome{Class: fulgur.OutcomeAgent, Reason: "timeout"}); err != nil {
		t.Fatal(err)
	}
	if code, body, _ := request(t, "PUT", path+"late", cred, "tar"); code != http.StatusGone {
		t.Errorf("after the end: %d %s", code, body)
	}
}

// A body that stalls is cut, and what came of it is not in the way of the next.
func TestArtifactsThatDoNotArrive(t *testing.T) {
	s, err := store.Open(t.Context(), sqlite.New(filepath.Join(t.TempDir(), "s.db"), sqlite.Options{}), store.Options{ServerKey: "key"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	const most = 1 << 20
	srv := httptest.NewServer(gateway.BoundBodies(v2.New(v2.Options{Store: s, MaxArtifact: most}), time.Second))
	t.Cleanup(srv.Close)
	cred := attempt(t, s, "mine")
	path := "/api/v2/rollouts/mine/attempts/0/artifacts/"
	var open []net.Conn
	for i := range 2 {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(conn, "PUT %sstalls%d HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, i, cred, most, strings.Repeat("x", most/2+1))
		open = append(open, conn)
	}
	for _, conn := range open {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusGatewayTimeout && resp.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%+v %v", resp, err)
		}
	}
	if code, body, _ := request(t, "PUT", srv.URL+path+"whole", cred, strings.Repeat("x", most)); code != http.StatusCreated {
		t.Errorf("behind those that were cut: %d %s", code, body)
	}
}

// The client does what the store does.
func TestTheClientKeepsArtifacts(t *testing.T) {
	s, srv := serve(t, v2.Options{})
	attempt(t, s, "a/b c")
	c := newClient(t, srv.URL, client.Options{RetryFor: time.Second})
	key := fulgur.AttemptKey{Rollout: "a/b c", Attempt: "0"}
	big := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	for i, body := range []io.Reader{bytes.NewReader(big), io.MultiReader(bytes.NewReader(big))} {
		a, created, err := c.PutArtifact(t.Context(), key, "tests", "secret", body, 0)
		if err != nil || created != (i == 0) || a.Size != int64(len(big)) {
			t.Fatalf("%+v, %v, %v", a, created, err)
		}
	}
	if !s.MayReadArtifact(t.Context(), key, "tests", "secret") {
		t.Error("its secret does not read it")
	}
	list, err := c.Artifacts(t.Context(), key)
	if err != nil || len(list) != 1 || list[0].Name != "tests" {
		t.Fatalf("%+v, %v", list, err)
	}
	a, r, err := c.Artifact(t.Context(), key, "tests")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, big) || a.SHA256 != list[0].SHA256 || a.Size != list[0].Size {
		t.Errorf("%d bytes, %+v, %v", len(got), a, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := c.DeleteArtifact(t.Context(), key, "tests"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Artifact(t.Context(), key, "tests"); fulgur.KindOf(err) != fulgur.KindNotFound {
		t.Error(err)
	}
	if _, _, err := c.PutArtifact(t.Context(), key, "cut", "", io.MultiReader(bytes.NewReader(big), iotest.ErrReader(errors.New("gone"))), 0); err == nil {
		t.Error("a body that broke off was taken")
	}
	if left, err := s.Artifacts(t.Context(), key); err != nil || len(left) > 0 {
		t.Errorf("left %+v, %v", left, err)
	}
	if _, _, err := c.PutArtifact(t.Context(), fulgur.AttemptKey{Rollout: "nobody", Attempt: "0"}, "x", "", strings.NewReader("x"), 0); fulgur.KindOf(err) != fulgur.KindNotFound {
		t.Error(err)
	}
}
