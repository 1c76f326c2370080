package audit

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// token of a program: a text with quotes, a name (dotted: "os.system"), a number,
// or a sign.
type token struct {
	kind byte // 's', 'n', '0', or 'o'
	text string
	code bool // a text that a shell runs: backticks of Perl and Ruby
	f    bool // f"…" of Python, `…` of JavaScript
}

// lex cuts a program into tokens: one lexer for Python, JavaScript, Perl, Ruby
// and PHP, since only texts, names and calls are looked at.
func lex(lang, src string) []token {
	var out []token
	for i := 0; i < len(src) && len(out) < maxSteps; {
		c := src[i]
		switch {
		case c == '#' && lang != "node" && lang != "php" || c == '/' && lang == "node" && strings.HasPrefix(src[i:], "//"):
			for i < len(src) && src[i] != '\n' {
				i++
			}
		case c == '\n':
			out = append(out, token{kind: 'o', text: "\n"})
			i++
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '\'' || c == '"' || c == '`':
			t, n := quotedText(lang, src[i:], "")
			out = append(out, t)
			i += n
		case c == '$' && lang != "python" || c == '_' || unicode.IsLetter(rune(c)) || c >= utf8.RuneSelf:
			n := nameLength(src[i:])
			name := src[i : i+n]
			if i+n < len(src) && (src[i+n] == '\'' || src[i+n] == '"') && lang == "python" && len(name) <= 2 && strings.Trim(strings.ToLower(name), "rbfu") == "" {
				t, k := quotedText(lang, src[i+n:], strings.ToLower(name))
				out = append(out, t)
				i += n + k
				continue
			}
			out = append(out, token{kind: 'n', text: strings.TrimPrefix(name, "$")})
			i += n
		case c >= '0' && c <= '9':
			n := 1
			for i+n < len(src) && (src[i+n] == '.' || src[i+n] == '_' || unicode.IsLetter(rune(src[i+n])) || src[i+n] >= '0' && src[i+n] <= '9') {
				n++
			}
			out = append(out, token{kind: '0', text: strings.ReplaceAll(src[i:i+n], "_", "")})
			i += n
		default:
			out = append(out, token{kind: 'o', text: src[i : i+1]})
			i++
		}
	}
	return out
}

// nameLength measures a name with what is behind its dots.
func nameLength(s string) int {
	n := 0
	for n < len(s) {
		c := s[n]
		if c == '_' || c == '$' || c >= '0' && c <= '9' || c >= utf8.RuneSelf || unicode.IsLetter(rune(c)) ||
			c == '.' && n > 0 && n+1 < len(s) && (s[n+1] == '_' || unicode.IsLetter(rune(s[n+1]))) {
			n++
			continue
		}
		break
	}
	return max(n, 1)
}

// quotedText reads a text with its quotes and returns its length in the source.
func quotedText(lang, s, prefix string) (token, int) {
	q := s[:1]
	t := token{kind: 's', code: q == "`" && (lang == "perl" || lang == "ruby" || lang == "php"), f: strings.Contains(prefix, "f") || q == "`" && lang == "node" || q == "\"" && (lang == "perl" || lang == "ruby" || lang == "php")}
	raw := strings.Contains(prefix, "r")
	if lang == "python" && strings.HasPrefix(s, q+q+q) {
		body, _, ok := strings.Cut(s[3:], q+q+q)
		n := len(body) + 6
		if !ok {
			n = len(s)
		}
		t.text = body
		if !raw {
			t.text = escapes(strings.ReplaceAll(body, "\\\n", ""))
		}
		return t, n
	}
	i := 1
	for i < len(s) && s[i:i+1] != q && (s[i] != '\n' || q == "`" || lang != "python") {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		i++
	}
	i = min(i, len(s))
	t.text = s[1:i]
	if !raw {
		t.text = escapes(t.text)
	}
	return t, min(i+1, len(s))
}
