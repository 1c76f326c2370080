package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Str is a string that knows which of its bytes are data. The rest is text of
// the template or of its environment.
type Str struct {
	s      string
	spans  []Span  // the data: sorted, disjoint, not empty
	whole  [1]Span // what spans points to for a string that is data as a whole
	markup bool    // went through escape or safe: Python's Markup
}

// Text returns a string of the template's environment: a control token's name,
// a role.
func Text(s string) *Str { return text(s) }

// Data returns a string that a person, a tool or a model wrote.
func Data(s string) *Str {
	if s == "" {
		return emptyStr
	}
	d := &Str{s: s, whole: [1]Span{{0, len(s)}}}
	d.spans = d.whole[:]
	return d
}

// String returns the string without its marks.
func (s *Str) String() string { return s.s }

var emptyStr = &Str{}

// usual are strings of the environment that are in every conversation: a Str is never
// changed, so that one of each will do.
var usual = func() map[string]*Str {
	out := map[string]*Str{}
	for _, s := range []string{"role", "content", "tool_calls", "tool_call_id", "id", "type", "function", "name", "arguments",
		"system", "developer", "user", "assistant", "tool", "messages", "tools", "documents", "add_generation_prompt"} {
		out[s] = &Str{s: s}
	}
	return out
}()

func text(s string) *Str {
	if t := usual[s]; t != nil {
		return t
	}
	return &Str{s: s}
}

// allOf returns a string that is data as a whole if any of the given is: for
// what has been changed so that one can't follow which byte went where.
func allOf(s string, from ...*Str) *Str {
	for _, f := range from {
		if len(f.spans) > 0 {
			return Data(s)
		}
	}
	return text(s)
}

// slice returns s[i:j] in bytes.
func (s *Str) slice(i, j int) *Str {
	if i == 0 && j == len(s.s) {
		return s
	}
	return &Str{s: s.s[i:j], spans: clip(nil, s.spans, i, j, 0), markup: s.markup}
}

// clip appends the parts of spans within [i, j), moved so that i comes to at.
func clip(dst, spans []Span, i, j, at int) []Span {
	for _, sp := range spans {
		lo, hi := max(sp.Start, i)-i+at, min(sp.End, j)-i+at
		if lo >= hi {
			continue
		}
		if n := len(dst); n > 0 && dst[n-1].End == lo {
			dst[n-1].End = hi
		} else {
			dst = append(dst, Span{lo, hi})
		}
	}
	return dst
}

// concat joins strings, with their marks.
func concat(parts ...*Str) *Str {
	n, marks := 0, 0
	for _, p := range parts {
		n += len(p.s)
		marks += len(p.spans)
	}
	var b strings.Builder
	b.Grow(n)
	var spans []Span
	if marks > 0 {
		spans = make([]Span, 0, marks)
	}
	for _, p := range parts {
		spans = clip(spans, p.spans, 0, len(p.s), b.Len())
		b.WriteString(p.s)
	}
	return &Str{s: b.String(), spans: spans}
}

// joinStrs joins strings with sep between.
func joinStrs(parts []*Str, sep *Str) *Str {
	all := make([]*Str, 0, 2*len(parts))
	for i, p := range parts {
		if i > 0 {
			all = append(all, sep)
		}
		all = append(all, p)
	}
	return concat(all...)
}

// Printed is Python's str(v), as a template prints it: data where v holds data.
func Printed(v Value) *Str { return toStr(v) }

// Concat joins strings, keeping which parts are data.
func Concat(parts ...*Str) *Str { return concat(parts...) }

// toStr is Python's str(v), keeping marks: a list that holds data prints as data.
func toStr(v Value) *Str {
	if s, ok := v.(*Str); ok {
		return s
	}
	return allOfValue(str(v), v)
}

func allOfValue(s string, v Value) *Str {
	if hasData(v, 0) {
		return Data(s)
	}
	return text(s)
}

// hasData says whether a string within v is data.
func hasData(v Value, depth int) bool {
	if depth > maxValueDepth {
		return true
	}
	some := func(items []Value) bool {
		for _, it := range items {
			if hasData(it, depth+1) {
				return true
			}
		}
		return false
	}
	switch v := v.(type) {
	case *Str:
		return len(v.spans) > 0
	case *List:
		return some(v.items)
	case *Tuple:
		return some(v.items)
	case *view:
		return some(v.items)
	case *Gen:
		return some(v.items)
	case *Dict:
		return some(v.keys) || some(v.vals)
	case *Namespace:
		return some(v.d.keys) || some(v.d.vals)
	}
	return false
}

