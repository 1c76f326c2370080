package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/goccy/go-yaml/ast"
	"github.com/invopop/jsonschema"

	"github.com/fulgur-rl/fulgur"
)

// Outcomes says what each way to end leads to.
type Outcomes struct {
	// Not the agent's fault: it could not start, the model was not there, the machine was lost.
	Infrastructure Infrastructure `json:"infrastructure"`
	// The agent's own fault: exit code, timeout, what its own container or sandbox ran out of.
	AgentFailure AgentFailure `json:"agent_failure"`
	// What single reasons lead to, over what their class does: {timeout: {then: -1}, node: {retries: 5}, no_calls: {then: -1}}. retries: new attempts before giving up. then: mask (it neither trains nor votes), graded (it trains on what the grader gives), or the reward that it trains with. docs/controller.md has the reasons.
	Reasons Reasons `json:"reasons"`
}

// Infrastructure says what follows a failure that is not the agent's.
type Infrastructure struct {
	// New attempts before giving up.
	Retries int `json:"retries" jsonschema:"minimum=0,maximum=100"`
	// The pause before the first new attempt; it doubles with each, up to 30s.
	Backoff Duration `json:"backoff"`
	// What follows the last one. mask: the rollout neither trains nor votes in its group's baseline. graded, or a number: it trains on its grade, or with that reward.
	Then Then `json:"then"`
}

// AgentFailure says what a failure of the agent's own is worth.
type AgentFailure struct {
	// The reward, a number; or graded: the grader reads what is there.
	Reward FailureReward `json:"reward"`
}

// Then is what an outcome leads to: nothing, the grader's reward, or a reward.
type Then fulgur.Follow

func (v *Then) setNode(d *decoder, n ast.Node, path string) {
	d.scalar(n, path, "mask, graded or a number", func(s string) error {
		if s == "mask" {
			*v = Then{Mask: true}
			return nil
		}
		return v.reward(s)
	})
}

// reward reads graded or a number.
func (v *Then) reward(s string) error {
	*v = Then{}
	if s == "graded" {
		return nil
	}
	f, err := parseFloat(s)
	if err == nil && (f < -maxReward || f > maxReward) {
		err = errors.New("out of range")
	}
	v.Value = &f
	return err
}

// String is how it is written.
func (v Then) String() string {
	switch {
	case v.Mask:
		return "mask"
	case v.Value != nil:
		return fmt.Sprint(*v.Value)
	}
	return "graded"
}

// MarshalJSON writes the word or the number.
func (v Then) MarshalJSON() ([]byte, error) {
	if v.Value != nil {
		return json.Marshal(*v.Value)
	}
	return json.Marshal(v.String())
}

// JSONSchema describes the forms.
func (Then) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "number"}, {Enum: []any{"mask", "graded"}}}}
}

// FailureReward is what a failure of the agent is worth: a Then that masks nothing,
// for an agent would fail whenever that is better than its grade.
type FailureReward struct{ Then }

func (v *FailureReward) setNode(d *decoder, n ast.Node, path string) {
	d.scalar(n, path, "graded or a number", v.reward)
}

// JSONSchema describes the two forms.
func (FailureReward) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "number"}, {Const: "graded"}}}
}

// Rule is what one reason leads to; nil: as its class.
type Rule struct {
	Retries *int  `json:"retries,omitempty"`
	Then    *Then `json:"then,omitempty"`
}

// Reasons are rules by reason.
type Reasons struct {
	Rules map[string]Rule
}

func (v *Reasons) setNode(d *decoder, n ast.Node, path string) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.fail(n, "%s: want reasons, such as {timeout: {then: -1}}, got %s", path, describe(n))
		return
	}
	v.Rules = nil // {} is none
	known := d.variants["outcomes.reasons"]
	for _, item := range m.Values {
		name := keyName(item.Key)
		if known != nil && !slices.Contains(known, name) {
			d.fail(item.Key, "%s: unknown reason %q%s", path, name, hint(name, known))
			continue
		}
		if v.Rules == nil {
			v.Rules = map[string]Rule{}
		}
		v.Rules[name] = d.rule(d.resolve(item.Value), join(path, name))
		d.set[join(path, name)] = d.at(item.Key)
	}
}

func (d *decoder) rule(n ast.Node, path string) (r Rule) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.fail(n, "%s: want retries, then, or both, such as {then: mask}, got %s", path, describe(n))
		return r
	}
	for _, item := range m.Values {
		switch name := keyName(item.Key); name {
		case "retries":
			r.Retries = new(int)
			d.node(item.Value, valueOf(r.Retries), path+".retries", []string{"minimum=0", "maximum=100"})
		case "then":
			r.Then = new(Then)
			d.node(item.Value, valueOf(r.Then), path+".then", nil)
		default:
			d.fail(item.Key, "%s: unknown key %q; keys here: retries, then", path, name)
		}
	}
	return r
}

// MarshalJSON writes what is set, by reason.
func (v Reasons) MarshalJSON() ([]byte, error) {
	if v.Rules == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(v.Rules)
}

// JSONSchema describes the rules.
func (Reasons) JSONSchema() *jsonschema.Schema {
	rule := &jsonschema.Schema{Type: "object", Properties: jsonschema.NewProperties(), AdditionalProperties: jsonschema.FalseSchema}
	rule.Properties.Set("retries", &jsonschema.Schema{Type: "integer", Minimum: "0", Maximum: "100"})
	rule.Properties.Set("then", Then{}.JSONSchema())
	return &jsonschema.Schema{Type: "object", AdditionalProperties: rule}
}

// outcomes checks the rules against what an agent can bring about: an outcome
// that it can must not be better for it than failing, or it is what it learns.
func (c *checker) outcomes() {
	o := c.f.Outcomes
	retried, steered := c.d.variants["outcomes.reasons.retries"], c.d.variants["outcomes.reasons.agent"]
	for _, name := range slices.Sorted(maps.Keys(o.Reasons.Rules)) {
		r := o.Reasons.Rules[name]
		path := "outcomes.reasons." + name
		if r.Retries != nil && *r.Retries > 0 && retried != nil && !slices.Contains(retried, name) {
			c.fail(path, "retries: this is no failure that another attempt may mend, or it is the agent's own: a new attempt would be a second try that failing pays for")
		}
		if r.Then == nil || !slices.Contains(steered, name) {
			continue
		}
		fail := o.AgentFailure.Reward
		switch {
		case r.Then.Mask:
			c.warn(path, "agents can bring this about: masked, it is better for them than failing, and may be what they learn; `then: %v` is as bad as failing", fail)
		case r.Then.Value != nil && fail.Value != nil && *r.Then.Value > *fail.Value:
			c.warn(path, "agents can bring this about, and %v is more than failing gets (outcomes.agent_failure.reward: %v): it may be what they learn", *r.Then.Value, fail)
		}
	}
}
