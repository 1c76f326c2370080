package reward

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// finalAnswer compares the last reply of the main conversation with a field of
// the input: 1 for the right answer, else 0.
type finalAnswer struct {
	path    []string
	o       Options
	pattern *regexp.Regexp
}

func newFinalAnswer(o Options) (Grader, error) {
	g := &finalAnswer{o: o}
	rest, ok := strings.CutPrefix(o.Expected, "input.")
	if !ok || rest == "" {
		return nil, invalid(fmt.Sprintf("reward.expected is %q; it names the field of the input with the right answer, such as input.answer", o.Expected))
	}
	g.path = strings.Split(rest, ".")
	switch o.Compare {
	case "":
		g.o.Compare = "exact"
	case "exact", "number":
	case "pattern":
		re, err := regexp.Compile(o.Pattern)
		if err != nil {
			return nil, invalid(fmt.Sprintf("reward.pattern is no regular expression: %v", err))
		}
		if re.NumSubexp() < 1 {
			return nil, invalid("reward.pattern needs a group around the answer, such as Answer: (.*)")
		}
		g.pattern = re
	default:
		return nil, invalid(fmt.Sprintf("reward.compare is %q; it can be exact, number or pattern", o.Compare))
	}
	return g, nil
}

// Check implements Grader.
func (g *finalAnswer) Check(input json.RawMessage) error {
	_, err := g.expected(input)
	return err
}

// expected returns the right answer: strings as they are, all else as JSON.
func (g *finalAnswer) expected(input json.RawMessage) (string, error) {
	missing := func(why string) error {
		return fulgur.E(fulgur.KindInvalid, "grade", fmt.Sprintf("the input has no %s to compare the answer with (%s): correct reward.expected or the data row", g.o.Expected, why), nil)
	}
	at := input
	for _, part := range g.path {
		at = bytes.TrimSpace(at)
		var next json.RawMessage
		switch {
		case len(at) > 0 && at[0] == '{':
			var m map[string]json.RawMessage
			if err := json.Unmarshal(at, &m); err != nil {
				return "", missing(err.Error())
			}
			next = m[part]
		case len(at) > 0 && at[0] == '[':
			var l []json.RawMessage
			if err := json.Unmarshal(at, &l); err != nil {
				return "", missing(err.Error())
			}
			if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(l) {
				next = l[i]
			}
		}
		if next == nil {
			return "", missing(fmt.Sprintf("there is no %q", part))
		}
		at = next
	}
	var s string
	if at = bytes.TrimSpace(at); bytes.Equal(at, []byte("null")) {
		return "", missing("it is null")
	}
	if json.Unmarshal(at, &s) != nil {
		s = string(at)
	}
	if g.o.Compare == "number" {
		if at[0] == '{' || at[0] == '[' { // the last number in it is an accident of how it is written
			return "", missing(fmt.Sprintf("%.40s is neither a number nor a text", at))
		}
		if _, ok := lastNumber(s); !ok {
			return "", missing(fmt.Sprintf("%.40q is no number", s))
		}
	}
	return s, nil
}

// Grade implements Grader.
func (g *finalAnswer) Grade(input json.RawMessage, calls []fulgur.Call) (float64, string, error) {
	want, err := g.expected(input)
	if err != nil {
		return 0, "", err
	}
	text, ok := finalReply(calls)
	if !ok {
		return 0, NoAnswer, nil
	}
	answered, right := g.compare(text, want)
	switch {
	case !answered:
		return 0, NoAnswer, nil
	case right:
		return 1, Right, nil
	}
	return 0, Wrong, nil
}

func (g *finalAnswer) compare(text, want string) (answered, right bool) {
	if g.pattern != nil {
		all := g.pattern.FindAllStringSubmatch(text, -1)
		if len(all) == 0 {
			return false, false
		}
		return true, same(all[len(all)-1][1], want)
	}
	if g.o.Prefix != "" {
		i := strings.LastIndex(text, g.o.Prefix)
		if i < 0 {
			return false, false
		}
		text = text[i+len(g.o.Prefix):]
	}
	if g.o.Compare == "number" {
		got, ok := lastNumber(text)
		w, _ := lastNumber(want)
		return ok, ok && got.Cmp(w) == 0
	}
	return strings.TrimSpace(text) != "", same(text, want)
}

func same(a, b string) bool { return strings.TrimSpace(a) == strings.TrimSpace(b) }

// finalReply returns the text of the last reply without tool calls of the main
// conversation: the calls that begin with the same first message, system
// messages aside, as the attempt's first. An agent that rewrites its history
// (compaction) may leave that conversation without such a reply; then all calls
// are looked at. Replies that the harness never got do not count.
func finalReply(calls []fulgur.Call) (text string, ok bool) {
	var first *fulgur.Message
	var main, last *fulgur.Message
	for i := range calls {
		c := &calls[i]
		if c.Auxiliary != "" || c.Reply == nil || c.HTTPStatus >= 400 || c.Fate != "" && c.Fate != fulgur.FateDelivered {
			continue
		}
		start := opening(c.Messages)
		if first == nil {
			first = start
		}
		if len(c.Reply.ToolCalls) > 0 {
			continue
		}
		last = c.Reply
		if start == first || start != nil && first != nil && start.Same(*first) {
			main = c.Reply
		}
	}
	if main == nil {
		main = last
	}
	if main == nil {
		return "", false
	}
	return main.Content, true
}

// opening returns a conversation's first message that is no system message.
func opening(ms []fulgur.Message) *fulgur.Message {
	for i := range ms {
		if ms[i].Role != "system" && ms[i].Role != "developer" {
			return &ms[i]
		}
	}
	return nil
}

// number is a decimal number, thousands marked by commas or not. Its exponent
// is bounded: 1e999999999 would fill the memory as an exact number.
var number = regexp.MustCompile(`(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|\.\d+(?:[eE][-+]?\d{1,3})?`)

// maxDigits is the longest number that is looked at.
const maxDigits = 400

// lastNumber returns the last number of a text, exactly: 42 = 42.0 = 4.2e1. A
// sign counts where it is none between two operands (5-3 ends in 3).
func lastNumber(text string) (*big.Rat, bool) {
	text = strings.ReplaceAll(text, "\u2212", "-") // the typographic minus
	all := number.FindAllStringIndex(text, -1)
	if len(all) == 0 {
		return nil, false
	}
	at := all[len(all)-1]
	if at[1]-at[0] > maxDigits {
		return nil, false
	}
	r, ok := new(big.Rat).SetString(strings.ReplaceAll(text[at[0]:at[1]], ",", ""))
	if !ok {
		return nil, false
	}
	if before := text[:at[0]]; strings.HasSuffix(before, "-") {
		operand := strings.TrimSuffix(before, "-")
		if operand == "" || !strings.ContainsRune("0123456789)]%", rune(operand[len(operand)-1])) {
			r.Neg(r)
		}
	}
	return r, true
}