// runeOffsets returns the byte offset of each character, and the length.
func runeOffsets(s string) []int {
	off := make([]int, 0, len(s)+1)
	for i := range s {
		off = append(off, i)
	}
	return append(off, len(s))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func (s *Str) trimFunc(left, right bool, cut func(rune) bool) *Str {
	i, j := 0, len(s.s)
	if left {
		i = j - len(strings.TrimLeftFunc(s.s, cut))
	}
	if right {
		j = i + len(strings.TrimRightFunc(s.s[i:], cut))
	}
	return s.slice(i, j)
}

// split cuts s at sep at most max times (max < 0: everywhere), from the right
// if asked.
func (s *Str) split(sep string, max int, right bool) []*Str {
	var at []int
	if right {
		for end := len(s.s); max != 0; max-- {
			i := strings.LastIndex(s.s[:end], sep)
			if i < 0 {
				break
			}
			at = append(at, i)
			end = i
		}
		slices.Reverse(at)
	} else {
		for start := 0; max != 0; max-- {
			i := strings.Index(s.s[start:], sep)
			if i < 0 {
				break
			}
			at = append(at, start+i)
			start += i + len(sep)
		}
	}
	out := make([]*Str, 0, len(at)+1)
	start := 0
	for _, i := range at {
		out = append(out, s.slice(start, i))
		start = i + len(sep)
	}
	return append(out, s.slice(start, len(s.s)))
}

// fields splits at runs of white space, at most max times, from the right if
// asked.
func (s *Str) fields(max int, right bool) []*Str {
	var out []*Str
	rest := s
	for {
		rest = rest.trimFunc(!right, right, isSpace)
		if max == 0 || rest.s == "" {
			break
		}
		var word *Str
		if right {
			i := strings.LastIndexFunc(rest.s, isSpace)
			if i < 0 {
				break
			}
			_, n := utf8.DecodeRuneInString(rest.s[i:])
			word, rest = rest.slice(i+n, len(rest.s)), rest.slice(0, i)
		} else {
			i := strings.IndexFunc(rest.s, isSpace)
			if i < 0 {
				break
			}
			word, rest = rest.slice(0, i), rest.slice(i, len(rest.s))
		}
		out = append(out, word)
		max--
	}
	if max != 0 { // what a limit leaves over keeps its white space
		rest = rest.trimFunc(true, true, isSpace)
	}
	if rest.s != "" {
		out = append(out, rest)
	}
	if right {
		slices.Reverse(out)
	}
	return out
}

// replace is str.replace, keeping marks.
func (s *Str) replace(old string, by *Str, n int) *Str {
	if old != "" {
		if n == 0 || !strings.Contains(s.s, old) {
			return s
		}
		return joinStrs(s.split(old, n, false), by)
	}
	off := runeOffsets(s.s)
	parts := make([]*Str, 0, 2*len(off))
	for i := range off {
		if n < 0 || i < n {
			parts = append(parts, by)
		}
		if i+1 < len(off) {
			parts = append(parts, s.slice(off[i], off[i+1]))
		}
	}
	return concat(parts...)
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

func escapeHTML(s *Str) *Str {
	if s.markup {
		return s
	}
	out := allOf(htmlEscaper.Replace(s.s), s)
	return &Str{s: out.s, spans: out.spans, markup: true}
}

// buffer collects output with its marks.
type buffer struct {
	in    *interp
	b     strings.Builder
	spans []Span
	marks []Mark // nil: nobody asks
}

// mark notes the line that what follows comes from.
func (b *buffer) mark(line int) {
	if b.marks != nil {
		b.marks = append(b.marks, Mark{b.b.Len(), line})
	}
}

func (b *buffer) write(s *Str) {
	if b.b.Len()+len(s.s) > b.in.lim.Output {
		fail(0, KindLimit, "more than %d bytes of output", b.in.lim.Output)
	}
	if len(s.spans) > 0 {
		b.spans = clip(b.spans, s.spans, 0, len(s.s), b.b.Len())
	}
	b.b.WriteString(s.s)
}

func (b *buffer) str() *Str {
	b.in.alloc(b.b.Len())
	return &Str{s: b.b.String(), spans: b.spans}
}
