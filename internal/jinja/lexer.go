package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokKind uint8

const (
	tokEOF tokKind = iota
	tokData
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
)

type token struct {
	kind tokKind
	val  string
	line int
}

// lexer follows jinja2's tokeniter.
type lexer struct {
	src       string
	pos       int
	line      int
	lineStart bool // the last token ended a line (or nothing was read yet)
	trim      bool // trim_blocks and lstrip_blocks
	toks      []token
}

func lex(source string, trim bool) []token {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, line: 1, lineStart: true, trim: trim}
	for l.pos < len(l.src) {
		l.lexRoot()
	}
	l.emit(tokEOF, "")
	return l.toks
}

func (l *lexer) emit(k tokKind, v string) { l.toks = append(l.toks, token{k, v, l.line}) }

// advance moves to pos and counts the lines passed.
func (l *lexer) advance(pos int) {
	l.line += strings.Count(l.src[l.pos:pos], "\n")
	l.lineStart = pos > l.pos && l.src[pos-1] == '\n'
	l.pos = pos
}

// lexRoot reads text up to the next tag, and the tag.
func (l *lexer) lexRoot() {
	rest := l.src[l.pos:]
	at := -1
	for i := 0; i+1 < len(rest); i++ {
		if rest[i] == '{' && (rest[i+1] == '%' || rest[i+1] == '{' || rest[i+1] == '#') {
			at = i
			break
		}
	}
	if at < 0 {
		l.emit(tokData, rest)
		l.advance(len(l.src))
		return
	}
	kind, sign := rest[at+1], byte(0)
	after := at + 2
	if after < len(rest) && (rest[after] == '-' || rest[after] == '+') {
		sign = rest[after]
		after++
	}
	if text := stripBefore(rest[:at], sign, l.trim && kind != '{', l.lineStart); text != "" {
		l.emit(tokData, text)
	}
	start := l.pos
	l.advance(start + after)
	switch kind {
	case '#':
		l.lexComment()
	case '{':
		l.emit(tokVarBegin, "")
		l.lexCode(false)
	default:
		if end, ok := rawBegin(l.src, l.pos); ok {
			l.advance(end)
			l.lexRaw()
			return
		}
		l.emit(tokBlockBegin, "")
		l.lexCode(true)
	}
}

// stripBefore applies the white-space mark of a tag to the text before it.
func stripBefore(text string, sign byte, lstrip, lineStart bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || !lstrip {
		return text
	}
	nl := strings.LastIndexByte(text, '\n') + 1
	if (nl > 0 || lineStart) && strings.TrimLeftFunc(text[nl:], isSpace) == "" {
		return text[:nl]
	}
	return text
}

func skipSpace(s string, i int) int {
	return len(s) - len(strings.TrimLeftFunc(s[i:], isSpace))
}

// endTag matches the end of a block or comment at i ("%}", "-%}", "+%}") and
// returns the position behind it and what it swallows.
func (l *lexer) endTag(i int, mark string) (int, bool) {
	s := l.src
	switch {
	case strings.HasPrefix(s[i:], "-"+mark):
		return skipSpace(s, i+1+len(mark)), true
	case strings.HasPrefix(s[i:], "+"+mark):
		return i + 1 + len(mark), true
	case strings.HasPrefix(s[i:], mark):
		i += len(mark)
		if l.trim && i < len(s) && s[i] == '\n' {
			i++
		}
		return i, true
	}
	return 0, false
}

func (l *lexer) lexComment() {
	for i := l.pos; i < len(l.src); i++ {
		if end, ok := l.endTag(i, "#}"); ok {
			l.advance(end)
			return
		}
	}
	fail(l.line, KindCompile, "missing end of comment tag")
}

// rawBegin matches the rest of a "{% raw %}" tag behind its "{%" and mark.
func rawBegin(s string, i int) (int, bool) {
	i = skipSpace(s, i)
	if !strings.HasPrefix(s[i:], "raw") {
		return 0, false
	}
	i = skipSpace(s, i+3)
	if strings.HasPrefix(s[i:], "-%}") {
		return skipSpace(s, i+3), true
	}
	return i + 2, strings.HasPrefix(s[i:], "%}")
}

func (l *lexer) lexRaw() {
	for i := l.pos; i+1 < len(l.src); i++ {
		if l.src[i] != '{' || l.src[i+1] != '%' {
			continue
		}
		j, sign := i+2, byte(0)
		if j < len(l.src) && (l.src[j] == '-' || l.src[j] == '+') {
			sign = l.src[j]
			j++
		}
		j = skipSpace(l.src, j)
		if !strings.HasPrefix(l.src[j:], "endraw") {
			continue
		}
		end, ok := l.endTag(skipSpace(l.src, j+6), "%}")
		if !ok {
			continue
		}
		if text := stripBefore(l.src[l.pos:i], sign, l.trim, l.lineStart); text != "" {
			l.emit(tokData, text)
		}
		l.advance(end)
		return
	}
	fail(l.line, KindCompile, "missing end of raw block")
}

var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~",
	"[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

