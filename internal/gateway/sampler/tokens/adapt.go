package tokens

import (
	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/render"
)

// FromRender makes package render's renderer this package's.
func FromRender(r *render.Renderer) Renderer { return rendered{r} }

type rendered struct{ *render.Renderer }

// Extend implements Renderer. There, a known conversation's last message is its reply.
func (r rendered) Extend(known Known, msgs []fulgur.Message, tools []fulgur.Tool, history string) (Prompt, error) {
	k := render.Known{Messages: append(known.Messages[:len(known.Messages):len(known.Messages)], known.Reply),
		Tools: known.Tools, PromptIDs: known.PromptIDs, SampledIDs: known.SampledIDs}
	p, err := r.Renderer.Extend(k, msgs, tools, render.History(history))
	return Prompt{IDs: p.IDs, Broke: p.Break}, err
}

// Reply implements Renderer.
func (r rendered) Reply(tools []fulgur.Tool) Reply { return &renderedReply{r: r.Renderer.Reply(tools)} }

type renderedReply struct {
	r     *render.Reply
	tools int // seen so far
}

func (r *renderedReply) Feed(id int32) call.Delta { return r.merge(r.r.Feed(id)) }

func (r *renderedReply) Later(id int32) { r.r.Later(id) }

func (r *renderedReply) Finish(string) (call.Delta, fulgur.Message, bool) {
	last, msg, malformed := r.r.Finish()
	return r.merge(last), msg, malformed
}

// merge makes one piece of several.
func (r *renderedReply) merge(list []render.Delta) call.Delta {
	var out call.Delta
	for _, d := range list {
		out.Text += d.Content
		out.Reasoning += d.Reasoning
		if d.ToolCall != nil {
			out.Tools = append(out.Tools, call.ToolDelta{Index: r.tools, Name: d.ToolCall.Name, Arguments: d.ToolCall.Arguments})
			r.tools++
		}
	}
	return out
}
