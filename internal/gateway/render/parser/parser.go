// Package parser turns the text that a model sampled back into a message: the
// content, the reasoning, the tool calls. It reads the form that Hermes and Qwen
// models write,
//
//	<think>reasoning</think>content<tool_call>{"name": "f", "arguments": {…}}</tool_call>
//
// whatever the tokens were that spelled the tags. Text may come in pieces of any
// size: the deltas joined, and the message, are the same for every cut.
package parser

import (
	"encoding/json"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// Options say what to look for.
type Options struct {
	Tools     bool // tool calls; without, their tags are content
	Reasoning bool // a <think> block at the beginning
	Open      bool // the prompt already opened the <think> block
}

// Delta is what a piece of text adds to the message. One field is set.
type Delta struct {
	Content   string
	Reasoning string
	ToolCall  *fulgur.ToolCall // a whole call, without an ID
}

const (
	callOpen   = "<tool_call>"
	callClose  = "</tool_call>"
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

type state uint8

const (
	atStart   state = iota // white space or <think> may come
	reasoning              // in the <think> block
	afterThink
	content
	call      // behind <tool_call>
	afterCall // white space between calls is dropped
)

// Parser reads one reply. The zero value is not ready; use New.
type Parser struct {
	opt       Options
	state     state
	buf       string // read, but not yet understood
	lead      string // the newline withheld before <tool_call>
	deltas    []Delta
	content   strings.Builder
	reasoning strings.Builder
	calls     []fulgur.ToolCall
	malformed bool
}

// New returns a parser at the beginning of a reply.
func New(opt Options) *Parser {
	p := &Parser{opt: opt, state: content}
	switch {
	case opt.Reasoning && opt.Open:
		p.state = reasoning
	case opt.Reasoning:
		p.state = atStart
	}
	return p
}

// Feed takes the next piece of text and returns what it adds.
func (p *Parser) Feed(text string) []Delta {
	p.deltas = nil
	p.buf += text
	for p.step() {
	}
	return p.deltas
}

// Finish ends the reply and returns what was withheld, the whole message, and
// whether it holds a tool call that could not be read: its text, tags included,
// is then part of the content.
func (p *Parser) Finish() ([]Delta, fulgur.Message, bool) {
	p.deltas = nil
	switch p.state {
	case reasoning:
		p.addReasoning(strings.TrimRight(p.buf, "\n"))
	case call:
		p.fail(p.buf)
	case atStart, content:
		p.addContent(p.buf)
	}
	p.buf = ""
	return p.deltas, fulgur.Message{Role: "assistant", Content: p.content.String(), Reasoning: p.reasoning.String(), ToolCalls: p.calls}, p.malformed
}

// step moves over what is certain, and says whether to go on.
func (p *Parser) step() bool {
	switch p.state {
	case atStart:
		return p.stepStart()
	case reasoning:
		return p.stepReasoning()
	case afterThink:
		p.buf = strings.TrimLeft(p.buf, "\n")
		if p.buf == "" {
			return false
		}
		p.state = content
		return true
	case content:
		return p.stepContent()
	case call:
		i := strings.Index(p.buf, callClose)
		if i < 0 {
			return false
		}
		body := p.buf[:i]
		p.buf = p.buf[i+len(callClose):]
		c, ok := ParseCall(body)
		if !ok {
			p.fail(body + callClose)
			return true
		}
		p.calls = append(p.calls, c)
		p.deltas = append(p.deltas, Delta{ToolCall: &c})
		p.lead, p.state = "", afterCall
		return true
	}
	return p.stepAfterCall()
}

func (p *Parser) stepStart() bool {
	rest := strings.TrimLeft(p.buf, " \t\r\n")
	switch {
	case strings.HasPrefix(rest, thinkOpen):
		p.buf, p.state = rest[len(thinkOpen):], reasoning
	case strings.HasPrefix(thinkOpen, rest):
		return false
	default:
		p.state = content
	}
	return true
}

func (p *Parser) stepReasoning() bool {
	if p.reasoning.Len() == 0 {
		p.buf = strings.TrimLeft(p.buf, "\n")
	}
	if i := strings.Index(p.buf, thinkClose); i >= 0 {
		p.addReasoning(strings.TrimRight(p.buf[:i], "\n"))
		p.buf, p.state = p.buf[i+len(thinkClose):], afterThink
		return true
	}
	// Newlines before the end belong to the tag.
	keep := len(p.buf) - tagBegin(p.buf, thinkClose)
	keep = len(strings.TrimRight(p.buf[:keep], "\n"))
	p.addReasoning(p.buf[:keep])
	p.buf = p.buf[keep:]
	return false
}

func (p *Parser) stepContent() bool {
	if !p.opt.Tools {
		p.addContent(p.buf)
		p.buf = ""
		return false
	}
	if i := strings.Index(p.buf, callOpen); i >= 0 {
		text := p.buf[:i]
		p.lead = ""
		if strings.HasSuffix(text, "\n") { // templates put it there
			text, p.lead = text[:len(text)-1], "\n"
		}
		p.addContent(text)
		p.buf, p.state = p.buf[i+len(callOpen):], call
		return true
	}
	hold := tagBegin(p.buf, callOpen)
	if rest := p.buf[:len(p.buf)-hold]; strings.HasSuffix(rest, "\n") {
		hold++
	}
	p.addContent(p.buf[:len(p.buf)-hold])
	p.buf = p.buf[len(p.buf)-hold:]
	return false
}

func (p *Parser) stepAfterCall() bool {
	rest := strings.TrimLeft(p.buf, " \t\r\n")
	switch {
	case rest == "" || rest != callOpen && strings.HasPrefix(callOpen, rest):
		return false
	case strings.HasPrefix(rest, callOpen):
		p.lead = p.buf[:len(p.buf)-len(rest)]
		p.buf, p.state = rest[len(callOpen):], call
	default:
		p.state = content
	}
	return true
}

// tagBegin returns how many bytes at the end of s may begin the tag.
func tagBegin(s, tag string) int {
	for n := min(len(s), len(tag)-1); n > 0; n-- {
		if strings.HasSuffix(s, tag[:n]) {
			return n
		}
	}
	return 0
}

// fail returns an unreadable call to the content, as it was sampled.
func (p *Parser) fail(body string) {
	p.malformed = true
	p.addContent(p.lead + callOpen + body)
	p.lead, p.state = "", content
}

func (p *Parser) addContent(s string) {
	if s != "" {
		p.content.WriteString(s)
		p.deltas = append(p.deltas, Delta{Content: s})
	}
}

func (p *Parser) addReasoning(s string) {
	if s != "" {
		p.reasoning.WriteString(s)
		p.deltas = append(p.deltas, Delta{Reasoning: s})
	}
}

// ParseCall reads the body of a call: a JSON object with a name and an object of
// arguments, whose text is kept as it was written.
func ParseCall(body string) (fulgur.ToolCall, bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(body), &fields) != nil {
		return fulgur.ToolCall{}, false
	}
	var name string
	if json.Unmarshal(fields["name"], &name) != nil || name == "" {
		return fulgur.ToolCall{}, false
	}
	args := strings.TrimSpace(string(fields["arguments"]))
	if strings.HasPrefix(args, `"`) { // some models write the object as a string
		var s string
		if json.Unmarshal([]byte(args), &s) != nil || !json.Valid([]byte(s)) {
			return fulgur.ToolCall{}, false
		}
		args = strings.TrimSpace(s)
	}
	return fulgur.ToolCall{Name: name, Arguments: args}, strings.HasPrefix(args, "{")
}

// Parse reads a whole reply.
func Parse(text string, opt Options) (fulgur.Message, bool) {
	p := New(opt)
	p.Feed(text)
	_, m, malformed := p.Finish()
	return m, malformed
}
