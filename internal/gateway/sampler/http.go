package sampler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// NewClient returns a client for model servers. It follows no redirect, opens
// as many connections as there are calls (a pool with a limit makes call 101
// wait for a whole generation), and drops idle ones before uvicorn does (5 s):
// a POST on a dying connection can't be repeated safely.
func NewClient() *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Client{
		Transport: &direct{
			dial: dialer.DialContext,
			keep: idleTime,
			other: &http.Transport{
				DialContext:           dialer.DialContext,
				MaxIdleConns:          0,
				MaxIdleConnsPerHost:   maxIdle,
				IdleConnTimeout:       idleTime,
				TLSHandshakeTimeout:   10 * time.Second,
				ExpectContinueTimeout: time.Second,
				WriteBufferSize:       16 << 10, // a connection keeps them, in use or not
				ReadBufferSize:        16 << 10,
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// idleTime is how long a connection waits for the next call.
const idleTime = 4 * time.Second

// Retry bounds how often a call is tried upstream.
type Retry struct {
	Tries   int           // 0: 6
	Backoff time.Duration // before the second try, doubling to 16 times that; 0: 500 ms
	Try     time.Duration // a try's limit: the whole of an unstreamed answer, each silence of a streamed one; 0: 300 s
	// Total bounds all tries together, up to the first byte of an answer; 0: 9.5
	// minutes, which is less than the 10 after which the SDKs give up.
	Total time.Duration
	// Told is told of each call that is tried again, once, before it is: who watches
	// would see a silence. It must be safe for concurrent use. nil: nobody.
	Told func(url string, wait time.Duration, err error)
}

// Tell tells of try n (as in Pause) of a call, if it is the first repetition.
func (r Retry) Tell(n int, url string, wait time.Duration, err error) {
	if r.Told != nil && n == 1 {
		r.Told(url, wait, err)
	}
}

// patience is the longest that a server can ask for with Retry-After. For more,
// its answer goes to the client, which can wait better.
const patience = 30 * time.Second

// Defaults fills what is zero.
func (r Retry) Defaults() Retry {
	if r.Tries == 0 {
		r.Tries = 6
	}
	if r.Backoff == 0 {
		r.Backoff = 500 * time.Millisecond
	}
	if r.Try == 0 {
		r.Try = 300 * time.Second
	}
	if r.Total == 0 {
		r.Total = 570 * time.Second
	}
	return r
}

// Limit is how long a try may take until its answer starts, when spent has gone
// by since the first one began.
func (r Retry) Limit(spent time.Duration) time.Duration {
	return min(r.Try, max(r.Total-spent, time.Second))
}

// Pause says how long to wait before try n (1 is the first repetition): the
// backoff doubled n-1 times, at most 16-fold, ±25 %, and no less than after, what
// the server asked for. False: there is to be no such try.
func (r Retry) Pause(n int, spent, after time.Duration) (time.Duration, bool) {
	d := r.Backoff << min(n-1, 4)
	d = max(time.Duration(float64(d)*(0.75+rand.Float64()/2)), after)
	return d, n < r.Tries && after <= patience && spent+d < r.Total
}

// Wait sleeps. It returns early with ctx's cause.
func Wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RetryAfter reads the header of that name: seconds, or a date; 0 if there is
// none that can be read.
func RetryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if n, err := strconv.Atoi(v); err == nil {
		return max(0, min(time.Duration(n), 1<<30)*time.Second)
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// Retryable says whether an answer's status is worth another try.
func Retryable(status int) bool {
	return status == 408 || status == 409 || status == 429 || status >= 500
}

// IsTimeout says whether err is a time-out.
func IsTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

// contextWords are what error answers of status 400 have in them where a request
// does not fit the model's context: vLLM's, OpenAI's, SGLang's and Anthropic's.
var contextWords = []string{"maximum context length", "max_model_len", "maximum model length", "context_length_exceeded",
	"model's context length", "prompt is too long"}

func saysContextFull(text string) bool {
	return slices.ContainsFunc(contextWords, func(w string) bool { return strings.Contains(text, w) })
}

// Said is the message of an error answer in JSON; "" if there is none.
func Said(text []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(text, &e) != nil {
		return ""
	}
	var in struct {
		Message string `json:"message"`
	}
	var word string
	if json.Unmarshal(e.Error, &in) == nil && in.Message != "" {
		return in.Message
	}
	if json.Unmarshal(e.Error, &word) == nil && word != "" {
		return word
	}
	return e.Message
}

// StatusError is an error answer of a model server as an error of ours.
func StatusError(op string, status int, text []byte) error {
	msg := strings.TrimSpace(string(text))
	if said := Said(text); said != "" {
		msg = said
	}
	op = fmt.Sprintf("%s: status %d", op, status)
	switch {
	case status == 400 && saysContextFull(string(text)):
		return fulgur.E(fulgur.KindContextFull, op, msg, nil)
	case status == 400 || status == 422:
		return fulgur.E(fulgur.KindInvalid, op, msg, nil)
	case status == 413:
		return fulgur.E(fulgur.KindTooLarge, op, msg, nil)
	case status == 504 || status == 408:
		return fulgur.E(fulgur.KindTimeout, op, "Upstream model server timed out", errors.New(msg))
	case status == 429 || status == 503:
		return fulgur.E(fulgur.KindUnavailable, op, "Upstream model server is overloaded: try again", errors.New(msg))
	}
	return fulgur.E(fulgur.KindUpstream, op, "Upstream model server request failed", errors.New(msg))
}
