// Package call is the one internal form of a model call, where dialects (what
// harnesses speak) and samplers (where calls go) meet: N dialects and M samplers
// need N+M converters, and neither side knows the other.
//
// A dialect makes a Request of a body; the gateway decides and makes an Order of
// it; a sampler fills it with Deltas and a Result; the dialect writes those back
// in its own shape, and the gateway makes the record of them.
package call

import "github.com/fulgur-rl/fulgur"

// Request is what a client asked, as far as the gateway needs to know. Body is
// never changed; the rest is read from it.
type Request struct {
	Body    []byte // the bytes of the client; a JSON object
	Dialect string // the name of the dialect that read it: "openai-chat"
	Model   string // as the harness asked
	Stream  bool
	N       int // answers asked for; at least 1
	// Members are all top-level members of Body, in order, where the dialect has found
	// them; nil: whoever needs them looks for them.
	Members []Member

	// Prompt is what a completions request has in place of messages; nil for all
	// others, and then Messages counts.
	Prompt   *Prompt
	Messages []fulgur.Message // normal form
	Tools    []fulgur.Tool
	// ToolChoice is "" (absent), "auto", "none", "required", or "function NAME".
	ToolChoice string
	Wishes     Wishes

	// IncludeUsage: the client wants usage in the stream. LogProbs, TokenIDs: it
	// wants them in the answer.
	IncludeUsage bool
	LogProbs     bool
	TopLogProbs  int
	TokenIDs     bool

	// Invalid says why the normal form could not be made. A sampler that relays
	// bytes leaves the judgement to its upstream; one that needs the messages
	// refuses with it. It is an *fulgur.Error of KindInvalid.
	Invalid error
	// Relayed names what only an upstream of the same dialect can do (images,
	// audio). A token sampler refuses them.
	Relayed []string
	// Constrained names what makes the answer's distribution another than the
	// policy's (a forced tool, a JSON schema).
	Constrained []string

	read func(body []byte) (*Request, error) // not nil: Prompt, Messages and Tools are out
}

// Member says where in a body the value of a top-level member stands.
type Member struct {
	Key        string
	Start, End int
}

// Prompt is a prompt that no template touches: text, or token ids.
type Prompt struct {
	Text string
	IDs  []int32 // nil: Text counts
}

// Wishes are the sampling parameters of a request; nil means absent.
type Wishes struct {
	Temperature *float64
	TopP        *float64
	TopK        *int
	MaxTokens   *int
	Stop        []string
	Seed        *int64
	// Others names parameters that are present, change the distribution, and do
	// not stand at their neutral value: frequency_penalty, logit_bias, …
	Others []string
}

// Order is a request with what the gateway decided: what a sampler works on.
type Order struct {
	*Request
	Call     fulgur.CallID
	Run      fulgur.RunID
	Rollout  fulgur.RolloutID // "" for plain serving
	Attempt  fulgur.AttemptID
	Group    fulgur.GroupID
	Index    int // of the call in its attempt
	Mode     fulgur.Mode
	Endpoint fulgur.Endpoint
	Target   string // the model's name upstream

	// Sampling is what to sample with. Temperature is always meant; MaxTokens 0
	// is "as much as there is room for".
	Sampling fulgur.Sampling
	// ForceTemperature: the temperature is the run's or the server's, not the
	// client's, and is put into a relayed body. CapTokens, if not 0, is the most
	// that may be sampled, whatever the client asked for.
	ForceTemperature bool
	CapTokens        int
	// ForceCut: top-p and top-k are the run's too. Neutral names what of
	// Wishes.Others a relayed body must have at its neutral value.
	ForceCut bool
	Neutral  []string
	// Frozen: what answers is not the policy, and may be somebody else's server: a
	// relay asks it for nothing that the client did not.
	Frozen bool
	// Held: a pause held it, and it goes on at once with all others that it held.
	Held bool
	// NeedLogProbs: the upstream is asked for token ids and log probs.
	NeedLogProbs bool
	// Resume, if not nil, is how far the call got before it was cut off: the
	// result goes on from its tokens, and what they say has been shown. Only
	// samplers that can (sampler.Resumes) are asked to.
	Resume *Result
}

// Token is a sampled token.
type Token struct {
	ID      int32
	LogProb float32
	Text    string // set only if the client asked for log probs
}

// ToolDelta is a piece of a tool call. ID and Name come with the first piece.
type ToolDelta struct {
	Index     int
	ID        string
	Name      string
	Arguments string // appended to what came before
}

// Delta is a piece of a streamed answer.
type Delta struct {
	Text      string
	Reasoning string
	Tools     []ToolDelta
	Tokens    []Token // those that this piece comes from; may come with no text
	PromptIDs []int32 // with the first piece

	// Raw is the upstream's own event in the wire format Wire, to be relayed by
	// the dialect of that name; the fields above are then not set. UsageOnly: it
	// is for clients that asked for usage.
	Raw       []byte
	Wire      string
	UsageOnly bool
	// Last: from this piece on nothing goes out before the call is on record.
	Last bool
}

// Result is how a call came out. It is there after a failure too, with as much
// as was received.
type Result struct {
	Status      int    // the HTTP status of the answer
	ContentType string // of Raw; "" is JSON
	RetryAfter  string // the upstream's header of that name, for the client
	// Raw is the upstream's whole answer, unstreamed, in the wire format Wire;
	// nil if the dialect has to write it from the fields below.
	Raw  []byte
	Wire string
	// Relayed: the answer's events have been passed on as they came.
	Relayed bool
	Sent    []byte // what went upstream, where it differs from the client's body

	Reply      *fulgur.Message
	Malformed  bool // the reply holds a tool call that could not be read
	PromptIDs  []int32
	SampledIDs []int32
	LogProbs   []float32 // one per sampled id; NaN where the upstream gave none or nonsense
	TokenTexts []string  // of SampledIDs; only if the client asked for log probs
	Spans      []fulgur.Span
	Finish     string // stop, length, tool_calls; "" if it was cut off
	Stopped    string // which of the request's stop strings ended it; "" if none, or the upstream did not say
	Usage      *fulgur.Usage
	// Experts are the routed experts that the upstream told, as it told them (JSON);
	// nil if it told none. They are in no other field.
	Experts  []byte
	Sampling fulgur.Sampling // what it was sampled with
	Retries  int
	// Broke classifies why a conversation's tokens were not reused, "" if they
	// were or there was none.
	Broke string
	// Fault is the upstream's failure in words, for the record; "" if none.
	Fault string

	// Settled, if not nil, is to be called when the result is on record, or is known not to
	// get there: the sampler lets others' answers wait for that, for a while.
	Settled func()
}

// Mixed says whether tokens of more than one policy version are in the answer.
func (r *Result) Mixed() bool { return len(r.Spans) > 1 }

// AddSpan notes that the token at position start has the given version.
func AddSpan(spans []fulgur.Span, start int, v fulgur.PolicyVersion) []fulgur.Span {
	if n := len(spans); n > 0 && spans[n-1].Version == v {
		return spans
	}
	return append(spans, fulgur.Span{Start: start, Version: v})
}
