// Package samplertest is the conformance suite of samplers, with a model for
// them that needs no weights: a byte-level renderer and a scripted generator.
package samplertest

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/sampler/tokens"
)

// The byte model's special tokens; 0 to 255 are bytes.
const (
	EndOfTurn  int32 = 256
	roleBase   int32 = 257 // + role
	toolOpen   int32 = 270
	toolClose  int32 = 271
	VocabSize        = 272
	ContextLen       = 4096
)

var roles = []string{"system", "developer", "user", "assistant", "tool"}

// Bytes renders conversations for a model of bytes: a role token, the content's
// bytes, tool calls between two tokens as {"name","arguments"}, an end of turn.
type Bytes struct{}

var _ tokens.Renderer = Bytes{}

// Encode gives the tokens of a text.
func Encode(s string) []int32 {
	out := make([]int32, len(s))
	for i := range len(s) {
		out[i] = int32(s[i])
	}
	return out
}

// Answer gives the tokens of a whole reply, its end of turn included.
func Answer(m fulgur.Message) []int32 {
	out := Encode(m.Content)
	for _, c := range m.ToolCalls {
		out = append(out, toolOpen)
		out = append(out, Encode(`{"name":`+quote(c.Name)+`,"arguments":`+c.Arguments+`}`)...)
		out = append(out, toolClose)
	}
	return append(out, EndOfTurn)
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func renderOne(dst []int32, m fulgur.Message) []int32 {
	for i, r := range roles {
		if r == m.Role {
			dst = append(dst, roleBase+int32(i))
		}
	}
	return append(dst, Answer(m)...)
}

// Render implements tokens.Renderer.
func (Bytes) Render(msgs []fulgur.Message, tools []fulgur.Tool) ([]int32, error) {
	var out []int32
	for _, t := range tools {
		out = append(out, Encode(string(t.Raw))...)
	}
	for _, m := range msgs {
		out = renderOne(out, m)
	}
	return append(out, roleBase+3), nil
}

// Extend implements tokens.Renderer.
func (b Bytes) Extend(known tokens.Known, msgs []fulgur.Message, tools []fulgur.Tool, _ string) (tokens.Prompt, error) {
	n := len(known.Messages)
	if len(msgs) <= n || !known.Reply.Same(msgs[n]) {
		ids, err := b.Render(msgs, tools)
		return tokens.Prompt{IDs: ids, Broke: "rewritten"}, err
	}
	out := append(append([]int32(nil), known.PromptIDs...), known.SampledIDs...)
	for _, m := range msgs[n+1:] {
		out = renderOne(out, m)
	}
	return tokens.Prompt{IDs: append(out, roleBase+3)}, nil
}

// StopIDs implements tokens.Renderer.
func (Bytes) StopIDs() []int32 { return []int32{EndOfTurn} }

// Decode implements tokens.Renderer.
func (Bytes) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		if id < 256 {
			b.WriteByte(byte(id))
		}
	}
	return b.String()
}

// EncodeRaw implements tokens.Renderer.
func (Bytes) EncodeRaw(text string) []int32 { return Encode(text) }

// Reply implements tokens.Renderer.
func (Bytes) Reply(tools []fulgur.Tool) tokens.Reply { return &reply{} }

type reply struct {
	msg    fulgur.Message
	held   []byte // of an unfinished character
	inTool bool
	tool   []byte
	bad    bool
}

func (r *reply) Feed(id int32) call.Delta {
	switch {
	case id == toolOpen:
		r.inTool, r.tool = true, nil
	case id == toolClose:
		r.inTool = false
		var c struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
		if json.Unmarshal(r.tool, &c) != nil {
			r.bad = true
			return call.Delta{}
		}
		d := call.ToolDelta{Index: len(r.msg.ToolCalls), Name: c.Name, Arguments: string(c.Arguments)}
		r.msg.ToolCalls = append(r.msg.ToolCalls, fulgur.ToolCall{Name: c.Name, Arguments: d.Arguments})
		return call.Delta{Tools: []call.ToolDelta{d}}
	case id >= 256:
	case r.inTool:
		r.tool = append(r.tool, byte(id))
	default:
		r.held = append(r.held, byte(id))
		if utf8.FullRune(r.held) {
			return call.Delta{Text: r.flush()}
		}
	}
	return call.Delta{}
}

func (r *reply) flush() string {
	s := strings.ToValidUTF8(string(r.held), "\ufffd")
	r.held = nil
	r.msg.Content += s
	return s
}

func (r *reply) Finish(string) (call.Delta, fulgur.Message, bool) {
	d := call.Delta{Text: r.flush()}
	return d, r.msg, r.bad || r.inTool
}

// Script is a generator that answers as it is told: a real token sampler but
// for the weights. Log probs are a function of token and position.
type Script struct {
	// Reply gives the tokens of the answer to a prompt.
	Reply func(req engine.GenerateRequest) []int32
	// Delay between two tokens.
	Delay time.Duration
	// Fail, if not nil, ends a generation after FailAfter tokens.
	Fail      error
	FailAfter int

	mu      sync.Mutex
	version fulgur.PolicyVersion
	live    int
	calls   int
	seen    []engine.GenerateRequest
}

var _ engine.Generator = (*Script)(nil)

// Publish sets the version of tokens sampled from now on.
func (s *Script) Publish(v fulgur.PolicyVersion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = v
}

// Live returns how many generations run now; Calls how many were started.
func (s *Script) Live() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

// Calls returns how many generations were started.
func (s *Script) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Requests returns what was asked so far.
func (s *Script) Requests() []engine.GenerateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]engine.GenerateRequest(nil), s.seen...)
}

// LogProb is the log prob of the token at a position of an answer.
func LogProb(id int32, at int) float32 {
	return float32(-math.Abs(math.Sin(float64(id)*1.7 + float64(at))))
}

// Generate implements engine.Generator.
func (s *Script) Generate(ctx context.Context, req engine.GenerateRequest, emit func(engine.Token) error) (engine.Generation, error) {
	s.mu.Lock()
	s.live++
	s.calls++
	s.seen = append(s.seen, req)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.live--
		s.mu.Unlock()
	}()
	var out engine.Generation
	if len(req.Prompt) == 0 {
		return out, fulgur.E(fulgur.KindInvalid, "generate", "prompt is empty", nil)
	}
	for i, id := range s.Reply(req) {
		if s.Fail != nil && i == s.FailAfter {
			return out, s.Fail
		}
		if s.Delay > 0 {
			select {
			case <-time.After(s.Delay):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		s.mu.Lock()
		v := s.version
		s.mu.Unlock()
		t := engine.Token{ID: id, LogProb: LogProb(id, i), Version: v}
		out.Tokens = append(out.Tokens, t)
		if emit != nil {
			if err := emit(t); err != nil {
				return out, err
			}
		}
		if id == EndOfTurn {
			out.FinishReason = "stop"
			return out, nil
		}
		if req.MaxTokens > 0 && i+1 >= req.MaxTokens {
			out.FinishReason = "length"
			return out, nil
		}
	}
	return out, errors.New("the script ended before its turn did")
}

// Say is a Script's Reply that always answers with one message.
func Say(m fulgur.Message) func(engine.GenerateRequest) []int32 {
	ids := Answer(m)
	return func(engine.GenerateRequest) []int32 { return ids }
}
