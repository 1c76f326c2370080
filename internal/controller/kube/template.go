package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"
	batchv1 "k8s.io/api/batch/v1"
	kjson "sigs.k8s.io/json"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/jinja"
)

// Template is a Job as its author wrote it: a Jinja template (v1's) or plain YAML.
//
// No input can change its structure. The interpreter says which bytes of a
// rendering are data (came from the input); before the YAML is read each such
// part is replaced by one inert word, and the parts are put back into the strings
// of what was read. So an input ends within the strings that its author meant it
// for, whatever is in it and whether or not the author thought of yaml_escape.
type Template struct {
	name string
	tmpl *jinja.Template
}

// How yaml_escape marks what it has escaped: characters that no text may have
// (Unicode's noncharacters), outside of what counts as data.
const (
	escapedOpen  = "\uFDD0"
	escapedClose = "\uFDD1"
)

const (
	maxRendered = 4 << 20
	maxNodes    = 100_000
)

// ParseTemplate compiles a template; name is what errors call its file.
func ParseTemplate(name, source string) (*Template, error) {
	if strings.ContainsAny(source, escapedOpen+escapedClose) {
		return nil, invalid("%s: it contains the noncharacters U+FDD0 or U+FDD1, which mean nothing: take them out", name)
	}
	d := jinja.Dialect{KeepBlocks: true, Strict: true, Filters: map[string]func(jinja.Value) (*jinja.Str, error){"yaml_escape": yamlEscape}}
	t, err := d.Compile(name, source)
	if err != nil {
		return nil, templateError(err)
	}
	return &Template{name: name, tmpl: t}, nil
}

// yamlEscape is v1's filter: the value's string form as a JSON string.
func yamlEscape(v jinja.Value) (*jinja.Str, error) {
	return jinja.Concat(jinja.Text(`"`+escapedOpen), jinja.Data(asciiJSON(jinja.Printed(v).String())), jinja.Text(escapedClose+`"`)), nil
}

// asciiJSON is what Python's json.dumps writes between the quotes.
func asciiJSON(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\b':
			b.WriteString(`\b`)
		case c == '\f':
			b.WriteString(`\f`)
		case c >= 0x20 && c < 0x7f:
			b.WriteRune(c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			hi, lo := utf16.EncodeRune(c)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		}
	}
	return b.String()
}

func invalid(format string, args ...any) error {
	return fulgur.E(fulgur.KindInvalid, "", fmt.Sprintf(format, args...), nil)
}

func templateError(err error) error {
	var e *jinja.Error
	if !errors.As(err, &e) {
		return invalid("%s", err)
	}
	hint := ""
	if e.Kind == jinja.KindUndefined {
		hint = "; a Job template sees job_name and input (withheld fields are absent): correct the name, or give it a default"
	}
	return invalid("%s:%d: %s%s", e.Template, e.Line, e.Msg, hint)
}

// Job renders the template for one input and reads it as one batch/v1 Job.
func (t *Template) Job(jobName string, input json.RawMessage) (*batchv1.Job, error) {
	if len(input) == 0 {
		input = json.RawMessage("null")
	}
	in, err := jinja.FromJSON(input)
	if err != nil {
		return nil, invalid("the rollout's input is no JSON: %s", err)
	}
	vars := jinja.NewDict().Set("job_name", jinja.Text(jobName)).Set("input", in)
	out, err := t.tmpl.Render(vars, jinja.RenderOptions{Limits: jinja.Limits{Steps: 1_000_000, Output: maxRendered, Memory: 256 << 20}})
	if err != nil {
		return nil, templateError(err)
	}
	d := separate(out)
	root, err := t.document(d)
	if err != nil {
		return nil, err
	}
	r := reader{t: t, d: d, lines: map[string]int{}}
	value, err := r.value(root, "", 0)
	if err != nil {
		return nil, err
	}
	return t.decode(value, &r)
}

// piece is one part of a rendering that came from the input.
type piece struct {
	text    string
	escaped bool // by yaml_escape
}

// document is a rendering whose data are set apart.
type document struct {
	out     jinja.Output
	text    string // with words in place of data
	word    *regexp.Regexp
	pieces  []piece
	offsets [][2]int // of text and out.Text, where they move against each other
}

