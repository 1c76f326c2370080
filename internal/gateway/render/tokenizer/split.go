package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// GPT2Pattern is the pattern of GPT-2, which ByteLevel uses with use_regex.
const GPT2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// DigitsPattern returns the pattern that GPT-4's tokenizer began, with at most n
// digits per word: 3 in Llama 3, 1 (written without braces) in Qwen for n = 0,
// 2 in Fulgur's own models.
func DigitsPattern(n int) string {
	digits := `\p{N}`
	if n > 0 {
		digits += "{1," + strconv.Itoa(n) + "}"
	}
	return `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|` + digits + `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
}

// splitter cuts text into pieces that merges do not cross. next returns the end
// of the piece that starts at i < len(s), always greater than i.
type splitter interface{ next(s string, i int) int }

// Splitter is a pattern that this package knows, for those who train a tokenizer
// with it.
type Splitter struct{ splitter }

// NewSplitter returns the splitter of a pattern of the list in the package's
// comment. Patterns are recognised by their text: no Go regexp has the
// look-ahead they need.
func NewSplitter(pattern string) (Splitter, error) {
	if pattern == GPT2Pattern {
		return Splitter{gpt2Splitter{}}, nil
	}
	for n := range 10 {
		if pattern == DigitsPattern(n) {
			return Splitter{gpt4Splitter{max(n, 1)}}, nil
		}
	}
	return Splitter{}, fmt.Errorf("the pattern %q is not known; GPT-2's, and GPT-4's with at most 1 to 9 digits, are", pattern)
}

// Words calls yield with each piece of s in order.
func (s Splitter) Words(text string, yield func(word string)) {
	for i := 0; i < len(text); {
		j := s.next(text, i)
		yield(text[i:j])
		i = j
	}
}

type class uint8

const (
	other class = iota
	letter
	number
	space
)

// classOf returns the kind and the width of the character at i: \s is Unicode's
// White_Space, \p{L} and \p{N} are Unicode's too.
func classOf(s string, i int) (class, int) {
	c := s[i]
	switch {
	case c|0x20 >= 'a' && c|0x20 <= 'z':
		return letter, 1
	case c >= '0' && c <= '9':
		return number, 1
	case c == ' ' || c >= '\t' && c <= '\r':
		return space, 1
	case c < utf8.RuneSelf:
		return other, 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case unicode.IsLetter(r):
		return letter, n
	case unicode.IsNumber(r):
		return number, n
	case unicode.IsSpace(r):
		return space, n
	}
	return other, n
}

// run returns the end of the run of class c that starts at i, of at most limit
// characters (limit < 0: any).
func run(s string, i int, c class, limit int) int {
	for i < len(s) && limit != 0 {
		k, n := classOf(s, i)
		if k != c {
			break
		}
		i += n
		limit--
	}
	return i
}

// contraction returns the end of one of 's 't 're 've 'm 'll 'd at i, or 0.
func contraction(s string, i int, fold bool) int {
	if s[i] != '\'' || i+1 >= len(s) {
		return 0
	}
	rest := s[i+1:]
	low := func(k int) byte {
		if k >= len(rest) {
			return 0
		}
		if fold && rest[k] >= 'A' && rest[k] <= 'Z' {
			return rest[k] + 'a' - 'A'
		}
		return rest[k]
	}
	switch a, b := low(0), low(1); {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return i + 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return i + 3
	}
	if fold && strings.HasPrefix(rest, "ſ") { // folds to s
		return i + 1 + len("ſ")
	}
	return 0
}

// blank returns the end of \s+(?!\S)|\s+ at i, where a run of white space up to
// end starts: its last character is left to the word behind it.
func blank(s string, i, end int) int {
	if end == len(s) {
		return end
	}
	_, n := utf8.DecodeLastRuneInString(s[i:end])
	if end-n > i {
		return end - n
	}
	return end
}

// gpt2Splitter is GPT2Pattern.
type gpt2Splitter struct{}

func (gpt2Splitter) next(s string, i int) int {
	if e := contraction(s, i, false); e > 0 {
		return e
	}
	c, n := classOf(s, i)
	if s[i] == ' ' && i+1 < len(s) {
		if d, w := classOf(s, i+1); d != space {
			return run(s, i+1+w, d, -1)
		}
	}
	if c != space {
		return run(s, i+n, c, -1)
	}
	return blank(s, i, run(s, i, space, -1))
}

// gpt4Splitter is DigitsPattern.
type gpt4Splitter struct{ digits int }

func (g gpt4Splitter) next(s string, i int) int {
	if e := contraction(s, i, true); e > 0 {
		return e
	}
	c, n := classOf(s, i)
	switch c {
	case letter:
		return run(s, i+n, letter, -1)
	case number:
		return run(s, i, number, g.digits)
	}
	d := class(255)
	if i+n < len(s) {
		d, _ = classOf(s, i+n)
	}
	if d == letter && s[i] != '\r' && s[i] != '\n' {
		return run(s, i+n, letter, -1)
	}
	if c == other || s[i] == ' ' && d == other {
		e := run(s, i+n, other, -1)
		for e < len(s) && (s[e] == '\r' || s[e] == '\n') {
			e++
		}
		return e
	}
	end := run(s, i, space, -1)
	if k := strings.LastIndexAny(s[i:end], "\r\n"); k >= 0 {
		return i + k + 1
	}
	return blank(s, i, end)
}

// digitSplitter sets numbers apart, one by one or in runs.
type digitSplitter struct{ individual bool }

func (d digitSplitter) next(s string, i int) int {
	c, n := classOf(s, i)
	if c == number {
		if d.individual {
			return i + n
		}
		return run(s, i, number, -1)
	}
	for i < len(s) {
		c, n := classOf(s, i)
		if c == number {
			break
		}
		i += n
	}
	return i
}
