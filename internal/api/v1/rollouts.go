package v1

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// The objects of v1, as they are answered: every field is always there.
type (
	rollout struct {
		ID       fulgur.RolloutID `json:"rollout_id"`
		Input    json.RawMessage  `json:"input"`
		IsTrain  bool             `json:"is_train"`
		Config   json.RawMessage  `json:"config"`
		Metadata json.RawMessage  `json:"metadata"`
		Status   status           `json:"status"`
	}
	status struct {
		State       fulgur.RolloutState `json:"state"`
		JobName     *string             `json:"k8s_job_name"`
		LastAttempt *string             `json:"last_attempt_id"`
		Error       *string             `json:"error_message"`
		Version     int                 `json:"version"`
		CreatedAt   float64             `json:"created_at"`
		UpdatedAt   float64             `json:"updated_at"`
	}
	config struct {
		Timeout int64  `json:"timeout_seconds"`
		Local   *local `json:"local"`
		K8s     *k8s   `json:"k8s"`
	}
	local struct {
		AgentClass *string           `json:"agent_class"`
		EnvMap     map[string]string `json:"env_map"`
	}
	k8s struct {
		JobTemplate *string `json:"job_template"`
	}
	terminalItem struct {
		ID      fulgur.RolloutID    `json:"rollout_id"`
		State   fulgur.RolloutState `json:"state"`
		DataID  string              `json:"data_id"`
		IsTrain bool                `json:"is_train"`
	}
	terminalPage struct {
		Items []terminalItem `json:"items"`
		Next  int            `json:"next_after"`
		Total int            `json:"total_terminal"`
	}
)

const defaultTimeout = 3600 // seconds

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func textOrNull[T ~string](s T) *string {
	if s == "" {
		return nil
	}
	v := string(s)
	return &v
}

// view returns a rollout as v1 shows it.
func view(r fulgur.Rollout) (rollout, error) {
	out := rollout{ID: r.ID, Input: r.Input, IsTrain: r.IsTrain, Config: r.Config, Metadata: r.Metadata,
		Status: status{State: r.State, JobName: textOrNull(r.JobName), LastAttempt: textOrNull(r.LastAttempt), Error: textOrNull(r.Error),
			Version: r.Version, CreatedAt: seconds(r.CreatedAt), UpdatedAt: seconds(r.UpdatedAt)}}
	var err error
	if len(out.Config) == 0 { // not created over v1
		c := config{Timeout: defaultTimeout}
		if r.Timeout > 0 {
			c.Timeout = int64(r.Timeout / time.Second)
		}
		out.Config, err = encode(c)
	}
	if len(out.Metadata) == 0 {
		out.Metadata = json.RawMessage(`{"batch_idx":null,"sample_idx_in_batch":null}`)
	}
	return out, err
}