// separate replaces each piece of data by a word that YAML reads as text wherever
// it stands, and that is nowhere in the rendering.
func separate(out jinja.Output) document {
	word := "Fulgur0Data"
	for n := 0; strings.Contains(out.Text, word); n++ {
		word = fmt.Sprintf("Fulgur%dData", n)
	}
	d := document{out: out, word: regexp.MustCompile(word + `(\d+)End`)}
	var b strings.Builder
	at := 0
	open := false // behind escapedOpen
	text := func(end int) {
		part := out.Text[at:end]
		for part != "" {
			i := strings.IndexAny(part, escapedOpen+escapedClose)
			if i < 0 {
				break
			}
			b.WriteString(part[:i])
			open = strings.HasPrefix(part[i:], escapedOpen)
			at += i + len(escapedOpen)
			part = part[i+len(escapedOpen):]
			d.offsets = append(d.offsets, [2]int{b.Len(), at})
		}
		b.WriteString(part)
	}
	for _, s := range out.Data {
		text(s.Start)
		fmt.Fprintf(&b, "%s%dEnd", word, len(d.pieces))
		d.pieces = append(d.pieces, piece{out.Text[s.Start:s.End], open})
		at = s.End
		d.offsets = append(d.offsets, [2]int{b.Len(), at})
	}
	text(len(out.Text))
	d.text = b.String()
	return d
}

// line is the line of the template that a line of the document comes from.
func (d *document) line(n int) int {
	at := 0
	for ; n > 1; n-- {
		i := strings.IndexByte(d.text[at:], '\n')
		if i < 0 {
			break
		}
		at += i + 1
	}
	for at < len(d.text) && (d.text[at] == ' ' || d.text[at] == '-') { // of what stands on it
		at++
	}
	if i := sort.Search(len(d.offsets), func(i int) bool { return d.offsets[i][0] > at }); i > 0 {
		at += d.offsets[i-1][1] - d.offsets[i-1][0]
	}
	i := sort.Search(len(d.out.Lines), func(i int) bool { return d.out.Lines[i].Offset > at })
	if i == 0 {
		return 1
	}
	m := d.out.Lines[i-1]
	return m.Line + strings.Count(d.out.Text[m.Offset:min(at, len(d.out.Text))], "\n")
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): (.*)`)

// document reads the one YAML document that is not empty.
func (t *Template) document(d document) (*yaml.Node, error) {
	dec := yaml.NewDecoder(strings.NewReader(d.text))
	var found *yaml.Node
	for {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
				at, _ := strconv.Atoi(m[1])
				return nil, invalid("%s:%d: the template gives no YAML: %s", t.name, d.line(at), m[2])
			}
			return nil, invalid("%s: the template gives no YAML: %s", t.name, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		if len(n.Content) == 0 || n.Content[0].Tag == "!!null" {
			continue
		}
		if found != nil {
			return nil, invalid("%s:%d: a second document: the template must give exactly one, a batch/v1 Job", t.name, d.line(n.Content[0].Line))
		}
		found = n.Content[0]
	}
	if found == nil {
		return nil, invalid("%s: it is empty: the template must give exactly one document, a batch/v1 Job", t.name)
	}
	if found.Kind != yaml.MappingNode {
		return nil, invalid("%s:%d: no mapping of fields: the template must give a batch/v1 Job", t.name, d.line(found.Line))
	}
	return found, nil
}

// reader turns a document into values as JSON has them, with the data put back.
type reader struct {
	t     *Template
	d     document
	lines map[string]int // template line by path, as the strict decoder writes paths
	nodes int
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) error {
	return invalid("%s:%d: %s", r.t.name, r.d.line(n.Line), fmt.Sprintf(format, args...))
}

func (r *reader) value(n *yaml.Node, path string, depth int) (any, error) {
	if r.nodes++; r.nodes > maxNodes || depth > 64 {
		return nil, r.fail(n, "the manifest is too large or too deeply nested")
	}
	if _, ok := r.lines[path]; !ok {
		r.lines[path] = r.d.line(n.Line)
	}
	switch n.Kind {
	case yaml.MappingNode:
		return r.mapping(n, path, depth)
	case yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for i, c := range n.Content {
			v, err := r.value(c, fmt.Sprintf("%s[%d]", path, i), depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case yaml.AliasNode:
		return r.value(n.Alias, path, depth+1)
	}
	return r.scalar(n, path)
}

func (r *reader) mapping(n *yaml.Node, path string, depth int) (any, error) {
	out := make(map[string]any, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			return nil, r.fail(k, "the name of a field must be a string")
		}
		if k.Tag == "!!merge" {
			return nil, r.fail(k, "merging with << is not supported here: write the fields out")
		}
		name := k.Value
		if r.d.word.MatchString(name) {
			if !freeNames(path) {
				return nil, r.fail(k, "the input may not name a field: only labels, annotations, nodeSelector and resources may have names from it")
			}
			name = r.fill(k, false)
		}
		if _, twice := out[name]; twice {
			return nil, r.fail(k, "the field %q stands twice", name)
		}
		at := name
		if path != "" {
			at = path + "." + name
		}
		r.lines[at] = r.d.line(k.Line)
		x, err := r.value(v, at, depth+1)
		if err != nil {
			return nil, err
		}
		out[name] = x
	}
	return out, nil
}

// freeNames says whether the keys of the mapping at path are the user's to
// choose: there, a name adds no field.
func freeNames(path string) bool {
	for _, s := range []string{".labels", ".annotations", ".nodeSelector", ".limits", ".requests"} {
		if strings.HasSuffix(path, s) {
			return true
		}
	}
	return false
}

func (r *reader) scalar(n *yaml.Node, path string) (any, error) {
	if r.d.word.MatchString(n.Value) {
		text := r.fill(n, expands(path))
		if strings.HasSuffix(path, ".command") || strings.HasSuffix(path, ".args") {
			var list []string // what {{ input.command | tojson }} gives: strings alone, so no field
			if r.d.word.FindString(n.Value) == n.Value && json.Unmarshal([]byte(text), &list) == nil {
				out := make([]any, len(list))
				for i, s := range list {
					out[i] = verbatim(s)
				}
				return out, nil
			}
		}
		return text, nil
	}
	var v any
	switch n.ShortTag() {
	case "!!str", "!!timestamp", "!!binary":
		return n.Value, nil
	case "!!null":
		return nil, nil
	case "!!int", "!!float", "!!bool":
		if err := n.Decode(&v); err != nil {
			return nil, r.fail(n, "%q cannot be read", n.Value)
		}
		return v, nil
	}
	return nil, r.fail(n, "the tag %s is not supported", n.Tag)
}

// fill puts data back into a scalar. What yaml_escape has escaped is read again
// where the YAML would have been: within double quotes.
func (r *reader) fill(n *yaml.Node, expands bool) string {
	return r.d.word.ReplaceAllStringFunc(n.Value, func(word string) string {
		i, _ := strconv.Atoi(r.d.word.FindStringSubmatch(word)[1])
		p := r.d.pieces[i]
		text := p.text
		if p.escaped && n.Style&yaml.DoubleQuotedStyle != 0 {
			var s string
			if json.Unmarshal([]byte(`"`+text+`"`), &s) == nil {
				text = s
			}
		}
		if expands {
			text = verbatim(text)
		}
		return text
	})
}

// expands says whether Kubernetes replaces $(NAME) in the string at path.
func expands(path string) bool {
	return strings.Contains(path, ".env[") && strings.HasSuffix(path, ".value") ||
		strings.Contains(path, ".command[") || strings.Contains(path, ".args[")
}

// verbatim writes a string so that Kubernetes gives it to the container as it is.
func verbatim(s string) string {
	if strings.Contains(s, "$(") || strings.Contains(s, "$$") {
		return strings.ReplaceAll(s, "$", "$$")
	}
	return s
}

var (
	unknownField = regexp.MustCompile(`unknown field "([^"]+)"`)
	wrongType    = regexp.MustCompile(`cannot unmarshal (\w+) into Go struct field \w*\.?([\w.]+) of type (\S+)`)
)

