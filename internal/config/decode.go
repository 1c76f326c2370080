package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// place is where a value was written: a line and column of the run file, or
// the flag or variable that set it.
type place struct {
	line, column int
	source       string // "run.yaml", "FULGUR_STEPS", "--set steps=3"
}

func (p place) String() string {
	if p.line == 0 {
		return p.source
	}
	return fmt.Sprintf("%s:%d:%d", p.source, p.line, p.column)
}

// problem is one thing that is wrong.
type problem struct {
	place
	text string
}

// decoder writes YAML nodes into a File and collects everything that is wrong,
// so that a user mends a file in one go.
type decoder struct {
	source   string
	variants Variants
	anchors  map[string]ast.Node
	problems []problem
	set      map[string]place // paths that were written, and where
}

func valueOf(p any) reflect.Value { return reflect.ValueOf(p).Elem() }

func (d *decoder) at(n ast.Node) place {
	if n != nil {
		if t := n.GetToken(); t != nil && t.Position != nil {
			return place{t.Position.Line, t.Position.Column, d.source}
		}
	}
	return place{source: d.source}
}

func (d *decoder) fail(n ast.Node, format string, args ...any) {
	d.problems = append(d.problems, problem{d.at(n), fmt.Sprintf(format, args...)})
}

// document parses YAML and decodes it into v, within the bounds of tags. An
// override has a source of its own but no lines.
func (d *decoder) document(src []byte, v reflect.Value, path string, tags []string) {
	file, err := parseYAML(src)
	if err != nil {
		p := problem{place{source: d.source}, err.Error()}
		if e, ok := err.(interface { // goccy's errors know where
			GetToken() *token.Token
			GetMessage() string
		}); ok {
			p.text = e.GetMessage() + yamlHint(e.GetMessage())
			if t := e.GetToken(); t != nil && t.Position != nil {
				p.line, p.column = t.Position.Line, t.Position.Column
			}
		}
		d.problems = append(d.problems, p)
		return
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.CommentType || doc.Body.Type() == ast.CommentGroupType:
		case body != nil:
			d.fail(doc.Body, "a second document: a run file is one YAML document")
			return
		default:
			body = doc.Body
		}
	}
	if body == nil {
		return // an empty file: every key has a default
	}
	d.anchors = map[string]ast.Node{}
	ast.Walk(anchorFinder{d.anchors}, body)
	d.node(body, v, path, tags)
}

// yamlHint says what is mostly amiss where the parser says what it can't read.
func yamlHint(message string) string {
	switch {
	case strings.Contains(message, "value is not allowed in this context"):
		return "; is the line indented as the others of its block are?"
	case strings.Contains(message, "cannot start any token"):
		return "; lines are indented by spaces, not by tabs"
	case strings.Contains(message, "non-map value"):
		return "; write `key: value`, with a space behind the colon"
	}
	return ""
}

// parseYAML is goccy's parser, kept from taking the process down: it has
// panicked on malformed input before.
func parseYAML(src []byte) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("not YAML (%v)", r)
		}
	}()
	return parser.ParseBytes(src, 0)
}

type anchorFinder struct{ found map[string]ast.Node }

func (a anchorFinder) Visit(n ast.Node) ast.Visitor {
	if x, ok := n.(*ast.AnchorNode); ok && x.Name != nil {
		a.found[x.Name.String()] = x.Value
	}
	return a
}

// resolve steps through anchors, aliases and tags to the value.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for range 16 {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.TagNode:
			n = x.Value
		case *ast.AliasNode:
			target, ok := d.anchors[x.Value.String()]
			if !ok {
				d.fail(x, "no anchor &%s", x.Value.String())
				return nil
			}
			n = target
		case *ast.MappingValueNode:
			return ast.Mapping(x.Start, false, x)
		default:
			return n
		}
	}
	d.fail(n, "an alias that leads to itself")
	return nil
}

// field is a key of a mapping.
type field struct {
	name  string
	value reflect.Value
	tags  []string // of the jsonschema tag
}

