package client

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

func get[T any](ctx context.Context, c *Client, op, path string, query url.Values) (out T, err error) {
	return out, c.do(ctx, request{op: op, method: "GET", path: path, query: query}, &out)
}

func send[T any](ctx context.Context, c *Client, op, method, path string, body any) (out T, err error) {
	return out, c.do(ctx, request{op: op, method: method, path: path, body: body}, &out)
}

// Methods that have no docstring do what store.Store's method of that name does.

func (c *Client) PutRun(ctx context.Context, r fulgur.Run) error {
	_, err := send[fulgur.Run](ctx, c, "put run", "PUT", escape("/runs", r.ID), api.RunBody{Model: r.Model, Config: r.Config, Version: r.Version, EndedAt: r.EndedAt})
	return err
}

func (c *Client) Run(ctx context.Context, id fulgur.RunID) (fulgur.Run, error) {
	return get[fulgur.Run](ctx, c, "get run", escape("/runs", id), nil)
}

func (c *Client) Runs(ctx context.Context) ([]fulgur.Run, error) {
	return get[[]fulgur.Run](ctx, c, "list runs", "/runs", nil)
}

func (c *Client) AcquireLease(ctx context.Context, run fulgur.RunID, name, holder string, ttl time.Duration) (fulgur.Lease, error) {
	return send[fulgur.Lease](ctx, c, "acquire lease", "PUT", escape(escape("/runs", run)+"/leases", name), api.LeaseBody{Holder: holder, TTL: ttl})
}

// Lease is store.Store's.
func (c *Client) Lease(ctx context.Context, run fulgur.RunID, name string) (fulgur.Lease, error) {
	return get[fulgur.Lease](ctx, c, "read lease", escape(escape("/runs", run)+"/leases", name), nil)
}

func (c *Client) ReleaseLease(ctx context.Context, run fulgur.RunID, name, holder string) error {
	return c.do(ctx, request{op: "release lease", method: "DELETE", path: escape(escape("/runs", run)+"/leases", name), query: url.Values{"holder": {holder}}}, nil)
}

func (c *Client) PutEndpoints(ctx context.Context, run fulgur.RunID, model string, eps []fulgur.Endpoint) error {
	if eps == nil {
		eps = []fulgur.Endpoint{}
	}
	return c.do(ctx, request{op: "put endpoints", method: "PUT", path: escape("/runs", run) + "/models", body: api.ModelBody{Model: model, Endpoints: eps}}, nil)
}

func (c *Client) Endpoints(ctx context.Context, run fulgur.RunID, model string) ([]fulgur.Endpoint, error) {
	return get[[]fulgur.Endpoint](ctx, c, "get endpoints", escape("/runs", run)+"/models", url.Values{"model": {model}})
}

// CreateRollouts is store.Store's, with ids made here where there are none, so
// that a second try makes no second rollout.
func (c *Client) CreateRollouts(ctx context.Context, specs []fulgur.RolloutSpec) ([]fulgur.Rollout, error) {
	specs = slices.Clone(specs)
	for i := range specs {
		if specs[i].ID == "" {
			id := make([]byte, 16)
			if _, err := crand.Read(id); err != nil {
				return nil, fulgur.E(fulgur.KindInternal, "create rollouts", "", err)
			}
			specs[i].ID = fulgur.RolloutID(hex.EncodeToString(id))
		}
		if len(specs[i].Input) == 0 { // or it could not be encoded
			return nil, fulgur.E(fulgur.KindInvalid, "create rollouts", fmt.Sprintf("rollout %d: input is missing or not JSON", i), nil)
		}
	}
	if specs == nil {
		specs = []fulgur.RolloutSpec{}
	}
	return send[[]fulgur.Rollout](ctx, c, "create rollouts", "POST", "/rollouts", specs)
}

func (c *Client) Rollout(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error) {
	return get[fulgur.Rollout](ctx, c, "get rollout", escape("/rollouts", id), nil)
}

