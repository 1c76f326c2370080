package tinker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine/wire"
)

// maxAnswer bounds an answer: a million tokens with log probs as JSON fit.
const maxAnswer = 64 << 20

// errorStatus is an answer with another status than 200.
type errorStatus struct {
	status int
	detail string
	after  time.Duration // Retry-After
}

func (e *errorStatus) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.detail) }

// statusOf returns the status of an error answer, 0 for other errors.
func statusOf(err error) int {
	var e *errorStatus
	if errors.As(err, &e) {
		return e.status
	}
	return 0
}

// detailOf returns an error answer's text, "" for other errors.
func detailOf(err error) string {
	var e *errorStatus
	if errors.As(err, &e) {
		return e.detail
	}
	return ""
}

// answer is an answer with status 200.
type answer struct {
	contentType string
	body        []byte
}

// do sends one request; in is its JSON body, nil: a GET.
func (s *server) do(ctx context.Context, verb string, in any, header map[string]string) (answer, error) {
	var body io.Reader
	method := http.MethodGet
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return answer{}, err
		}
		method, body = http.MethodPost, bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.at.base+"/api/v1/"+verb, body)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Accept", wire.JSON)
	req.Header.Set("User-Agent", "Fulgur")
	if in != nil {
		req.Header.Set("Content-Type", wire.JSON)
	}
	if s.at.key != "" {
		req.Header.Set("X-API-Key", s.at.key)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := s.c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return answer{}, err
	case len(text) > maxAnswer:
		return answer{}, fmt.Errorf("the answer to %s is larger than %d MiB", verb, maxAnswer>>20)
	case resp.StatusCode/100 != 2:
		return answer{}, &errorStatus{resp.StatusCode, detail(text), retryAfter(resp.Header)}
	}
	return answer{resp.Header.Get("Content-Type"), text}, nil
}

// call sends one request and reads its JSON answer into out.
func (s *server) call(ctx context.Context, verb string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	a, err := s.do(ctx, verb, in, nil)
	if err != nil {
		return err
	}
	return read(verb, a, out)
}

func read(verb string, a answer, out any) error {
	if err := json.Unmarshal(a.body, out); err != nil {
		return &badAnswer{fmt.Errorf("the answer to %s: %w", verb, err)}
	}
	return nil
}

// badAnswer is an answer that is none: another try would get it again.
type badAnswer struct{ error }

func (e *badAnswer) Unwrap() error { return e.error }

// requestLimit is the SDK's for a request that does not wait for a result.
const requestLimit = 60 * time.Second

// detail is the text of an error answer: {"detail": text or list}, as FastAPI
// writes it, or the body's beginning.
func detail(body []byte) string {
	var e struct {
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &e) == nil && len(e.Detail) > 0 {
		var text string
		var list []struct {
			Msg string `json:"msg"`
		}
		switch {
		case json.Unmarshal(e.Detail, &text) == nil:
			return text
		case json.Unmarshal(e.Detail, &list) == nil && len(list) > 0:
			msgs := make([]string, len(list))
			for i := range list {
				msgs[i] = list[i].Msg
			}
			return strings.Join(msgs, "; ")
		}
	}
	return strings.TrimSpace(string(body[:min(len(body), 1000)]))
}

func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil {
		return 0
	}
	return time.Duration(max(0, min(n, 60))) * time.Second
}

// transient says whether the same request may do better later: the connection
// failed, or the server was busy or broken.
func transient(err error) bool {
	var bad *badAnswer
	var own *fulgur.Error
	status := statusOf(err)
	if status == 0 {
		return !errors.As(err, &bad) && !errors.As(err, &own)
	}
	return status == 408 || status == 429 || status >= 500
}

// pause waits before try n (1 is the first repetition): the backoff doubled n-1
// times, at most 16-fold, ±25 %, and no less than the server asked for.
func (c *Client) pause(ctx context.Context, n int, err error) error {
	d := c.o.Backoff << min(n-1, 4)
	d = time.Duration(float64(d) * (0.75 + rand.Float64()/2))
	var e *errorStatus
	if errors.As(err, &e) {
		d = max(d, e.after)
	}
	return wait(ctx, d)
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
