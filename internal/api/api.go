// Package api holds what the control API's servers (v1, v2) and its client
// share: how a request shows its secret, the shape of errors, and the wire form
// of what JSON alone cannot carry.
package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Identifier says who presents a secret.
type Identifier interface {
	Identify(ctx context.Context, secret string) (fulgur.Identity, error)
}

// Identify says who makes a request, from its bearer key ("Bearer", one space)
// and its x-api-key. As in v1 and at the gateway, one right key is enough: SDKs
// send what is left in the environment in the other header. Of two right ones the
// server's counts, else the bearer. KindDenied: neither is right, or none is
// there and one is needed.
func Identify(r *http.Request, by Identifier) (fulgur.Identity, error) {
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	other := r.Header.Get("X-Api-Key")
	if bearer == "" || bearer == r.Header.Get("Authorization") { // another scheme is no bearer
		return by.Identify(r.Context(), other)
	}
	who, err := by.Identify(r.Context(), bearer)
	if other == "" || err == nil && who.Scope == fulgur.ScopeServer || err != nil && fulgur.KindOf(err) != fulgur.KindDenied {
		return who, err
	}
	second, e := by.Identify(r.Context(), other)
	if e == nil && (err != nil || second.Scope == fulgur.ScopeServer) {
		return second, nil
	}
	return who, err
}

// Problem is the body of an error (RFC 9457), with its kind.
type Problem struct {
	Title  string      `json:"title"`
	Status int         `json:"status"`
	Detail string      `json:"detail"`
	Kind   fulgur.Kind `json:"kind"`
}

// ProblemOf returns what a caller may see of err.
func ProblemOf(err error) *Problem {
	k := fulgur.KindOf(err)
	return &Problem{Title: strings.ReplaceAll(string(k), "_", " "), Status: k.HTTPStatus(), Detail: fulgur.PublicMessage(err), Kind: k}
}

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns application/problem+json.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// Bodies of requests. Durations are nanoseconds, as in all of the API.
type (
	// RunBody changes a run.
	RunBody struct {
		Model   string               `json:"model" doc:"name under which agents ask for the policy"`
		Config  json.RawMessage      `json:"config,omitempty"`
		Version fulgur.PolicyVersion `json:"version,omitempty" doc:"newest published weights; never goes down"`
		EndedAt *time.Time           `json:"ended_at,omitempty"`
	}
	// LeaseBody acquires or renews a lease.
	LeaseBody struct {
		Holder string        `json:"holder"`
		TTL    time.Duration `json:"ttl" doc:"nanoseconds"`
	}
	// ModelBody replaces a model's endpoints.
	ModelBody struct {
		Model     string            `json:"model"`
		Endpoints []fulgur.Endpoint `json:"endpoints"`
	}
	// RewardBody sets a reward.
	RewardBody struct {
		Attempt fulgur.AttemptID `json:"attempt"`
		Value   float64          `json:"value"`
		Source  string           `json:"source"`
	}
	// EventBody appends an event.
	EventBody struct {
		Type string          `json:"type"`
		Data json.RawMessage `json:"data,omitempty"`
	}
	// ResumeBody ends a pause.
	ResumeBody struct {
		Owner string `json:"owner"`
	}
	// Head is the newest position of the log of changes.
	Head struct {
		Seq fulgur.Seq `json:"seq"`
	}
	// Capabilities say what a server is and can do.
	Capabilities struct {
		Version  string   `json:"version"`
		APIs     []string `json:"apis"`
		Features []string `json:"features"`
	}
	// TerminalItem is a place in the completion log.
	TerminalItem struct {
		ID      fulgur.RolloutID    `json:"id"`
		State   fulgur.RolloutState `json:"state"`
		DataID  string              `json:"data_id"`
		IsTrain bool                `json:"is_train"`
	}
	// TerminalPage is a page of the completion log.
	TerminalPage struct {
		Items []TerminalItem `json:"items"`
		Next  int            `json:"next"`
		Total int            `json:"total"`
	}
)

