package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// sameness is what two requests that ask for the same have in common.
type sameness struct {
	hash  [sha256.Size]byte
	valid bool // false: not JSON, and like nothing
}

// notContent are the fields of a request that a retry may change: how the answer
// is sent, how long it may be, and what only describes the caller.
var notContent = []string{"stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens",
	"client_metadata", "metadata", "prompt_cache_key"}

// billing begins the line that Claude Code puts before its system prompt. It holds
// a number that is another one in each request.
const billing = "x-anthropic-billing-header:"

// sameOf reads what a request asks for: the hash of its JSON in canonical form,
// without notContent, without billing lines, and without cache marks at any depth.
// Key order, white space, the way numbers are written, and a list of one text block
// in place of a string make no difference.
func sameOf(body []byte) sameness {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return sameness{}
	}
	if _, err := dec.Token(); err != io.EOF {
		return sameness{}
	}
	if m, ok := v.(map[string]any); ok {
		for _, k := range notContent {
			delete(m, k)
		}
		unbill(m)
	}
	b, err := json.Marshal(canonical(v)) // maps are written in the order of their keys
	if err != nil {
		return sameness{}
	}
	return sameness{sha256.Sum256(b), true}
}

// unbill takes billing lines out of a request's system prompt.
func unbill(request map[string]any) {
	line := func(v any) (rest string, found bool) {
		text, _ := v.(string)
		if !strings.HasPrefix(text, billing) {
			return "", false
		}
		_, rest, _ = strings.Cut(text, "\n")
		return rest, true
	}
	switch system := request["system"].(type) {
	case string:
		if rest, found := line(system); found {
			request["system"] = rest
		}
		if request["system"] == "" {
			delete(request, "system")
		}
	case []any:
		request["system"] = slices.DeleteFunc(system, func(block any) bool {
			m, ok := block.(map[string]any)
			if !ok {
				return false
			}
			rest, found := line(m["text"])
			if found {
				m["text"] = rest
			}
			return found && rest == ""
		})
		if len(system) > 0 && len(request["system"].([]any)) == 0 {
			delete(request, "system")
		}
	}
}

func canonical(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "cache_control")
		for k, x := range v {
			v[k] = canonical(x)
		}
		return v
	case []any:
		for i, x := range v {
			v[i] = canonical(x)
		}
		if len(v) == 1 {
			if text, ok := textBlock(v[0]); ok {
				return text
			}
		}
		return v
	case json.Number:
		return canonicalNumber(v)
	}
	return v
}

// textBlock reads {"type":"text","text":…} with nothing else in it.
func textBlock(v any) (string, bool) {
	m, ok := v.(map[string]any)
	if !ok || len(m) != 2 || m["type"] != "text" {
		return "", false
	}
	s, ok := m["text"].(string)
	return s, ok
}

// canonicalNumber writes 1, 1.0 and 1e0 alike, and keeps what no float64 holds.
func canonicalNumber(n json.Number) json.Number {
	if _, err := strconv.ParseInt(string(n), 10, 64); err == nil && n != "-0" {
		return n
	}
	f, err := strconv.ParseFloat(string(n), 64)
	if err != nil {
		return n
	}
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return json.Number(strconv.FormatInt(int64(f), 10))
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, 64))
}
