// Package wire is the Tinker API as bytes: the JSON that all of its servers
// take, and the two forms in which they give results, JSON (SDKs up to 0.24,
// SkyRL 0.3, VeRL-Tinker) and protobuf (SDK 0.25, SkyRL 0.4, hosted). Which one
// an answer has is read from its content type.
package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"mime"
)

// The content types of results.
const (
	JSON     = "application/json"
	Protobuf = "application/x-protobuf"
)

// SampleRequest is the body of POST asample. All fields are sent, as the SDKs do.
type SampleRequest struct {
	Type               string         `json:"type"` // "sample"
	SamplingSessionID  string         `json:"sampling_session_id"`
	SeqID              int64          `json:"seq_id"` // names the request within the session
	NumSamples         int            `json:"num_samples"`
	Prompt             ModelInput     `json:"prompt"`
	Params             SamplingParams `json:"sampling_params"`
	PromptLogProbs     bool           `json:"prompt_logprobs"`
	TopKPromptLogProbs int            `json:"topk_prompt_logprobs"`
}

// ModelInput is a sequence of tokens (and, not offered here, images).
type ModelInput struct {
	Chunks []Chunk `json:"chunks"`
}

// Chunk is a part of a ModelInput.
type Chunk struct {
	Type   string  `json:"type"` // "encoded_text"
	Tokens []int32 `json:"tokens"`
}

// Text is the input of plain tokens.
func Text(tokens []int32) ModelInput {
	return ModelInput{Chunks: []Chunk{{Type: "encoded_text", Tokens: tokens}}}
}

// SamplingParams say how to sample.
type SamplingParams struct {
	MaxTokens   int     `json:"max_tokens"` // SkyRL refuses a request without
	Seed        int64   `json:"seed"`
	Temperature float64 `json:"temperature"`
	TopK        int     `json:"top_k"` // -1: off
	TopP        float64 `json:"top_p"` // 1: off
	Stop        []int32 `json:"stop"`  // null: the model's own end of text (not on SkyRL); empty: none
}

// The stop reasons.
const (
	StopReasonStop   = "stop"
	StopReasonLength = "length"
)

// Sample is the result of asample.
type Sample struct {
	Sequences      []Sequence
	CacheHitTokens int // of the prompt; only the protobuf form tells
}

// Sequence is one sampled continuation.
type Sequence struct {
	Tokens     []int32   // the stop token included
	LogProbs   []float32 // one per token; NaN: not known; nil: none given
	StopReason string    // StopReasonStop, StopReasonLength
}

// Failure is the end of a request that failed.
type Failure struct {
	Message  string
	Category string // "user": the request was at fault; "server", "unknown"
}

// Future is what retrieve_future answers with status 200: one of the three.
type Future struct {
	Pending bool // not done: ask again
	Reason  string
	Failed  *Failure
	Sample  *Sample
}

// ReadFuture reads an answer of retrieve_future to a request of asample.
func ReadFuture(contentType string, body []byte) (Future, error) {
	switch kind, _, err := mime.ParseMediaType(contentType); {
	case err == nil && kind == Protobuf:
		s, err := readSampleProto(body)
		return Future{Sample: &s}, err
	case err == nil && kind == JSON:
		return readFutureJSON(body)
	}
	return Future{}, fmt.Errorf("content type %q: a result is %s or %s", contentType, Protobuf, JSON)
}

// number is a JSON number; null is NaN.
type number float32

func (n *number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = number(math.NaN())
		return nil
	}
	var f float32
	err := json.Unmarshal(b, &f)
	*n = number(f)
	return err
}

func readFutureJSON(body []byte) (Future, error) {
	var a struct {
		Type      string  `json:"type"`
		Reason    string  `json:"queue_state_reason"`
		Error     *string `json:"error"`
		Category  string  `json:"category"`
		Status    string  `json:"status"`
		Sequences []struct {
			Tokens     []int32  `json:"tokens"`
			LogProbs   []number `json:"logprobs"`
			StopReason string   `json:"stop_reason"`
		} `json:"sequences"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return Future{}, fmt.Errorf("reading a result: %w", err)
	}
	switch {
	case a.Error != nil:
		return Future{Failed: &Failure{Message: *a.Error, Category: a.Category}}, nil
	case a.Type == "try_again":
		return Future{Pending: true, Reason: a.Reason}, nil
	case a.Status == "complete_metadata":
		return Future{}, fmt.Errorf("reading a result: only its size was sent, which was not asked for")
	}
	var s Sample
	for _, q := range a.Sequences {
		out := Sequence{Tokens: q.Tokens, StopReason: q.StopReason}
		for _, p := range q.LogProbs {
			out.LogProbs = append(out.LogProbs, float32(p))
		}
		s.Sequences = append(s.Sequences, out)
	}
	return Future{Sample: &s}, s.check()
}

// check finds what no sampler may answer.
func (s *Sample) check() error {
	if len(s.Sequences) == 0 {
		return fmt.Errorf("reading a result: it has no sequence")
	}
	for i, q := range s.Sequences {
		switch {
		case q.StopReason != StopReasonStop && q.StopReason != StopReasonLength:
			return fmt.Errorf("reading a result: sequence %d ended for the unknown reason %q", i, q.StopReason)
		case q.LogProbs != nil && len(q.LogProbs) != len(q.Tokens):
			return fmt.Errorf("reading a result: sequence %d has %d tokens and %d log probs", i, len(q.Tokens), len(q.LogProbs))
		}
	}
	return nil
}
