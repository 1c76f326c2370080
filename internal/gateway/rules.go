package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

// Rules are what a run says of its calls: the keys of that name in the run file,
// which its record carries.
type Rules struct {
	Sampling struct {
		// Enforce is "mark" (default) or "force": what becomes of a harness's sampling
		// parameters that the run does not train with.
		Enforce string `json:"enforce"`
	} `json:"sampling"`
	Auxiliary []AuxiliaryRule `json:"auxiliary"`
	Models    []FrozenModel   `json:"models"`
}

// AuxiliaryRule says which calls are not the agent's own conversation: those
// that all of its conditions hold for. The first rule that matches labels a call.
type AuxiliaryRule struct {
	Name       string `json:"name"`
	Model      string `json:"model,omitempty"`       // RE2 of the whole name that is asked for
	OtherModel bool   `json:"other_model,omitempty"` // a name is asked for that is not the policy's
	NoTools    bool   `json:"no_tools,omitempty"`    // no tool is offered
	System     string `json:"system,omitempty"`      // RE2 found in a system or developer message at the start
	MaxTokens  int    `json:"max_tokens,omitempty"`  // at most that many tokens are asked for
	Header     string `json:"header,omitempty"`      // "name", or "name: RE2 found in its value"
	Route      string `json:"route,omitempty"`       // the model that answers; "": the policy
	Train      bool   `json:"train,omitempty"`       // the calls count as the agent's own: an exception to later rules
}

// FrozenModel is a model of a run besides its policy.
type FrozenModel struct {
	Name   string `json:"name"`
	Agents bool   `json:"agents"` // an attempt's credential reaches it
}

// rules are Rules, ready to be looked at.
type rules struct {
	force bool
	aux   []auxRule
	open  map[string]bool // models that agents reach besides the policy
	own   bool            // the run's record has them
	warn  sync.Once       // of the first call under another name
}

type auxRule struct {
	AuxiliaryRule
	model, system, header *regexp.Regexp
	headerName            string
}

func compileRules(r Rules) (*rules, error) {
	out := &rules{open: map[string]bool{}}
	switch r.Sampling.Enforce {
	case "", "mark":
	case "force":
		out.force = true
	default:
		return nil, fmt.Errorf("sampling.enforce is %q: want mark or force", r.Sampling.Enforce)
	}
	for _, m := range r.Models {
		if m.Agents {
			out.open[m.Name] = true
		}
	}
	for i, a := range r.Auxiliary {
		c := auxRule{AuxiliaryRule: a}
		name, value, _ := strings.Cut(a.Header, ":")
		c.headerName = strings.TrimSpace(name)
		var err error
		for _, e := range []struct {
			re   **regexp.Regexp
			text string
		}{{&c.model, whole(a.Model)}, {&c.system, a.System}, {&c.header, strings.TrimSpace(value)}} {
			if e.text == "" {
				continue
			}
			if *e.re, err = regexp.Compile(e.text); err != nil {
				return nil, fmt.Errorf("auxiliary[%d]: %w", i, err)
			}
		}
		if a.Name == "" {
			return nil, fmt.Errorf("auxiliary[%d] has no name", i)
		}
		if c.model == nil && c.system == nil && c.headerName == "" && !a.OtherModel && !a.NoTools && a.MaxTokens == 0 {
			return nil, fmt.Errorf("auxiliary[%d] has no condition", i)
		}
		out.aux = append(out.aux, c)
	}
	return out, nil
}

func whole(re string) string {
	if re == "" {
		return ""
	}
	return `^(?:` + re + `)$`
}

// matches says whether the rule is for the call: the cheap conditions first.
func (a *auxRule) matches(req *call.Request, header http.Header, other bool) bool {
	switch {
	case a.OtherModel && !other,
		a.NoTools && len(req.Tools) > 0,
		a.MaxTokens > 0 && (req.Wishes.MaxTokens == nil || *req.Wishes.MaxTokens > a.MaxTokens),
		a.model != nil && !a.model.MatchString(req.Model):
		return false
	}
	if a.headerName != "" {
		v := header.Values(a.headerName)
		if len(v) == 0 || a.header != nil && !a.header.MatchString(strings.Join(v, ", ")) {
			return false
		}
	}
	if a.system == nil {
		return true
	}
	for _, m := range req.Messages {
		if m.Role != "system" && m.Role != "developer" {
			break
		}
		if a.system.MatchString(m.Content) {
			return true
		}
	}
	return false
}

