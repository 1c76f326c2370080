// Package config reads the run file: one YAML document that says what to train
// and how. It knows every key with its default, refuses what it does not know
// or what this version does not offer, warns of settings that have no effect,
// and describes itself as JSON Schema. It touches no file and no environment:
// bytes in, values out.
package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur"
)

// maxBytes of a run file. The YAML parser recurses, so the input is bounded
// before it is parsed.
const maxBytes = 256 << 10

// Variants lists the names that this build offers for a key, by the key's
// path: {"engine": {"embedded"}, "runner.kind": {"local"}}. For a key that is
// not listed every known name is offered. outcomes.reasons lists the reasons;
// outcomes.reasons.retries those that another attempt may follow, and
// outcomes.reasons.agent those that an agent can bring about.
type Variants map[string][]string

// offered returns the known names of a key that are offered.
func (v Variants) offered(path string, known []string) []string {
	if names, ok := v[path]; ok {
		return names
	}
	return known
}

// Warning is a setting that is allowed and does not do what its writer may think.
type Warning struct {
	Path string // "algorithm.clip"
	Text string // whole, with where it was written
}

func (w Warning) String() string { return w.Text }

// Override is a value that comes from outside the file.
type Override struct {
	Path   string // "algorithm.group_size"
	Value  string // as it would stand in the file
	Source string // for messages: "--set algorithm.group_size=4", "FULGUR_ALGORITHM_GROUP_SIZE"
}

// ParseOverrides reads "a.b=c" arguments of the named flag.
func ParseOverrides(flag string, args []string) ([]Override, error) {
	var out []Override
	for _, a := range args {
		path, value, ok := strings.Cut(a, "=")
		if !ok || path == "" {
			return nil, fulgur.E(fulgur.KindInvalid, flag+" "+a, "want a key and a value, such as "+flag+" algorithm.group_size=4", nil)
		}
		out = append(out, Override{path, value, flag + " " + a})
	}
	return out, nil
}