func fieldsOf(v reflect.Value) []field {
	var out []field
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		var tags []string
		if t := f.Tag.Get("jsonschema"); t != "" {
			tags = strings.Split(t, ",")
		}
		out = append(out, field{name, v.Field(i), tags})
	}
	return out
}

// node decodes n into v. tags are the bounds of the key that n is written under.
func (d *decoder) node(n ast.Node, v reflect.Value, path string, tags []string) {
	n = d.resolve(n)
	if n == nil {
		return
	}
	before := len(d.problems)
	if n.Type() == ast.NullType {
		d.fail(n, "%s has no value: write one, or leave the key out to get its default", orFile(path))
		return
	}
	if s, ok := v.Addr().Interface().(setter); ok {
		s.setNode(d, n, path)
	} else if m, ok := n.(*ast.MappingNode); ok && v.Kind() == reflect.Struct {
		d.mapping(m, v, path)
		return
	} else {
		d.plain(n, v, path)
	}
	if len(d.problems) == before {
		d.bounds(n, v, path, tags)
		d.set[path] = d.at(n)
	}
}

func orFile(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

// mapping decodes the keys of m into the fields of the struct v.
func (d *decoder) mapping(m *ast.MappingNode, v reflect.Value, path string) {
	fields := fieldsOf(v)
	for _, item := range m.Values {
		name := keyName(item.Key)
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			d.fail(item.Key, "%s", unknownKey(name, path, fields))
			continue
		}
		d.node(item.Value, fields[i].value, join(path, name), fields[i].tags)
	}
}

func keyName(k ast.MapKeyNode) string {
	if s, ok := k.(*ast.StringNode); ok {
		return s.Value
	}
	if t := k.GetToken(); t != nil {
		return t.Value
	}
	return k.String()
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// plain decodes into the types that have one way to be written.
func (d *decoder) plain(n ast.Node, v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Struct:
		names := []string{}
		for _, f := range fieldsOf(v) {
			names = append(names, f.name)
		}
		d.fail(n, "%s: want keys (%s), got %s", orFile(path), strings.Join(names, ", "), describe(n))
	case reflect.Slice:
		seq, ok := n.(*ast.SequenceNode)
		if !ok {
			d.fail(n, "%s: want a list, got %s", path, describe(n))
			return
		}
		list := reflect.MakeSlice(v.Type(), 0, len(seq.Values))
		for i, item := range seq.Values {
			e := reflect.New(v.Type().Elem()).Elem()
			at := fmt.Sprintf("%s[%d]", path, i)
			if e.Kind() == reflect.Struct {
				d.node(item, e, at, nil)
				d.set[at] = d.at(item)
			} else if r := d.resolve(item); r != nil {
				d.plain(r, e, at)
			}
			list = reflect.Append(list, e)
		}
		v.Set(list)
	case reflect.Map:
		m, ok := n.(*ast.MappingNode)
		if !ok {
			d.fail(n, "%s: want keys with text values, got %s", path, describe(n))
			return
		}
		out := map[string]string{}
		for _, item := range m.Values {
			var s string
			if r := d.resolve(item.Value); r != nil {
				d.plain(r, valueOf(&s), join(path, keyName(item.Key)))
			}
			out[keyName(item.Key)] = s
			d.set[join(path, keyName(item.Key))] = d.at(item.Key)
		}
		v.Set(reflect.ValueOf(out))
	case reflect.String:
		d.scalar(n, path, "text", func(s string) error { v.SetString(s); return nil })
	case reflect.Bool:
		d.scalar(n, path, "true or false", func(s string) error {
			if s != "true" && s != "false" {
				return fmt.Errorf("not true or false")
			}
			v.SetBool(s == "true")
			return nil
		})
	case reflect.Int, reflect.Int64:
		d.scalar(n, path, "a whole number", func(s string) error {
			i, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, v.Type().Bits())
			v.SetInt(i)
			return err
		})
	case reflect.Float64:
		d.scalar(n, path, "a number", func(s string) error {
			f, err := parseFloat(s)
			v.SetFloat(f)
			return err
		})
	}
}

