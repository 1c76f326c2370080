package controller

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// AgentEnv returns the variables that every agent gets (wire-v1: what the
// controller gives an agent; architecture: How an agent is run). base is the
// address of the gateway as agents reach it, without a trailing slash.
func AgentEnv(base, model string, r fulgur.Rollout, a fulgur.OpenedAttempt) map[string]string {
	base = strings.TrimRight(base, "/")
	mode := string(fulgur.ModeVal)
	if r.IsTrain {
		mode = string(fulgur.ModeTrain)
	}
	id, at := url.PathEscape(string(r.ID)), url.PathEscape(string(a.ID))
	proxy := base + "/proxy/rollout/" + id + "/attempt/" + at + "/mode/" + mode
	env := map[string]string{
		"OPENAI_BASE_URL":     proxy + "/openai/v1",
		"OPENAI_API_KEY":      a.Credential,
		"ANTHROPIC_BASE_URL":  proxy + "/anthropic",
		"ANTHROPIC_API_KEY":   a.Credential,
		"AGL_OPENAI_BASE_URL": proxy + "/openai/v1",
		"AGL_EVENT_URL":       base + "/api/rollouts/" + id + "/attempt/" + at + "/events",
		"AGL_KEY":             a.Credential,
		"FULGUR_ROLLOUT_ID":   string(r.ID),
		"FULGUR_ATTEMPT_ID":   string(a.ID),
	}
	if model != "" {
		env["OPENAI_MODEL"], env["ANTHROPIC_MODEL"] = model, model // the second is Claude Code's
	}
	return env
}

// maxVar is what Linux takes for one NAME=value with its final zero
// (MAX_ARG_STRLEN, 32 pages).
const maxVar = 128 << 10

// CheckVar refuses a variable that no system would pass on, with its name and size.
func CheckVar(name, value string) error {
	switch {
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return fulgur.E(fulgur.KindInvalid, "", fmt.Sprintf("%q is no name for an environment variable: correct agent.input.env", name), nil)
	case strings.Contains(value, "\x00"):
		return fulgur.E(fulgur.KindInvalid, "", fmt.Sprintf("the environment variable %s would hold a zero byte, which no system passes on: use agent.input file or stdin", name), nil)
	case len(name)+len(value)+2 > maxVar:
		return fulgur.E(fulgur.KindTooLarge, "", fmt.Sprintf("the environment variable %s would hold %d bytes; the system takes less than %d: use agent.input file or stdin", name, len(value), maxVar), nil)
	}
	return nil
}
