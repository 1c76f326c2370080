package config

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"

	"github.com/invopop/jsonschema"
)

// The comments of the types are what users read: in the schema, in the
// effective configuration and in the docs. There is one text of each.
//
//go:embed file.go outcomes.go runner.go runner_sandbox.go runner_container.go runner_kubernetes.go
var sources embed.FS

// comments returns the comment of every field, by "Type.Field".
func comments() map[string]string {
	out := map[string]string{}
	names, err := sources.ReadDir(".")
	if err != nil {
		panic(err) // it was compiled
	}
	for _, name := range names {
		text, err := sources.ReadFile(name.Name())
		if err != nil {
			panic(err)
		}
		commentsOf(string(text), out)
	}
	return out
}

// commentsOf adds the comments of one file.
func commentsOf(text string, out map[string]string) {
	file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.ParseComments)
	if err != nil {
		panic(err) // it was compiled
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				if len(f.Names) == 0 { // embedded
					continue
				}
				out[spec.Name.Name+"."+f.Names[0].Name] = strings.TrimSpace(strings.ReplaceAll(f.Doc.Text(), "\n", " "))
			}
		}
		return true
	})
}

// Key describes one key, for docs.
type Key struct {
	Path    string
	Group   bool // holds further keys
	Doc     string
	Default string   // as YAML
	Names   []string // that are offered, where the key takes a name
}

// Keys describes all keys, parents first, in the order of the file.
func Keys(v Variants) []Key {
	docs := comments()
	var out []Key
	var visit func(val reflect.Value, path string)
	visit = func(val reflect.Value, path string) {
		for i, f := range fieldsOf(val) {
			k := Key{Path: join(path, f.name), Group: isGroup(f.value), Doc: docs[val.Type().Name()+"."+val.Type().Field(i).Name]}
			for _, t := range f.tags {
				if name, ok := strings.CutPrefix(t, "enum="); ok {
					k.Names = append(k.Names, name)
				}
			}
			if k.Names != nil {
				k.Names = v.offered(k.Path, k.Names)
			}
			if !k.Group {
				k.Default = inline(f.value)
			}
			out = append(out, k)
			if k.Group {
				visit(f.value, k.Path)
			}
			if t := f.value.Type(); t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
				visit(reflect.New(t.Elem()).Elem(), k.Path+"[]")
			}
		}
	}
	visit(valueOf(Default()), "")
	return out
}

// Effective returns the configuration as a run file: every key with its value
// and what it means. Parsing it gives the same configuration.
func (f *File) Effective() []byte {
	docs := comments()
	var out bytes.Buffer
	var write func(v reflect.Value, indent string)
	write = func(v reflect.Value, indent string) {
		for i, x := range fieldsOf(v) {
			if f.Epochs > 0 && indent == "" && x.name == "steps" {
				continue // epochs decides, and both together are refused
			}
			fmt.Fprintf(&out, "%s# %s\n", indent, docs[v.Type().Name()+"."+v.Type().Field(i).Name])
			if isGroup(x.value) {
				fmt.Fprintf(&out, "%s%s:\n", indent, x.name)
				write(x.value, indent+"  ")
				continue
			}
			fmt.Fprintf(&out, "%s%s: %s\n", indent, x.name, inline(x.value))
		}
	}
	write(valueOf(f), "")
	return out.Bytes()
}

// inline writes a value as YAML on one line. It is JSON (which YAML contains)
// with plain words unquoted.
func inline(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case []string:
		parts := make([]string, len(x))
		for i, s := range x {
			parts[i] = quote(s)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]string:
		parts := make([]string, 0, len(x))
		for k, s := range x {
			parts = append(parts, quote(k)+": "+quote(s))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	}
	if t := v.Type(); t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = inlineKeys(v.Index(i))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v.Interface()); err != nil {
		panic(err) // the types marshal: a bug here, caught by every test
	}
	text := strings.TrimSpace(out.String())
	var s string
	if json.Unmarshal([]byte(text), &s) == nil {
		return quote(s)
	}
	return strings.ReplaceAll(text, ",", ", ")
}

// inlineKeys writes a structure's keys that have a value.
func inlineKeys(v reflect.Value) string {
	var parts []string
	for _, f := range fieldsOf(v) {
		if !f.value.IsZero() {
			parts = append(parts, f.name+": "+inline(f.value))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// quote writes text so that YAML reads it as that text.
func quote(s string) string {
	plain := s != "" && s[0] >= 'A' && s[0] <= 'z' && s[0] != '[' && s[0] != '`' && s[0] != '\\' && s[0] != ']' && s[0] != '^'
	for _, c := range s {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._/-", c)) {
			plain = false
		}
	}
	if plain && !slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "nan", "inf"}, strings.ToLower(s)) {
		return s
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.Encode(s) //nolint:errcheck // text into memory
	return strings.TrimSpace(out.String())
}

// Schema returns the JSON Schema (draft 2020-12) of run files, with the names
// that are offered.
func Schema(v Variants) []byte {
	docs := comments()
	r := jsonschema.Reflector{
		Anonymous:                  true,
		DoNotReference:             true,
		ExpandedStruct:             true,
		RequiredFromJSONSchemaTags: true,
		LookupComment:              func(t reflect.Type, name string) string { return docs[t.Name()+"."+name] },
	}
	s := r.Reflect(&File{})
	s.Title = "Fulgur run file"
	s.ID = "https://github.com/fulgur-rl/fulgur/run-file"
	var fill func(s *jsonschema.Schema, val reflect.Value, path string)
	fill = func(s *jsonschema.Schema, val reflect.Value, path string) {
		for _, f := range fieldsOf(val) {
			p, ok := s.Properties.Get(f.name)
			if !ok {
				continue
			}
			at := join(path, f.name)
			p.Enum = enumOf(p.Enum, v, at, f.value)
			if p.Items != nil && p.Items.Enum != nil {
				p.Items.Enum = enumOf(p.Items.Enum, v, at, reflect.Value{})
			}
			if isGroup(f.value) && p.Properties != nil {
				fill(p, f.value, at)
			} else {
				p.Default = f.value.Interface()
			}
		}
	}
	fill(s, valueOf(Default()), "")
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // the types marshal: a bug here, caught by every test
	}
	return append(out, '\n')
}

// enumOf cuts a list of names to those offered. A key whose default is empty
// may also be empty.
func enumOf(known []any, v Variants, path string, def reflect.Value) []any {
	if known == nil {
		return nil
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = k.(string)
	}
	out := []any{}
	if def.IsValid() && def.Kind() == reflect.String && def.String() == "" {
		out = append(out, "")
	}
	for _, n := range v.offered(path, names) {
		out = append(out, n)
	}
	return out
}