// scalar hands the text of a scalar to set, and reports what was wanted if it
// is none or set refuses it.
func (d *decoder) scalar(n ast.Node, path, want string, set func(string) error) {
	text, ok := scalarText(n)
	if !ok {
		d.fail(n, "%s: want %s, got %s", path, want, describe(n))
	} else if err := set(text); err != nil {
		d.fail(n, "%s: want %s, got %q", path, want, text)
	}
}

func scalarText(n ast.Node) (string, bool) {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value, true
	case *ast.LiteralNode:
		return x.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// describe names what was written in a user's words.
func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode:
		return "keys"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	}
	if s, ok := scalarText(n); ok {
		return strconv.Quote(s)
	}
	return "something else"
}

// bounds holds v to the names and limits of its jsonschema tag.
func (d *decoder) bounds(n ast.Node, v reflect.Value, path string, tags []string) {
	var known []string
	for _, t := range tags {
		key, limit, _ := strings.Cut(t, "=")
		if key == "enum" {
			known = append(known, limit)
			continue
		}
		bound, _ := strconv.ParseFloat(limit, 64)
		var x float64
		switch v.Kind() {
		case reflect.Int, reflect.Int64:
			x = float64(v.Int())
		case reflect.Float64:
			x = v.Float()
		}
		if path == "runner.slots" { // 0 stands for auto; its own reader has checked the number
			continue
		}
		if key == "minimum" && x < bound {
			d.fail(n, "%s: want at least %s, got %v", path, limit, x)
		}
		if key == "maximum" && x > bound {
			d.fail(n, "%s: want at most %s, got %v", path, limit, x)
		}
	}
	if known == nil {
		return
	}
	names := []string{}
	switch v.Kind() {
	case reflect.String:
		names = append(names, v.String())
	case reflect.Slice:
		names = v.Interface().([]string)
	}
	offered := d.variants.offered(path, known)
	for _, name := range names {
		switch {
		case slices.Contains(offered, name) || name == "" && mayBeEmpty(path):
		case slices.Contains(known, name) && len(offered) == 0:
			d.fail(n, "%s: %q is not in this version: leave the key out", path, name)
		case slices.Contains(known, name):
			d.fail(n, "%s: %q is not in this version; offered: %s", path, name, strings.Join(offered, ", "))
		default:
			d.fail(n, "%s: unknown name %q%s", path, name, hint(name, offered))
		}
	}
}

// mayBeEmpty says whether a key that takes a name is empty by default.
func mayBeEmpty(path string) bool {
	empty := false
	walk(valueOf(Default()), "", func(p string, f field) {
		empty = empty || p == path && f.value.Kind() == reflect.String && f.value.String() == ""
	})
	return empty
}

// unknownKey says what may have been meant.
func unknownKey(name, path string, siblings []field) string {
	text := fmt.Sprintf("unknown key %q", join(path, name))
	var names []string
	for _, f := range siblings {
		names = append(names, f.name)
	}
	if near := nearest(name, names); near != "" {
		return text + fmt.Sprintf("; did you mean %q?", join(path, near))
	}
	var elsewhere []string
	for _, p := range Paths() {
		if p == name || strings.HasSuffix(p, "."+name) {
			elsewhere = append(elsewhere, p)
		}
	}
	if len(elsewhere) > 0 {
		return text + "; did you mean " + strings.Join(elsewhere, " or ") + "?"
	}
	return text + "; keys here: " + strings.Join(names, ", ")
}

func hint(name string, offered []string) string {
	if near := nearest(name, offered); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return "; offered: " + strings.Join(offered, ", ")
}

// nearest returns the candidate with the fewest edits to name, "" if none is near.
func nearest(name string, candidates []string) string {
	best, cost := "", max(1, len(name)/3)+1
	for _, c := range candidates {
		if e := edits(name, c); e < cost {
			best, cost = c, e
		}
	}
	return best
}

// edits is the Levenshtein distance in bytes, a swap of neighbours counted as
// one (optimal string alignment); texts of over 64 bytes are not near anything.
func edits(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
