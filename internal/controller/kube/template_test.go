package kube

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/fulgur-rl/fulgur"
)

// wrap is a Job around what a test is about: the fields of its one container.
func wrap(container string) string {
	return "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {{ job_name }}\nspec:\n  template:\n    spec:\n      containers:\n      - name: agent\n        image: python:3.12\n" + container
}

func job(t *testing.T, source string, input any) *batchv1.Job {
	t.Helper()
	j, err := tryJob(source, input)
	if err != nil {
		t.Fatalf("%v\n%s", err, source)
	}
	return j
}

func tryJob(source string, input any) (*batchv1.Job, error) {
	raw, err := json.Marshal(input)
	if err != nil {
		return nil, err
	}
	tmpl, err := ParseTemplate("job.yaml", source)
	if err != nil {
		return nil, err
	}
	return tmpl.Job("agl-rollout-r1", raw)
}

// hostile are inputs that try to be more than text.
var hostile = []string{
	"fix: a\n  image: evil\n\"quote\"", // CK-14's
	"x\n        image: evil", "x\n        securityContext: {privileged: true}\n", "\"\n        image: evil\n        x: \"", "'\n        image: evil", "x\"\n        image: evil\n#",
	"}\n---\napiVersion: v1\nkind: Pod", "...\n", "*alias", "&anchor x", "!!python/object:os.system x", "{privileged: true}", "[a, b]", "- a\n- b", "? a\n: b", "| \n  x", ">", "# comment",
	"a: b", ": ", "- ", "%YAML 1.2", "@x", "`x`", "\t", "\x00", "\u2028image: evil", "\u0085image: evil", "\r\n        image: evil\r\n", "yes", "null", "~", "1e3", "0x10", "2026-01-01",
	"{{ job_name }}", "{% raw %}", "Fulgur0Data0End", "Fulgur0Data1End", escapedOpen + "x" + escapedClose, escapedClose + `"` + "\n        image: evil", "\\", "\\n", "$(OPENAI_API_KEY)", "$$(X)", "", " lead and trail ", strings.Repeat("long ", 200),
}

func TestInputsAreData_CK14(t *testing.T) {
	for name, container := range map[string]string{
		"in an environment variable, with the filter": "        env:\n        - name: Q\n          value: {{ input.q | yaml_escape }}\n",
		"in an environment variable, without it":      "        env:\n        - name: Q\n          value: {{ input.q }}\n",
		"within double quotes that the author wrote":  "        env:\n        - name: Q\n          value: \"{{ input.q }}\"\n",
		"within single quotes that the author wrote":  "        env:\n        - name: Q\n          value: '{{ input.q }}'\n",
		"in a flow mapping":                           "        env: [{name: Q, value: {{ input.q }}}]\n",
		"in a block":                                  "        env:\n        - name: Q\n          value: |-\n            {{ input.q }}\n",
		"in a block, indented":                        "        env:\n        - name: Q\n          value: |-\n            {{ input.q | indent(12) }}\n",
		"in a variable of the template":               "{% set v = input.q %}        env:\n        - name: Q\n          value: {{ v }}\n",
		"from a loop":                                 "        env:\n{% for k in ['q'] %}        - name: Q\n          value: {{ input[k] }}\n{% endfor %}",
		"from a macro":                                "{% macro m(x) %}{{ x }}{% endmacro %}        env:\n        - name: Q\n          value: {{ m(input.q) }}\n",
		"with a comment that holds it too":            "        env: # {{ input.q }}\n        - name: Q # {{ input.q }}\n          value: {{ input.q | yaml_escape }}\n",
		"letter by letter":                            "        env:\n        - name: Q\n          value: {% for c in input.q %}{{ c }}{% endfor %}\n",
		"by a format":                                 "        env:\n        - name: Q\n          value: {{ '%s' | format(input.q) }}\n",
		"joined":                                      "        env:\n        - name: Q\n          value: {{ [input.q] | join('') }}\n",
	} {
		t.Run(name, func(t *testing.T) {
			plain := job(t, wrap(container), map[string]string{"q": "plain"})
			plain.Spec.Template.Spec.Containers[0].Env[0].Value = ""
			for _, q := range hostile {
				j, err := tryJob(wrap(container), map[string]string{"q": q})
				if err != nil {
					t.Errorf("%q: %v", q, err)
					continue
				}
				value := &j.Spec.Template.Spec.Containers[0].Env[0].Value
				if *value != verbatim(q) && !strings.Contains(name, "indented") { // which changes line ends
					t.Errorf("%q became %q", q, *value)
				}
				*value = ""
				if d := cmp.Diff(plain, j); d != "" {
					t.Errorf("%q changed the manifest:\n%s", q, d)
				}
			}
		})
	}
}

