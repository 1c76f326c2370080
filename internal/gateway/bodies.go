package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// BodyLimit is how long the body of any request may take, for each bodyShare of it: a
// history of some megabytes from a slow line takes more than a minute, and is no attack.
const (
	BodyLimit = time.Minute
	bodyShare = 4 << 20
)

// BoundBodies ends requests whose bodies, or the next share of them, do not arrive within
// limit, also those that h does not read: net/http reads on behind an answer before it goes
// out, for as long as it takes.
func BoundBodies(h http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bound(w, r, limit)
		h.ServeHTTP(w, r)
	})
}

// bound gives a request's body its deadline, if it has none yet.
func bound(w http.ResponseWriter, r *http.Request, limit time.Duration) {
	if _, is := r.Body.(*boundBody); is || r.ContentLength == 0 || limit <= 0 {
		return
	}
	b := &boundBody{ReadCloser: r.Body, rc: http.NewResponseController(w), limit: limit}
	r.Body = b
	b.expect(limit)
}

// boundBody is the one owner of its request's read deadline. It takes it away when all
// is there: what is watched from then on is whether the client stays.
type boundBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	limit time.Duration // for the next share; 0: there is none
	came  int           // bytes of this share
}

func (b *boundBody) expect(limit time.Duration) {
	_ = b.rc.SetReadDeadline(time.Now().Add(limit)) // a server's own writer has them; a recorder in tests has none
}

// Read implements io.Reader.
func (b *boundBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.came += n
	switch {
	case errors.Is(err, io.EOF):
		_ = b.rc.SetReadDeadline(time.Time{})
	case err == nil && b.came >= bodyShare && b.limit > 0:
		b.came = 0
		b.expect(b.limit)
	}
	return n, err
}

// drainTime bounds how long the body of a refused request is waited for.
const drainTime = 5 * time.Second

// drain reads over the body of a request that is refused, of one that is not
// endless: a client that is still sending when its connection closes mostly does
// not see the answer.
func (g *Gateway) drain(r *http.Request) {
	limit := g.o.MaxBody
	if limit < 0 {
		limit = 64 << 20
	}
	if r.ContentLength > 2*limit || r.Header.Get("Expect") != "" { // who asks first does not send
		return
	}
	if b, ok := r.Body.(*boundBody); ok {
		b.limit = 0
		b.expect(drainTime)
	}
	_, _ = io.CopyN(io.Discard, r.Body, limit)
}

// metered counts the bytes of the bodies that are held, over all calls and for their
// attempt: what a call takes in memory is some times as much.
type metered struct {
	io.ReadCloser
	all  *atomic.Int64
	own  *atomic.Int64 // of the attempt; nil: it has no share, only all have
	most int64         // of all; below zero: any
	mine int64
}

const (
	// shareOfFree is which part of the room that is free one attempt may hold: one alone a
	// fifth of it all, a hundred that upload all they can a hundredth each, and there is
	// always some for the next (Choudhury and Hahne, Dynamic Queue Length Thresholds for
	// Shared-Memory Packet Switches, 1998).
	shareOfFree = 4
	// muchOfAll: who holds more than this part of all is to blame himself when it is too much.
	muchOfAll = 64
)

var (
	errBodies = fulgur.E(fulgur.KindUnavailable, "read request", "The gateway holds as many requests as it has room for: try again", nil)
	errShare  = &tooMany{"bodies", 1, "The attempt's calls under way hold as many bytes as one attempt's may: wait for one to end"}
)

// Read implements io.Reader.
func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.mine += int64(n)
	all, own := m.all.Add(int64(n)), int64(0)
	if m.own != nil {
		own = m.own.Add(int64(n))
	}
	switch {
	case m.most < 0 || n == 0 || all <= m.most && own <= (m.most-all)/shareOfFree:
		return n, err
	case own > m.most/muchOfAll:
		return n, errShare
	}
	return n, errBodies
}

// release is called at the end of the call; it may be called again.
func (m *metered) release() {
	m.all.Add(-m.mine)
	if m.own != nil {
		m.own.Add(-m.mine)
	}
	m.mine = 0
}
