package v2

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

type none struct{}

// Parameters of paths. They are exported because huma fills embedded structs
// only then.
type (
	// RunIn names a run.
	RunIn struct {
		Run fulgur.RunID `path:"run"`
	}
	// RolloutIn names a rollout.
	RolloutIn struct {
		ID fulgur.RolloutID `path:"id"`
	}
	// AttemptIn names an attempt.
	AttemptIn struct {
		ID      fulgur.RolloutID `path:"id"`
		Attempt fulgur.AttemptID `path:"attempt"`
	}
	// RecordsIn names a rollout, or one attempt of it.
	RecordsIn struct {
		ID      fulgur.RolloutID `path:"id"`
		Attempt fulgur.AttemptID `query:"attempt" doc:"of this attempt only; absent: of all"`
	}
)

func (s *server) routes() {
	s.runRoutes()
	s.rolloutRoutes()
	s.attemptRoutes()
	s.recordRoutes()
	s.watchRoutes()
}

func (s *server) runRoutes() {
	register(s, op("GET", "/runs", "List runs, the oldest first"), func(ctx context.Context, _ *none) ([]fulgur.Run, error) {
		return list(s.Store.Runs(ctx))
	})
	register(s, op("GET", "/runs/{run}", "Get a run"), func(ctx context.Context, in *RunIn) (fulgur.Run, error) {
		return s.Store.Run(ctx, in.Run)
	})
	register(s, op("PUT", "/runs/{run}", "Create or change a run"), func(ctx context.Context, in *struct {
		RunIn
		Body api.RunBody
	}) (fulgur.Run, error) {
		err := s.Store.PutRun(ctx, fulgur.Run{ID: in.Run, Model: in.Body.Model, Config: in.Body.Config, Version: in.Body.Version, EndedAt: in.Body.EndedAt})
		if err != nil {
			return fulgur.Run{}, err
		}
		return s.Store.Run(ctx, in.Run)
	})
	register(s, op("POST", "/runs/{run}/pause", "Hold the run's calls; answers when they are drained"), func(ctx context.Context, in *struct {
		RunIn
		Body fulgur.PauseRequest
	}) (fulgur.Pause, error) {
		if _, err := s.Store.Run(ctx, in.Run); err != nil { // a wrong name would pause nothing
			return fulgur.Pause{}, err
		}
		return s.Gate.PauseCalls(ctx, in.Run, in.Body)
	})
	register(s, op("POST", "/runs/{run}/resume", "End the owner's pause"), func(ctx context.Context, in *struct {
		RunIn
		Body api.ResumeBody
	}) (fulgur.Pause, error) {
		return s.Gate.ResumeCalls(ctx, in.Run, in.Body.Owner)
	})
	register(s, op("GET", "/runs/{run}/pause", "Get the state of the run's calls"), func(ctx context.Context, in *RunIn) (fulgur.Pause, error) {
		return s.Gate.PauseState(ctx, in.Run)
	})
	register(s, op("GET", "/runs/{run}/models", "List where models' calls go"), func(ctx context.Context, in *struct {
		RunIn
		Model string `query:"model"`
	}) ([]fulgur.Endpoint, error) {
		return list(s.Store.Endpoints(ctx, in.Run, in.Model))
	})
	register(s, op("PUT", "/runs/{run}/models", "Replace a model's endpoints, atomically"), func(ctx context.Context, in *struct {
		RunIn
		Body api.ModelBody
	}) ([]fulgur.Endpoint, error) {
		if err := s.Store.PutEndpoints(ctx, in.Run, in.Body.Model, in.Body.Endpoints); err != nil {
			return nil, err
		}
		return list(s.Store.Endpoints(ctx, in.Run, in.Body.Model))
	})
	type LeaseIn struct {
		RunIn
		Name string `path:"name"`
	}
	register(s, op("PUT", "/runs/{run}/leases/{name}", "Acquire or renew a lease; 409 while another holds it"), func(ctx context.Context, in *struct {
		LeaseIn
		Body api.LeaseBody
	}) (fulgur.Lease, error) {
		return s.Store.AcquireLease(ctx, in.Run, in.Name, in.Body.Holder, in.Body.TTL)
	})
	register(s, op("GET", "/runs/{run}/leases/{name}", "A lease as it was renewed last; it may have ended. 404 where nobody has it"), func(ctx context.Context, in *LeaseIn) (fulgur.Lease, error) {
		return s.Store.Lease(ctx, in.Run, in.Name)
	})
	register(s, op("DELETE", "/runs/{run}/leases/{name}", "Release the holder's lease"), func(ctx context.Context, in *struct {
		LeaseIn
		Holder string `query:"holder" required:"true"`
	}) (none, error) {
		return none{}, s.Store.ReleaseLease(ctx, in.Run, in.Name, in.Holder)
	})
}