func TestTemplateValues(t *testing.T) {
	input := map[string]any{"q": "a <b> \"c\"\né🙂", "n": 3, "f": 1.5, "yes": true, "none": nil, "list": []any{"x", "y z", "$(HOME)"}, "map": map[string]any{"k": "v"}, "image": "alpine:3", "label": "team", "nested": map[string]any{"a": []any{"p", "q"}}}
	for name, test := range map[string]struct {
		container string
		want      []string // command, args, and env values, in order
	}{
		"text beside data": {"        args: ['say {{ input.image }}!']\n", []string{"say alpine:3!"}},
		"yaml_escape within a block stays as v1 has it":           {"        args:\n        - |-\n          echo {{ input.q | yaml_escape }}\n", []string{"echo \"a <b> \\\"c\\\"\\n\\u00e9\\ud83d\\ude42\""}},
		"yaml_escape of what is no string":                        {"        args: [{{ input.n | yaml_escape }}, {{ input.yes | yaml_escape }}, {{ input.none | yaml_escape }}, {{ input.list | yaml_escape }}]\n", []string{"3", "True", "None", "['x', 'y z', '$$(HOME)']"}},
		"a list of strings by tojson":                             {"        command: {{ input.list | tojson }}\n", []string{"x", "y z", "$$(HOME)"}},
		"an object by tojson is text":                             {"        args: [{{ input.map | tojson }}]\n", []string{`{"k": "v"}`}},
		"a path with list indices":                                {"        args: [{{ input.nested.a[1] }}]\n", []string{"q"}},
		"a default for what is not there":                         {"        args: [{{ input.nothing | default('d') }}]\n", []string{"d"}},
		"the template's own variables are expanded by Kubernetes": {"        args: ['$(HOME)/{{ input.image }}']\n", []string{"$(HOME)/alpine:3"}},
		"white space around tags is YAML's":                       {"        env:\n        {% if input.yes %}\n        - {name: A, value: b}\n        {% endif %}\n", []string{"b"}},
		"a tag at a line's end keeps the line":                    {"        args: [{% if input.yes %}a{% endif %}]\n        tty: false\n", []string{"a"}},
		"an anchor":                                               {"        command: &c [a, b]\n        args: *c\n", []string{"a", "b", "a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := job(t, wrap(test.container), input).Spec.Template.Spec.Containers[0]
			got := append(append([]string{}, c.Command...), c.Args...)
			for _, e := range c.Env {
				got = append(got, e.Value)
			}
			if d := cmp.Diff(test.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestTemplateRefuses(t *testing.T) {
	for name, test := range map[string]struct{ source, want string }{
		"an unknown variable":            {wrap("        args:\n        - a\n        - {{ inputs.q }}\n"), "job.yaml:13: 'inputs' is undefined; a Job template sees job_name and input"},
		"a field that the input lacks":   {wrap("        args: [{{ input.nothing }}]\n"), "job.yaml:11: "},
		"one that is escaped":            {wrap("        args: [{{ input.nothing | yaml_escape }}]\n"), "job.yaml:11: "},
		"an unknown filter":              {wrap("        args: [{{ input.q | yamlescape }}]\n"), "job.yaml:11: no filter named 'yamlescape'"},
		"no end of a tag":                {wrap("        args: [{{ input.q ]\n"), "job.yaml:11: "},
		"an unknown field":               {wrap("        imagePulPolicy: Never\n"), "job.yaml:11: a Job has no field spec.template.spec.containers[0].imagePulPolicy"},
		"an unknown field behind a loop": {wrap("{% for i in [1,2,3] %}        # {{ i }}\n{% endfor %}        nope: {{ input.q }}\n"), "job.yaml:12: a Job has no field"},
		"a field of another type":        {wrap("        ports:\n        - containerPort: http\n"), "job.yaml:12: the field spec.template.spec.containers.ports.containerPort is a string, and has to be of type int32"},
		"no YAML":                        {wrap("        args: [a\n        env: }\n"), "the template gives no YAML"},
		"tabs":                           {wrap("\targs: [a]\n"), "the template gives no YAML: found a tab"},
		"two documents":                  {wrap("") + "---\napiVersion: v1\nkind: Pod\n", "job.yaml:12: a second document"},
		"nothing":                        {"# nothing\n---\n", "it is empty"},
		"a list":                         {"- a\n- b\n", "job.yaml:1: no mapping of fields"},
		"another kind":                   {"apiVersion: v1\nkind: Pod\n", "job.yaml:1: it is v1 Pod"},
		"an old version":                 {"apiVersion: batch/v1beta1\nkind: Job\n", "batch/v1beta1 Job"},
		"a field that stands twice":      {wrap("        args: [a]\n        args: [b]\n"), "job.yaml:12: the field \"args\" stands twice"},
		"a field that the input names":   {wrap("        {{ input.field }}: true\n"), "job.yaml:11: the input may not name a field"},
		"an endless loop":                {"{% for i in range(100000) %}{% for j in range(100000) %}{{ j }}{% endfor %}{% endfor %}", "job.yaml:1: more than"},
		"a million laughs":               {wrap("        args: &a [x,x,x,x,x,x,x,x,x,x]\n        command: [" + strings.Repeat("*a,", 20000) + "]\n"), "too large"},
		"an include":                     {"{% include '/etc/passwd' %}", "job.yaml:1: "},
		"a merge":                        {wrap("        <<: {stdin: true}\n"), "job.yaml:11: merging"},
		"the sandbox's end":              {wrap("        args: [{{ input.__class__ }}]\n"), "job.yaml:11: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryJob(test.source, map[string]string{"q": "x\ny: z", "field": "privileged"})
			if fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v\nwant %s", err, test.want)
			}
		})
	}
}

func TestLabelsMayHaveNamesFromTheInput(t *testing.T) {
	j := job(t, "apiVersion: batch/v1\nkind: Job\nmetadata:\n  labels: {\"{{ input.k }}\": \"{{ input.v }}\"}\n", map[string]string{"k": "team: x", "v": "a\"b"})
	if d := cmp.Diff(map[string]string{"team: x": `a"b`}, j.Labels); d != "" {
		t.Error(d)
	}
}

// FuzzInputsAreData: whatever is in the input, a template that uses it in strings
// gives the same manifest but for them.
func FuzzInputsAreData(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, s)
	}
	tmpl, err := ParseTemplate("job.yaml", wrap(`        args: [{{ input.a }}, "x{{ input.b }}y", {{ input.a | yaml_escape }}, {{ (input.a ~ input.b) | upper }}, {{ input.a | replace('a', input.b) }}, {{ input | tojson }}, {{ input }}]
        env:
        - name: A # {{ input.b | trim }}
          value: {{ input.b | truncate(9) }}{{ input.a[:4] }}
        - name: B
          value: |
            {{ input.a | indent(12) }}
        - {name: C, value: '{{ input.b | title }}'}
        - {name: D, value: {{ input.a.split(' ') | join(input.b) }}}
        - {name: E, value: {{ input.b | list | reverse | join }}}
        - {name: F, value: {{ input.a | urlencode }}{{ input.b | e }}{{ input.a | string | center(30) }}}
        - {name: G, value: {{ "%s and %r" % (input.a, input.b) }}{{ "{} {}".format(input.a, input.b) }}}
        - {name: H, value: {{ input.a.lower().strip() }}{{ input.b.replace('x', 'y') }}{{ input.items() | list }}}
`))
	if err != nil {
		f.Fatal(err)
	}
	shape := func(t *testing.T, a, b string) *batchv1.Job {
		raw, _ := json.Marshal(map[string]string{"a": a, "b": b})
		j, err := tmpl.Job("n", raw)
		if err != nil {
			t.Fatalf("%q %q: %v", a, b, err)
		}
		c := &j.Spec.Template.Spec.Containers[0]
		for i := range c.Args {
			c.Args[i] = ""
		}
		for i := range c.Env {
			c.Env[i].Value = ""
		}
		return j
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == "" || b == "" {
			t.Skip("what is empty is nothing where the author wrote no quotes, as in v1")
		}
		if d := cmp.Diff(shape(t, "plain", "text"), shape(t, a, b)); d != "" {
			t.Errorf("%q %q: %s", a, b, d)
		}
	})
}
