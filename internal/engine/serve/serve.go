// Package serve puts any engine.Generator behind HTTP, as vLLM's completions
// API with token-id prompts: what sampler/tokens, and other gateways that speak
// to vLLM, ask for tokens with. Each choice also says the policy version that
// its tokens come from (policy_version).
package serve

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// coalesce is the shortest time between two events of a stream: tokens that
// come faster share one. A client that shows them to nobody asks for a longer
// one (stream_interval_ms).
const coalesce = 10 * time.Millisecond

// Options configure a Server.
type Options struct {
	Model         string // the name it is asked for by; others are 404
	Key           string // bearer key; "": none is needed
	ContextLength int    // tokens; 0: not checked here
	VocabSize     int    // 0: ids are not checked here
	MaxBody       int64  // of a request; 0: 64 MiB
	Log           *slog.Logger
}

// Server is an http.Handler for /v1/completions, /v1/models and /health.
type Server struct {
	o   Options
	gen engine.Generator
	mux *http.ServeMux
}

// New returns a server for the generator. It starts no goroutine.
func New(gen engine.Generator, o Options) *Server {
	if o.MaxBody == 0 {
		o.MaxBody = 64 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, gen: gen, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("GET /v1/models", s.authorized(s.models))
	s.mux.HandleFunc("POST /v1/completions", s.authorized(s.completions))
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) authorized(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if s.o.Key != "" && subtle.ConstantTimeCompare([]byte(key), []byte(s.o.Key)) != 1 {
			s.fail(w, fulgur.E(fulgur.KindDenied, "authorize", "Invalid or missing API key", nil))
			return
		}
		h(w, r)
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	b := append([]byte(nil), `{"object":"list","data":[{"id":`...)
	b = chatwire.AppendString(b, s.o.Model)
	b = append(b, `,"object":"model","owned_by":"fulgur"`...)
	if s.o.ContextLength > 0 {
		b = append(b, `,"max_model_len":`...)
		b = strconv.AppendInt(b, int64(s.o.ContextLength), 10)
	}
	reply(w, http.StatusOK, append(b, "}]}"...))
}

func reply(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is no failure of ours
}

// fail answers with vLLM's error shape; code is the status.
func (s *Server) fail(w http.ResponseWriter, err error) {
	status := fulgur.KindOf(err).HTTPStatus()
	s.o.Log.Info("completion refused", "status", status, "err", err)
	reply(w, status, appendError(nil, status, fulgur.PublicMessage(err)))
}

func appendError(b []byte, status int, msg string) []byte {
	typ := "InternalServerError"
	switch {
	case status == 404:
		typ = "NotFoundError"
	case status < 500:
		typ = "BadRequestError"
	}
	b = append(b, `{"error":{"message":`...)
	b = chatwire.AppendString(b, msg)
	b = append(b, `,"type":"`...)
	b = append(b, typ...)
	b = append(b, `","param":null,"code":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	return append(b, "}}"...)
}

// read reads and checks a request.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (*chatwire.CompletionRequest, engine.GenerateRequest, error) {
	const op = "read completion request"
	bad := func(format string, args ...any) error {
		return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf(format, args...), nil)
	}
	var q chatwire.CompletionRequest
	var req engine.GenerateRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, s.o.MaxBody)).Decode(&q); err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return nil, req, fulgur.E(fulgur.KindTooLarge, op, "The request is too large", err)
		}
		var t *json.UnmarshalTypeError
		if errors.As(err, &t) && t.Field == "prompt" {
			return nil, req, bad("prompt must be a list of token ids: this server knows no text")
		}
		return nil, req, fulgur.E(fulgur.KindInvalid, op, "The request body is not a completions request: "+err.Error(), err)
	}
	switch {
	case q.Model != s.o.Model:
		return nil, req, fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("The model `%s` does not exist; this server has `%s`", q.Model, s.o.Model), nil)
	case len(q.Prompt) == 0:
		return nil, req, bad("prompt must be a list of at least one token id")
	case q.N > 1:
		return nil, req, bad("n must be 1")
	case q.Temperature != nil && *q.Temperature < 0:
		return nil, req, bad("temperature must be non-negative, got %v", *q.Temperature)
	case q.MaxTokens != nil && *q.MaxTokens < 1:
		return nil, req, bad("max_tokens must be at least 1, got %d", *q.MaxTokens)
	case s.o.ContextLength > 0 && len(q.Prompt) >= s.o.ContextLength:
		return nil, req, fulgur.E(fulgur.KindContextFull, op, fmt.Sprintf("This model's maximum context length is %d tokens; the prompt is too long with %d", s.o.ContextLength, len(q.Prompt)), nil)
	}
	for _, id := range q.Prompt {
		if id < 0 || s.o.VocabSize > 0 && int(id) >= s.o.VocabSize {
			return nil, req, bad("Token id %d is out of vocabulary", id)
		}
	}
	req = engine.GenerateRequest{Prompt: q.Prompt, MaxTokens: 16, Temperature: 1, TopP: q.TopP, TopK: max(0, q.TopK), StopIDs: q.StopTokenIDs, CacheKey: q.CacheKey}
	if q.MaxTokens != nil {
		req.MaxTokens = *q.MaxTokens
	}
	if q.Temperature != nil {
		req.Temperature = *q.Temperature
	}
	if req.Seed = rand.Uint64(); q.Seed != nil {
		req.Seed = uint64(*q.Seed)
	}
	return &q, req, nil
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	q, req, err := s.read(w, r)
	if err != nil {
		s.fail(w, err)
		return
	}
	out := &writer{q: q, id: strconv.FormatUint(rand.Uint64(), 36), created: time.Now().Unix()}
	if q.Stream {
		s.stream(w, r, out, req)
		return
	}
	gen, err := s.gen.Generate(r.Context(), req, nil)
	if err != nil {
		if r.Context().Err() == nil {
			s.fail(w, err)
		}
		return
	}
	b := out.head(nil)
	b = out.choice(b, gen.Tokens, gen.FinishReason)
	b = append(b, `],"usage":`...)
	b = out.usage(b, len(gen.Tokens), gen.CachedTokens)
	reply(w, http.StatusOK, append(b, '}'))
}

// stream sends tokens as they come. A generation that fails in the middle ends
// with an error event and no [DONE].
func (s *Server) stream(w http.ResponseWriter, r *http.Request, out *writer, req engine.GenerateRequest) {
	rc := http.NewResponseController(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var pending []engine.Token
	var last time.Time // the first token goes out at once, unless nobody waits for it
	interval := coalesce
	if ms := out.q.StreamInterval; ms > 0 {
		interval, last = time.Duration(min(ms, 10_000))*time.Millisecond, time.Now()
	}
	var buf []byte
	started := false
	write := func(b []byte) error {
		if !started {
			started = true
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		}
		_ = rc.SetWriteDeadline(time.Now().Add(time.Minute)) // a recorder in tests has none
		_, err := w.Write(b)
		return err
	}
	send := func(b []byte) error {
		if err := write(b); err != nil {
			return err
		}
		last = time.Now()
		return rc.Flush()
	}
	gen, err := s.gen.Generate(ctx, req, func(t engine.Token) error {
		if n := len(pending); n > 0 && (time.Since(last) >= interval || pending[n-1].Version != t.Version) {
			buf = out.event(buf[:0], pending, "")
			pending = pending[:0]
			if err := send(buf); err != nil {
				return err
			}
		}
		pending = append(pending, t)
		return nil
	})
	switch {
	case r.Context().Err() != nil:
		return
	case err != nil && !started:
		s.fail(w, err)
		return
	case err != nil:
		s.o.Log.Warn("generation failed", "err", err)
		buf = append(buf[:0], "data: "...)
		buf = appendError(buf, fulgur.KindOf(err).HTTPStatus(), fulgur.PublicMessage(err))
		_ = send(append(buf, "\n\n"...)) // the stream ends without [DONE] either way
		return
	}
	usage := out.q.StreamOptions != nil && out.q.StreamOptions.IncludeUsage
	if out.q.StreamInterval > 0 && usage { // our own gateway: one event less to read
		buf = out.last(buf[:0], pending, gen)
	} else {
		buf = out.event(buf[:0], pending, gen.FinishReason)
	}
	if usage && out.q.StreamInterval == 0 {
		buf = append(buf, "data: "...)
		buf = out.head(buf)
		buf = append(buf, `],"usage":`...)
		buf = out.usage(buf, len(gen.Tokens), gen.CachedTokens)
		buf = append(buf, "}\n\n"...)
	}
	_ = write(append(buf, "data: [DONE]\n\n"...)) // goes out with the end of the body; nothing is left to tell a client that is gone
}

// writer writes the JSON of one completion.
type writer struct {
	q       *chatwire.CompletionRequest
	id      string
	created int64
	opened  bool // the prompt's ids have been written
}

func (o *writer) head(b []byte) []byte {
	b = append(b, `{"id":"cmpl-`...)
	b = append(b, o.id...)
	b = append(b, `","object":"text_completion","created":`...)
	b = strconv.AppendInt(b, o.created, 10)
	b = append(b, `,"model":`...)
	b = chatwire.AppendString(b, o.q.Model)
	return append(b, `,"choices":[`...)
}

// last is the event of the last tokens and the usage in one, as vLLM's
// continuous_usage_stats has it.
func (o *writer) last(b []byte, tokens []engine.Token, gen engine.Generation) []byte {
	b = append(b, "data: "...)
	b = o.head(b)
	b = o.choice(b, tokens, gen.FinishReason)
	b = append(b, `],"usage":`...)
	b = o.usage(b, len(gen.Tokens), gen.CachedTokens)
	return append(b, "}\n\n"...)
}

func (o *writer) event(b []byte, tokens []engine.Token, finish string) []byte {
	b = append(b, "data: "...)
	b = o.head(b)
	b = o.choice(b, tokens, finish)
	return append(b, "]}\n\n"...)
}

// choice writes the one choice; its policy version is that of its first token.
func (o *writer) choice(b []byte, tokens []engine.Token, finish string) []byte {
	b = append(b, `{"index":0,"text":"","logprobs":`...)
	if o.q.LogProbs != nil {
		b = append(b, `{"token_logprobs":[`...)
		for i, t := range tokens {
			if i > 0 {
				b = append(b, ',')
			}
			b = chatwire.AppendFloat32(b, t.LogProb)
		}
		b = append(b, "]}"...)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = chatwire.AppendString(b, finish)
	}
	if o.q.ReturnTokenIDs {
		b = append(b, `,"token_ids":[`...)
		for i, t := range tokens {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(t.ID), 10)
		}
		b = append(b, ']')
		if !o.opened && o.q.StreamInterval == 0 { // who shows the stream to nobody knows its prompt
			o.opened = true
			b = append(b, `,"prompt_token_ids":`...)
			b = chatwire.AppendIDs(b, o.q.Prompt)
		}
	}
	if len(tokens) > 0 {
		b = append(b, `,"policy_version":`...)
		b = strconv.AppendInt(b, int64(tokens[0].Version), 10)
	}
	return append(b, '}')
}

func (o *writer) usage(b []byte, sampled, cached int) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(len(o.q.Prompt)), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(sampled), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(len(o.q.Prompt)+sampled), 10)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(cached), 10)
	return append(b, "}}"...)
}