// Variable returns the environment variable that sets a key: FULGUR_ and the
// path in capitals, dots as underscores.
func Variable(path string) string {
	return "FULGUR_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// FromEnvironment returns the overrides in an environment of NAME=value lines,
// in the order of the keys. Variables that belong to no key are left to others.
func FromEnvironment(environ []string) []Override {
	values := map[string]string{}
	for _, line := range environ {
		if name, value, ok := strings.Cut(line, "="); ok && strings.HasPrefix(name, "FULGUR_") {
			values[name] = value
		}
	}
	var out []Override
	for _, p := range Paths() {
		if value, ok := values[Variable(p)]; ok {
			out = append(out, Override{p, value, Variable(p)})
		}
	}
	return out
}

// Parse reads a run file over the defaults, then the overrides in their order
// (pass variables before flags), and checks the whole. name is what messages
// call the file. An error is KindInvalid and lists everything that is wrong,
// one a line, each with its place.
func Parse(src []byte, name string, v Variants, overrides ...Override) (*File, []Warning, error) {
	f, warnings, _, err := ParsePlaces(src, name, v, overrides...)
	return f, warnings, err
}

// Places says where keys were written, by path: "run.yaml:7:12", or the flag or
// variable that set it. What was not written is not in it.
type Places map[string]string

// ParsePlaces is Parse that also says where keys were written, for those who find
// later what is amiss with a value.
func ParsePlaces(src []byte, name string, v Variants, overrides ...Override) (*File, []Warning, Places, error) {
	if len(src) > maxBytes {
		return nil, nil, nil, fulgur.E(fulgur.KindTooLarge, "read "+name, fmt.Sprintf("a run file has at most %d bytes, this one has %d", maxBytes, len(src)), nil)
	}
	f := Default()
	if !utf8.Valid(src) {
		return nil, nil, nil, fulgur.E(fulgur.KindInvalid, "read "+name, "not UTF-8 text: save the file as UTF-8", nil)
	}
	d := &decoder{source: name, variants: v, set: map[string]place{}}
	d.document(bytes.TrimPrefix(src, []byte("\ufeff")), valueOf(f), "", nil)
	for _, o := range overrides {
		d.override(valueOf(f), o)
	}
	if _, own := d.set["auxiliary"]; !own && slices.Contains(f.Compat, "v1-agents") {
		f.Auxiliary = defaultAuxiliary(true)
	}
	var warnings []Warning
	if len(d.problems) == 0 {
		c := &checker{d: d, f: f, file: name}
		c.all()
		warnings = c.warnings
	}
	if err := problemsErr(d.problems); err != nil {
		return nil, nil, nil, err
	}
	places := Places{}
	for path, at := range d.set {
		places[path] = at.String()
	}
	return f, warnings, places, nil
}

// override sets one key. Text keys take the value as it is, the others read it
// as YAML, so that lists and mappings can be given.
func (d *decoder) override(root reflect.Value, o Override) {
	sub := &decoder{source: o.Source, variants: d.variants, set: d.set}
	defer func() { d.problems = append(d.problems, sub.problems...) }()
	if len(o.Value) > maxBytes || !utf8.ValidString(o.Value) || !utf8.ValidString(o.Path) {
		sub.fail(nil, "want at most %d bytes of UTF-8 text", maxBytes)
		return
	}
	v, path, tags := root, "", []string(nil)
	for part := range strings.SplitSeq(o.Path, ".") {
		if v.Kind() == reflect.Map { // agent.input.env.NAME=path
			m := map[string]string{}
			for _, k := range v.MapKeys() {
				m[k.String()] = v.MapIndex(k).String()
			}
			m[part] = o.Value
			v.Set(reflect.ValueOf(m))
			d.set[path], d.set[join(path, part)] = place{source: o.Source}, place{source: o.Source}
			return
		}
		if _, whole := v.Interface().(Reasons); whole {
			sub.fail(nil, "%s is given whole, such as %s={timeout: {then: -1}}", path, path)
			return
		}
		if v.Kind() != reflect.Struct {
			sub.fail(nil, "%s has no keys below it", path)
			return
		}
		fields := fieldsOf(v)
		found := false
		for _, x := range fields {
			if x.name == part {
				v, path, tags, found = x.value, join(path, part), x.tags, true
			}
		}
		if !found {
			sub.fail(nil, "%s", unknownKey(part, path, fields))
			return
		}
	}
	if v.Kind() == reflect.String {
		v.SetString(o.Value)
		sub.bounds(nil, v, path, tags)
		d.set[path] = place{source: o.Source}
		return
	}
	sub.document([]byte(o.Value), v, path, tags)
	if _, ok := d.set[path]; ok || len(sub.problems) > 0 {
		d.set[path] = place{source: o.Source} // a column of a flag's value helps nobody
	} else if v.Kind() != reflect.Struct {
		sub.fail(nil, "%s: no value", path)
	}
	for i := range sub.problems {
		sub.problems[i].line = 0
	}
	for p, at := range d.set { // of what it wrote below path, too
		if at.source == o.Source {
			d.set[p] = place{source: o.Source}
		}
	}
}

// JSON returns the whole configuration as JSON, what a run keeps on record.
func (f *File) JSON() json.RawMessage {
	out, err := json.Marshal(f)
	if err != nil {
		panic(err) // the types marshal: a bug here, caught by every test
	}
	return out
}

// Hash identifies the effective configuration: SHA-256 of JSON, in hex.
func (f *File) Hash() string {
	sum := sha256.Sum256(f.JSON())
	return hex.EncodeToString(sum[:])
}

// Expand returns a command of the run file with {run} replaced by the run's
// folder.
func Expand(command []string, runDir string) []string {
	out := make([]string, len(command))
	for i, a := range command {
		out[i] = strings.ReplaceAll(a, "{run}", runDir)
	}
	return out
}

// Paths returns the paths of all keys, parents first, in the order of the file.
func Paths() []string {
	var out []string
	walk(valueOf(Default()), "", func(path string, _ field) { out = append(out, path) })
	return out
}

// isGroup says whether a key holds further keys.
func isGroup(v reflect.Value) bool {
	if v.Kind() != reflect.Struct {
		return false
	}
	_, opaque := v.Interface().(json.Marshaler)
	return !opaque
}

// walk visits every key, parents first.
func walk(v reflect.Value, path string, visit func(path string, f field)) {
	for _, f := range fieldsOf(v) {
		p := join(path, f.name)
		visit(p, f)
		if isGroup(f.value) {
			walk(f.value, p, visit)
		}
	}
}