func views(rs []fulgur.Rollout) ([]rollout, error) {
	out := make([]rollout, len(rs))
	for i := range rs {
		var err error
		if out[i], err = view(rs[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *server) create(ctx context.Context, r *in) (int, any, error) {
	v, text, err := s.body(r)
	if err != nil {
		return 0, nil, err
	}
	c := &checker{}
	items := c.list(v, "body")
	var raw []map[string]json.RawMessage // keeps the bytes that came
	if c.err() == nil {
		// Items that are no objects are told below.
		_ = json.Unmarshal(text, &raw)
	}
	specs := make([]fulgur.RolloutSpec, len(items))
	for i, item := range items {
		o := c.object(item, "body", i)
		if o == nil {
			continue
		}
		specs[i] = c.spec(o, "body", i)
		if i < len(raw) {
			specs[i].Input = raw[i]["input"]
		}
		if specs[i].Input == nil {
			specs[i].Input = json.RawMessage("null")
		}
	}
	if err := c.err(); err != nil {
		return 0, nil, err
	}
	rs, err := s.Store.CreateRollouts(ctx, specs)
	if err != nil {
		return 0, nil, err
	}
	out, err := views(rs)
	return http.StatusCreated, out, err
}

// spec reads a rollout to create, but for its input. Agents of such rollouts
// post their rewards.
func (c *checker) spec(o object, loc ...any) fulgur.RolloutSpec {
	spec := fulgur.RolloutSpec{Run: fulgur.DefaultRun, Rewards: fulgur.RewardsAgent}
	if _, ok := o["input"]; !ok {
		c.add("missing", "Field required", o, at(loc, "input")...)
	}
	if id := c.textField(o, "rollout_id", loc...); id != nil {
		spec.ID = fulgur.RolloutID(*id)
	}
	spec.IsTrain = c.boolField(o, "is_train", true, loc...)
	conf := c.config(o["config"], at(loc, "config")...)
	spec.Timeout = time.Duration(min(max(conf.Timeout, 0), int64(1<<62/time.Second))) * time.Second
	spec.Config = c.encode(conf)
	spec.Metadata = c.metadata(o["metadata"], at(loc, "metadata")...)
	return spec
}

func (c *checker) encode(v any) json.RawMessage {
	b, err := encode(v)
	if err != nil {
		c.add("value_error", err.Error(), nil, "body")
	}
	return b
}

func (c *checker) config(v any, loc ...any) config {
	out := config{Timeout: defaultTimeout}
	if v == nil {
		return out
	}
	o := c.object(v, loc...)
	out.Timeout = c.intField(o, "timeout_seconds", defaultTimeout, loc...)
	if v := o["local"]; v != nil {
		where := at(loc, "local")
		l := c.object(v, where...)
		out.Local = &local{AgentClass: c.textField(l, "agent_class", where...), EnvMap: map[string]string{}}
		if m, ok := l["env_map"]; ok {
			for key, val := range c.object(m, at(where, "env_map")...) {
				text, ok := val.(string)
				if !ok {
					c.add("string_type", "Input should be a valid string", val, at(where, "env_map", key)...)
				}
				out.Local.EnvMap[key] = text
			}
		}
	}
	if v := o["k8s"]; v != nil {
		where := at(loc, "k8s")
		out.K8s = &k8s{JobTemplate: c.textField(c.object(v, where...), "job_template", where...)}
	}
	return out
}

// metadata keeps extra keys, and has its two own ones always.
func (c *checker) metadata(v any, loc ...any) json.RawMessage {
	o := object{}
	if v != nil {
		if o = c.object(v, loc...); o == nil {
			return nil
		}
	}
	for _, key := range []string{"batch_idx", "sample_idx_in_batch"} {
		if o[key] == nil {
			o[key] = nil
			continue
		}
		o[key] = c.intField(o, key, 0, loc...)
	}
	return c.encode(o)
}

func (s *server) list(ctx context.Context, r *in) (int, any, error) {
	c := &checker{}
	q := r.URL.Query()
	limit := c.queryInt(q, "limit", 500)
	var states []fulgur.RolloutState
	for i, v := range q["state_in"] {
		st := fulgur.RolloutState(v)
		if !st.Valid() {
			c.add("enum", "Input should be 'queuing', 'running', 'succeeded' or 'failed'", v, "query", "state_in", i)
		}
		states = append(states, st)
	}
	if len(states) == 0 {
		c.add("missing", "Field required", nil, "query", "state_in")
	}
	if err := c.err(); err != nil {
		return 0, nil, err
	}
	if limit <= 0 {
		return http.StatusOK, []rollout{}, nil
	}
	rs, err := s.Store.Rollouts(ctx, fulgur.RolloutQuery{Run: fulgur.DefaultRun, States: states, Limit: limit})
	if err != nil {
		return 0, nil, err
	}
	out, err := views(rs)
	return http.StatusOK, out, err
}

// one returns a rollout of v1's run.
func (s *server) one(ctx context.Context, id fulgur.RolloutID) (fulgur.Rollout, error) {
	r, err := s.Store.Rollout(ctx, id)
	if err == nil && r.Run != fulgur.DefaultRun {
		err = fulgur.E(fulgur.KindNotFound, "get rollout", "Rollout not found: "+string(id), nil)
	}
	return r, err
}

func (s *server) get(ctx context.Context, r *in) (int, any, error) {
	agent := r.who.Scope == fulgur.ScopeAttempt
	read := s.one
	if agent { // of whatever run
		read = s.Store.Rollout
	}
	ro, err := read(ctx, r.rollout)
	if err != nil {
		return 0, nil, err
	}
	if agent {
		own, ok := s.Own(ctx, ro)
		if !ok {
			return 0, nil, fulgur.E(fulgur.KindForbidden, "", "Agents of this run may not read their rollout: set compat: [v1-agents], or serve --compat v1-agents", nil)
		}
		ro = own
	}
	attempts, err := s.Store.RecordedAttempts(ctx, r.rollout)
	if err != nil {
		return 0, nil, err
	}
	if attempts == nil {
		attempts = []fulgur.AttemptID{}
	}
	v, err := view(ro)
	return http.StatusOK, struct {
		Rollout  rollout            `json:"rollout"`
		Attempts []fulgur.AttemptID `json:"attempts"`
	}{v, attempts}, err
}

func (s *server) patch(ctx context.Context, r *in) (int, any, error) {
	v, _, err := s.body(r)
	if err != nil {
		return 0, nil, err
	}
	c := &checker{}
	var p fulgur.StatusPatch
	if o := c.object(v, "body"); o["status"] != nil {
		p = c.statusPatch(c.object(o["status"], "body", "status"))
	}
	if err := c.err(); err != nil {
		return 0, nil, err
	}
	if _, err := s.one(ctx, r.rollout); err != nil {
		return 0, nil, err
	}
	ro, err := s.Store.PatchStatus(ctx, r.rollout, p)
	if err != nil {
		return 0, nil, err
	}
	out, err := view(ro)
	return http.StatusOK, out, err
}

func (c *checker) statusPatch(o object) (p fulgur.StatusPatch) {
	for key, v := range o {
		switch key {
		case "state":
			text, _ := v.(string)
			st := fulgur.RolloutState(text)
			switch {
			case v == nil: // as if it were not there
			case !st.Valid():
				c.add("enum", "Input should be 'queuing', 'running', 'succeeded' or 'failed'", v, "body", "status", key)
			default:
				p.State = &st
			}
		case "k8s_job_name", "last_attempt_id", "error_message":
			text := c.textField(o, key, "body", "status")
			*map[string]***string{"k8s_job_name": &p.JobName, "last_attempt_id": &p.LastAttempt, "error_message": &p.Error}[key] = &text
		default:
			c.add("extra_forbidden", "Extra inputs are not permitted", v, "body", "status", key)
		}
	}
	return p
}

func (s *server) delete(ctx context.Context, r *in) (int, any, error) {
	switch _, err := s.one(ctx, r.rollout); fulgur.KindOf(err) {
	case "":
		return http.StatusNoContent, nil, s.Store.DeleteRollout(ctx, r.rollout)
	case fulgur.KindNotFound:
		return http.StatusNoContent, nil, nil
	default:
		return 0, nil, err
	}
}

func (s *server) terminal(ctx context.Context, r *in) (int, any, error) {
	c := &checker{}
	q := r.URL.Query()
	after, limit := c.queryInt(q, "after", 0), c.queryInt(q, "limit", 1000)
	if err := c.err(); err != nil {
		return 0, nil, err
	}
	p, err := s.Store.Terminal(ctx, after, limit)
	out := terminalPage{Items: make([]terminalItem, len(p.Items)), Next: p.Next, Total: p.Total}
	for i, it := range p.Items {
		out.Items[i] = terminalItem(it)
	}
	return http.StatusOK, out, err
}

func (s *server) putModels(ctx context.Context, r *in) (int, any, error) {
	v, _, err := s.body(r)
	if err != nil {
		return 0, nil, err
	}
	type model struct {
		Model    string               `json:"model"`
		Endpoint string               `json:"endpoint"`
		Version  fulgur.PolicyVersion `json:"version"`
	}
	c := &checker{}
	items := c.list(v, "body")
	out := make([]model, len(items))
	eps := make([]fulgur.Endpoint, len(items))
	for i, item := range items {
		if o := c.object(item, "body", i); o != nil {
			out[i] = model{c.needText(o, "model", "body", i), c.needText(o, "endpoint", "body", i), fulgur.PolicyVersion(c.intField(o, "version", 0, "body", i))}
		}
		eps[i] = fulgur.Endpoint{Model: out[i].Model, Kind: fulgur.EndpointChat, URL: out[i].Endpoint, Version: out[i].Version}
	}
	if err := c.err(); err != nil {
		return 0, nil, err
	}
	if len(eps) == 0 {
		return http.StatusCreated, out, nil
	}
	return http.StatusCreated, out, s.Store.UpsertEndpoints(ctx, fulgur.DefaultRun, eps)
}

func (s *server) clearModels(ctx context.Context, _ *in) (int, any, error) {
	return http.StatusOK, map[string]string{"status": "ok"}, s.Store.ClearEndpoints(ctx, fulgur.DefaultRun)
}
