// Package client speaks /api/v2 to a Fulgur server. Its methods have the
// signatures of store.Store's and of the gateway's pause, so that trainer and
// controller run on either. A server that restarts is waited for.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

// Options are the settings of a client.
type Options struct {
	HTTP *http.Client // nil: one of its own, without a proxy or a time limit
	// RetryFor is how long a server that cannot be reached, or answers 503, is
	// waited for; 0: 2 minutes, negative: not at all.
	RetryFor time.Duration
	// Silence is how long a watch may bring nothing, not even a heartbeat,
	// before it connects again; 0: 45 s.
	Silence time.Duration
	// States are those of rollouts whose changes Changes tells; nil: all.
	States []fulgur.RolloutState
}

// Client is a client of one server. It is safe for concurrent use.
type Client struct {
	base string
	key  string
	o    Options

	mu      sync.Mutex
	watches map[fulgur.RunID][]*watch // idle ones, the newest last
}

// New returns a client of the server at base ("http://host:port").
func New(base, key string, o Options) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fulgur.E(fulgur.KindInvalid, "new client", fmt.Sprintf("server address %q is not of the form http://host:port", base), err)
	}
	if o.HTTP == nil {
		// The pool is as wide as the trainer's and the controller's concurrency.
		o.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256, IdleConnTimeout: 60 * time.Second,
			DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext, DisableCompression: true}}
	}
	if o.RetryFor == 0 {
		o.RetryFor = 2 * time.Minute
	}
	if o.Silence == 0 {
		o.Silence = 45 * time.Second
	}
	return &Client{base: strings.TrimSuffix(u.String(), "/") + "/api/v2", key: key, o: o, watches: map[fulgur.RunID][]*watch{}}, nil
}

// Close ends idle connections.
func (c *Client) Close() error {
	c.mu.Lock()
	for _, ws := range c.watches {
		for _, w := range ws {
			w.close()
		}
	}
	clear(c.watches)
	c.mu.Unlock()
	c.o.HTTP.CloseIdleConnections()
	return nil
}

// request is one call of the API.
type request struct {
	op     string
	method string
	path   string
	query  url.Values
	body   any
	once   bool // sent again only if it surely did not arrive
}

// escape joins path segments, each escaped.
func escape[T ~string](first string, segments ...T) string {
	var b strings.Builder
	b.WriteString(first)
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(string(s)))
	}
	return b.String()
}

// do sends r and decodes the answer into out (nil: dropped). Connection errors and
// 503 are tried again, with back-off, as long as RetryFor.
func (c *Client) do(ctx context.Context, r request, out any) error {
	var payload []byte
	if r.body != nil {
		var err error
		if payload, err = json.Marshal(r.body); err != nil {
			return fulgur.E(fulgur.KindInvalid, r.op, "the request cannot be encoded: "+err.Error(), err)
		}
	}
	start, wait := time.Now(), 50*time.Millisecond
	for {
		again, err := c.try(ctx, r, payload, out)
		if err == nil || !again || time.Since(start)+wait > c.o.RetryFor {
			return err
		}
		if !sleep(ctx, wait) {
			return canceled(r.op, ctx)
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// sleep waits for about d; false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func canceled(op string, ctx context.Context) error {
	return fulgur.E(fulgur.KindCanceled, op, "", ctx.Err())
}

func (c *Client) try(ctx context.Context, r request, payload []byte, out any) (again bool, err error) {
	resp, err := c.send(ctx, r, payload)
	if err != nil {
		if ctx.Err() != nil {
			return false, canceled(r.op, ctx)
		}
		// A connection that was never made carried nothing.
		var dial *net.OpError
		again = !r.once || errors.As(err, &dial) && dial.Op == "dial"
		return again, fulgur.E(fulgur.KindUnavailable, r.op, "the server at "+c.base+" cannot be reached", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		if ctx.Err() != nil {
			return false, canceled(r.op, ctx)
		}
		return !r.once, fulgur.E(fulgur.KindUnavailable, r.op, "the server at "+c.base+" broke off its answer", err)
	}
	if resp.StatusCode >= 300 {
		return resp.StatusCode == http.StatusServiceUnavailable, problem(r.op, resp.StatusCode, b)
	}
	if out == nil {
		return false, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return false, fulgur.E(fulgur.KindInternal, r.op, "the server's answer cannot be read: is it a Fulgur server of this version?", err)
	}
	return false, nil
}

func (c *Client) send(ctx context.Context, r request, payload []byte) (*http.Response, error) {
	u := c.base + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	var body io.Reader
	if payload != nil {
		body = bytes.NewReader(payload)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, body)
	if err != nil {
		return nil, err
	}
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	return c.o.HTTP.Do(req)
}

// problem makes an error of an answer.
func problem(op string, status int, b []byte) error {
	var p struct {
		api.Problem
		Errors []struct {
			Message  string `json:"message"`
			Location string `json:"location"`
		} `json:"errors"`
	}
	if json.Unmarshal(b, &p) != nil || p.Detail == "" {
		p.Detail = fmt.Sprintf("the server answered %d: %.200s", status, b)
	}
	for _, e := range p.Errors { // the request did not match the schema
		p.Detail += fmt.Sprintf("; %s: %s", e.Location, e.Message)
	}
	if p.Kind == "" {
		p.Kind = kindOf(status)
	}
	return fulgur.E(p.Kind, op, p.Detail, nil)
}

// kindOf is the kind of a status that came without one.
func kindOf(status int) fulgur.Kind {
	for _, k := range []fulgur.Kind{fulgur.KindInvalid, fulgur.KindDenied, fulgur.KindForbidden, fulgur.KindNotFound, fulgur.KindConflict, fulgur.KindGone,
		fulgur.KindTooLarge, fulgur.KindUpstream, fulgur.KindUnavailable, fulgur.KindTimeout, fulgur.KindExhausted} {
		if k.HTTPStatus() == status {
			return k
		}
	}
	if status >= 400 && status < 500 {
		return fulgur.KindInvalid
	}
	return fulgur.KindInternal
}