// decode reads the manifest as a Job, strictly: a field that Kubernetes does not
// know is a slip of the pen.
func (t *Template) decode(value any, r *reader) (*batchv1.Job, error) {
	fields := value.(map[string]any)
	if fields["apiVersion"] != "batch/v1" || fields["kind"] != "Job" {
		return nil, invalid("%s:%d: it is %v %v: the template must give a batch/v1 Job", t.name, r.lines[""], fields["apiVersion"], fields["kind"])
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, invalid("%s: %s", t.name, err)
	}
	job := &batchv1.Job{}
	strict, err := kjson.UnmarshalStrict(raw, job)
	if err != nil {
		if m := wrongType.FindStringSubmatch(err.Error()); m != nil {
			return nil, invalid("%s:%d: the field %s is a %s, and has to be of type %s", t.name, r.near(m[2]), m[2], m[1], m[3])
		}
		return nil, invalid("%s: it is no batch/v1 Job: %s", t.name, err)
	}
	if len(strict) == 0 {
		return job, nil
	}
	if m := unknownField.FindStringSubmatch(strict[0].Error()); m != nil {
		return nil, invalid("%s:%d: a Job has no field %s", t.name, r.near(m[1]), m[1])
	}
	return nil, invalid("%s: %s", t.name, strict[0])
}

// near is the template's line of a path, of which the decoder may have left out
// list indices.
func (r *reader) near(path string) int {
	if n, ok := r.lines[path]; ok {
		return n
	}
	best := 0
	for p, n := range r.lines {
		if indices.ReplaceAllString(p, "") == path && (best == 0 || n < best) {
			best = n
		}
	}
	return max(best, 1)
}

var indices = regexp.MustCompile(`\[\d+\]`)
