// Package chat is the sampler that relays a call to an OpenAI-compatible chat
// server: the client's bytes with the gateway's own fields spliced in, the
// server's bytes back, streamed or not. Records are made of what it says of
// itself: vLLM's token ids, its log probs, its usage.
package chat

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// Wire is the format that this sampler speaks, and the name of the dialect that
// it can relay for.
const Wire = "openai-chat"

// maxAnswer is the largest unstreamed answer taken.
const maxAnswer = 256 << 20

// Options configure a Sampler.
type Options struct {
	Retry  sampler.Retry
	Client *http.Client // nil: sampler.NewClient
}

// Sampler implements sampler.Sampler.
type Sampler struct {
	retry  sampler.Retry
	client *http.Client
}

var _ sampler.Sampler = (*Sampler)(nil)

// New returns a sampler. It holds no goroutine; Close drops idle connections.
func New(o Options) *Sampler {
	if o.Client == nil {
		o.Client = sampler.NewClient()
	}
	return &Sampler{retry: o.Retry.Defaults(), client: o.Client}
}

// Close drops idle connections.
func (s *Sampler) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// errSilent ends a try whose server says nothing for too long.
var errSilent = errors.New("the model server was silent for too long")

// Sample implements sampler.Sampler.
func (s *Sampler) Sample(ctx context.Context, o *call.Order, emit func(call.Delta) error) (*call.Result, error) {
	res := &call.Result{Status: 200, Sampling: o.Sampling}
	if o.Dialect != Wire {
		return res, fulgur.E(fulgur.KindUnsupported, "relay call "+string(o.Call), "This model is served over chat completions only", nil)
	}
	body, err := splice(o)
	if err != nil {
		return res, fulgur.E(fulgur.KindInvalid, "relay call "+string(o.Call), "Request body must be a JSON object", err)
	}
	res.Sent = body
	res.Sampling.Seed = 0 // the server's own
	if o.Wishes.Seed != nil {
		res.Sampling.Seed = uint64(*o.Wishes.Seed)
	}
	start := time.Now()
	for {
		again, err := s.try(ctx, o, body, res, emit)
		if !again || ctx.Err() != nil || res.Retries+1 >= s.retry.Tries || time.Since(start) > s.retry.Total {
			return res, err
		}
		if werr := s.retry.Wait(ctx, res.Retries+1); werr != nil {
			return res, fulgur.E(fulgur.KindCanceled, "relay call "+string(o.Call), "The call was cancelled", werr)
		}
		res.Retries++
	}
}

// splice puts the gateway's fields into the client's bytes.
func splice(o *call.Order) ([]byte, error) {
	fields := []chatwire.Field{{Key: "model", Value: chatwire.AppendString(nil, o.Target)}}
	if o.ForceTemperature {
		fields = append(fields, chatwire.Field{Key: "temperature", Value: chatwire.AppendFloat(nil, o.Sampling.Temperature)})
	}
	fields = append(fields, chatwire.Field{Key: "return_token_ids", Value: []byte("true")})
	if o.NeedLogProbs {
		fields = append(fields, chatwire.Field{Key: "logprobs", Value: []byte("true")})
	}
	if o.CapTokens > 0 && (o.Wishes.MaxTokens == nil || *o.Wishes.MaxTokens > o.CapTokens) {
		key := "max_tokens"
		if chatwire.Get(o.Body, "max_completion_tokens") != nil {
			key = "max_completion_tokens"
		}
		fields = append(fields, chatwire.Field{Key: key, Value: strconv.AppendInt(nil, int64(o.CapTokens), 10)})
	}
	if o.Stream && !o.IncludeUsage { // the record needs it; the dialect keeps it from the client
		opts := chatwire.Get(o.Body, "stream_options")
		if len(opts) == 0 || opts[0] != '{' {
			opts = []byte("{}")
		}
		opts, err := chatwire.Splice(opts, chatwire.Field{Key: "include_usage", Value: []byte("true")})
		if err != nil {
			return nil, err
		}
		fields = append(fields, chatwire.Field{Key: "stream_options", Value: opts})
	}
	return chatwire.Splice(o.Body, fields...)
}

// try makes one try. again: it failed, harmed nothing, and another may not.
func (s *Sampler) try(ctx context.Context, o *call.Order, body []byte, res *call.Result, emit func(call.Delta) error) (again bool, err error) {
	res.Fault = ""
	tryCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(s.retry.Try, func() { cancel(errSilent) })
	defer watch.Stop()
	req, err := http.NewRequestWithContext(tryCtx, http.MethodPost, strings.TrimRight(o.Endpoint.URL, "/")+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return false, fulgur.E(fulgur.KindInternal, "relay call "+string(o.Call), "The model server's address is wrong", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if o.Endpoint.Key != "" {
		req.Header.Set("Authorization", "Bearer "+o.Endpoint.Key)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return true, s.failure(ctx, tryCtx, res, err)
	}
	defer resp.Body.Close()
	ctype := resp.Header.Get("Content-Type")
	if emit != nil && resp.StatusCode < 400 && strings.HasPrefix(ctype, "text/event-stream") {
		began, err := s.stream(resp, o, res, emit, func() { watch.Reset(s.retry.Try) })
		if err != nil && !errors.Is(err, errBroken) && !errors.Is(err, errUpstreamSaid) {
			return !began, s.failure(ctx, tryCtx, res, err)
		}
		if err != nil {
			res.Fault = err.Error()
			return false, fulgur.E(fulgur.KindUpstream, "relay call "+string(o.Call), "Upstream model server broke off its answer", err)
		}
		return false, nil
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return true, s.failure(ctx, tryCtx, res, err)
	}
	if len(raw) > maxAnswer {
		return false, fulgur.E(fulgur.KindUpstream, "relay call "+string(o.Call), "Upstream model server's answer is too long", nil)
	}
	readAnswer(res, o, resp.StatusCode, ctype, raw)
	res.RetryAfter = resp.Header.Get("Retry-After")
	if emit != nil && res.Status < 300 && res.Fault == "" {
		return false, emit(pieces(res.Reply)) // a server that does not stream: one piece
	}
	return sampler.Retryable(resp.StatusCode), nil
}

// pieces is a whole reply as one piece of a stream.
func pieces(m *fulgur.Message) call.Delta {
	d := call.Delta{Text: m.Content, Reasoning: m.Reasoning}
	for i, c := range m.ToolCalls {
		d.Tools = append(d.Tools, call.ToolDelta{Index: i, ID: c.ID, Name: c.Name, Arguments: c.Arguments})
	}
	return d
}

// failure names why a try brought no answer: by the call's own end first.
func (s *Sampler) failure(ctx, try context.Context, res *call.Result, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fulgur.E(fulgur.KindCanceled, "relay call", "The call was cancelled", cause)
	}
	res.Fault = err.Error()
	if errors.Is(context.Cause(try), errSilent) || sampler.IsTimeout(err) {
		res.Fault = errSilent.Error()
		return fulgur.E(fulgur.KindTimeout, "relay call", "Upstream model server timed out", err)
	}
	return fulgur.E(fulgur.KindUpstream, "relay call", "Upstream model server request failed", err)
}
