// Package chatwire holds the JSON of OpenAI's chat and text completions as
// clients and servers of today write it, with vLLM's additions (token ids,
// prompt token ids) and Fulgur's one (policy_version): structs to read, append
// functions to write. Conversion to and from call lives in dialects and
// samplers.
package chatwire

import (
	"encoding/json"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// Request is a chat completions request, as far as it is read. Fields whose
// type clients vary are raw.
type Request struct {
	Model               string          `json:"model"`
	Messages            []Message       `json:"messages"`
	Tools               json.RawMessage `json:"tools"` // a list of Tool
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ResponseFormat      *ResponseFormat `json:"response_format"`
	Stream              *bool           `json:"stream"`
	StreamOptions       *StreamOptions  `json:"stream_options"`
	N                   *int            `json:"n"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	TopK                *int            `json:"top_k"`
	MinP                *float64        `json:"min_p"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Stop                json.RawMessage `json:"stop"` // string or list of strings
	Seed                *int64          `json:"seed"`
	FrequencyPenalty    *float64        `json:"frequency_penalty"`
	PresencePenalty     *float64        `json:"presence_penalty"`
	RepetitionPenalty   *float64        `json:"repetition_penalty"`
	LogitBias           json.RawMessage `json:"logit_bias"`
	LogProbs            *bool           `json:"logprobs"`
	TopLogProbs         *int            `json:"top_logprobs"`
	ReturnTokenIDs      *bool           `json:"return_token_ids"`
	Constraints

	// Members are all of the request, where they had to be found to read it; else nil.
	Members []call.Member `json:"-"`
}

// TextRequest is a text completions request, as far as it is read: a chat
// request's parameters, and what it has in place of messages.
type TextRequest struct {
	Request
	Prompt   json.RawMessage `json:"prompt"` // see ReadPrompts
	Suffix   string          `json:"suffix"`
	Echo     bool            `json:"echo"`
	BestOf   int             `json:"best_of"`
	LogProbs json.RawMessage `json:"logprobs"` // how many alternatives are shown: a number; v1 writes true
}

// StreamOptions are the options of a streamed answer.
type StreamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// ResponseFormat constrains the answer's form.
type ResponseFormat struct {
	Type string `json:"type"` // text, json_object, json_schema
}

// Message is a message of a request or an answer. Content is a string, a list
// of blocks, or null.
type Message struct {
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	ReasoningContent string          `json:"reasoning_content"`
	Reasoning        string          `json:"reasoning"`
	ToolCalls        []ToolCall      `json:"tool_calls"`
	ToolCallID       string          `json:"tool_call_id"`
	Name             string          `json:"name"`

	text  string // Content, where it is a string that has been read
	plain bool
}

// Text is the text that Content is, if that has been read with the message.
func (m *Message) Text() (text string, ok bool) { return m.text, m.plain }

// Block is one block of a message's content.
type Block struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"`
}

// ToolCall is a tool call of a message or, with Index, a piece of one.
type ToolCall struct {
	Index    int    `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// Tool is a tool that the client offers.
type Tool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// ErrorBody is the shape of an error answer.
type ErrorBody struct {
	Error struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Code    json.RawMessage `json:"code"`
	} `json:"error"`
}

// CompletionRequest is a text completions request whose prompt is token ids.
type CompletionRequest struct {
	Model          string         `json:"model"`
	Prompt         []int32        `json:"prompt"`
	MaxTokens      *int           `json:"max_tokens"`
	Temperature    *float64       `json:"temperature"`
	TopP           float64        `json:"top_p"`
	TopK           int            `json:"top_k"`
	Seed           *int64         `json:"seed"`
	StopTokenIDs   []int32        `json:"stop_token_ids"`
	Stream         bool           `json:"stream"`
	StreamOptions  *StreamOptions `json:"stream_options"`
	LogProbs       *int           `json:"logprobs"`
	ReturnTokenIDs bool           `json:"return_token_ids"`
	N              int            `json:"n"`
	CacheKey       string         `json:"prompt_cache_key"`
	StreamInterval int            `json:"stream_interval_ms"` // Fulgur's: the least time between two events of the stream
}