// Call is a call on the wire: what an upstream sent need not be JSON, and a log
// prob need not be finite.
type Call struct {
	fulgur.Call
	Request  Raw    `json:"request,omitempty"`
	Sent     Raw    `json:"sent,omitempty"`
	Response Raw    `json:"response,omitempty"`
	LogProbs Floats `json:"log_probs,omitempty"`
}

// WireCalls returns the wire form of calls.
func WireCalls(calls []fulgur.Call) []Call {
	out := make([]Call, len(calls))
	for i := range calls {
		c := &out[i]
		c.Call = calls[i]
		c.Request, c.Sent, c.Response, c.LogProbs = Raw(c.Call.Request), Raw(c.Call.Sent), Raw(c.Call.Response), c.Call.LogProbs
	}
	return out
}

// Record is a record on the wire.
type Record struct {
	Rollout fulgur.Rollout `json:"rollout"`
	Calls   []Call         `json:"calls"`
}

// Plain returns the call.
func (c *Call) Plain() fulgur.Call {
	out := c.Call
	out.Request, out.Sent, out.Response, out.LogProbs = json.RawMessage(c.Request), json.RawMessage(c.Sent), json.RawMessage(c.Response), c.LogProbs
	return out
}

// Raw are the bytes of a body: as they are if they are JSON, else
// {"$base64": "…"}.
type Raw []byte

type rawBase64 struct {
	Base64 *string `json:"$base64"`
}

// MarshalJSON implements json.Marshaler.
func (r Raw) MarshalJSON() ([]byte, error) {
	switch {
	case len(r) == 0:
		return []byte("null"), nil
	case json.Valid(r):
		return r, nil
	}
	s := base64.StdEncoding.EncodeToString(r)
	return json.Marshal(rawBase64{&s})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Raw) UnmarshalJSON(b []byte) error {
	*r = bytes.Clone(b)
	var e rawBase64
	if bytes.HasPrefix(b, []byte(`{"$base64":`)) && json.Unmarshal(b, &e) == nil && e.Base64 != nil {
		plain, err := base64.StdEncoding.DecodeString(*e.Base64)
		*r = plain
		return err
	}
	return nil
}

// Floats are numbers of 32 bits; those that are not finite are the strings
// "NaN", "+Inf", "-Inf".
type Floats []float32

// MarshalJSON implements json.Marshaler.
func (f Floats) MarshalJSON() ([]byte, error) {
	return f.append(make([]byte, 0, 12*len(f)+2)), nil
}

func (f Floats) append(out []byte) []byte {
	out = append(out, '[')
	for i, x := range f {
		if i > 0 {
			out = append(out, ',')
		}
		if y := float64(x); math.IsNaN(y) || math.IsInf(y, 0) {
			out = append(strconv.AppendFloat(append(out, '"'), y, 'g', -1, 32), '"')
		} else {
			out = strconv.AppendFloat(out, y, 'g', -1, 32)
		}
	}
	return append(out, ']')
}

// UnmarshalJSON implements json.Unmarshaler. b is a JSON value without white
// space at its ends, as encoding/json hands it over.
func (f *Floats) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*f = nil
		return nil
	}
	if len(b) < 2 || b[0] != '[' {
		return fmt.Errorf("log probs are no list")
	}
	b = bytes.TrimSpace(b[1 : len(b)-1])
	*f = make(Floats, 0, bytes.Count(b, []byte{','})+1)
	for len(b) > 0 {
		item, rest, _ := bytes.Cut(b, []byte{','})
		x, err := strconv.ParseFloat(string(bytes.Trim(bytes.TrimSpace(item), `"`)), 32)
		if err != nil {
			return fmt.Errorf("number %d: %w", len(*f), err)
		}
		*f = append(*f, float32(x))
		b = rest
	}
	return nil
}
