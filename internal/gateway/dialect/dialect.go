// Package dialect is the contract of the APIs that harnesses speak. A dialect
// is pure: bytes to a call.Request, deltas and results to bytes. It never sees
// a sampler, a socket or a clock.
//
// A new dialect is one package, one line of wiring, and testdata; it passes
// dialecttest.
package dialect

import "github.com/fulgur-rl/fulgur/internal/gateway/call"

// Dialect is one API.
type Dialect interface {
	// Name is what records carry, and the wire format that the dialect can relay
	// byte for byte: "openai-chat".
	Name() string

	// Paths are the paths that it answers by POST, below the gateway's prefix:
	// "openai/v1/chat/completions".
	Paths() []string

	// Parse reads a body. It fails (KindInvalid) only for what no upstream could
	// read; a body that is JSON but not of this API comes back with Invalid set.
	// An empty body is the empty object.
	Parse(body []byte) (*call.Request, error)

	// AppendAnswer appends the whole unstreamed answer.
	AppendAnswer(dst []byte, req *call.Request, m Meta, res *call.Result) []byte

	// Stream starts a streamed answer.
	Stream(req *call.Request, m Meta) Stream

	// AppendError appends an error body that the SDKs of this API can read.
	AppendError(dst []byte, f Failure) []byte

	// AppendModels appends the answer to a request for the list of models.
	AppendModels(dst []byte, models []string) []byte
}

// Counter is a dialect that can also be asked how many tokens a request has
// (Anthropic's count_tokens).
type Counter interface {
	Dialect
	// CountPaths are the paths of such requests; their body is Parse's.
	CountPaths() []string
	// AppendCount appends the answer.
	AppendCount(dst []byte, tokens int) []byte
}

// Lister is a dialect whose list of models is told from another's by the
// request (Anthropic's by its version header).
type Lister interface {
	Dialect
	// Lists says whether a request for the list of models with these headers is
	// of this dialect.
	Lists(header func(name string) string) bool
}

// Meta is what an answer says of itself.
type Meta struct {
	ID      string // of the call; the dialect adds its own prefix
	Created int64  // seconds since the epoch
	Model   string // the name that the client gets to see
}

// Stream writes one streamed answer, in order: any number of Delta and
// KeepAlive, then Close or Fail. Each appends whole events to dst. It is used
// from one goroutine at a time.
type Stream interface {
	// Delta appends the events of a piece. A piece that is Last, and all after
	// it, is kept for Close.
	Delta(dst []byte, d call.Delta) []byte
	// KeepAlive appends an event that means nothing but that the call lives on.
	KeepAlive(dst []byte) []byte
	// Close appends the end of a good answer, the terminal event last.
	Close(dst []byte, res *call.Result) []byte
	// Fail appends an error event. The connection is to be broken after it: a
	// stream that failed never ends as if it were whole.
	Fail(dst []byte, f Failure) []byte
}

// Failure is an error as a client gets to see it.
type Failure struct {
	Status  int
	Message string // what a stranger may read
	Type    string // "invalid_request_error", "authentication_error", …
	Code    string // a word that programs branch on: "context_length_exceeded"; "" for none
	Param   string // the field that is wrong, "" for none
}

// FieldError is the cause (fulgur.Error.Err) of a complaint about one field of
// a request: Failure.Param is its Param.
type FieldError struct {
	Param string // as the API's own errors name it: "input[3].role"
}

// Error names the field.
func (e *FieldError) Error() string { return "the field " + e.Param }
