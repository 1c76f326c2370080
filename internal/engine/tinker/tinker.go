// Package tinker samples at a server of the Tinker API (SkyRL, VeRL-Tinker,
// hosted): an engine.Generator, tokens in, tokens out. It speaks both
// generations of the wire.
//
// Such a server answers a request as a whole, when it is done: tokens are
// emitted together, not as they are sampled. One that offers no cancel_future
// (SkyRL, VeRL) samples on for a caller that has left, to nobody.
package tinker

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
)

// Scheme is what the URLs of endpoints begin with: tinker+http:// and
// tinker+https://.
const Scheme = "tinker"

// Options configure a Client. The zero value of each has a default.
type Options struct {
	// ContextLength is the models', in tokens; 0: what the server says, if it does.
	ContextLength int
	// VocabSize bounds the ids of prompts, which no server checks (SkyRL's JAX
	// backend computes NaN with others); 0: unknown, only negative ones are refused.
	VocabSize int

	Tries   int           // of a request to sample, and of each request to the server; 0: 6
	Backoff time.Duration // before the second try, doubling to 16 times that; 0: 500 ms
	Poll    time.Duration // the longest wait of one request for a result; 0: 45 s, as the SDK
	Total   time.Duration // of a generation, its time in the server's queue included; 0: 570 s
	// Heartbeat is the interval at which a session is kept alive; 0: 10 s. One
	// that nobody has used for Idle is left to end; 0: 10 minutes.
	Heartbeat time.Duration
	Idle      time.Duration
}

func (o Options) defaults() Options {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	if o.Tries == 0 {
		o.Tries = 6
	}
	set(&o.Backoff, 500*time.Millisecond)
	set(&o.Poll, 45*time.Second)
	set(&o.Total, 570*time.Second)
	set(&o.Heartbeat, 10*time.Second)
	set(&o.Idle, 10*time.Minute)
	return o
}

// Client holds the sessions at all servers. It is safe for concurrent use.
type Client struct {
	o    Options
	http *http.Client

	mu      sync.Mutex
	closed  bool
	servers map[place]*server
	beats   sync.WaitGroup // heartbeats; they end by drop, by themselves when idle, and by Close
}

// place is a server and a credential for it.
type place struct {
	base string // ends before /api/v1
	key  string
}

// source is what is sampled from: one of the two.
type source struct {
	base string // a base model's name
	path string // "tinker://…", a sampler save
}

func (s source) String() string {
	if s.path != "" {
		return s.path
	}
	return s.base
}

// New returns a client without sessions: they are opened by the first call.
func New(o Options) *Client {
	t := &http.Transport{
		MaxIdleConnsPerHost: 1024,             // one waits for each live generation
		IdleConnTimeout:     4 * time.Second,  // uvicorn drops idle ones after 5 s
		TLSHandshakeTimeout: 10 * time.Second, // the rest is bounded by each request's context
	}
	return &Client{o: o.defaults(), servers: map[place]*server{}, http: &http.Client{Transport: t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Close ends the heartbeats, and with them the sessions.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	for _, s := range c.servers {
		s.end()
	}
	c.mu.Unlock()
	c.beats.Wait()
	c.http.CloseIdleConnections()
	return nil
}

// Generator returns the generator of an endpoint, whose tokens carry the
// endpoint's version. Its URL is
//
//	tinker+http://HOST[:PORT][/PREFIX][?base_model=NAME | ?model_path=tinker://…]
//
// or tinker+https. Without a query, what is sampled is the endpoint's Model: a
// path if it starts with tinker://, else a base model.
func (c *Client) Generator(ep fulgur.Endpoint) (engine.Generator, error) {
	p, src, err := parse(ep)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.servers[p]
	if s == nil {
		s = newServer(c, p)
		c.servers[p] = s
	}
	return &generator{s: s, src: src, version: ep.Version}, nil
}

// parse reads an endpoint. What is wrong with it is not its callers' fault.
func parse(ep fulgur.Endpoint) (place, source, error) {
	const op, form = "read the endpoint's address", "it has the form tinker+http://HOST:PORT?base_model=NAME or ?model_path=tinker://…"
	u, err := url.Parse(strings.TrimPrefix(ep.URL, Scheme+"+"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return place{}, source{}, fulgur.E(fulgur.KindUpstream, op, "The address of a Tinker server can't be read: "+form, err)
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return place{}, source{}, fulgur.E(fulgur.KindUpstream, op, "The query of a Tinker server's address can't be read: "+form, err)
	}
	src := source{q.Get("base_model"), q.Get("model_path")}
	for name := range q {
		if name != "base_model" && name != "model_path" {
			return place{}, source{}, fulgur.E(fulgur.KindUpstream, op, "The address of a Tinker server has the unknown parameter "+name+": "+form, nil)
		}
	}
	switch {
	case src.base != "" && src.path != "":
		return place{}, source{}, fulgur.E(fulgur.KindUpstream, op, "The address of a Tinker server names a base_model and a model_path: leave one out", nil)
	case src == source{} && strings.HasPrefix(ep.Model, "tinker://"):
		src.path = ep.Model
	case src == source{}:
		src.base = ep.Model
	}
	if (src == source{}) {
		return place{}, source{}, fulgur.E(fulgur.KindUpstream, op, "A Tinker server is asked for no model: "+form, nil)
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	base := strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/api/v1")
	return place{strings.TrimRight(base, "/"), ep.Key}, src, nil
}

var errClosed = errors.New("the client of the Tinker server is closed")
