package render

import (
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/parser"
	"github.com/fulgur-rl/fulgur/internal/jinja"
)

// History says when the tokens of a known conversation are used again.
type History string

// The histories of a run file.
const (
	// HistoryDeployed uses them where the template shows the model the same text
	// (other tokens of the same text, and tool arguments of equal value, are the
	// same), and starts anew where a deployment would show it other content.
	HistoryDeployed History = "deployed"
	// HistorySampled uses them always, whatever the template would make of them.
	HistorySampled History = "sampled"
)

// Why a known conversation could not be continued: values of Prompt.Break.
const (
	BreakTools           = "tools"             // the tools are others
	BreakRewritten       = "rewritten"         // an earlier message was edited
	BreakCompaction      = "compaction"        // the history was replaced by a shorter one
	BreakNewConversation = "new_conversation"  // nothing in common, or another system message
	BreakBranch          = "branch"            // goes on from an earlier place, without the reply
	BreakReasoning       = "reasoning_dropped" // the reply's or an earlier reasoning is not shown any more
	BreakTemplate        = "template"          // the template shows earlier turns in another way
)

// Known is a conversation whose tokens are known: those of a call.
type Known struct {
	Messages   []fulgur.Message // the call's prompt and, last, its reply
	Tools      []fulgur.Tool
	PromptIDs  []int32
	SampledIDs []int32
}

// Prompt is a rendered prompt.
type Prompt struct {
	IDs   []int32
	Known int    // leading ids that are the known conversation's
	Break string // "", or why the known tokens could not be used
}

// Continues says whether msgs goes on from the known conversation: it begins with
// the same messages (reasoning may be left out), and the tools are the same.
func (k *Known) Continues(msgs []fulgur.Message, tools []fulgur.Tool) bool {
	return k.breakOf(msgs, tools) == ""
}

// sameTurn is Message.Same where the client may have left out the reasoning.
func sameTurn(known, m fulgur.Message) bool {
	if m.Reasoning == "" {
		known.Reasoning = ""
	}
	return known.Same(m)
}

// breakOf classifies how msgs differs from the known messages.
func (k *Known) breakOf(msgs []fulgur.Message, tools []fulgur.Tool) string {
	n, common := len(k.Messages), 0
	for common < min(n, len(msgs)) && sameTurn(k.Messages[common], msgs[common]) {
		common++
	}
	switch {
	case common == n && sameTools(k.Tools, tools):
		return ""
	case common == n:
		return BreakTools
	case common == len(msgs):
		return BreakBranch
	}
	for i := common + 1; i < min(n, len(msgs)); i++ {
		if sameTurn(k.Messages[i], msgs[i]) {
			return BreakRewritten
		}
	}
	switch {
	case common == 0 || k.Messages[common-1].Role == "system" && common == 1 && len(msgs) >= n:
		return BreakNewConversation
	case len(msgs) < n:
		return BreakCompaction
	}
	return BreakRewritten
}

// Extend returns the tokens of msgs, which may go on from a known conversation:
// then they are the known prompt and what was sampled, the end token if none was
// sampled, and the new part alone rendered. What can't be continued is rendered
// anew, and Break says why. Errors are Render's.
func (r *Renderer) Extend(known Known, msgs []fulgur.Message, tools []fulgur.Tool, history History) (Prompt, error) {
	full, err := r.text(msgs, tools, true)
	if err != nil {
		return Prompt{}, err
	}
	class := known.breakOf(msgs, tools)
	if class == "" && len(known.Messages) > 0 {
		if p, ok := r.sameText(&known, full); ok {
			return p, nil
		}
		var p Prompt
		if p, class = r.otherText(&known, full, msgs, tools, history); class == "" {
			return p, nil
		}
	} else if class == "" {
		class = BreakNewConversation
	}
	return Prompt{IDs: r.encode(nil, full, 0), Break: class}, nil
}

