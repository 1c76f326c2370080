package controller

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/fulgur-rl/fulgur"
)

// Withhold returns the input without what is at the given paths ("input.answer",
// "input.tests.0"); a path that is not there is no error. Bytes that stay are
// untouched: numbers keep their digits, objects their order. An element of a
// list becomes null, so that the others keep their places. All members of one
// name go, also those that are written twice or with escapes.
func Withhold(input json.RawMessage, paths []string) json.RawMessage {
	raw := string(input)
	for _, p := range paths {
		parts, ok := inputPath(p)
		if !ok {
			parts = strings.Split(p, ".") // "answer" means input.answer
		}
		if len(parts) == 0 {
			return json.RawMessage("null")
		}
		raw = without(raw, parts)
	}
	return json.RawMessage(raw)
}

func without(raw string, path []string) string {
	r := gjson.Parse(raw)
	if !r.IsObject() && !r.IsArray() {
		return raw
	}
	var b strings.Builder
	open, shut, n, kept := "{", "}", 0, 0
	if r.IsArray() {
		open, shut = "[", "]"
	}
	b.WriteString(open)
	r.ForEach(func(key, value gjson.Result) bool {
		hit := r.IsObject() && key.String() == path[0] || r.IsArray() && strconv.Itoa(n) == path[0]
		n++
		item := value.Raw
		if hit && len(path) > 1 {
			item = without(item, path[1:])
		} else if hit && r.IsArray() {
			item = "null"
		} else if hit {
			return true
		}
		if kept++; kept > 1 {
			b.WriteByte(',')
		}
		if r.IsObject() {
			b.WriteString(key.Raw)
			b.WriteByte(':')
		}
		b.WriteString(item)
		return true
	})
	b.WriteString(shut)
	return b.String()
}

// inputPath splits "input", "input.a.b", "input.list.0"; ok is false for what
// is no path but a literal.
func inputPath(s string) (parts []string, ok bool) {
	if s == "input" {
		return nil, true
	}
	rest, ok := strings.CutPrefix(s, "input.")
	if !ok {
		return nil, false
	}
	return strings.Split(rest, "."), true
}

// IsPath says whether a value of an environment map is a path into the input,
// not a literal.
func IsPath(value string) bool {
	_, ok := inputPath(value)
	return ok
}

// InputEnv fills an environment map (v1's env_map) from an input: a value that
// is a path is looked up, strings as they are, all else as JSON; any other
// value is passed as it is. A path that is not there is KindInvalid.
func InputEnv(mapping map[string]string, input json.RawMessage) (map[string]string, error) {
	out := make(map[string]string, len(mapping))
	for name, value := range mapping {
		parts, ok := inputPath(value)
		if !ok {
			out[name] = value
			continue
		}
		r := gjson.ParseBytes(input)
		for i, p := range parts {
			if r = member(r, p); !r.Exists() {
				return nil, fulgur.E(fulgur.KindInvalid, "", fmt.Sprintf("the environment variable %s asks for %s, but the rollout's input has no %q there (withheld fields count as absent): correct agent.input.env or the data row",
					name, value, strings.Join(append([]string{"input"}, parts[:i+1]...), ".")), nil)
			}
		}
		if r.Type == gjson.String {
			out[name] = r.String()
		} else {
			out[name] = r.Raw
		}
	}
	return out, nil
}

// member returns the member of an object (the last of that name, as
// encoding/json reads it) or element of a list.
func member(r gjson.Result, name string) (found gjson.Result) {
	n := 0
	r.ForEach(func(key, value gjson.Result) bool {
		if r.IsObject() && key.String() == name || r.IsArray() && strconv.Itoa(n) == name {
			found = value
		}
		n++
		return true
	})
	return found
}

// v1Config is what we read of v1's RolloutConfig.
type v1Config struct {
	Local *struct {
		EnvMap map[string]string `json:"env_map"`
	} `json:"local"`
	K8s *struct {
		JobTemplate string `json:"job_template"`
	} `json:"k8s"`
}

func v1JobTemplate(config json.RawMessage) string {
	var c v1Config
	if len(config) == 0 || json.Unmarshal(config, &c) != nil || c.K8s == nil {
		return ""
	}
	return c.K8s.JobTemplate
}

func v1EnvMap(config json.RawMessage) map[string]string {
	if len(config) == 0 {
		return nil
	}
	var c v1Config
	if json.Unmarshal(config, &c) != nil || c.Local == nil {
		return nil
	}
	return c.Local.EnvMap
}
