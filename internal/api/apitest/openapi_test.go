package apitest_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	v2 "github.com/fulgur-rl/fulgur/internal/api/v2"
)

// description is the API's own description, with the schemas in it compiled.
type description struct {
	paths    map[string]any
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema
}

func describe(t *testing.T, h http.Handler) *description {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", v2.Prefix+"/openapi.json", nil))
	doc, err := jsonschema.UnmarshalJSON(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	d := &description{compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	d.paths = doc.(map[string]any)["paths"].(map[string]any)
	return d
}

// path finds the template that a request's path is of; one with fewer
// parameters first.
func (d *description) path(at string) string {
	best, fewest := "", 1<<10
	for template := range d.paths {
		a, b := strings.Split(template, "/"), strings.Split(at, "/")
		n := 0
		same := len(a) == len(b)
		for i := 0; same && i < len(a); i++ {
			if strings.HasPrefix(a[i], "{") {
				n++
			} else {
				same = a[i] == b[i]
			}
		}
		if same && n < fewest {
			best, fewest = template, n
		}
	}
	return best
}

// check says how an answer differs from its description.
func (d *description) check(method, at string, status int, contentType string, body []byte) error {
	template := d.path(at)
	op, ok := d.paths[template].(map[string]any)[strings.ToLower(method)].(map[string]any)
	if !ok {
		return fmt.Errorf("%s %s is not described", method, at)
	}
	responses := op["responses"].(map[string]any)
	key := fmt.Sprint(status)
	if _, ok := responses[key]; !ok {
		key = "default"
	}
	response, ok := responses[key].(map[string]any)
	if !ok {
		return fmt.Errorf("%s %s: status %d is not described", method, template, status)
	}
	contentType, _, _ = strings.Cut(contentType, ";")
	content, _ := response["content"].(map[string]any)
	if len(body) == 0 || contentType == "text/event-stream" {
		return nil
	}
	if content[contentType] == nil {
		return fmt.Errorf("%s %s %d: %s is not described", method, template, status, contentType)
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace
	at = "openapi.json#/paths/" + escape(template) + "/" + strings.ToLower(method) + "/responses/" + key + "/content/" + escape(contentType) + "/schema"
	schema := d.schemas[at]
	if schema == nil {
		var err error
		if schema, err = d.compiler.Compile(at); err != nil {
			return err
		}
		d.schemas[at] = schema
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	if err := schema.Validate(v); err != nil {
		return fmt.Errorf("%s %s %d: %w\n%.2000s", method, template, status, err, body)
	}
	return nil
}
