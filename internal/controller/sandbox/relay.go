package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Relay forwards an agent's requests to the gateway and adds the credential
// that the agent does not have. Bodies pass as they come, in both directions:
// nothing is decoded, compressed or held back. A gateway that is not there is
// waited for (nothing has been sent then), so that its restart costs an agent
// time and not its rollout.
type Relay struct {
	proxy *httputil.ReverseProxy
	tr    *http.Transport
	base  string // what agents' addresses start with outside
	pass  atomic.Pointer[Pass]
	patch time.Duration // how long a gateway that is gone is waited for
}

// Pass is what an agent's requests go through with.
type Pass struct {
	Key   string   // the credential; "": none is added, and the agent's own is taken off
	Paths []string // what may be asked for: paths, and what is below those that end in a slash; "/": all; nil: nothing
}

const (
	dialPatience = 30 * time.Second
	dialPause    = 100 * time.Millisecond
	upstreamIdle = 30 * time.Second
)

// NewRelay makes a relay to an http(s) URL or unix:PATH.
func NewRelay(upstream string) (*Relay, error) {
	const op = "set up the relay"
	dial := (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	target := upstream
	if sock, ok := strings.CutPrefix(upstream, "unix:"); ok {
		if sock == "" {
			return nil, fulgur.E(fulgur.KindInvalid, op, "want unix:PATH", nil)
		}
		target = "http://gateway"
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", sock)
		}
	}
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fulgur.E(fulgur.KindInvalid, op, "want the gateway's URL (http://HOST:PORT) or unix:PATH, got "+upstream, err)
	}
	r := &Relay{base: strings.TrimRight(target, "/"), patch: dialPatience}
	r.tr = &http.Transport{
		DialContext:         r.patient(dial),
		DisableCompression:  true, // an answer's bytes are the gateway's
		MaxIdleConnsPerHost: 256, IdleConnTimeout: upstreamIdle,
		Proxy: nil,
	}
	r.proxy = &httputil.ReverseProxy{
		Transport:     r.tr,
		FlushInterval: -1,
		BufferPool:    &buffers{},
		ErrorLog:      log.New(io.Discard, "", 0), // a client that left is no news
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(u)
			p.Out.URL.Path, p.Out.URL.RawPath = p.In.URL.Path, p.In.URL.RawPath
			if prefix := strings.TrimRight(u.Path, "/"); prefix != "" {
				p.Out.URL.Path = prefix + p.In.URL.Path
				if p.In.URL.RawPath != "" {
					p.Out.URL.RawPath = strings.TrimRight(u.EscapedPath(), "/") + p.In.URL.RawPath
				}
			}
			p.Out.URL.RawQuery = p.In.URL.RawQuery // Go drops what it cannot parse
		},
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			if req.Context().Err() != nil {
				return
			}
			refuse(w, http.StatusBadGateway, "upstream_error", "the gateway cannot be reached from the relay: "+err.Error(), true)
		},
	}
	return r, nil
}

// patient dials again while nobody listens.
func (r *Relay) patient(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		for end := time.Now().Add(r.patch); ; {
			c, err := dial(ctx, network, addr)
			gone := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
			if err == nil || !gone || time.Now().After(end) {
				return c, err
			}
			t := time.NewTimer(dialPause)
			select {
			case <-ctx.Done():
				t.Stop()
				return nil, err
			case <-t.C:
			}
		}
	}
}

// Let says what goes through from now on; a relay lets nothing through before.
func (r *Relay) Let(p Pass) { r.pass.Store(&p) }

// ServeHTTP implements http.Handler with the relay's own pass.
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p := r.pass.Load()
	if p == nil {
		refuse(w, http.StatusServiceUnavailable, "relay_error", "the relay has no credential yet", true)
		return
	}
	r.serve(w, req, *p)
}

// serve forwards one request.
func (r *Relay) serve(w http.ResponseWriter, req *http.Request, p Pass) {
	if !p.lets(req.URL) {
		refuse(w, http.StatusForbidden, "permission_error", "the sandbox's relay leads to this attempt's model and events, not to "+req.URL.Path, false)
		return
	}
	for _, h := range []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie", "Proxy-Authorization"} {
		req.Header.Del(h)
	}
	if p.Key != "" {
		req.Header.Set("Authorization", "Bearer "+p.Key)
	}
	// An answer may begin before the request's end: without this the server first
	// reads the rest of a body, which may wait for the answer.
	_ = http.NewResponseController(w).EnableFullDuplex()
	r.proxy.ServeHTTP(w, req)
}

// lets says whether a path may be asked for. What is not in its shortest form,
// or hides a slash, is refused: gateways differ in what they take it for.
func (p Pass) lets(u *url.URL) bool {
	clean := path.Clean("/" + u.Path)
	if strings.HasSuffix(u.Path, "/") && clean != "/" {
		clean += "/"
	}
	if clean != u.Path || !strings.HasPrefix(u.Path, "/") {
		return false
	}
	escaped := u.EscapedPath()
	for _, allowed := range p.Paths {
		if escaped == allowed || strings.HasSuffix(allowed, "/") && strings.HasPrefix(escaped, allowed) {
			return true
		}
	}
	return false
}

// Close drops idle connections.
func (r *Relay) Close() { r.tr.CloseIdleConnections() }

// refuse answers in a body that the OpenAI and Anthropic SDKs both read.
func refuse(w http.ResponseWriter, status int, kind, msg string, retry bool) {
	w.Header().Set("Content-Type", "application/json")
	should := "false"
	if retry {
		should = "true"
	}
	w.Header().Set("X-Should-Retry", should)
	w.WriteHeader(status)
	body, _ := json.Marshal(map[string]any{"type": "error", "error": map[string]any{"type": kind, "code": kind, "message": msg}})
	_, _ = w.Write(append(body, '\n'))
}

// buffers are those that bodies are copied with.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// Through rewrites variables for where a relay to the gateway listens at Port:
// addresses of the gateway become the relay's, and secrets, wherever they stand, the
// word that the relay replaces by the first of them. The pass is what it lets through.
func Through(gateway string, vars map[string]string, secrets []string) (map[string]string, Pass) {
	base := strings.TrimRight(gateway, "/")
	inside := "http://127.0.0.1:" + strconv.Itoa(Port)
	out, p := make(map[string]string, len(vars)), Pass{Paths: []string{"/openai/", "/anthropic/"}}
	if len(secrets) > 0 {
		p.Key = secrets[0]
	}
	for name, v := range vars {
		if rest, ok := strings.CutPrefix(v, base); ok && (rest == "" || rest[0] == '/') {
			v = inside + rest
			if u, err := url.Parse(rest); err == nil && rest != "" {
				path := strings.TrimRight(u.EscapedPath(), "/")
				p.Paths = append(p.Paths, path, path+"/")
			}
		}
		for _, s := range secrets {
			if s != "" {
				v = strings.ReplaceAll(v, s, Placeholder)
			}
		}
		out[name] = v
	}
	slices.Sort(p.Paths)
	p.Paths = slices.Compact(p.Paths)
	return out, p
}
