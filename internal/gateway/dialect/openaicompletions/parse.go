// Package openaicompletions is the dialect of OpenAI's text Completions API
// (https://platform.openai.com/docs/api-reference/completions), whose prompt is a
// text or token ids that no template touches, with vLLM's additions for token
// ids.
package openaicompletions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// Name is the dialect's name, and that of the wire format it can relay.
const Name = "openai-completions"

// defaultMaxTokens is how many tokens the API samples where a request does not say.
const defaultMaxTokens = 16

// Dialect is the text completions dialect.
type Dialect struct{}

var _ dialect.Dialect = Dialect{}

// Name implements dialect.Dialect.
func (Dialect) Name() string { return Name }

// Paths implements dialect.Dialect.
func (Dialect) Paths() []string { return []string{"openai/v1/completions"} }

func invalid(msg string) *fulgur.Error {
	return fulgur.E(fulgur.KindInvalid, "read completions request", msg, nil)
}

// Parse implements dialect.Dialect. Several prompts in one request are refused
// (KindUnsupported): each would be a call of its own, and a record is of one.
func (Dialect) Parse(body []byte) (*call.Request, error) {
	var w chatwire.TextRequest
	body, refusal, err := chatwire.ReadObject(body, &w)
	if refusal != "" {
		return nil, invalid(refusal)
	}
	req := &call.Request{Body: body, Dialect: Name, N: 1}
	if err != nil {
		if said := chatwire.Unread(body); said != "" {
			return nil, invalid(said)
		}
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		// What could be read still counts: a relaying sampler goes on with it.
		req.Invalid = invalid(fmt.Sprintf("The field %q has the wrong type: got a JSON %s", wrong.Field, wrong.Value))
	} else if err != nil {
		req.Invalid = invalid("The request body is not a completions request")
	}
	fill(req, &w)
	return req, readPrompt(req, w.Prompt)
}

// readPrompt takes a request's one prompt.
func readPrompt(req *call.Request, raw json.RawMessage) error {
	p, err := chatwire.ReadPrompts(raw)
	switch n := len(p.Texts) + len(p.IDs); {
	case err != nil:
		setInvalid(req, err.Error())
		req.Prompt = &call.Prompt{}
	case n > 1:
		return fulgur.E(fulgur.KindUnsupported, "read completions request",
			fmt.Sprintf("The request has %d prompts: send each in a request of its own", n), nil)
	case len(p.Texts) == 1:
		req.Prompt = &call.Prompt{Text: p.Texts[0]}
	default:
		req.Prompt = &call.Prompt{IDs: p.IDs[0]}
	}
	if req.Invalid == nil && req.Prompt.Text == "" && len(req.Prompt.IDs) == 0 {
		setInvalid(req, "prompt must not be empty")
	}
	return nil
}

func fill(req *call.Request, w *chatwire.TextRequest) {
	req.Model = w.Model
	req.Stream = w.Stream != nil && *w.Stream
	req.IncludeUsage = w.StreamOptions != nil && w.StreamOptions.IncludeUsage
	req.TokenIDs = w.ReturnTokenIDs != nil && *w.ReturnTokenIDs
	readLogProbs(req, w.LogProbs)
	if w.N != nil {
		req.N = *w.N
		if req.N < 1 {
			setInvalid(req, "n must be at least 1")
		}
	}
	max := defaultMaxTokens
	req.Wishes = call.Wishes{Temperature: w.Temperature, TopP: w.TopP, TopK: w.TopK, Seed: w.Seed, MaxTokens: &max, Others: w.Altering()}
	if w.MaxTokens != nil {
		req.Wishes.MaxTokens = w.MaxTokens
	}
	var err error
	if req.Wishes.Stop, err = chatwire.StopList(w.Stop); err != nil {
		setInvalid(req, err.Error())
	}
	if req.Wishes.Temperature != nil && *req.Wishes.Temperature < 0 {
		setInvalid(req, "temperature must be at least 0")
	}
	if *req.Wishes.MaxTokens < 1 {
		setInvalid(req, "max_tokens must be at least 1")
	}
	if f := w.ResponseFormat; f != nil && f.Type != "" && f.Type != "text" {
		req.Constrained = append(req.Constrained, "response_format "+f.Type)
	}
	if w.Echo {
		req.Relayed = append(req.Relayed, "echo")
	}
	if w.Suffix != "" {
		req.Relayed = append(req.Relayed, "suffix")
	}
	if w.BestOf > 1 { // the best of several is no sample of the policy
		req.Relayed = append(req.Relayed, "best_of")
		req.Wishes.Others = append(req.Wishes.Others, "best_of")
	}
}

// readLogProbs reads how many alternatives the client wants to see: 0 and 1 are
// answered with the sampled token's own log prob, and v1's true is 1.
func readLogProbs(req *call.Request, raw json.RawMessage) {
	var n int
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "false":
		return
	case "true":
		n = 1
	default:
		if json.Unmarshal(raw, &n) != nil || n < 0 {
			setInvalid(req, "logprobs must be a whole number from 0 on")
			return
		}
	}
	req.LogProbs = true
	if n > 1 {
		req.TopLogProbs = n
	}
}

// setInvalid keeps the first complaint.
func setInvalid(req *call.Request, msg string) {
	if req.Invalid == nil {
		req.Invalid = invalid(msg)
	}
}
