// Package jinja interprets the Jinja that chat templates (and Job templates)
// are written in: Jinja 3.1 with trim_blocks and lstrip_blocks, loop controls
// and the generation tag, as the transformers library sets it up, with Python's
// printing of values, ordered dicts, integers of any size, and tojson's options.
//
// Templates are untrusted. They run in a sandbox as strict as jinja2's
// ImmutableSandboxedEnvironment (no list or dict is ever changed, attributes
// that begin with an underscore are refused) and within Limits on steps, output,
// memory and recursion. Nothing is read but the variables that the caller
// passes; the clock is the caller's.
//
// Strings carry where they came from: text of the template, or data (what a
// person, a tool or a model wrote, see Data). The output says which of its bytes
// are data, so that whoever encodes it need not let data forge control tokens.
package jinja

import (
	"fmt"
	"time"
)

// ErrorKind classifies a template's failure.
type ErrorKind string

// The kinds of errors.
const (
	KindCompile   ErrorKind = "compile"   // the source is no template
	KindRaise     ErrorKind = "raise"     // the template called raise_exception
	KindUndefined ErrorKind = "undefined" // an operation on something that is not there
	KindType      ErrorKind = "type"      // any other failure Python would raise: types, values, division
	KindSecurity  ErrorKind = "security"  // the sandbox forbids it
	KindLimit     ErrorKind = "limit"     // too many steps, too much output, too deep
)

// Error is the failure of a template: which template, which line, what kind.
// For KindRaise, Msg is exactly what the template raised.
type Error struct {
	Template string
	Line     int
	Kind     ErrorKind
	Msg      string
}

// Error formats "chat_template.jinja:12: message".
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d: %s: %s", e.Template, e.Line, e.Kind, e.Msg)
}

// Limits bound what a template may use. A zero field means the default.
type Limits struct {
	Steps  int // evaluated nodes; 5 million
	Output int // bytes of one string, elements of one list; 64 MiB
	Memory int // bytes of all values made while rendering; 1 GiB
	Depth  int // nested macro calls, loop() calls and values; 200
}

func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Steps, 5_000_000}, {&l.Output, 64 << 20}, {&l.Memory, 1 << 30}, {&l.Depth, 200}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return l
}

// RenderOptions are the surroundings of one rendering.
type RenderOptions struct {
	Now    func() time.Time // what strftime_now sees; without it the function is undefined
	Limits Limits
}

// Template is a compiled template. It is immutable and safe for concurrent use.
type Template struct {
	name   string
	body   []node
	strict bool
}

// Dialect is what a template's language has beside, or instead of, that of chat
// templates.
type Dialect struct {
	// KeepBlocks leaves the white space around tags as it is: jinja2's own default,
	// without trim_blocks and lstrip_blocks.
	KeepBlocks bool
	// Strict makes it an error to print what is not there.
	Strict bool
	// Filters are further filters, by name; they go before those of jinja2. What one
	// returns must be made of Text and Data. Its error is the template's, KindType.
	Filters map[string]func(Value) (*Str, error)
}

// Compile parses a template; name is what errors call it.
func Compile(name, source string) (*Template, error) { return Dialect{}.Compile(name, source) }

// Compile parses a template of this dialect.
func (d Dialect) Compile(name, source string) (t *Template, err error) {
	defer catch(name, &err)
	p := &parser{toks: lex(source, !d.KeepBlocks), dialect: d}
	return &Template{name: name, body: p.parseTemplate(), strict: d.Strict}, nil
}

// Output is a rendering: its text, which parts of it are data, and where in the
// template it comes from.
type Output struct {
	Text  string
	Data  []Span // sorted, disjoint, not empty
	Lines []Mark // in order of offsets
}

// Mark says that the text from Offset on comes from this line of the template, and
// the lines that follow it.
type Mark struct{ Offset, Line int }

// Span is a half-open range of bytes.
type Span struct{ Start, End int }

// Render runs the template over vars. Errors are *Error.
func (t *Template) Render(vars *Dict, opt RenderOptions) (out Output, err error) {
	in := &interp{lim: opt.Limits.withDefaults(), now: opt.Now, strict: t.strict}
	defer func() {
		if e, ok := err.(*Error); ok && e.Line == 0 {
			e.Line = in.line
		}
	}()
	defer catch(t.name, &err)
	in.global = &scope{}
	if vars != nil {
		for i, k := range vars.keys {
			if s, ok := k.(*Str); ok {
				in.global.set(s.s, vars.vals[i])
			}
		}
	}
	buf := &buffer{in: in, marks: []Mark{}}
	in.execBlock(t.body, &scope{parent: in.global}, buf)
	s := buf.str()
	return Output{Text: s.s, Data: s.spans, Lines: buf.marks}, nil
}

// catch turns the panic of an *Error, the way failures travel inside this
// package, into an error. Any other panic is a bug and goes on.
func catch(name string, err *error) {
	switch r := recover().(type) {
	case nil:
	case *Error:
		r.Template = name
		*err = r
	default:
		panic(r)
	}
}

func fail(line int, kind ErrorKind, format string, args ...any) {
	msg := format
	if len(args) > 0 {
		msg = fmt.Sprintf(format, args...)
	}
	panic(&Error{Line: line, Kind: kind, Msg: msg})
}
