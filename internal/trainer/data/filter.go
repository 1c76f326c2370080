package data

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur"
)

// Filter says which rows are used: those for which every condition holds. A
// condition is a path, what is asked, and a value:
//
//	input.level <= 3          ==  !=  <  <=  >  >=   numbers, texts, true, false
//	input.kind in [a, b]      not in [a, b]
//	input.question matches ^What                     a regular expression (RE2)
//	input.answer exists       missing                 (null is missing)
//	length(input.question) < 2000                    characters, or items of a list
//
// A row without the field fails every condition but missing, != and not in.
type Filter []condition

type condition struct {
	source string
	path   string
	length bool
	op     string
	values []any
	re     *regexp.Regexp
}

var conditionForm = regexp.MustCompile(`^\s*(length\()?\s*([A-Za-z_][\w.-]*)\s*(\))?\s*(==|!=|<=|>=|<|>|not\s+in\b|in\b|matches\b|exists\b|missing\b)\s*(.*?)\s*$`)

// ParseFilter reads conditions. An error is KindInvalid and says which is wrong.
func ParseFilter(conditions []string) (Filter, error) {
	var out Filter
	for _, src := range conditions {
		c, problem := parseCondition(src)
		if problem != "" {
			return nil, fulgur.E(fulgur.KindInvalid, "read filter "+strconv.Quote(src), problem, nil)
		}
		out = append(out, c)
	}
	return out, nil
}

func parseCondition(src string) (c condition, problem string) {
	g := conditionForm.FindStringSubmatch(src)
	if g == nil || (g[1] == "") != (g[3] == "") {
		return c, "want a path, what is asked, and a value, such as `input.level <= 3`; asked may be == != < <= > >=, in, not in, matches, exists, missing"
	}
	c = condition{source: src, path: strings.TrimPrefix(g[2], "input."), length: g[1] != "", op: strings.Join(strings.Fields(g[4]), " ")}
	value := g[5]
	switch c.op {
	case "exists", "missing":
		if value != "" {
			return c, c.op + " takes no value"
		}
	case "matches":
		re, err := regexp.Compile(value)
		if err != nil || value == "" {
			return c, fmt.Sprintf("%q is no regular expression (RE2)", value)
		}
		c.re = re
	case "in", "not in":
		inner, ok := strings.CutPrefix(value, "[")
		inner, ok2 := strings.CutSuffix(inner, "]")
		if !ok || !ok2 {
			return c, c.op + " takes a list, such as [a, b]"
		}
		for item := range strings.SplitSeq(inner, ",") {
			c.values = append(c.values, valueOf(strings.TrimSpace(item)))
		}
	default:
		if value == "" {
			return c, "the value is missing"
		}
		c.values = []any{valueOf(value)}
	}
	if _, isNumber := first(c.values).(float64); !isNumber && (c.length && c.op != "in" && c.op != "not in" || c.length && c.re != nil) {
		return c, "length() is compared with a number"
	}
	return c, ""
}

func first(v []any) any {
	if len(v) == 0 {
		return nil
	}
	return v[0]
}

// valueOf reads a value: a number, true, false, a text with or without quotes.
func valueOf(s string) any {
	var v any
	if json.Unmarshal([]byte(s), &v) == nil {
		switch v.(type) {
		case float64, bool, string:
			return v
		}
	}
	return strings.Trim(s, `'`)
}

// Keeps says whether all conditions hold for a row.
func (f Filter) Keeps(input json.RawMessage) bool {
	for i := range f {
		if !f[i].holds(input) {
			return false
		}
	}
	return true
}

func (c *condition) holds(input json.RawMessage) bool {
	v, ok := lookUp(input, c.path)
	if ok && c.length {
		v, ok = lengthOf(v)
	}
	switch c.op {
	case "exists":
		return ok
	case "missing":
		return !ok
	case "!=", "not in":
		return !ok || !slices.ContainsFunc(c.values, func(w any) bool { return compare(v, w) == 0 })
	case "==", "in":
		return ok && slices.ContainsFunc(c.values, func(w any) bool { return compare(v, w) == 0 })
	case "matches":
		return ok && c.re.MatchString(fmt.Sprint(v))
	}
	if !ok {
		return false
	}
	x := compare(v, c.values[0])
	switch c.op {
	case "<":
		return x == -1
	case "<=":
		return x == -1 || x == 0
	case ">":
		return x == 1
	}
	return x == 1 || x == 0
}

// compare gives -1, 0, 1, or 2 where two values can't be compared. A text that is
// a number counts as one beside a number: cells of CSV are texts.
func compare(a, b any) int {
	if x, ok := b.(float64); ok {
		y, ok := a.(float64)
		if s, isText := a.(string); isText {
			f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
			y, ok = f, err == nil
		}
		switch {
		case !ok:
			return 2
		case y < x:
			return -1
		case y > x:
			return 1
		}
		return 0
	}
	if x, ok := b.(bool); ok {
		if y, ok := a.(bool); ok && x == y || fmt.Sprint(a) == fmt.Sprint(x) {
			return 0
		}
		return 2
	}
	if s, ok := a.(string); ok {
		return strings.Compare(s, fmt.Sprint(b))
	}
	return 2
}

func lengthOf(v any) (any, bool) {
	switch v := v.(type) {
	case string:
		return float64(utf8.RuneCountInString(v)), true
	case []any:
		return float64(len(v)), true
	}
	return nil, false
}

// lookUp finds the value at a dotted path; null is not there.
func lookUp(input json.RawMessage, path string) (any, bool) {
	at := input
	for p := range strings.SplitSeq(path, ".") {
		var m map[string]json.RawMessage
		if json.Unmarshal(at, &m) != nil {
			return nil, false
		}
		if at = m[p]; at == nil {
			return nil, false
		}
	}
	var v any
	err := json.Unmarshal(at, &v)
	return v, err == nil && v != nil
}
