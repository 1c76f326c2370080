// Package gateway is the recording proxy: it finds out whose call it is, holds
// or refuses it while calls are paused, has a sampler answer it, passes the
// answer on in the harness's dialect, and puts it on record before the last
// byte goes out.
package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
	"github.com/fulgur-rl/fulgur/internal/gateway/route"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// Directory says who a caller is, and what it acts on.
type Directory interface {
	// Identify finds a credential; KindDenied or KindNotFound for an unknown one.
	Identify(ctx context.Context, secret string) (fulgur.Identity, error)
	Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error)
	Run(ctx context.Context, id fulgur.RunID) (fulgur.Run, error)
}

// Models says where a model's calls go.
type Models interface {
	Endpoints(ctx context.Context, run fulgur.RunID, model string) ([]fulgur.Endpoint, error)
}

// Records keeps calls. When AppendCall returns nil, the call survives a kill of
// this process.
type Records interface {
	AppendCall(ctx context.Context, c *fulgur.Call) error
	Calls(ctx context.Context, id fulgur.RolloutID, attempt fulgur.AttemptID) ([]fulgur.Call, error)
}

// Options configure a Gateway. Directory, Models, Records, Dialects and
// Samplers are needed; the zero value of everything else is a good default.
type Options struct {
	Directory Directory
	Models    Models
	Records   Records
	Dialects  []dialect.Dialect                       // the first one writes errors of unknown paths
	Samplers  map[fulgur.EndpointKind]sampler.Sampler // by kind of endpoint

	// Leases keep pauses over a restart (Gateway.Restore); nil: they end with this
	// process.
	Leases Leases

	// ServerKey opens everything; "": no key is needed, but attempt credentials
	// count when they are presented.
	ServerKey string
	// Run is what plain calls belong to; "": DefaultRun.
	Run fulgur.RunID
	// Model overrides the model's name of Run: `serve --model`.
	Model string
	// Plain serves calls that belong to no rollout, at /v1 and /openai/v1.
	Plain bool
	// RecordPlain, if not nil, keeps them; they have no rollout.
	RecordPlain func(ctx context.Context, c *fulgur.Call) error

	// TrainTemperature and ValTemperature are forced on calls whose rollout fixes
	// nothing (v1); nil: the client's own, else 1.
	TrainTemperature *float64
	ValTemperature   *float64
	// Rules are those of runs whose record says nothing.
	Rules Rules
	// Route tunes how calls are spread over a model's endpoints.
	Route route.Options

	// Vocabulary is the number of the policy's token ids: a call that names others
	// does not train. 0: not known, and only negative ids are others.
	Vocabulary int
	// NoLogProbs: upstreams are not asked for log probs, and calls train without.
	NoLogProbs bool
	// HoldV1: v1's pause holds calls in place of refusing them.
	HoldV1 bool

	// Limits. Each is off below zero; those from MaxHeader on are of requests with
	// an attempt's credential.
	MaxBody       int64         // bytes of a request's body; 0: 64 MiB
	MaxBodies     int64         // bytes of the bodies of all calls at once, of which each attempt has a share; 0: 1 GiB, or five of MaxBody
	ReadTimeout   time.Duration // of each 4 MiB of a request's body; 0: 1 minute. BoundBodies, if it is in front, says it
	MaxHeader     int           // bytes of a request's headers; 0: 64 KiB
	MaxConcurrent int           // requests of an attempt at once, held ones too; 0: 4096
	MaxRate       float64       // requests of an attempt a second, on average; 0: 500
	Burst         int           // of them at once; 0: 10000
	// WriteTimeout is how long a client may not read; 0: 1 minute.
	WriteTimeout time.Duration
	KeepAlive    time.Duration // between signs of life in a silent stream; 0: 15 s
	// SpaceAfter is when a held unstreamed call gets its headers and white space,
	// and a stream whose upstream says nothing its first sign of life; from then on
	// the status can't change. 0: 45 s.
	SpaceAfter time.Duration
	// RetryGrace is how long a generation goes on when its client has left, for a
	// retry to join; 0: 750 ms, less than 0: not at all. RetryKeep is how long an
	// answer that could not be delivered waits for one; 0: 10 s, less than 0: not.
	RetryGrace, RetryKeep time.Duration
	// ModelGap is how long a call waits where its model has no endpoint but had one:
	// v1's trainer deletes them and registers them anew. 0: 3 s, less than 0: not.
	ModelGap time.Duration
	// HoldLimit is the longest hold of a call; 0: 15 minutes.
	HoldLimit time.Duration

	Metrics prometheus.Registerer // nil: none are kept
	Log     *slog.Logger          // nil: discarded
}

func (o Options) defaults() Options {
	if o.Run == "" {
		o.Run = fulgur.DefaultRun
	}
	if o.MaxBody == 0 {
		o.MaxBody = 64 << 20
	}
	if o.MaxBodies == 0 {
		o.MaxBodies = max(1<<30, (shareOfFree+1)*o.MaxBody) // an attempt alone can send the largest
	}
	for _, n := range []struct {
		v   *int
		def int
	}{{&o.MaxHeader, 64 << 10}, {&o.MaxConcurrent, 4096}, {&o.Burst, 10000}} {
		if *n.v == 0 {
			*n.v = n.def
		}
	}
	if o.MaxRate == 0 {
		o.MaxRate = 500
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&o.ReadTimeout, time.Minute}, {&o.WriteTimeout, time.Minute}, {&o.KeepAlive, 15 * time.Second},
		{&o.SpaceAfter, 45 * time.Second}, {&o.HoldLimit, 15 * time.Minute}, {&o.ModelGap, 3 * time.Second},
		{&o.RetryGrace, 750 * time.Millisecond}, {&o.RetryKeep, 10 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Gateway is the recording proxy. It is an http.Handler for the paths of
// Patterns.
type Gateway struct {
	o        Options
	paths    *paths
	gates    *gates
	attempts *attempts
	retries  *retries
	m        *metrics
	router   router
	bodies   atomic.Int64 // bytes held
	began    time.Time

	rulesMu sync.Mutex
	rules   map[fulgur.RunID]runRules
}

// New returns a gateway. It starts no goroutine.
func New(o Options) *Gateway {
	o = o.defaults()
	g := &Gateway{o: o, paths: newPaths(o.Dialects), gates: newGates(o.Leases), m: newMetrics(o.Metrics), rules: map[fulgur.RunID]runRules{},
		router: router{table: route.New(o.Route)}}
	g.attempts, g.retries = newAttempts(o.Records), newRetries(&o)
	g.began = time.Now()
	return g
}

// Handler returns the gateway as a handler.
func (g *Gateway) Handler() http.Handler { return g }

// Close refuses new and held calls, waits for those in flight until ctx ends,
// and aborts what is left then.
func (g *Gateway) Close(ctx context.Context) error {
	err := g.gates.close(ctx)
	g.retries.close()
	return err
}