// label finds out whether a call is the agent's own conversation, and which
// model answers it.
func (t *target) label(req *call.Request, header http.Header) {
	if t.rules == nil {
		return
	}
	other := req.Model != "" && t.policy != "" && req.Model != t.policy
	if other && (t.rules.open[req.Model] || t.frozenOnly) {
		t.model, t.auxiliary = req.Model, otherModel
	}
	for i := range t.rules.aux {
		a := &t.rules.aux[i]
		if !a.matches(req, header, other) {
			continue
		}
		if a.Train && !t.frozen() {
			return
		}
		t.auxiliary = a.Name
		if a.Route != "" {
			t.model = a.Route
		}
		return
	}
}

// otherModel labels a call to a model that the run opened to its agents.
const otherModel = "other-model"

// frozen says whether a model answers that is not the policy.
func (t *target) frozen() bool { return t.model != t.policy }

// runRules is what is known of a run's rules, and of which configuration.
type runRules struct {
	config []byte
	rules  *rules
}

// run finds the name of a run's policy and its rules. A run whose record says
// nothing (v1's) has those of the options.
func (g *Gateway) run(ctx context.Context, id fulgur.RunID) (model string, r *rules, err error) {
	run, err := g.o.Directory.Run(ctx, id)
	override := id == g.o.Run && g.o.Model != ""
	if err != nil && (!override || fulgur.KindOf(err) != fulgur.KindNotFound) {
		return "", nil, err
	}
	model = run.Model
	if override {
		model = g.o.Model
	}
	g.rulesMu.Lock()
	defer g.rulesMu.Unlock()
	old, ok := g.rules[id]
	if ok && bytes.Equal(old.config, run.Config) {
		return model, old.rules, nil
	}
	r = g.readRules(id, run.Config)
	g.rules[id] = runRules{run.Config, r}
	return model, r, nil
}

func (g *Gateway) readRules(id fulgur.RunID, config json.RawMessage) *rules {
	says := g.o.Rules
	if len(config) > 0 {
		var keys struct {
			Auxiliary *json.RawMessage `json:"auxiliary"`
		}
		var own Rules
		err := json.Unmarshal(config, &own)
		if err == nil {
			err = json.Unmarshal(config, &keys)
		}
		if keys.Auxiliary == nil {
			own.Auxiliary = says.Auxiliary
		}
		var r *rules
		if err == nil {
			if r, err = compileRules(own); err == nil {
				r.own = true
				return r
			}
		}
		g.o.Log.Error("the run's record has rules for its calls that can't be read: the server's own are taken", "run", id, "err", err)
	}
	r, err := compileRules(says)
	if err != nil {
		g.o.Log.Error("the server's rules for calls can't be read: there are none", "err", err)
		r, _ = compileRules(Rules{}) // nothing to go wrong
	}
	return r
}

// noteLabel counts what was labelled, and says once a run that a harness asks
// for another model than the policy: an agent with a fixed name would not train.
func (g *Gateway) noteLabel(t *target, req *call.Request) {
	if t.auxiliary == "" {
		return
	}
	g.m.auxiliary.WithLabelValues(t.auxiliary).Inc()
	if req.Model != "" && req.Model != t.policy && !t.frozen() {
		t.rules.warn.Do(func() {
			g.o.Log.Warn("a call asks for another model than the policy, and does not train: if it is the agent's own conversation, "+
				"have the agent take its model's name from OPENAI_MODEL, or change auxiliary in the run file",
				"run", t.run, "rollout", t.rollout, "asked", req.Model, "policy", t.policy, "rule", t.auxiliary)
		})
	}
}