// sameText is the usual case: the rendering begins with the text of the known
// tokens.
func (r *Renderer) sameText(k *Known, full jinja.Output) (Prompt, bool) {
	at := 0
	stream := r.tok.NewStream()
	follow := func(text string) bool {
		ok := strings.HasPrefix(full.Text[at:], text)
		at += len(text)
		return ok
	}
	for _, ids := range [][]int32{k.PromptIDs, k.SampledIDs} {
		for _, id := range ids {
			if !follow(stream.Feed(id)) {
				return Prompt{}, false
			}
		}
	}
	if !follow(stream.Flush()) {
		return Prompt{}, false
	}
	if n := len(k.SampledIDs); n > 0 && slices.Contains(r.stop, k.SampledIDs[n-1]) {
		return r.continued(k, nil, full, at), true
	}
	for i, text := range r.stopText {
		if strings.HasPrefix(full.Text[at:], text) {
			return r.continued(k, r.stop[i:i+1], full, at+len(text)), true
		}
	}
	return Prompt{}, false
}

// continued puts the known ids, the closing id and the tail of full together.
func (r *Renderer) continued(k *Known, closing []int32, full jinja.Output, tail int) Prompt {
	n := len(k.PromptIDs) + len(k.SampledIDs)
	ids := make([]int32, 0, n+(len(full.Text)-tail)/2+8)
	ids = append(append(append(ids, k.PromptIDs...), k.SampledIDs...), closing...)
	return Prompt{IDs: r.encode(ids, full, tail), Known: n}
}

// otherText continues where the rendering writes the known part in another way:
// tool arguments spaced differently, reasoning left out. It finds where the new
// part begins by rendering the known messages alone, and compares what they say.
func (r *Renderer) otherText(k *Known, full jinja.Output, msgs []fulgur.Message, tools []fulgur.Tool, history History) (Prompt, string) {
	n := len(k.Messages)
	closing, tail, ok := r.boundary(full, msgs, tools, n)
	if history == HistorySampled {
		if !ok { // templates drop the reasoning of earlier turns: find the new part without any
			bare := slices.Clone(msgs)
			for i := range bare[:n] {
				bare[i].Reasoning = ""
			}
			var err error
			if full, err = r.text(bare, tools, true); err != nil {
				return Prompt{}, BreakTemplate
			}
			if closing, tail, ok = r.boundary(full, bare, tools, n); !ok {
				return Prompt{}, BreakTemplate
			}
		}
	} else if class := r.shown(k, full, msgs, tools, ok, tail); class != "" {
		return Prompt{}, class
	}
	if m := len(k.SampledIDs); m > 0 && slices.Contains(r.stop, k.SampledIDs[m-1]) {
		closing = nil
	}
	return r.continued(k, closing, full, tail), ""
}

// boundary finds in full, a rendering of msgs, where the part behind the first n
// messages begins: behind the token that ends the last of them, which it returns.
func (r *Renderer) boundary(full jinja.Output, msgs []fulgur.Message, tools []fulgur.Tool, n int) (closing []int32, tail int, ok bool) {
	head, err := r.text(msgs[:n], tools, false)
	if err != nil || !strings.HasPrefix(full.Text, head.Text) {
		return nil, 0, false
	}
	at, which := -1, 0
	for i, text := range r.stopText {
		if k := strings.LastIndex(head.Text, text); k > at {
			at, which = k, i
		}
	}
	if at < 0 {
		return nil, 0, false
	}
	tail = at + len(r.stopText[which])
	return r.stop[which : which+1], tail, strings.TrimSpace(head.Text[tail:]) == ""
}

// shown says whether full shows the model what it saw and said in the known
// call: "", or the class of the difference.
func (r *Renderer) shown(k *Known, full jinja.Output, msgs []fulgur.Message, tools []fulgur.Tool, ok bool, tail int) string {
	n := len(k.Messages)
	reply := k.Messages[n-1]
	prompt, err := r.text(msgs[:n-1], tools, true)
	if err != nil || !ok || tail < len(prompt.Text) || !strings.HasPrefix(full.Text, prompt.Text) {
		for _, m := range k.Messages {
			if m.Reasoning != "" {
				return BreakReasoning
			}
		}
		return BreakTemplate
	}
	text := full.Text[len(prompt.Text):tail]
	for _, stop := range r.stopText {
		text = strings.TrimSuffix(text, stop)
	}
	said, _ := parser.Parse(text, r.parserOptions(tools))
	switch {
	case reply.Same(said):
		return ""
	case sameTurn(reply, said):
		return BreakReasoning
	}
	return BreakTemplate
}

func (r *Renderer) parserOptions(tools []fulgur.Tool) parser.Options {
	return parser.Options{Tools: len(tools) > 0, Reasoning: r.reasoning, Open: r.open}
}
