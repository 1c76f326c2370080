package audit

import (
	"regexp"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// words unfolds words into arguments: unquoted variables and substitutions are
// split as a shell splits them.
func (m *machine) words(list []*syntax.Word) []string {
	var out []string
	for _, w := range list {
		for _, b := range braces(w) {
			out = append(out, m.split(b)...)
		}
	}
	return out
}

// braces expands {a,b}.
func braces(w *syntax.Word) []*syntax.Word {
	parts := w.Parts
	for i, p := range parts {
		lit, ok := p.(*syntax.Lit)
		if !ok {
			continue
		}
		if r := rangeForm.FindStringSubmatchIndex(lit.Value); r != nil {
			return ranged(w, i, lit, r)
		}
		open := strings.IndexByte(lit.Value, '{')
		end := strings.IndexByte(lit.Value, '}')
		if open < 0 || end < open || !strings.Contains(lit.Value[open:end], ",") {
			continue
		}
		var out []*syntax.Word
		for item := range strings.SplitSeq(lit.Value[open+1:end], ",") {
			x := *lit
			x.Value = lit.Value[:open] + item + lit.Value[end+1:]
			y := *w
			y.Parts = append(append(append([]syntax.WordPart{}, parts[:i]...), &x), parts[i+1:]...)
			out = append(out, &y)
		}
		return out
	}
	return []*syntax.Word{w}
}

// rangeForm is {1..60}.
var rangeForm = regexp.MustCompile(`\{(\d{1,6})\.\.(\d{1,6})\}`)

// ranged expands a range in the i-th part of a word.
func ranged(w *syntax.Word, i int, lit *syntax.Lit, at []int) []*syntax.Word {
	from, _ := strconv.Atoi(lit.Value[at[2]:at[3]])
	to, _ := strconv.Atoi(lit.Value[at[4]:at[5]])
	var out []*syntax.Word
	for n := from; n <= to && n-from < 2000; n++ {
		x := *lit
		x.Value = lit.Value[:at[0]] + strconv.Itoa(n) + lit.Value[at[1]:]
		y := *w
		y.Parts = append(append(append([]syntax.WordPart{}, w.Parts[:i]...), &x), w.Parts[i+1:]...)
		out = append(out, &y)
	}
	if len(out) == 0 {
		return []*syntax.Word{w}
	}
	return out
}

// split unfolds one word into fields.
func (m *machine) split(w *syntax.Word) []string {
	fields, open := []string{}, false // open: the last field may grow
	grow := func(s string) {
		if !open {
			fields, open = append(fields, ""), true
		}
		fields[len(fields)-1] += s
	}
	for _, p := range w.Parts {
		switch p := p.(type) {
		case *syntax.ParamExp:
			if list, ok := m.list(p); ok {
				for i, s := range list {
					if i > 0 {
						open = false
					}
					grow(s)
				}
				continue
			}
			m.fields(m.part(p, false), grow, &open)
		case *syntax.CmdSubst:
			m.fields(m.part(p, false), grow, &open)
		case *syntax.DblQuoted:
			if len(p.Parts) == 1 {
				if x, ok := p.Parts[0].(*syntax.ParamExp); ok {
					if list, ok := m.list(x); ok { // "$@", "${a[@]}"
						for i, s := range list {
							if i > 0 {
								open = false
							}
							grow(s)
						}
						continue
					}
				}
			}
			grow(m.part(p, false))
		default:
			grow(m.part(p, false))
		}
	}
	return fields
}

// fields adds a text that is split at white space.
func (m *machine) fields(s string, grow func(string), open *bool) {
	if s != "" && strings.ContainsAny(s[:1], " \t\n") {
		*open = false
	}
	for i, f := range strings.Fields(s) {
		if i > 0 {
			*open = false
		}
		grow(f)
	}
	if s != "" && strings.ContainsAny(s[len(s)-1:], " \t\n") {
		*open = false
	}
}

// list gives the words of $@ and of an array.
func (m *machine) list(p *syntax.ParamExp) ([]string, bool) {
	name := p.Param.Value
	if name == "@" || name == "*" {
		return m.args, true
	}
	if w, ok := p.Index.(*syntax.Word); ok && (w.Lit() == "@" || w.Lit() == "*") && !p.Length {
		v, ok := m.vars[name]
		return v, ok
	}
	return nil, false
}

// word unfolds a word into one text.
func (m *machine) word(w *syntax.Word) string {
	if w == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range w.Parts {
		b.WriteString(m.part(p, false))
		if b.Len() > maxText {
			break
		}
	}
	return b.String()
}

// part unfolds a part of a word. What isn't known stays as it is written.
func (m *machine) part(p syntax.WordPart, inQuotes bool) string {
	switch p := p.(type) {
	case *syntax.Lit:
		return unescape(p.Value, inQuotes)
	case *syntax.SglQuoted:
		if p.Dollar {
			return escapes(p.Value)
		}
		return p.Value
	case *syntax.DblQuoted:
		var b strings.Builder
		for _, x := range p.Parts {
			b.WriteString(m.part(x, true))
		}
		return b.String()
	case *syntax.ParamExp:
		return m.param(p)
	case *syntax.CmdSubst:
		out := stream{}
		m.from("$()", func() { out = m.stmts(p.Stmts, stream{}) })
		if out.known {
			return strings.TrimRight(out.text, "\n")
		}
		return "$(…)"
	case *syntax.ProcSubst:
		out := stream{}
		m.from("<()", func() { out = m.stmts(p.Stmts, stream{}) })
		name := "/dev/fd/" + strconv.Itoa(len(m.files))
		if out.known {
			m.files[name] = out.text
		}
		return name
	case *syntax.ArithmExp:
		if w, ok := p.X.(*syntax.Word); ok {
			return m.word(w)
		}
		if n, ok := m.arithm(p.X); ok {
			return strconv.Itoa(n)
		}
		return "$((…))"
	}
	return ""
}

func (m *machine) arithm(x syntax.ArithmExpr) (int, bool) {
	switch x := x.(type) {
	case *syntax.Word:
		s := m.word(x)
		if v, ok := m.vars[s]; ok && len(v) == 1 {
			s = v[0]
		}
		n, err := strconv.Atoi(s)
		return n, err == nil
	case *syntax.ParenArithm:
		return m.arithm(x.X)
	case *syntax.BinaryArithm:
		a, ok := m.arithm(x.X)
		b, ok2 := m.arithm(x.Y)
		if !ok || !ok2 {
			return 0, false
		}
		switch x.Op {
		case syntax.Add:
			return a + b, true
		case syntax.Sub:
			return a - b, true
		case syntax.Mul:
			return a * b, true
		}
	}
	return 0, false
}

// param unfolds ${…}.
func (m *machine) param(p *syntax.ParamExp) string {
	name := p.Param.Value
	v, ok := m.vars[name]
	value := strings.Join(v, " ")
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= len(m.args) {
		value, ok = m.args[n-1], true
	}
	if w, isWord := p.Index.(*syntax.Word); isWord && ok {
		if i, err := strconv.Atoi(w.Lit()); err == nil && i >= 0 && i < len(v) {
			value = v[i]
		}
	}
	switch {
	case p.Exp != nil && !ok:
		switch p.Exp.Op {
		case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
			return m.word(p.Exp.Word)
		}
	case p.Excl && ok:
		return strings.Join(m.vars[value], " ")
	case p.Length && ok:
		return strconv.Itoa(len(value))
	case p.Slice != nil && ok:
		return m.slice(value, p.Slice)
	case p.Repl != nil && ok:
		n := 1
		if p.Repl.All {
			n = -1
		}
		return strings.Replace(value, m.word(p.Repl.Orig), m.word(p.Repl.With), n)
	case p.Exp != nil:
		return m.trim(value, p.Exp)
	}
	if !ok {
		return "$" + name
	}
	return value
}

func (m *machine) slice(value string, s *syntax.Slice) string {
	at, ok := m.arithm(s.Offset)
	if !ok || at < 0 || at > len(value) {
		return value
	}
	value = value[at:]
	if s.Length != nil {
		if n, ok := m.arithm(s.Length); ok && n >= 0 && n < len(value) {
			value = value[:n]
		}
	}
	return value
}

// trim applies ${x#a}, ${x%a} with plain text, ${x^^}, ${x,,}.
func (m *machine) trim(value string, e *syntax.Expansion) string {
	switch e.Op {
	case syntax.RemSmallPrefix, syntax.RemLargePrefix:
		return strings.TrimPrefix(value, m.word(e.Word))
	case syntax.RemSmallSuffix, syntax.RemLargeSuffix:
		return strings.TrimSuffix(value, m.word(e.Word))
	case syntax.UpperAll:
		return strings.ToUpper(value)
	case syntax.LowerAll:
		return strings.ToLower(value)
	}
	return value
}

// unescape takes backslashes out as a shell does.
func unescape(s string, inQuotes bool) string {
	if !strings.Contains(s, "\\") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			if s[i+1] == '\n' {
				i++
				continue
			}
			if !inQuotes || strings.IndexByte("$`\"\\", s[i+1]) >= 0 {
				i++
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// escapes reads \n, \x41, \101, \u0041, as $'…', printf and echo -e do.
func escapes(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; {
		case c == 'x' || c == 'u' || c == 'U':
			n := digits(s[i+1:], map[byte]int{'x': 2, 'u': 4, 'U': 8}[c], 16)
			if v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32); err == nil && c == 'x' {
				b.WriteByte(byte(v))
			} else if err == nil {
				b.WriteRune(rune(v))
			}
			i += n
		case c >= '0' && c <= '7':
			n := digits(s[i:], 3, 8)
			if c == '0' {
				n = digits(s[i:], 4, 8)
			}
			v, _ := strconv.ParseUint(s[i:i+n], 8, 16)
			b.WriteByte(byte(v))
			i += n - 1
		default:
			if at := strings.IndexByte("ntrabefv\\'\"", c); at >= 0 {
				b.WriteByte("\n\t\r\a\b\x1b\f\v\\'\""[at])
			} else {
				b.WriteString(s[i-1 : i+1])
			}
		}
	}
	return b.String()
}

// digits counts the digits at the start of s, n at most.
func digits(s string, n, base int) int {
	i := 0
	for i < len(s) && i < n {
		if _, err := strconv.ParseUint(s[i:i+1], base, 8); err != nil {
			break
		}
		i++
	}
	return i
}

// number reads a wait or a count: 30, 1.5, 10m, 2h, infinity.
func number(s string) (float64, bool) {
	if s == "infinity" || s == "inf" {
		return 1e9, true
	}
	unit := 1.0
	if s != "" {
		switch s[len(s)-1] {
		case 's':
			s = s[:len(s)-1]
		case 'm':
			s, unit = s[:len(s)-1], 60
		case 'h':
			s, unit = s[:len(s)-1], 3600
		case 'd':
			s, unit = s[:len(s)-1], 86400
		}
	}
	x, err := strconv.ParseFloat(s, 64)
	return x * unit, err == nil && x == x
}
