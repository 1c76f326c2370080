package fulgur

import (
	"encoding/json"
	"time"
)

// Mode says which policy answers a call, and with which temperature.
type Mode string

// The modes.
const (
	ModeTrain Mode = "train"
	ModeVal   Mode = "val"
)

// Sampling are the parameters a call was really sampled with.
type Sampling struct {
	Temperature float64  `json:"temperature"`
	TopP        float64  `json:"top_p,omitempty"` // 0 and 1: off
	TopK        int      `json:"top_k,omitempty"` // 0: off
	MaxTokens   int      `json:"max_tokens,omitempty"`
	Stop        []string `json:"stop,omitempty"`
	Seed        uint64   `json:"seed,omitempty"`
	// Others names parameters beside these that made the distribution another one
	// (penalties, logit_bias); their values are in the request.
	Others []string `json:"others,omitempty"`
}

// Usage counts tokens as the OpenAI API reports them.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	CachedTokens     int `json:"cached_tokens,omitempty"` // of the prompt, found in the prefix cache
}

// Span says that the sampled tokens from Start on (until the next span) come
// from one policy version.
type Span struct {
	Start   int           `json:"start"`
	Version PolicyVersion `json:"version"`
}

// Fate says what became of the client of a call.
type Fate string

// The fates.
const (
	FateDelivered Fate = "delivered" // the terminal event or last byte went out
	FateLeft      Fate = "left"      // the client hung up before
	FateRefused   Fate = "refused"   // answered with an error
)

// Reasons why a call may not train. The set is open; these are the usual ones.
const (
	UntrainableMode      = "validation"           // not a training call
	UntrainableNoIDs     = "missing_token_ids"    // the upstream gave no prompt or sampled ids
	UntrainableCount     = "token_count_mismatch" // ids and usage disagree
	UntrainableLogProbs  = "bad_log_probs"        // missing, not finite, or of another length
	UntrainableAborted   = "aborted"              // cancelled or cut off
	UntrainableError     = "error"                // the upstream failed
	UntrainableContext   = "context_full"         // the prompt, or what may follow it, does not fit the model's context
	UntrainableSampling  = "off_contract"         // sampled with parameters the run does not train on
	UntrainableLate      = "late"                 // its attempt had ended, or was followed by another, before the call had
	UntrainableAuxiliary = "auxiliary"            // not the agent's own conversation
	UntrainableIDs       = "bad_token_ids"        // ids that the model's vocabulary does not have
	UntrainableFrozen    = "frozen_model"         // another model than the policy answered
)

// Call is the record of one model call.
type Call struct {
	ID      CallID    `json:"id"`
	Seq     Seq       `json:"seq"`
	Run     RunID     `json:"run"`
	Rollout RolloutID `json:"rollout"`
	Attempt AttemptID `json:"attempt"`
	Index   int       `json:"index"` // in the attempt, by time of arrival, from 0
	Mode    Mode      `json:"mode"`
	Dialect string    `json:"dialect"` // "openai-chat", …
	Model   string    `json:"model"`   // as the harness asked
	Stream  bool      `json:"stream"`

	Endpoint Endpoint        `json:"endpoint"`           // where it went; Key is never kept
	Request  json.RawMessage `json:"request,omitempty"`  // the body as the client sent it
	Sent     json.RawMessage `json:"sent,omitempty"`     // the body that went upstream, where it differs
	Response json.RawMessage `json:"response,omitempty"` // the whole answer, unstreamed form

	Messages []Message `json:"messages,omitempty"` // the prompt in normal form
	Tools    []Tool    `json:"tools,omitempty"`
	Reply    *Message  `json:"reply,omitempty"`

	PromptIDs  []int32   `json:"prompt_ids,omitempty"`
	SampledIDs []int32   `json:"sampled_ids,omitempty"`
	LogProbs   []float32 `json:"log_probs,omitempty"` // of SampledIDs, temperature as Sampling says
	Spans      []Span    `json:"spans,omitempty"`
	// RoutedExperts is what the upstream told of the experts that a mixture of
	// experts chose for each token, as it told it (R3); it is in no other field.
	RoutedExperts json.RawMessage `json:"routed_experts,omitempty"`

	Sampling     Sampling `json:"sampling"`
	Usage        *Usage   `json:"usage,omitempty"`
	FinishReason string   `json:"finish_reason,omitempty"` // stop, length, tool_calls
	HTTPStatus   int      `json:"http_status"`
	Error        string   `json:"error,omitempty"`
	Fate         Fate     `json:"fate"`
	Retries      int      `json:"retries,omitempty"` // tries of the upstream after the first
	Joined       int      `json:"joined,omitempty"`  // repetitions by the client that this one generation answered

	Trainable   bool     `json:"trainable"`
	Untrainable []string `json:"untrainable,omitempty"` // the reasons, when not
	Auxiliary   string   `json:"auxiliary,omitempty"`   // the rule that labelled it

	StartedAt time.Time     `json:"started_at"`
	Latency   time.Duration `json:"latency"`
}

// Version returns the policy version of the call's first sampled token, or the
// endpoint's if nothing was sampled.
func (c *Call) Version() PolicyVersion {
	if len(c.Spans) > 0 {
		return c.Spans[0].Version
	}
	return c.Endpoint.Version
}

// Sample is one training sequence. It belongs to exactly one rollout. All
// slices have the length of Tokens; position i says something of Tokens[i].
type Sample struct {
	Rollout  RolloutID       `json:"rollout"`
	Group    GroupID         `json:"group"`
	Tokens   []int32         `json:"tokens"`
	Mask     []bool          `json:"mask"`      // sampled by the policy and trainable
	LogProbs []float32       `json:"log_probs"` // at sampling; 0 where not sampled
	Versions []PolicyVersion `json:"versions"`  // -1 where not sampled
	Calls    []CallID        `json:"calls"`     // in order
	// Experts are those that a mixture of experts chose in the pass that sampled,
	// or would have sampled, the token (its input was the one before): layer by
	// layer; nil where that is not on record. Absent if no call has any.
	Experts [][]uint16 `json:"routed_experts,omitempty"`
}
