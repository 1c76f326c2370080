package v1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"net/url"
	"strconv"
	"strings"
)

// problem is an item of a 422's detail.
type problem struct {
	Type  string `json:"type"`
	Loc   []any  `json:"loc"`
	Msg   string `json:"msg"`
	Input any    `json:"input"`
}

// problems are what is wrong with a request.
type problems []problem

func (p problems) Error() string { return fmt.Sprintf("%d validation errors", len(p)) }

// decode decodes JSON and keeps numbers as they are written.
func decode(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return v, nil
}

// checker collects what is wrong, and reads scalars as laxly as v1 does.
type checker struct{ found problems }

func (c *checker) err() error {
	if len(c.found) > 0 {
		return c.found
	}
	return nil
}

func (c *checker) add(kind, msg string, input any, loc ...any) {
	c.found = append(c.found, problem{kind, loc, msg, input})
}

type object = map[string]any

// object wants an object; it returns nil for anything else.
func (c *checker) object(v any, loc ...any) object {
	o, ok := v.(object)
	if !ok {
		c.add("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", v, loc...)
	}
	return o
}

func (c *checker) list(v any, loc ...any) []any {
	l, ok := v.([]any)
	if !ok {
		c.add("list_type", "Input should be a valid list", v, loc...)
	}
	return l
}

func at(loc []any, more ...any) []any { return append(append([]any{}, loc...), more...) }

// intField reads an integer: 60, 60.0, "60", true.
func (c *checker) intField(o object, key string, missing int64, loc ...any) int64 {
	v, ok := o[key]
	if !ok {
		return missing
	}
	n, kind, msg := laxInt(v)
	if kind != "" {
		c.add(kind, msg, v, at(loc, key)...)
	}
	return n
}

// laxInt returns v as an integer, or the kind and message of what is wrong.
func laxInt(v any) (n int64, kind, msg string) {
	const parsing = "Input should be a valid integer, unable to parse string as an integer"
	switch v := v.(type) {
	case bool:
		if v {
			return 1, "", ""
		}
		return 0, "", ""
	case json.Number:
		if n, ok := wholeNumber(string(v)); ok {
			return n, "", ""
		}
		return 0, "int_from_float", "Input should be a valid integer, got a number with a fractional part"
	case string:
		s := strings.ReplaceAll(strings.TrimSpace(v), "_", "")
		if strings.ContainsAny(s, "eE") || strings.HasPrefix(s, ".") {
			return 0, "int_parsing", parsing
		}
		if n, ok := wholeNumber(s); ok {
			return n, "", ""
		}
		return 0, "int_parsing", parsing
	}
	return 0, "int_type", "Input should be a valid integer"
}

// wholeNumber reads a number without a fraction that fits an int64.
func wholeNumber(s string) (int64, bool) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, true
	}
	if len(s) > 64 { // no exponent is worth the memory
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.Abs(f) > 1e18 {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// boolField reads a truth value: true, 1, 1.0, "yes", "on", "t", …
func (c *checker) boolField(o object, key string, missing bool, loc ...any) bool {
	v, ok := o[key]
	if !ok {
		return missing
	}
	switch x := v.(type) {
	case bool:
		return x
	case json.Number:
		if n, ok := wholeNumber(string(x)); ok && (n == 0 || n == 1) {
			return n == 1
		}
	case string:
		if b, ok := laxBool(x); ok {
			return b
		}
	default:
		c.add("bool_type", "Input should be a valid boolean", v, at(loc, key)...)
		return false
	}
	c.add("bool_parsing", "Input should be a valid boolean, unable to interpret input", v, at(loc, key)...)
	return false
}

func laxBool(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "1", "true", "t", "yes", "y", "on":
		return true, true
	case "0", "false", "f", "no", "n", "off":
		return false, true
	}
	return false, false
}

// textField reads a text or null; missing is null.
func (c *checker) textField(o object, key string, loc ...any) *string {
	switch v := o[key].(type) {
	case nil:
	case string:
		return &v
	default:
		c.add("string_type", "Input should be a valid string", v, at(loc, key)...)
	}
	return nil
}

// needText reads a text that must be there.
func (c *checker) needText(o object, key string, loc ...any) string {
	v, ok := o[key]
	if !ok {
		c.add("missing", "Field required", o, at(loc, key)...)
		return ""
	}
	s, ok := v.(string)
	if !ok {
		c.add("string_type", "Input should be a valid string", v, at(loc, key)...)
	}
	return s
}

// queryInt reads an integer of the query; the last of several counts.
func (c *checker) queryInt(q url.Values, key string, missing int) int {
	vs := q[key]
	if len(vs) == 0 {
		return missing
	}
	last := vs[len(vs)-1]
	n, kind, msg := laxInt(last)
	if kind != "" {
		c.add(kind, msg, last, "query", key)
	}
	return int(n)
}

func (c *checker) queryBool(q url.Values, key string, missing bool) bool {
	vs := q[key]
	if len(vs) == 0 {
		return missing
	}
	b, ok := laxBool(vs[len(vs)-1])
	if !ok {
		c.add("bool_parsing", "Input should be a valid boolean, unable to interpret input", vs[len(vs)-1], "query", key)
	}
	return b
}
