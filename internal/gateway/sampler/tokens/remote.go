package tokens

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

// Remote is a generator behind vLLM's /v1/completions with token-id prompts
// (vLLM, SGLang, and Fulgur's own engine/serve). It is made for one call.
type Remote struct {
	client *http.Client
	ep     fulgur.Endpoint
	retry  sampler.Retry

	Retries int // tries after the first, of the last Generate
}

var _ engine.Generator = (*Remote)(nil)

// NewRemote returns a generator for one call to the endpoint.
func NewRemote(client *http.Client, ep fulgur.Endpoint, retry sampler.Retry) *Remote {
	return &Remote{client: client, ep: ep, retry: retry.Defaults()}
}

// Generate implements engine.Generator. Tries are repeated only while no token
// has come; each is cancelled before the next starts.
func (r *Remote) Generate(ctx context.Context, req engine.GenerateRequest, emit func(engine.Token) error) (gen engine.Generation, err error) {
	defer func() { gen.Retries = r.Retries }()
	start := time.Now()
	if req.MaxTokens == 0 {
		n, err := r.room(ctx, len(req.Prompt))
		if err != nil {
			return engine.Generation{}, err
		}
		req.MaxTokens = n
	}
	body := r.body(req, emit == nil)
	for {
		out, again, after, err := r.try(ctx, r.retry.Limit(time.Since(start)), body, emit)
		if err == nil || !again || ctx.Err() != nil {
			return out, err
		}
		wait, more := r.retry.Pause(r.Retries+1, time.Since(start), after)
		if !more {
			return out, err
		}
		r.retry.Tell(r.Retries+1, r.ep.URL, wait, err)
		if sampler.Wait(ctx, wait) != nil {
			return out, err
		}
		r.Retries++
	}
}

// quiet is the interval of the events of a stream that is shown to nobody. It is
// a stream all the same, so that what was sampled is known when the call is cut off,
// and silence tells a dead server from a slow one.
const quiet = `,"stream_interval_ms":250`

// body writes the request. The seed is 63 bits wide: servers take a signed one.
func (r *Remote) body(req engine.GenerateRequest, unseen bool) []byte {
	b := make([]byte, 0, 512+8*len(req.Prompt))
	b = append(b, `{"model":`...)
	b = chatwire.AppendString(b, r.ep.Model)
	b = append(b, `,"prompt":`...)
	b = chatwire.AppendIDs(b, req.Prompt)
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(req.MaxTokens), 10)
	b = append(b, `,"temperature":`...)
	b = chatwire.AppendFloat(b, req.Temperature)
	if req.TopP > 0 && req.TopP < 1 {
		b = append(b, `,"top_p":`...)
		b = chatwire.AppendFloat(b, req.TopP)
	}
	if req.TopK > 0 {
		b = append(b, `,"top_k":`...)
		b = strconv.AppendInt(b, int64(req.TopK), 10)
	}
	b = append(b, `,"seed":`...)
	b = strconv.AppendUint(b, req.Seed&math.MaxInt64, 10)
	if len(req.StopIDs) > 0 {
		b = append(b, `,"stop_token_ids":`...)
		b = chatwire.AppendIDs(b, req.StopIDs)
	}
	if req.CacheKey != "" {
		b = append(b, `,"prompt_cache_key":`...)
		b = chatwire.AppendString(b, req.CacheKey)
	}
	if unseen {
		b = append(b, quiet...)
	}
	return append(b, `,"logprobs":1,"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true}}`...)
}