func (c *Client) Rollouts(ctx context.Context, q fulgur.RolloutQuery) ([]fulgur.Rollout, error) {
	if q.Limit < 0 {
		return nil, nil
	}
	if q.Limit == 0 {
		q.Limit = 500
	}
	const page = 10000 // the most that one request gives
	var out []fulgur.Rollout
	for {
		v := url.Values{"run": {string(q.Run)}, "group": {string(q.Group)}, "after": {string(q.After)}, "limit": {strconv.Itoa(min(q.Limit-len(out), page))}}
		for _, s := range q.States {
			v.Add("state", string(s))
		}
		got, err := get[[]fulgur.Rollout](ctx, c, "list rollouts", "/rollouts", v)
		if err != nil {
			return nil, err
		}
		if out = append(out, got...); len(got) < page || len(out) >= q.Limit {
			return out, nil
		}
		q.After = got[len(got)-1].ID
	}
}

func (c *Client) Terminal(ctx context.Context, after, limit int) (fulgur.TerminalPage, error) {
	p, err := get[api.TerminalPage](ctx, c, "read the completion log", "/terminal", url.Values{"after": {strconv.Itoa(after)}, "limit": {strconv.Itoa(limit)}})
	out := fulgur.TerminalPage{Next: p.Next, Total: p.Total}
	for _, it := range p.Items {
		out.Items = append(out.Items, fulgur.TerminalItem(it))
	}
	return out, err
}

func (c *Client) EndRollout(ctx context.Context, id fulgur.RolloutID, o fulgur.Outcome) (fulgur.Rollout, error) {
	return send[fulgur.Rollout](ctx, c, "end rollout", "POST", escape("/rollouts", id)+"/end", o)
}

func (c *Client) SetReward(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID, value float64, source string) error {
	return c.do(ctx, request{op: "set reward", method: "POST", path: escape("/rollouts", id) + "/reward", body: api.RewardBody{Attempt: a, Value: value, Source: source}}, nil)
}

func (c *Client) SetRewards(ctx context.Context, rs []fulgur.Reward) error {
	if rs == nil {
		rs = []fulgur.Reward{}
	}
	for i := range rs { // or it could not be encoded
		if v := rs[i].Value; math.IsNaN(v) || math.IsInf(v, 0) {
			return fulgur.E(fulgur.KindInvalid, "set reward", fmt.Sprintf("the reward %v is not finite", v), nil)
		}
	}
	return c.do(ctx, request{op: "set reward", method: "POST", path: "/rewards", body: rs}, nil)
}

func (c *Client) ReportAttempts(ctx context.Context, rs []fulgur.Report) error {
	if rs == nil {
		rs = []fulgur.Report{}
	}
	return c.do(ctx, request{op: "report attempt", method: "POST", path: "/reports", body: rs}, nil)
}

// perRequest is how many records one request asks for: its ids are in its address.
const perRequest = 100

func (c *Client) Records(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.Record, error) {
	out := make([]fulgur.Record, 0, len(ids))
	for some := range slices.Chunk(ids, perRequest) {
		query := url.Values{}
		for _, id := range some {
			query.Add("id", string(id))
		}
		wire, err := get[[]api.Record](ctx, c, "get records", "/records", query)
		if err != nil {
			return nil, err
		}
		for i := range wire {
			r := fulgur.Record{Rollout: wire[i].Rollout}
			for j := range wire[i].Calls {
				r.Calls = append(r.Calls, wire[i].Calls[j].Plain())
			}
			out = append(out, r)
		}
	}
	return out, nil
}

func (c *Client) OpenAttempt(ctx context.Context, id fulgur.RolloutID) (fulgur.OpenedAttempt, error) {
	return send[fulgur.OpenedAttempt](ctx, c, "open attempt", "POST", escape("/rollouts", id)+"/attempts", nil)
}

func (c *Client) OpenAttempts(ctx context.Context, ids []fulgur.RolloutID) ([]fulgur.OpenedAttempt, error) {
	if ids == nil {
		ids = []fulgur.RolloutID{}
	}
	return send[[]fulgur.OpenedAttempt](ctx, c, "open attempts", "POST", "/attempts", ids)
}

