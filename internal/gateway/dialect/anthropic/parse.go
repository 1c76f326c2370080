package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// request is a request's body, as far as it is read.
type request struct {
	Model         string            `json:"model"`
	System        json.RawMessage   `json:"system"` // string or blocks
	Messages      []message         `json:"messages"`
	Tools         []json.RawMessage `json:"tools"` // each a tool
	ToolChoice    *toolChoice       `json:"tool_choice"`
	MaxTokens     *int              `json:"max_tokens"`
	StopSequences []string          `json:"stop_sequences"`
	Temperature   *float64          `json:"temperature"`
	TopP          *float64          `json:"top_p"`
	TopK          *int              `json:"top_k"`
	Stream        *bool             `json:"stream"`
	OutputFormat  *format           `json:"output_format"`
	OutputConfig  *struct {
		Format *format `json:"format"`
	} `json:"output_config"`
	MCPServers []json.RawMessage `json:"mcp_servers"`
	Container  json.RawMessage   `json:"container"`
}

type format struct {
	Type string `json:"type"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"` // string or blocks
}

type toolChoice struct {
	Type string `json:"type"` // auto, any, none, tool
	Name string `json:"name"`
}

// Parse implements dialect.Dialect. Content is a string or blocks; null, "" and
// absent are one; unknown fields are ignored. max_tokens may be missing: it is in
// requests to count tokens.
func (Dialect) Parse(body []byte) (*call.Request, error) {
	var w request
	body, refusal, err := chatwire.ReadObject(body, &w)
	if refusal != "" {
		return nil, invalid(refusal)
	}
	r := reader{req: &call.Request{Body: body, Dialect: Name, N: 1, IncludeUsage: true}}
	if err != nil {
		r.fail(typeMessage(err))
	}
	r.read(&w)
	return r.req, nil
}

// typeMessage says which field has the wrong type.
func typeMessage(err error) string {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) && t.Field != "" {
		return fmt.Sprintf("The field %q has the wrong type: got a JSON %s", t.Field, t.Value)
	}
	if t != nil {
		return fmt.Sprintf("Got a JSON %s where an object or a list is needed", t.Value)
	}
	return "The request body is not a messages request"
}

// reader makes the internal request.
type reader struct {
	req    *call.Request
	server []string // names of the tools that Anthropic would run
}

// fail keeps the first complaint.
func (r *reader) fail(msg string) {
	if r.req.Invalid == nil {
		r.req.Invalid = invalid(msg)
	}
}

// relay notes what only Anthropic's own models could do.
func (r *reader) relay(what string) {
	if !slices.Contains(r.req.Relayed, what) {
		r.req.Relayed = append(r.req.Relayed, what)
	}
}

func (r *reader) read(w *request) {
	req := r.req
	req.Model = w.Model
	req.Stream = w.Stream != nil && *w.Stream
	req.Wishes = call.Wishes{Temperature: w.Temperature, TopP: w.TopP, TopK: w.TopK, MaxTokens: w.MaxTokens}
	for _, s := range w.StopSequences {
		if s != "" {
			req.Wishes.Stop = append(req.Wishes.Stop, s)
		}
	}
	if t := w.Temperature; t != nil && *t < 0 {
		r.fail("temperature must be at least 0")
	}
	if p := w.TopP; p != nil && (*p < 0 || *p > 1) {
		r.fail("top_p must be between 0 and 1")
	}
	if n := w.MaxTokens; n != nil && *n < 1 {
		r.fail("max_tokens must be at least 1")
	}
	for i, raw := range w.Tools {
		r.tool(i, raw)
	}
	r.choose(w.ToolChoice)
	f := w.OutputFormat
	if w.OutputConfig != nil && w.OutputConfig.Format != nil {
		f = w.OutputConfig.Format
	}
	if f != nil && f.Type != "" && f.Type != "text" {
		req.Constrained = append(req.Constrained, "output format "+f.Type)
	}
	if len(w.MCPServers) > 0 {
		r.relay("MCP servers")
	}
	if c := w.Container; len(c) > 0 && string(c) != "null" {
		r.relay("a container")
	}
	r.system(w.System)
	if len(w.Messages) == 0 {
		r.fail("messages must be a list with at least one message")
	}
	for i := range w.Messages {
		if err := r.message(&w.Messages[i]); err != nil {
			r.fail(fmt.Sprintf("messages[%d]: %v", i, err))
		}
	}
}

// choose reads the choice of tools. A model that is not Anthropic's can't call
// a tool that Anthropic runs, so forcing one can't be left out quietly.
func (r *reader) choose(c *toolChoice) {
	if c == nil {
		return
	}
	req := r.req
	switch c.Type {
	case "auto", "none":
		req.ToolChoice = c.Type
		return
	case "any":
		req.ToolChoice = "required"
	case "tool":
		if c.Name == "" {
			r.fail("tool_choice: name is missing")
			return
		}
		if slices.Contains(r.server, c.Name) {
			r.relay("a tool_choice of " + c.Name + ", a tool that only Anthropic's servers run")
			return
		}
		if !slices.ContainsFunc(req.Tools, func(t fulgur.Tool) bool { return t.Name == c.Name }) {
			r.fail(fmt.Sprintf("tool_choice: there is no tool %q in tools", c.Name))
		}
		req.ToolChoice = "function " + c.Name
	default:
		r.fail(fmt.Sprintf("tool_choice: type must be auto, any, none or tool, not %q", c.Type))
		return
	}
	req.Constrained = append(req.Constrained, "tool_choice "+req.ToolChoice)
}
