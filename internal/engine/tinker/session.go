package tinker

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine/wire"
)

// server is one server with one credential: its session, and the sampling
// sessions in it.
type server struct {
	c  *Client
	at place
	// opening is held while a session is opened, so that it is opened once: a
	// channel, so that who waits can leave.
	opening chan struct{}

	mu       sync.Mutex
	id       string // of the session; "": none is open
	cancels  bool   // the server offers cancel_future
	stop     context.CancelFunc
	used     time.Time
	next     int64 // sampling_session_seq_id
	samplers map[source]*sampling
}

// sampling is one sampling session.
type sampling struct {
	id   string
	next int64 // seq_id
}

// maxSamplers bounds the sampling sessions that are remembered: each published
// version has its own, and older ones are not asked again.
const maxSamplers = 64

func newServer(c *Client, at place) *server {
	return &server{c: c, at: at, opening: make(chan struct{}, 1), samplers: map[source]*sampling{}}
}

// ticket is the name of a request to sample: repeated with the same, it is the
// same request to servers that know of repetitions.
type ticket struct {
	session string // sampling session
	seq     int64
	fresh   bool // the sampling session was opened for it
}

// ticket names the next request, and opens the sessions that it needs.
func (s *server) ticket(ctx context.Context, src source) (ticket, error) {
	if t, ok := s.known(src); ok {
		return t, nil
	}
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return ticket{}, context.Cause(ctx)
	}
	if t, ok := s.known(src); ok {
		return t, nil
	}
	for try := 0; ; try++ {
		id, seq, err := s.session(ctx)
		if err != nil {
			return ticket{}, err
		}
		q := wire.SamplingSessionRequest{Type: "create_sampling_session", SessionID: id, SeqID: seq, BaseModel: src.base, ModelPath: src.path}
		var a wire.SamplingSession
		err = s.call(ctx, "create_sampling_session", q, &a)
		if err == nil && a.ID == "" {
			err = &badAnswer{fmt.Errorf("the answer to create_sampling_session has no id")}
		}
		if lost(err) && try == 0 { // a server that was restarted does not know the session
			s.drop(id)
			continue
		}
		if err != nil {
			return ticket{}, err
		}
		s.mu.Lock()
		if len(s.samplers) >= maxSamplers {
			clear(s.samplers)
		}
		s.samplers[src] = &sampling{id: a.ID, next: 1}
		s.mu.Unlock()
		return ticket{a.ID, 0, true}, nil
	}
}

func (s *server) known(src source) (ticket, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sam := s.samplers[src]
	if sam == nil {
		return ticket{}, false
	}
	s.used = time.Now()
	sam.next++
	return ticket{sam.id, sam.next - 1, false}, true
}

// session returns the open session and the number of a sampling session to be
// made in it, and opens one if there is none. The caller holds opening.
func (s *server) session(ctx context.Context) (string, int64, error) {
	s.mu.Lock()
	id, seq := s.id, s.next
	s.next++
	s.mu.Unlock()
	if id != "" {
		return id, seq, nil
	}
	about := wire.ConfigRequest{SDKVersion: wire.SDKVersion}
	var conf wire.Config
	if err := s.call(ctx, "client/config", about, &conf); err != nil {
		return "", 0, err
	}
	if conf.ExchangeKeys {
		return "", 0, fulgur.E(fulgur.KindUpstream, "open a session at "+s.at.base, "The Tinker server wants keys exchanged for tokens (pjwt_auth_enabled), which is not offered: use a server that takes keys", nil)
	}
	var dyn wire.DynamicConfig
	if err := s.call(ctx, "client/dynamic_config", about, &dyn); err != nil && (statusOf(err) == 0 || transient(err)) {
		return "", 0, err // SkyRL and VeRL have no such route
	}
	var a wire.Session
	q := wire.SessionRequest{Type: "create_session", Tags: []string{}, UserMetadata: map[string]string{}, SDKVersion: wire.SDKVersion}
	if err := s.call(ctx, "create_session", q, &a); err != nil {
		return "", 0, err
	}
	if a.ID == "" {
		return "", 0, &badAnswer{fmt.Errorf("the answer to create_session has no id: %s", a.Error)}
	}
	return a.ID, seq, s.open(a.ID, dyn.CancelSamples)
}

// open makes id the session and starts its heartbeat.
func (s *server) open(id string, cancels bool) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.closed {
		return fulgur.E(fulgur.KindCanceled, "open a session at "+s.at.base, "This process is stopping", errClosed)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.samplers)
	s.id, s.cancels, s.stop, s.used = id, cancels, stop, time.Now()
	s.c.beats.Go(func() { s.beat(ctx, id) })
	return nil
}

// beat keeps a session alive. It ends with ctx, when the server does not know the
// session any more, or when nobody has used it for long.
func (s *server) beat(ctx context.Context, id string) {
	tick := time.NewTicker(s.c.o.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		idle := time.Since(s.used) > s.c.o.Idle
		s.mu.Unlock()
		if idle {
			s.drop(id)
			return
		}
		var a struct{}
		err := s.call(ctx, "session_heartbeat", wire.Heartbeat{Type: "session_heartbeat", SessionID: id}, &a)
		if lost(err) {
			s.drop(id)
			return
		}
		// A server that is down for a moment is no end of the session: the next beat,
		// and each call, asks it again, and a call's error names what is wrong.
	}
}

// drop forgets a session: the next call opens another.
func (s *server) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == id {
		s.endLocked()
	}
}

// forget drops a sampling session that the server does not know. Whether the
// session went with it, opening another one will show.
func (s *server) forget(t ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.samplers, func(_ source, sam *sampling) bool { return sam.id == t.session })
}

// end forgets the session, whatever it is.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

func (s *server) endLocked() {
	if s.stop != nil {
		s.stop()
	}
	s.id, s.stop = "", nil
	clear(s.samplers)
}

// lost says that the server does not know a thing that it had given an id.
func lost(err error) bool {
	st := statusOf(err)
	return st == 404 || st == 410
}

// canCancel says whether the session's server offers cancel_future.
func (s *server) canCancel() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cancels
}

// cancel ends a request at servers that can.
func (s *server) cancel(ctx context.Context, request string) {
	if !s.canCancel() {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer done()
	// A server that can't be told samples to the end; nobody waits for it.
	_, _ = s.do(ctx, "cancel_future", wire.CancelRequest{Type: "cancel_future", RequestID: request}, nil)
}

// contextLength asks for a model's context; 0: the server does not say. Only a
// base model is found by its name: of others, it is the server's only one, or unknown.
func (s *server) contextLength(ctx context.Context, src source) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	a, err := s.do(ctx, "get_server_capabilities", nil, nil)
	if err != nil {
		return 0, err
	}
	var caps wire.Capabilities
	if err := read("get_server_capabilities", a, &caps); err != nil {
		return 0, err
	}
	for _, m := range caps.Models {
		if m.Name == src.base || src.path != "" && len(caps.Models) == 1 {
			return m.ContextLength, nil
		}
	}
	return 0, nil
}