func (s *server) rolloutRoutes() {
	register(s, op("POST", "/rollouts", "Create rollouts, all or none; a known id gives the stored one", status(http.StatusCreated)), func(ctx context.Context, in *body[[]fulgur.RolloutSpec]) ([]fulgur.Rollout, error) {
		return list(s.Store.CreateRollouts(ctx, in.Body))
	})
	register(s, op("GET", "/rollouts", "List rollouts in order of creation"), func(ctx context.Context, in *struct {
		Run   fulgur.RunID          `query:"run" doc:"absent: default"`
		State []fulgur.RolloutState `query:"state,explode" enum:"queuing,running,succeeded,failed"`
		Group fulgur.GroupID        `query:"group"`
		After fulgur.RolloutID      `query:"after" doc:"start behind this one"`
		Limit int                   `query:"limit" minimum:"0" maximum:"10000" doc:"0 or absent: 500"`
	}) ([]fulgur.Rollout, error) {
		return list(s.Store.Rollouts(ctx, fulgur.RolloutQuery{Run: in.Run, States: in.State, Group: in.Group, After: in.After, Limit: in.Limit}))
	})
	register(s, op("GET", "/rollouts/{id}", "Get a rollout"), func(ctx context.Context, in *RolloutIn) (fulgur.Rollout, error) {
		return s.Store.Rollout(ctx, in.ID)
	})
	register(s, op("POST", "/rollouts/{id}/end", "Fail a rollout that has not ended"), func(ctx context.Context, in *struct {
		RolloutIn
		Body fulgur.Outcome
	}) (fulgur.Rollout, error) {
		return s.Store.EndRollout(ctx, in.ID, in.Body)
	})
	register(s, op("POST", "/rollouts/{id}/reward", "Set the reward of an attempt"), func(ctx context.Context, in *struct {
		RolloutIn
		Body api.RewardBody
	}) (none, error) {
		return none{}, s.Store.SetReward(ctx, in.ID, in.Body.Attempt, in.Body.Value, in.Body.Source)
	})
	register(s, op("POST", "/rewards", "Set the rewards of several attempts, all or none"), func(ctx context.Context, in *body[[]fulgur.Reward]) (none, error) {
		return none{}, s.Store.SetRewards(ctx, in.Body)
	})
	register(s, op("GET", "/terminal", "Read the completion log of the run default, v1's cursor"), func(ctx context.Context, in *struct {
		After int `query:"after"`
		Limit int `query:"limit" default:"1000"`
	}) (api.TerminalPage, error) {
		p, err := s.Store.Terminal(ctx, in.After, in.Limit)
		out := api.TerminalPage{Items: make([]api.TerminalItem, len(p.Items)), Next: p.Next, Total: p.Total}
		for i, it := range p.Items {
			out.Items[i] = api.TerminalItem(it)
		}
		return out, err
	})
}

