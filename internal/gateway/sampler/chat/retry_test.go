package chat_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/chat"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/samplertest"
)

const fine = `{"prompt_token_ids":[1],"choices":[{"index":0,"message":{"content":"ok"},"finish_reason":"stop","token_ids":[2],"logprobs":{"content":[{"logprob":-1}]}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`

func writeFine(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, fine)
}

// GW-11: when a try is given up, its generation has ended before the next one
// starts: there is at most one at a time.
func TestOneGenerationAtATime(t *testing.T) {
	for _, stream := range []bool{false, true} {
		var live, most, n atomic.Int64
		s, ep, _ := upstream(t, chat.Options{Retry: sampler.Retry{Tries: 4, Backoff: 100 * time.Millisecond, Try: 400 * time.Millisecond}}, func(w http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), live.Add(1)))
			defer live.Add(-1)
			if n.Add(1) < 3 {
				<-r.Context().Done() // it generates until its connection is closed
				return
			}
			writeFine(w)
		})
		var emit func(call.Delta) error
		if stream {
			emit = func(call.Delta) error { return nil }
		}
		res, err := s.Sample(t.Context(), samplertest.Order(ep, "hi", stream), emit)
		if err != nil || res.Retries != 2 || most.Load() != 1 || fmt.Sprint(res.SampledIDs) != "[2]" {
			t.Errorf("stream %t: %v, %d retries, %d generations at once", stream, err, res.Retries, most.Load())
		}
	}
}

// A status that ends no request is a broken answer, and is not passed on: 101 makes the
// client's connection another protocol's, and net/http can't write what is below 100.
func TestStatusThatIsNone(t *testing.T) {
	for _, status := range []string{"101 Switching Protocols", "099 Odd", "000 None"} {
		for _, stream := range []bool{false, true} {
			s, ep, asked := upstream(t, chat.Options{Retry: sampler.Retry{Tries: 2, Backoff: time.Millisecond}}, func(w http.ResponseWriter, _ *http.Request) {
				c, rw, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = rw.WriteString("HTTP/1.1 " + status + "\r\nContent-Type: text/event-stream\r\nContent-Length: 2\r\n\r\n{}")
				_, _ = rw.Flush(), c.Close()
			})
			emit := func(call.Delta) error { return errors.New("there is nothing to pass on") }
			if !stream {
				emit = nil
			}
			res, err := s.Sample(t.Context(), samplertest.Order(ep, "hi", stream), emit)
			if n := len(asked.take()); fulgur.KindOf(err) != fulgur.KindUpstream || n != 2 || !strings.Contains(res.Fault, "which ends no request") {
				t.Errorf("%s, stream %t: %v, fault %q, %d tries", status, stream, err, res.Fault, n)
			}
		}
	}
}

// GW-13: all tries together end before the client's own patience does, however
// many are allowed; a server that hangs and one that is always busy alike.
func TestTriesEndInTime(t *testing.T) {
	for is, answer := range map[string]http.HandlerFunc{
		"hangs": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"busy":  func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
	} {
		s, ep, asked := upstream(t, chat.Options{Retry: sampler.Retry{Tries: 1000, Backoff: 30 * time.Millisecond, Try: 200 * time.Millisecond, Total: 600 * time.Millisecond}}, answer)
		start := time.Now()
		res, err := s.Sample(t.Context(), samplertest.Order(ep, "hi", false), nil)
		if d, n := time.Since(start), len(asked.take()); d > 2*time.Second || n < 2 || n > 20 {
			t.Errorf("%s: %d tries in %v", is, n, d)
		}
		if is == "hangs" && fulgur.KindOf(err) != fulgur.KindTimeout || is == "busy" && (err != nil || res.Status != 503) {
			t.Errorf("%s: %v, status %d", is, err, res.Status)
		}
	}
}

