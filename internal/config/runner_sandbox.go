package config

import (
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/invopop/jsonschema"
)

// Limits bound one agent with all its processes.
type Limits struct {
	// Memory, such as 2GiB; 0: the kind's own limit (the sandbox's is 4GiB).
	Memory Bytes `json:"memory"`
	// Processes and threads at once; 0: the kind's own limit (the sandbox's is 1024).
	Processes int `json:"processes" jsonschema:"minimum=0,maximum=4000000"`
	// The largest file that it may write, such as 2GiB; 0: the kind's own limit (the sandbox's is 1GiB, which its /tmp and its home have in all).
	FileSize Bytes `json:"file_size"`
	// CPU time of each of its processes; 0s: no limit.
	CPUTime Duration `json:"cpu_time"`
	// What its workspace may hold in all (agent.workspace), each file at least 4KiB; 0: 10GiB. Kinds local, with a sandbox or without, and container.
	Workspace Bytes `json:"workspace"`
}

// local checks what kind local has of its own: the sandbox and its limits.
func (c *checker) local() {
	r := c.f.Runner
	for _, key := range []string{"runner.read", "runner.write", "runner.hide"} {
		for _, p := range map[string][]string{"runner.read": r.Read, "runner.write": r.Write, "runner.hide": r.Hide}[key] {
			if clean := path.Clean(p); p == "" || clean == "/" || clean == "~" {
				c.fail(key, "want a folder or a file, not all of %q", p)
			}
			if _, err := path.Match(p, "x"); err != nil && key == "runner.hide" {
				c.fail(key, "%q is no pattern: * and ? stand for what is in a name, [abc] for one of these", p)
			}
		}
	}
	if r.Sandbox == "none" {
		for _, key := range []string{"runner.read", "runner.write", "runner.hide", "runner.limits.memory", "runner.limits.processes", "runner.limits.file_size", "runner.limits.cpu_time"} {
			c.noEffect(key, "with sandbox: none")
		}
	}
}

// Bytes is an amount of memory or disk that is written as 512MiB, 2GiB or 1000000.
type Bytes int64

// units of Bytes, the longest first where one ends in another.
var units = []struct {
	name string
	size int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}

func (v *Bytes) setNode(d *decoder, n ast.Node, path string) {
	d.scalar(n, path, "an amount such as 512MiB or 2GiB", func(s string) error {
		size := int64(1)
		for _, u := range units {
			if rest, ok := strings.CutSuffix(s, u.name); ok {
				s, size = strings.TrimSpace(rest), u.size
				break
			}
		}
		x, err := parseFloat(s)
		if err == nil && (x < 0 || x*float64(size) > 1<<60) {
			err = fmt.Errorf("out of range")
		}
		*v = Bytes(x * float64(size))
		return err
	})
}

// String writes the amount in the largest unit of which it is a whole number.
func (v Bytes) String() string {
	for i := 3; i >= 0 && v > 0; i-- {
		if u := units[i]; int64(v)%u.size == 0 {
			return strconv.FormatInt(int64(v)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(v), 10)
}

// MarshalJSON writes the amount as text, and nothing as 0.
func (v Bytes) MarshalJSON() ([]byte, error) {
	if v == 0 {
		return []byte("0"), nil
	}
	return json.Marshal(v.String())
}

// JSONSchema describes the two forms.
func (Bytes) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "integer", Minimum: "0"}, {Type: "string", Pattern: `^[0-9]+(\.[0-9]+)? ?([KMGT]i?B)?$`}}}
}