func (s *server) attemptRoutes() {
	register(s, op("POST", "/rollouts/{id}/attempts", "Open the next attempt; its credential is shown once", status(http.StatusCreated)), func(ctx context.Context, in *RolloutIn) (fulgur.OpenedAttempt, error) {
		return s.Store.OpenAttempt(ctx, in.ID)
	})
	register(s, op("GET", "/rollouts/{id}/attempts", "List a rollout's attempts"), func(ctx context.Context, in *RolloutIn) ([]fulgur.Attempt, error) {
		return list(s.Store.Attempts(ctx, in.ID))
	})
	register(s, op("POST", "/rollouts/{id}/attempts/{attempt}/report", "Report an attempt's phase; idempotent"), func(ctx context.Context, in *struct {
		AttemptIn
		Body fulgur.AttemptReport
	}) (fulgur.Rollout, error) {
		return s.Store.ReportAttempt(ctx, in.ID, in.Attempt, in.Body)
	})
	register(s, op("GET", "/rollouts/{id}/attempts/{attempt}/activity", "Get what the attempt's model calls do"), func(ctx context.Context, in *AttemptIn) (fulgur.Activity, error) {
		return s.Gate.Activity(ctx, in.ID, in.Attempt)
	})
	register(s, op("POST", "/attempts", "Open the attempts of several rollouts; those that cannot have one are left out"), func(ctx context.Context, in *body[[]fulgur.RolloutID]) ([]fulgur.OpenedAttempt, error) {
		return list(s.Store.OpenAttempts(ctx, in.Body))
	})
	register(s, op("POST", "/reports", "Report the phases of several attempts, all or none"), func(ctx context.Context, in *body[[]fulgur.Report]) (none, error) {
		return none{}, s.Store.ReportAttempts(ctx, in.Body)
	})
	register(s, op("POST", "/activities", "Get what the model calls of several attempts do"), func(ctx context.Context, in *body[[]fulgur.AttemptKey]) ([]fulgur.Activity, error) {
		return list(s.Gate.Activities(ctx, in.Body))
	})
	o := op("POST", "/rollouts/{id}/attempts/{attempt}/events", "Append an event; the attempt's own credential will do", status(http.StatusCreated))
	o.MaxBodyBytes = s.MaxBody
	huma.Register(s.api, o, func(ctx context.Context, in *struct {
		AttemptIn
		Body api.EventBody
	}) (*body[fulgur.Event], error) {
		if err := allowEvent(ctx, in.ID, in.Attempt, in.Body.Type); err != nil {
			return nil, api.ProblemOf(err)
		}
		who, _ := ctx.Value(identityKey{}).(fulgur.Identity)
		if err := s.Events.Take(ctx, who, in.Body.Type, in.Body.Data); err != nil {
			return nil, api.ProblemOf(err)
		}
		ev, err := s.Store.AppendEvent(ctx, fulgur.Event{Rollout: in.ID, Attempt: in.Attempt, Type: in.Body.Type, Data: in.Body.Data})
		if err != nil {
			return nil, api.ProblemOf(err)
		}
		return &body[fulgur.Event]{ev}, nil
	})
}

// rawJSON is an answer that is written as it is: calls are large, and hold
// what a generic encoder refuses.
type rawJSON struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

func (s *server) recordRoutes() {
	register(s, op("GET", "/rollouts/{id}/events", "List events in order of arrival"), func(ctx context.Context, in *RecordsIn) ([]fulgur.Event, error) {
		return list(s.Store.Events(ctx, in.ID, in.Attempt))
	})
	one := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[fulgur.Call](), true, "Call")
	many := &huma.Schema{Type: huma.TypeArray, Items: one}
	answers := func(schema *huma.Schema) func(*huma.Operation) {
		return func(o *huma.Operation) {
			o.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}}
			o.Description = `A body that is not JSON is {"$base64": …}; a log prob that is not finite is "NaN", "+Inf" or "-Inf".`
		}
	}
	huma.Register(s.api, op("GET", "/rollouts/{id}/calls", "List calls in order of arrival", answers(many)), func(ctx context.Context, in *RecordsIn) (*rawJSON, error) {
		if err := allow(ctx); err != nil {
			return nil, api.ProblemOf(err)
		}
		calls, err := s.Store.Calls(ctx, in.ID, in.Attempt)
		return raw(api.WireCalls(calls), err)
	})
	record := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[fulgur.Record](), true, "Record")
	huma.Register(s.api, op("GET", "/records", "Get rollouts with the calls of their last attempts, without bodies and tools, in the order of the ids", answers(&huma.Schema{Type: huma.TypeArray, Items: record})),
		func(ctx context.Context, in *struct {
			ID []fulgur.RolloutID `query:"id,explode" maxItems:"1000"`
		}) (*rawJSON, error) {
			if err := allow(ctx); err != nil {
				return nil, api.ProblemOf(err)
			}
			records, err := s.Store.Records(ctx, in.ID)
			if err != nil {
				return nil, api.ProblemOf(err)
			}
			b, err := api.AppendRecords(nil, records)
			if err != nil {
				return nil, api.ProblemOf(err)
			}
			return &rawJSON{ContentType: "application/json", Body: b}, nil
		})
	huma.Register(s.api, op("GET", "/calls/{call}", "Get a call", answers(one)), func(ctx context.Context, in *struct {
		Call fulgur.CallID `path:"call"`
	}) (*rawJSON, error) {
		if err := allow(ctx); err != nil {
			return nil, api.ProblemOf(err)
		}
		c, err := s.Store.Call(ctx, in.Call)
		return raw(&api.WireCalls([]fulgur.Call{c})[0], err)
	})
}

