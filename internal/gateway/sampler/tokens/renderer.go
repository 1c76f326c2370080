package tokens

import (
	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// Renderer turns messages into a model's tokens and back. Package render has
// the real one.
type Renderer interface {
	// Render gives the tokens of a whole conversation, up to where the model answers.
	Render(msgs []fulgur.Message, tools []fulgur.Tool) ([]int32, error)
	// Extend is Render of a conversation that goes on from a known one, with the
	// exact tokens of the known part as far as history allows.
	Extend(known Known, msgs []fulgur.Message, tools []fulgur.Tool, history string) (Prompt, error)
	// StopIDs are the tokens that end a turn.
	StopIDs() []int32
	// Reply starts reading one answer.
	Reply(tools []fulgur.Tool) Reply
	// Decode gives the text of tokens.
	Decode(ids []int32) string
	// EncodeRaw gives the tokens of a prompt that no template touches.
	EncodeRaw(text string) []int32
}

// Known is a conversation whose tokens are known: a prompt, and what was
// sampled after it.
type Known struct {
	Messages   []fulgur.Message // of the prompt
	Tools      []fulgur.Tool
	PromptIDs  []int32
	SampledIDs []int32
	Reply      fulgur.Message // what was sampled, read
}

// Prompt is a rendered prompt.
type Prompt struct {
	IDs   []int32
	Broke string // why known tokens were not reused; "" if they were
}

// Reply reads an answer token by token.
type Reply interface {
	// Feed takes the next sampled token and returns what can be shown of it.
	Feed(id int32) call.Delta
	// Finish ends it, with the generation's reason, and returns what was still
	// held back, the whole message, and whether it holds a broken tool call.
	Finish(reason string) (rest call.Delta, msg fulgur.Message, malformed bool)
}
