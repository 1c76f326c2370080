package config

import (
	"fmt"
	"regexp"
	"strings"
)

// labelName is what a rule may be called: it becomes a label of metrics.
var labelName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$`)

// auxiliary looks at the rules for calls, and at the models they lead to.
func (c *checker) auxiliary() {
	models := map[string]bool{}
	for i, m := range c.f.Models {
		at := fmt.Sprintf("models[%d]", i)
		switch {
		case m.Name == "":
			c.fail(at+".name", "missing: what the model is called at its server")
		case m.Name == c.f.Run:
			c.fail(at+".name", "%q is the policy's name (the run's): call the run otherwise", m.Name)
		case models[m.Name]:
			c.fail(at+".name", "%q stands twice", m.Name)
		}
		if !strings.HasPrefix(m.URL, "http://") && !strings.HasPrefix(m.URL, "https://") {
			c.fail(at+".url", "want an OpenAI base URL such as https://api.example.com/v1, got %q", m.URL)
		}
		if strings.ContainsAny(m.KeyEnv, "= \x00") {
			c.fail(at+".key_env", "want the name of a variable, not the key itself")
		}
		models[m.Name] = true
	}
	names := map[string]bool{}
	for i, r := range c.f.Auxiliary {
		at := fmt.Sprintf("auxiliary[%d]", i)
		switch {
		case !labelName.MatchString(r.Name):
			c.fail(at+".name", "want letters, digits, dots, dashes and underscores, at most 64, got %q", r.Name)
		case names[r.Name]:
			c.fail(at+".name", "%q stands twice", r.Name)
		}
		names[r.Name] = true
		if r.Model == "" && !r.OtherModel && !r.NoTools && r.System == "" && r.MaxTokens == 0 && r.Header == "" {
			c.fail(at, "no condition: it would match every call; set one of model, other_model, no_tools, system, max_tokens, header")
		}
		name, value, _ := strings.Cut(r.Header, ":")
		if r.Header != "" && strings.TrimSpace(name) == "" {
			c.fail(at+".header", "want a header's name, or NAME: RE2, got %q", r.Header)
		}
		for _, e := range []struct{ key, re string }{{"model", r.Model}, {"system", r.System}, {"header", strings.TrimSpace(value)}} {
			if _, err := regexp.Compile(e.re); err != nil {
				c.fail(at+"."+e.key, "%v", err)
			}
		}
		if r.Route != "" && !models[r.Route] {
			c.fail(at+".route", "there is no model %q under models", r.Route)
		}
		if r.Train && r.Route != "" {
			c.fail(at+".train", "what %s answers is not the policy's and can't train", r.Route)
		}
	}
}

// defaultAuxiliary are the rules of someone who wrote none: what opencode asks
// before anything else (its title.txt, without tools), and whatever goes to a
// model that is not trained. Agents of v1 know no name of the model, and ask
// under any.
func defaultAuxiliary(v1Agents bool) []AuxiliaryRule {
	rules := []AuxiliaryRule{{Name: "title", NoTools: true, System: "^You are a title generator"}}
	if !v1Agents {
		rules = append(rules, AuxiliaryRule{Name: "other-model", OtherModel: true})
	}
	return rules
}