func raw(v any, err error) (*rawJSON, error) {
	if err == nil {
		var b []byte
		if b, err = json.Marshal(v); err == nil {
			return &rawJSON{ContentType: "application/json", Body: b}, nil
		}
	}
	return nil, api.ProblemOf(err)
}

// marshal encodes what always can be.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"kind":"internal"}`)
	}
	return b
}

func (s *server) watchRoutes() {
	register(s, op("GET", "/head", "Get the newest position of the log of changes"), func(ctx context.Context, _ *none) (api.Head, error) {
		seq, err := s.Store.Head(ctx)
		return api.Head{Seq: seq}, err
	})
	register(s, op("GET", "/capabilities", "Get what this server is and can do"), func(context.Context, *none) (api.Capabilities, error) {
		return sortFeatures(s.Capabilities), nil
	})
	change := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[fulgur.Change](), true, "Change")
	o := op("GET", "/watch", "Watch changes: server-sent events `changes`, each a list; its id is the position to go on from")
	o.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{
		"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeArray, Items: change}}}}}
	huma.Register(s.api, o, func(ctx context.Context, in *struct {
		Run    fulgur.RunID          `query:"run" doc:"absent: all runs"`
		After  fulgur.Seq            `query:"after" doc:"changes behind this position"`
		States []fulgur.RolloutState `query:"state,explode" doc:"changes of rollouts in these states only, and of runs; absent: all changes"`
		Last   string                `header:"Last-Event-ID" doc:"overrides after, when a browser connects again"`
	}) (*huma.StreamResponse, error) {
		if err := allow(ctx); err != nil {
			return nil, api.ProblemOf(err)
		}
		after := in.After
		if n, err := strconv.ParseInt(in.Last, 10, 64); err == nil {
			after = fulgur.Seq(n)
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			hc.SetHeader("Content-Type", "text/event-stream")
			hc.SetHeader("Cache-Control", "no-store")
			w, ok := hc.BodyWriter().(http.ResponseWriter)
			if ok {
				s.watch(hc.Context(), w, in.Run, after, in.States)
			}
		}}, nil
	})
}

// settle is the least time between two events of a watch: changes come in
// bursts, and each event costs both sides more than its changes.
const settle = 50 * time.Millisecond

// pause waits for d, and says whether ctx still lasts.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// watch writes changes until the reader leaves or the store closes. It has no
// goroutine of its own: the heartbeat is the deadline of a wait.
func (s *server) watch(ctx context.Context, w http.ResponseWriter, run fulgur.RunID, after fulgur.Seq, states []fulgur.RolloutState) {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Time{}) // a watch outlives the server's limit; not every writer has one
	var buf bytes.Buffer
	buf.WriteString(": watching\n\n")
	unwanted := func(c fulgur.Change) bool {
		return len(states) > 0 && c.Kind != fulgur.ChangeRun && !slices.Contains(states, c.State)
	}
	shown := time.Now()
	for {
		if buf.Len() > 0 {
			shown = time.Now()
			if _, err := w.Write(buf.Bytes()); err != nil {
				return
			}
			if err := rc.Flush(); err != nil {
				return
			}
		}
		if buf.Reset(); !pause(ctx, settle) {
			return
		}
		wait, cancel := context.WithTimeout(ctx, s.Heartbeat)
		changes, err := s.Store.Changes(wait, run, after)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			after = changes[len(changes)-1].Seq
			if changes = slices.DeleteFunc(changes, unwanted); len(changes) > 0 {
				fmt.Fprintf(&buf, "id: %d\nevent: changes\ndata: %s\n\n", after, marshal(changes))
			} else if time.Since(shown) >= s.Heartbeat {
				buf.WriteString(": still here\n\n")
			}
		case fulgur.KindOf(err) == fulgur.KindCanceled:
			buf.WriteString(": still here\n\n")
		default: // said in the stream, for the status is out
			fmt.Fprintf(&buf, "event: error\ndata: %s\n\n", marshal(api.ProblemOf(err)))
			_, _ = w.Write(buf.Bytes())
			return
		}
	}
}