// GW-13: a server that asks for patience gets it, up to a limit; beyond that the
// client is told.
func TestRetryAfter(t *testing.T) {
	busy := func(after string) http.HandlerFunc {
		var n atomic.Int64
		return func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) > 1 {
				writeFine(w)
				return
			}
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}
	s, ep, asked := upstream(t, chat.Options{}, busy("1"))
	start := time.Now()
	res, err := s.Sample(t.Context(), samplertest.Order(ep, "hi", false), nil)
	if n := len(asked.take()); err != nil || res.Status != 200 || time.Since(start) < time.Second || n != 2 {
		t.Errorf("%v, status %d after %v and %d tries", err, res.Status, time.Since(start), n)
	}
	s, ep, asked = upstream(t, chat.Options{}, busy("300"))
	res, err = s.Sample(t.Context(), samplertest.Order(ep, "hi", false), nil)
	if n := len(asked.take()); err != nil || res.Status != 429 || res.RetryAfter != "300" || n != 1 {
		t.Errorf("%v, status %d, %q after %d tries", err, res.Status, res.RetryAfter, n)
	}
	s, ep, _ = upstream(t, chat.Options{}, busy("20"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Sample(ctx, samplertest.Order(ep, "hi", false), nil); fulgur.KindOf(err) != fulgur.KindCanceled {
		t.Errorf("a wait that is cancelled: %v", err)
	}
}

// A stream that ends before its first event harmed nothing, and is tried again;
// one that has begun, or tells of an error, is not.
func TestBrokenStreamsAreTriedAgain(t *testing.T) {
	begun := `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	for is, c := range map[string]struct {
		first string
		tries int
		err   bool
	}{
		"nothing came":     {": ping\n\n", 2, false},
		"it had begun":     {begun, 1, true},
		"it told an error": {`data: {"error":{"code":400}}` + "\n\n", 1, true},
	} {
		var n atomic.Int64
		s, ep, asked := upstream(t, chat.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			if n.Add(1) == 1 {
				_, _ = io.WriteString(w, c.first)
				return
			}
			_, _ = io.WriteString(w, strings.Replace(begun, `"}}`, `"},"finish_reason":"stop"}`, 1)+"data: [DONE]\n\n")
		})
		_, err := s.Sample(t.Context(), samplertest.Order(ep, "hi", true), func(call.Delta) error { return nil })
		if tries := len(asked.take()); tries != c.tries || (err != nil) != c.err {
			t.Errorf("%s: %d tries, %v", is, tries, err)
		}
	}
}

// An answer whose choices leave the first one out is none: nothing of it is
// passed on as a reply, streamed or not.
func TestNoFirstChoice(t *testing.T) {
	s, ep, _ := upstream(t, chat.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.Replace(fine, `"index":0`, `"index":5`, 1))
	})
	for _, stream := range []bool{false, true} {
		var emit func(call.Delta) error
		if stream {
			emit = func(call.Delta) error { t.Error("a piece of it is passed on"); return nil }
		}
		res, err := s.Sample(t.Context(), samplertest.Order(ep, "hi", stream), emit)
		if err == nil && res.Fault == "" {
			t.Errorf("stream %t: taken for an answer: %+v", stream, res)
		}
	}
}

// GW-01: ids that do not add up to the usage are told as they are, streamed too:
// the record is then token_count_mismatch.
func TestSwallowedTokens(t *testing.T) {
	piece := func(ids string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"k","function":{"name":"f","arguments":"{}"}}]}` + ids + `}]}` + "\n\n"
	}
	stream := piece(`,"token_ids":[1,2,3,4,5]`) + piece("") + piece(`,"token_ids":[6,7,8,9,10,11]`) + piece("") + piece(`,"finish_reason":"tool_calls"`) +
		`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":27}}` + "\n\ndata: [DONE]\n\n"
	s, ep, _ := upstream(t, chat.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	})
	for _, dialect := range []string{"openai-chat", "anthropic"} {
		o := samplertest.Order(ep, "hi", true)
		o.Dialect = dialect
		pieces := 0
		res, err := s.Sample(t.Context(), o, func(call.Delta) error { pieces++; return nil })
		if err != nil || len(res.SampledIDs) != 11 || res.Usage.CompletionTokens != 27 || pieces != 6 {
			t.Errorf("%s: %v, %d ids, usage %+v, %d pieces", dialect, err, len(res.SampledIDs), res.Usage, pieces)
		}
	}
}

// R3: routed experts are asked for in training only, unstreamed, for vLLM's chunks
// have none; what comes is in no other field, and the client gets its stream.
func TestRoutedExperts(t *testing.T) {
	whole := strings.Replace(fine, `"token_ids":[2]`, `"token_ids":[2],"routed_experts":[[0],[1]]`, 1)
	chunk := `data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop","token_ids":[2],"routed_experts":[[0],[1]]}]}` + "\n\n"
	for _, dialect := range []string{"openai-chat", "anthropic"} {
		for _, stream := range []bool{false, true} {
			for _, mode := range []fulgur.Mode{fulgur.ModeTrain, fulgur.ModeVal} {
				streamed := stream && mode == fulgur.ModeVal
				s, ep, asked := upstream(t, chat.Options{RoutedExperts: true}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", map[bool]string{false: "application/json", true: "text/event-stream"}[streamed])
					_, _ = io.WriteString(w, map[bool]string{false: whole, true: chunk}[streamed])
				})
				o := samplertest.Order(ep, "hi", stream)
				o.Mode, o.Dialect = mode, dialect
				o.Body = append(o.Body[:len(o.Body)-1], `,"stream_options":{"include_usage":true}}`...)
				shown := 0
				var emit func(call.Delta) error
				if stream {
					emit = func(d call.Delta) error {
						if shown++; strings.Contains(string(d.Raw), "experts") {
							t.Errorf("the client gets %s", d.Raw)
						}
						return nil
					}
				}
				res, err := s.Sample(t.Context(), o, emit)
				if err != nil || string(res.Experts) != "[[0],[1]]" || strings.Contains(string(res.Raw), "experts") || stream != (shown > 0) || res.Reply.Content != "ok" {
					t.Errorf("%s, stream %t, %s: %v, %s, %s", dialect, stream, mode, err, res.Experts, res.Raw)
				}
				got := asked.take()[0]
				if strings.Contains(got, `"return_routed_experts":true`) != (mode == fulgur.ModeTrain) || strings.Contains(got, `"stream":true`) != streamed ||
					stream && mode == fulgur.ModeTrain && strings.Contains(got, "include_usage") {
					t.Errorf("%s, stream %t, %s: asked %s", dialect, stream, mode, got)
				}
			}
		}
	}
}
