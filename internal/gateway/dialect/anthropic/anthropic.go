// Package anthropic is the dialect of Anthropic's Messages API
// (https://platform.claude.com/docs/en/api/messages), as its SDKs and Claude
// Code speak it.
//
// What it writes differs from Anthropic's own in three ways. Reasoning is always
// shown as a thinking block, with a constant signature: what comes back keeps
// the conversation one lineage. Tool calls are written when the answer is whole,
// so a client never acts on half of one. And arguments that are no JSON object,
// which no client of this API can read, are wrapped (see invalidKey).
//
// What it does not act on: cache_control, metadata, betas, thinking budgets and
// context_management (the prompt is what the client sent), is_error of tool
// results (their text says it), disable_parallel_tool_use, tools that Anthropic
// runs on its servers (the model does not get to see them).
package anthropic

import (
	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// Name is the dialect's name.
const Name = "anthropic-messages"

// Dialect is the Messages dialect.
type Dialect struct{}

var (
	_ dialect.Counter = Dialect{}
	_ dialect.Lister  = Dialect{}
)

// Name implements dialect.Dialect.
func (Dialect) Name() string { return Name }

// Paths implements dialect.Dialect. Some clients put /v1 into the base URL,
// others behind it.
func (Dialect) Paths() []string { return []string{"anthropic/v1/messages", "anthropic/messages"} }

// CountPaths implements dialect.Counter.
func (Dialect) CountPaths() []string {
	return []string{"anthropic/v1/messages/count_tokens", "anthropic/messages/count_tokens"}
}

// Lists implements dialect.Lister: Anthropic's API demands its version header,
// so every client of it sends one. A key in x-api-key says nothing: v1 takes
// keys there from any client.
func (Dialect) Lists(header func(string) string) bool { return header("anthropic-version") != "" }

func invalid(msg string) *fulgur.Error {
	return fulgur.E(fulgur.KindInvalid, "read messages request", msg, nil)
}