func (r *Remote) post(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(r.ep.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.ep.Key != "" {
		req.Header.Set("Authorization", "Bearer "+r.ep.Key)
	}
	if r.client.Transport == nil {
		return r.client.Do(req)
	}
	// A client would copy the headers, for redirects that it does not follow.
	if u := req.URL.User; u != nil && r.ep.Key == "" {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
	}
	return r.client.Transport.RoundTrip(req)
}

// room asks the server for the model's context length: without a limit a
// completion ends after 16 tokens.
func (r *Remote) room(ctx context.Context, prompt int) (int, error) {
	resp, err := r.post(ctx, http.MethodGet, "/models", nil)
	if err != nil {
		return 0, r.fail(ctx, err)
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list); err != nil {
		return 0, r.fail(ctx, err)
	}
	for _, m := range list.Data {
		if m.ID == r.ep.Model && m.MaxModelLen > prompt {
			return m.MaxModelLen - prompt, nil
		}
	}
	return 4096, nil
}

func (r *Remote) fail(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errSilent) {
		return cause
	}
	if sampler.IsTimeout(err) || errors.Is(context.Cause(ctx), errSilent) {
		return fulgur.E(fulgur.KindTimeout, "ask "+r.ep.URL, "Upstream model server timed out", err)
	}
	return fulgur.E(fulgur.KindUpstream, "ask "+r.ep.URL, "Upstream model server request failed", err)
}

var errSilent = errors.New("the model server was silent for too long")

var readBuffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// try makes one try, whose answer must start within limit; again says that
// another one may help and harms nothing, after how long the server wants to be
// left alone. When it returns, nothing of it runs on: its connection is closed.
func (r *Remote) try(ctx context.Context, limit time.Duration, body []byte, emit func(engine.Token) error) (out engine.Generation, again bool, after time.Duration, err error) {
	tryCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(limit, func() { cancel(errSilent) })
	defer watch.Stop()
	resp, err := r.post(tryCtx, http.MethodPost, "/completions", body)
	if err != nil {
		return out, true, 0, r.failTry(ctx, tryCtx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return out, sampler.Retryable(resp.StatusCode), sampler.RetryAfter(resp.Header), sampler.StatusError("ask "+r.ep.URL, resp.StatusCode, text)
	}
	rd := &reader{version: r.ep.Version, emit: emit}
	var parser sse.Parser
	buf := readBuffers.Get().(*[16 << 10]byte)
	defer readBuffers.Put(buf) // the parser's events are copies
	for !rd.done {
		n, rerr := resp.Body.Read(buf[:])
		watch.Reset(r.retry.Try)
		if err := parser.Feed(buf[:n], rd.event); err != nil {
			return rd.out, false, 0, err
		}
		if rerr == io.EOF && rd.out.FinishReason != "" {
			break // a server that forgets [DONE]
		}
		if rerr != nil && !rd.done {
			return rd.out, len(rd.out.Tokens) == 0, 0, r.failTry(ctx, tryCtx, rerr)
		}
	}
	sampler.Finish(resp)
	return rd.out, false, 0, nil
}

// failTry names the failure by the caller's context first, then by the try's.
func (r *Remote) failTry(ctx, try context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return r.fail(try, err)
}

// reader reads the events of one streamed completion.
type reader struct {
	version fulgur.PolicyVersion
	emit    func(engine.Token) error
	out     engine.Generation
	done    bool
}

func (r *reader) event(ev sse.Event) error {
	if string(ev.Data) == "[DONE]" {
		r.done = true
		return nil
	}
	c, err := chatwire.ReadCompletion(chatwire.Mend(ev.Data))
	if err != nil {
		return fulgur.E(fulgur.KindUpstream, "read completion", "Upstream model server sent what is no completion", err)
	}
	if c.Error != "" {
		return fulgur.E(fulgur.KindUpstream, "read completion", "Upstream model server failed in the middle of the answer", errors.New(c.Error))
	}
	r.out.CachedTokens = max(r.out.CachedTokens, c.CachedTokens)
	for i := range c.Choices {
		if err := r.choice(&c.Choices[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) choice(c *chatwire.CompletionChoice) error {
	version := r.version
	if c.Version != nil {
		version = fulgur.PolicyVersion(*c.Version)
	}
	r.out.Tokens = slices.Grow(r.out.Tokens, len(c.TokenIDs))
	for i, id := range c.TokenIDs {
		t := engine.Token{ID: id, LogProb: float32(math.NaN()), Version: version}
		if i < len(c.LogProbs) {
			t.LogProb = c.LogProbs[i]
		}
		r.out.Tokens = append(r.out.Tokens, t)
		if r.emit != nil {
			if err := r.emit(t); err != nil {
				return err
			}
		}
	}
	if c.FinishReason != "" {
		r.out.FinishReason = c.FinishReason
	}
	return nil
}
