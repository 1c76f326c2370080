// Package render turns messages into the exact tokens that a model is prompted
// with, and the tokens it samples back into messages, for one model folder in
// Hugging Face's layout. The first turn is what the model's own chat template
// makes of it; later turns reuse the tokens that were sampled (Extend): training
// is only as true as the tokens.
package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
	"github.com/fulgur-rl/fulgur/internal/jinja"
)

// Options are the surroundings of a Renderer.
type Options struct {
	Now    func() time.Time // what the template's strftime_now sees; nil: it has none
	Limits jinja.Limits

	// Template is a chat template that replaces the model folder's.
	Template string
	// Kwargs is a JSON object of further variables for the template
	// (chat_template_kwargs of other servers): {"enable_thinking": false}.
	Kwargs json.RawMessage
	// ControlTokensInText makes control tokens that are spelled in messages real,
	// as transformers does. The default is that messages can't forge them.
	ControlTokensInText bool
}

// Renderer renders for one model folder. It is safe for concurrent use.
type Renderer struct {
	opt       Options
	tok       *tokenizer.Tokenizer
	tmpl      *jinja.Template
	vars      []variable // special tokens, kwargs
	stop      []int32
	stopText  []string // of stop
	reasoning bool     // the template knows <think> blocks
	open      bool     // the generation prompt opens one
	rawArgs   bool     // the template wants tool arguments as text
	nilEmpty  bool     // the template wants none, not "", beside tool calls
	lastTools atomic.Pointer[toolsCache]
}

type variable struct {
	name string
	v    jinja.Value
}

const op = "load the model's tokenizer and chat template"

// Load reads tokenizer.json, tokenizer_config.json, chat_template.jinja,
// generation_config.json and config.json of a model folder. Only the first, and
// a template in one of the next two (or in the options), must be there. Errors
// are KindInvalid and say which file is wrong and how.
func Load(fsys fs.FS, opt Options) (*Renderer, error) {
	file, err := fs.ReadFile(fsys, "tokenizer.json")
	if err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, "the model folder has no tokenizer.json that can be read", err)
	}
	r := &Renderer{opt: opt}
	if r.tok, err = tokenizer.Parse(file); err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, err.Error(), nil)
	}
	cfg, err := readConfig(fsys)
	if err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, err.Error(), nil)
	}
	source, name := opt.Template, "chat template"
	if source == "" {
		source, name = cfg.template, cfg.templateFile
	}
	if source == "" {
		return nil, fulgur.E(fulgur.KindInvalid, op, "the model folder has no chat template: put one into chat_template.jinja", nil)
	}
	if r.tmpl, err = jinja.Compile(name, source); err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, err.Error(), nil)
	}
	for name, text := range cfg.special {
		r.vars = append(r.vars, variable{name, jinja.Text(text)})
	}
	if err := r.addKwargs(opt.Kwargs); err != nil {
		return nil, err
	}
	if err := r.setStop(cfg); err != nil {
		return nil, fulgur.E(fulgur.KindInvalid, op, err.Error(), nil)
	}
	r.reasoning = strings.Contains(source, "<think>")
	r.probe()
	return r, nil
}

func (r *Renderer) addKwargs(b json.RawMessage) error {
	if len(b) == 0 {
		return nil
	}
	v, err := jinja.TextFromJSON(b)
	d, ok := v.(*jinja.Dict)
	if err != nil || !ok {
		return fulgur.E(fulgur.KindInvalid, op, "the template's variables must be a JSON object", err)
	}
	for k, v := range d.All() {
		r.vars = append(r.vars, variable{k, v})
	}
	return nil
}

// setStop collects the tokens that end a reply.
func (r *Renderer) setStop(cfg *modelConfig) error {
	ids := cfg.eosIDs
	if text := cfg.special["eos_token"]; text != "" {
		id, ok := r.tok.ID(text)
		if !ok {
			return fmt.Errorf("the eos_token %q of tokenizer_config.json is not in tokenizer.json", text)
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		if err := r.tok.Check([]int32{id}); err != nil {
			return fmt.Errorf("eos_token_id: %w", err)
		}
		if !slices.Contains(r.stop, id) {
			r.stop = append(r.stop, id)
			r.stopText = append(r.stopText, r.tok.Decode([]int32{id}))
		}
	}
	if len(r.stop) == 0 {
		return errors.New("the model folder names no end token: put eos_token into tokenizer_config.json or eos_token_id into generation_config.json")
	}
	return nil
}

// StopIDs returns the tokens that end a reply: eos_token_id of
// generation_config.json and config.json, and eos_token of tokenizer_config.json.
func (r *Renderer) StopIDs() []int32 { return slices.Clone(r.stop) }

// VocabSize returns the number of token ids; Hash the SHA-256 of tokenizer.json.
func (r *Renderer) VocabSize() int { return r.tok.VocabSize() }

// Hash returns the SHA-256 of tokenizer.json, in hex.
func (r *Renderer) Hash() string { return r.tok.Hash() }

// Encode returns the tokens of text that a person wrote: it holds no control
// token.
func (r *Renderer) Encode(text string) []int32 { return r.tok.EncodePlain(nil, text) }

// EncodeRaw returns the tokens of a whole prompt that somebody wrote without a
// template: the control tokens that it spells are real.
func (r *Renderer) EncodeRaw(text string) []int32 { return r.tok.Encode(nil, text) }

// Decode returns the text of ids, control tokens included.
func (r *Renderer) Decode(ids []int32) string { return r.tok.Decode(ids) }

// TokenTexts returns the text of each id, for people to look at: joined they are
// Decode(ids). A character of several tokens stands at the one that completes it.
func (r *Renderer) TokenTexts(ids []int32) []string {
	out := make([]string, len(ids))
	s := r.tok.NewStream()
	for i, id := range ids {
		out[i] = s.Feed(id)
	}
	if n := len(out); n > 0 {
		out[n-1] += s.Flush()
	}
	return out
}

// Render returns the tokens of a prompt: the chat template over messages and
// tools, with the generation prompt. A template that refuses them, and a message
// without a role, are KindInvalid.
func (r *Renderer) Render(msgs []fulgur.Message, tools []fulgur.Tool) ([]int32, error) {
	out, err := r.text(msgs, tools, true)
	if err != nil {
		return nil, err
	}
	return r.encode(nil, out, 0), nil
}

// Text is Render before the text is turned into tokens.
func (r *Renderer) Text(msgs []fulgur.Message, tools []fulgur.Tool) (string, error) {
	out, err := r.text(msgs, tools, true)
	return out.Text, err
}

// encode appends the tokens of out's text from a byte on.
func (r *Renderer) encode(dst []int32, out jinja.Output, from int) []int32 {
	if r.opt.ControlTokensInText {
		return r.tok.Encode(dst, out.Text[from:])
	}
	spans := make([]tokenizer.Span, 0, len(out.Data))
	for _, s := range out.Data {
		if s.End > from {
			spans = append(spans, tokenizer.Span{Start: max(s.Start-from, 0), End: s.End - from})
		}
	}
	if dst == nil {
		dst = make([]int32, 0, (len(out.Text)-from)/2)
	}
	return r.tok.EncodeSpans(dst, out.Text[from:], spans)
}
