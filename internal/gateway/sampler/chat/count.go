package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
)

var _ sampler.Counter = (*Sampler)(nil)

// askLimit bounds what is asked of a server beside the call itself.
const askLimit = 10 * time.Second

// Count implements sampler.Counter with vLLM's /tokenize, which applies the
// model's own chat template.
func (s *Sampler) Count(ctx context.Context, o *call.Order) (int, error) {
	switch {
	case o.Invalid != nil:
		return 0, o.Invalid
	case len(o.Relayed) > 0:
		return 0, fulgur.E(fulgur.KindUnsupported, op(o), "The tokens of what the request has can't be counted: "+o.Relayed[0], nil)
	case o.Prompt != nil && o.Prompt.IDs != nil:
		return len(o.Prompt.IDs), nil
	}
	b := append(make([]byte, 0, len(o.Body)+256), `{"model":`...)
	b = chatwire.AppendString(b, o.Target)
	if o.Prompt != nil {
		b = append(b, `,"prompt":`...)
		b = chatwire.AppendString(b, o.Prompt.Text)
	} else {
		b = appendMessages(b, o.Messages)
		b = appendTools(b, o.Tools, "")
		b = append(b, `,"add_generation_prompt":true`...)
	}
	b = append(b, '}')
	var out struct {
		Count *int `json:"count"`
	}
	url := strings.TrimSuffix(strings.TrimRight(o.Endpoint.URL, "/"), "/v1") + "/tokenize"
	status, err := s.ask(ctx, o, http.MethodPost, url, b, &out)
	switch {
	case err != nil:
		return 0, err
	case status == http.StatusOK && out.Count != nil:
		return *out.Count, nil
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusOK:
		return 0, fulgur.E(fulgur.KindUnsupported, op(o), "This model's server does not count tokens", nil)
	}
	return 0, sampler.StatusError("ask "+url, status, nil)
}

// ask asks a server something beside the call, and decodes a good answer.
func (s *Sampler) ask(ctx context.Context, o *call.Order, method, url string, body []byte, into any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	fail := func(err error) error {
		kind := fulgur.KindUpstream
		if sampler.IsTimeout(err) {
			kind = fulgur.KindTimeout
		}
		return fulgur.E(kind, "ask "+url, "Upstream model server request failed", err)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, fail(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if o.Endpoint.Key != "" {
		req.Header.Set("Authorization", "Bearer "+o.Endpoint.Key)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, fail(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, fail(err)
	}
	if resp.StatusCode == http.StatusOK {
		_ = json.Unmarshal(text, into) // what is not there is missing
	}
	return resp.StatusCode, nil
}

// contexts remember how long the contexts of servers' models are.
type contexts struct {
	mu   sync.Mutex
	list map[string]contextLength // by address and model
}

type contextLength struct {
	tokens int // 0: the server does not say
	until  time.Time
}

// contextOf returns how many tokens a server's model takes; 0 if it does not say.
func (s *Sampler) contextOf(ctx context.Context, o *call.Order) int {
	key := o.Endpoint.URL + " " + o.Target
	now := time.Now()
	s.contexts.mu.Lock()
	c, ok := s.contexts.list[key]
	s.contexts.mu.Unlock()
	if ok && now.Before(c.until) {
		return c.tokens
	}
	var out struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	_, err := s.ask(ctx, o, http.MethodGet, strings.TrimRight(o.Endpoint.URL, "/")+"/models", nil, &out)
	if err != nil && ctx.Err() != nil {
		return 0
	}
	c = contextLength{until: now.Add(time.Minute)}
	for _, m := range out.Data {
		if m.ID == o.Target && m.MaxModelLen > 0 {
			c = contextLength{m.MaxModelLen, now.Add(10 * time.Minute)}
		}
	}
	s.contexts.mu.Lock()
	defer s.contexts.mu.Unlock()
	if s.contexts.list == nil || len(s.contexts.list) > 1024 {
		s.contexts.list = map[string]contextLength{}
	}
	s.contexts.list[key] = c
	return c.tokens
}

// room returns how many tokens to ask for; 0: no limit but the context's. Harnesses
// ask for 32,000 and more of any model, and servers refuse what does not fit.
func (s *Sampler) room(ctx context.Context, o *call.Order) int {
	want := o.Sampling.MaxTokens
	if want == 0 {
		return 0
	}
	limit := s.contextOf(ctx, o)
	switch {
	case limit == 0 || want+len(o.Body) < limit: // no token is shorter than a byte
		return want
	case want >= limit:
		return 0
	}
	n, err := s.Count(ctx, o)
	if err != nil || n >= limit {
		return want // the server says what is wrong
	}
	return min(want, limit-n)
}
