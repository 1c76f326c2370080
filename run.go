package fulgur

import (
	"encoding/json"
	"time"
)

// Run is one training run, evaluation or plain server: what leases, policies,
// processes, retention and pauses belong to.
type Run struct {
	ID        RunID           `json:"id"`
	Model     string          `json:"model"`            // the name under which agents ask for the policy
	Config    json.RawMessage `json:"config,omitempty"` // the effective run file, as JSON
	Version   PolicyVersion   `json:"version"`          // of the newest published weights
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
	EndedAt   *time.Time      `json:"ended_at,omitempty"`
}

// Lease says who leads something (a run's trainer, a run's controller) and
// until when. A lease that is not renewed ends by itself.
type Lease struct {
	Run     RunID     `json:"run"`
	Name    string    `json:"name"`   // "trainer", "controller"
	Holder  string    `json:"holder"` // chosen by the holder; unique per process
	Expires time.Time `json:"expires"`
}

// Pause is the state of a run's calls.
type Pause struct {
	Run      RunID      `json:"run"`
	Paused   bool       `json:"paused"`
	Owner    string     `json:"owner,omitempty"`   // who paused; only it, or a person, resumes
	Expires  *time.Time `json:"expires,omitempty"` // the pause ends by itself then
	Reason   string     `json:"reason,omitempty"`
	Refuse   bool       `json:"refuse,omitempty"` // new calls are refused (429) in place of held
	InFlight int        `json:"in_flight"`        // calls at an upstream now; held ones are not
	Held     int        `json:"held"`
	Aborted  int        `json:"aborted,omitempty"` // calls that the drain's limit cut off
	// Suspended are the calls that the limit cut off and that go on from their own
	// tokens after the pause (PauseRequest.Partial).
	Suspended int `json:"suspended,omitempty"`
	// Drained is how long the last drain of this pause took.
	Drained time.Duration `json:"drained,omitempty"`
}

// PauseRequest asks to hold a run's calls.
type PauseRequest struct {
	Owner  string        `json:"owner"`
	Lease  time.Duration `json:"lease,omitempty"`  // the pause ends by itself after this; 0: 10 minutes
	Drain  time.Duration `json:"drain,omitempty"`  // wait this long for in-flight calls, then abort them; 0: do not wait or abort
	Refuse bool          `json:"refuse,omitempty"` // answer 429 as v1 does in place of holding
	Reason string        `json:"reason,omitempty"`
	// Partial: what the drain's limit cuts off goes on after the pause, from the
	// tokens that it has; only token samplers can, other calls are aborted.
	Partial bool `json:"partial,omitempty"`
}

// EndpointKind says what an endpoint takes.
type EndpointKind string

// The endpoint kinds.
const (
	EndpointChat   EndpointKind = "chat"   // OpenAI-compatible chat completions: messages in, text out
	EndpointTokens EndpointKind = "tokens" // tokens in, tokens out: vLLM's completions with token ids, Tinker's asample
)

// Endpoint is where a model's calls go.
type Endpoint struct {
	Model   string        `json:"model"`
	Kind    EndpointKind  `json:"kind"`
	URL     string        `json:"url"`           // OpenAI base URL, ends in /v1; "inproc:" for an engine in this process; "tinker+https://…" for a Tinker server
	Key     string        `json:"key,omitempty"` // what the upstream wants as bearer key
	Version PolicyVersion `json:"version"`
}

// CredentialScope says what a credential may do.
type CredentialScope string

// The scopes.
const (
	ScopeServer  CredentialScope = "server"  // trainers, controllers, people: everything
	ScopeAttempt CredentialScope = "attempt" // the agent of one attempt: its own calls and events
)

// Identity is what a presented credential turned out to be.
type Identity struct {
	Scope   CredentialScope
	Run     RunID
	Rollout RolloutID
	Attempt AttemptID
	Ended   bool // the attempt has ended: answer 410
}

// Activity is what the gateway knows of an attempt's calls; an attempt's clocks
// are read against it.
type Activity struct {
	Calls    int           `json:"calls"`
	InFlight int           `json:"in_flight"`
	LastEnd  time.Time     `json:"last_end"` // zero: no call has ended yet
	Held     time.Duration `json:"held"`     // time that calls were held on pause
	// Upstream says how the model server, or the gateway itself, failed the last
	// call that ended (answered with 5xx); "": it did not. A client that left or was
	// refused (4xx) is no failure of theirs.
	Upstream string `json:"upstream,omitempty"`
	// Overflow is what the last call that ended was told if it did not fit the
	// model's context; "": it did, or was none.
	Overflow string `json:"overflow,omitempty"`
	// Refused is how many requests became no call: malformed, above a limit, behind
	// the attempt's end; Refusal is what the last one was told.
	Refused int    `json:"refused,omitempty"`
	Refusal string `json:"refusal,omitempty"`
	// Up is how long the gateway has been up: it has forgotten what was before, and
	// calls that were under way then were cut off.
	Up time.Duration `json:"up,omitempty"`
}