func (c *Client) ReportAttempt(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID, r fulgur.AttemptReport) (fulgur.Rollout, error) {
	return send[fulgur.Rollout](ctx, c, "report attempt", "POST", escape(escape("/rollouts", id)+"/attempts", a)+"/report", r)
}

func (c *Client) Attempts(ctx context.Context, id fulgur.RolloutID) ([]fulgur.Attempt, error) {
	return get[[]fulgur.Attempt](ctx, c, "list attempts", escape("/rollouts", id)+"/attempts", nil)
}

func (c *Client) Calls(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Call, error) {
	wire, err := get[[]api.Call](ctx, c, "list calls", escape("/rollouts", id)+"/calls", url.Values{"attempt": {string(a)}})
	if err != nil {
		return nil, err
	}
	out := make([]fulgur.Call, len(wire))
	for i := range wire {
		out[i] = wire[i].Plain()
	}
	return out, nil
}

func (c *Client) Call(ctx context.Context, id fulgur.CallID) (fulgur.Call, error) {
	wire, err := get[api.Call](ctx, c, "get call", escape("/calls", id), nil)
	return wire.Plain(), err
}

// AppendEvent is store.Store's. It is not sent again once it may have arrived.
func (c *Client) AppendEvent(ctx context.Context, ev fulgur.Event) (out fulgur.Event, err error) {
	path := escape(escape("/rollouts", ev.Rollout)+"/attempts", ev.Attempt) + "/events"
	return out, c.do(ctx, request{op: "append event", method: "POST", path: path, body: api.EventBody{Type: ev.Type, Data: ev.Data}, once: true}, &out)
}

func (c *Client) Events(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) ([]fulgur.Event, error) {
	return get[[]fulgur.Event](ctx, c, "list events", escape("/rollouts", id)+"/events", url.Values{"attempt": {string(a)}})
}

func (c *Client) Head(ctx context.Context) (fulgur.Seq, error) {
	h, err := get[api.Head](ctx, c, "get head", "/head", nil)
	return h.Seq, err
}

// Capabilities returns what the server is and can do.
func (c *Client) Capabilities(ctx context.Context) (api.Capabilities, error) {
	return get[api.Capabilities](ctx, c, "get capabilities", "/capabilities", nil)
}

// PauseCalls does what the gateway's PauseCalls does; asked again by the same
// owner it renews the pause.
func (c *Client) PauseCalls(ctx context.Context, run fulgur.RunID, p fulgur.PauseRequest) (fulgur.Pause, error) {
	return send[fulgur.Pause](ctx, c, "pause calls", "POST", escape("/runs", run)+"/pause", p)
}

// ResumeCalls does what the gateway's ResumeCalls does.
func (c *Client) ResumeCalls(ctx context.Context, run fulgur.RunID, owner string) (fulgur.Pause, error) {
	return send[fulgur.Pause](ctx, c, "resume calls", "POST", escape("/runs", run)+"/resume", api.ResumeBody{Owner: owner})
}

// PauseState does what the gateway's PauseState does.
func (c *Client) PauseState(ctx context.Context, run fulgur.RunID) (fulgur.Pause, error) {
	return get[fulgur.Pause](ctx, c, "get pause", escape("/runs", run)+"/pause", nil)
}

// Activity does what the gateway's Activity does.
func (c *Client) Activity(ctx context.Context, id fulgur.RolloutID, a fulgur.AttemptID) (fulgur.Activity, error) {
	return get[fulgur.Activity](ctx, c, "get activity", escape(escape("/rollouts", id)+"/attempts", a)+"/activity", nil)
}

// Activities does what the gateway's Activities does.
func (c *Client) Activities(ctx context.Context, keys []fulgur.AttemptKey) ([]fulgur.Activity, error) {
	if keys == nil {
		keys = []fulgur.AttemptKey{}
	}
	return send[[]fulgur.Activity](ctx, c, "get activities", "POST", "/activities", keys)
}