// lexCode reads the tokens of a block or variable tag up to its end.
func (l *lexer) lexCode(block bool) {
	var open []byte
	for {
		if l.pos >= len(l.src) {
			fail(l.line, KindCompile, "unexpected end of template inside a tag")
		}
		if len(open) == 0 && l.lexCodeEnd(block) {
			return
		}
		c := l.src[l.pos]
		r, _ := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case isSpace(r):
			l.advance(skipSpace(l.src, l.pos))
		case c >= '0' && c <= '9':
			l.lexNumber()
		case r == '_' || unicode.IsLetter(r):
			end := l.nameEnd()
			l.emit(tokName, l.src[l.pos:end])
			l.advance(end)
		case c == '\'' || c == '"':
			l.lexString(c)
		default:
			open = l.lexOperator(open)
		}
	}
}

func (l *lexer) nameEnd() int {
	n := strings.IndexFunc(l.src[l.pos:], func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.M, r)
	})
	if n < 0 {
		return len(l.src)
	}
	return l.pos + n
}

func (l *lexer) lexCodeEnd(block bool) bool {
	if block {
		if end, ok := l.endTag(l.pos, "%}"); ok {
			l.emit(tokBlockEnd, "")
			l.advance(end)
			return true
		}
		return false
	}
	rest := l.src[l.pos:]
	if strings.HasPrefix(rest, "-}}") {
		l.emit(tokVarEnd, "")
		l.advance(skipSpace(l.src, l.pos+3))
		return true
	}
	if strings.HasPrefix(rest, "}}") {
		l.emit(tokVarEnd, "")
		l.advance(l.pos + 2)
		return true
	}
	return false
}

func (l *lexer) lexOperator(open []byte) []byte {
	rest := l.src[l.pos:]
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(", "[", "{":
			open = append(open, op[0])
		case ")", "]", "}":
			want := map[string]byte{")": '(', "]": '[', "}": '{'}[op]
			if len(open) == 0 || open[len(open)-1] != want {
				fail(l.line, KindCompile, "unexpected '%s'", op)
			}
			open = open[:len(open)-1]
		}
		l.emit(tokOp, op)
		l.advance(l.pos + len(op))
		return open
	}
	r, _ := utf8.DecodeRuneInString(rest)
	fail(l.line, KindCompile, "unexpected char %q", r)
	return nil
}

// lexNumber reads an integer (with underscores, 0x, 0o, 0b) or a float.
func (l *lexer) lexNumber() {
	s, i := l.src, l.pos
	digits := func(j int, ok func(byte) bool) int {
		for j < len(s) && (ok(s[j]) || s[j] == '_' && j+1 < len(s) && ok(s[j+1])) {
			j++
		}
		return j
	}
	dec := func(c byte) bool { return c >= '0' && c <= '9' }
	if s[i] == '0' && i+2 < len(s) {
		var ok func(byte) bool
		switch s[i+1] | 0x20 {
		case 'x':
			ok = func(c byte) bool { return dec(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }
		case 'o':
			ok = func(c byte) bool { return c >= '0' && c <= '7' }
		case 'b':
			ok = func(c byte) bool { return c == '0' || c == '1' }
		}
		if ok != nil {
			if end := digits(i+2, ok); end > i+2 {
				l.emit(tokInt, s[i:end])
				l.advance(end)
				return
			}
		}
	}
	end := digits(i, dec)
	kind := tokInt
	afterDot := i > 0 && s[i-1] == '.'
	if !afterDot && end+1 < len(s) && s[end] == '.' && dec(s[end+1]) {
		kind, end = tokFloat, digits(end+1, dec)
	}
	if !afterDot && end < len(s) && s[end]|0x20 == 'e' {
		j := end + 1
		if j < len(s) && (s[j] == '+' || s[j] == '-') {
			j++
		}
		if j < len(s) && dec(s[j]) {
			kind, end = tokFloat, digits(j, dec)
		}
	}
	l.emit(kind, strings.ReplaceAll(s[i:end], "_", ""))
	l.advance(end)
}

func (l *lexer) lexString(quote byte) {
	i := l.pos + 1
	for i < len(l.src) && l.src[i] != quote {
		if l.src[i] == '\\' {
			i++
		}
		i++
	}
	if i >= len(l.src) {
		fail(l.line, KindCompile, "string literal without an end")
	}
	l.emit(tokString, unescape(l.src[l.pos+1:i], l.line))
	l.advance(i + 1)
}

// unescape resolves Python's escapes in a string literal.
func unescape(s string, line int) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 >= len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		if k := strings.IndexByte("abfnrtv\\'\"", c); k >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v\\'\""[k])
			continue
		}
		width := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		switch {
		case c == '\n':
		case width > 0:
			v, ok := parseHex(s, i+1, width)
			if !ok {
				fail(line, KindCompile, "truncated \\%c escape in a string", c)
			}
			b.WriteRune(v)
			i += width
		case c >= '0' && c <= '7':
			v := rune(0)
			j := i
			for ; j < len(s) && j < i+3 && s[j] >= '0' && s[j] <= '7'; j++ {
				v = v*8 + rune(s[j]-'0')
			}
			b.WriteRune(v)
			i = j - 1
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

func parseHex(s string, i, width int) (rune, bool) {
	if i+width > len(s) {
		return 0, false
	}
	v := rune(0)
	for _, c := range []byte(s[i : i+width]) {
		d := strings.IndexByte("0123456789abcdef", c|0x20)
		if c >= '0' && c <= '9' {
			d = int(c - '0')
		}
		if d < 0 || v > 0x10FFFF {
			return 0, false
		}
		v = v<<4 | rune(d)
	}
	return v, true
}

// isSpace is Python's str.isspace and the \s of its regular expressions.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
