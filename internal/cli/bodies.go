package cli

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// bodyLimit is how long the body of any request may take, for each bodyShare of it: a
// history of some megabytes from a slow line takes more than a minute, and is no attack.
const (
	bodyLimit = time.Minute
	bodyShare = 4 << 20
)

// boundBodies ends requests whose bodies, or the next share of them, do not arrive within
// limit, also those that h does not read: net/http reads on behind an answer before it goes out, for as long
// as it takes.
func boundBodies(h http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			rc := http.NewResponseController(w)
			_ = rc.SetReadDeadline(time.Now().Add(limit)) // the server's own writer has them
			r.Body = &boundBody{ReadCloser: r.Body, rc: rc, limit: limit}
		}
		h.ServeHTTP(w, r)
	})
}

// boundBody takes the deadline away when all of it is there: what is watched from then
// on is whether the client stays.
type boundBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	limit time.Duration
	came  int // bytes of this share
}

func (b *boundBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.came += n
	switch {
	case errors.Is(err, io.EOF):
		_ = b.rc.SetReadDeadline(time.Time{})
	case err == nil && b.came >= bodyShare:
		b.came = 0
		_ = b.rc.SetReadDeadline(time.Now().Add(b.limit))
	}
	return n, err
}
