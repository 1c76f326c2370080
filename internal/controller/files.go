package controller

import (
	"fmt"

	"github.com/fulgur-rl/fulgur"
)

// Keep says which files of attempts stay with a runner that writes some.
type Keep string

// The policies.
const (
	KeepFailures Keep = "failures" // of attempts that did not go well
	KeepAll      Keep = "all"
	KeepNone     Keep = "none"
)

// InputMode says how an agent gets its input beside its environment.
type InputMode string

// The input modes.
const (
	ByEnv   InputMode = ""      // by the mapped variables alone
	ByFile  InputMode = "file"  // as JSON in the file that FULGUR_INPUT_FILE names
	ByStdin InputMode = "stdin" // as JSON on standard input
)

// CheckFiles refuses, as KindInvalid, an unknown mode or policy, and files without the
// folder state to be in; an empty policy becomes KeepFailures.
func CheckFiles(op, state string, input InputMode, workspace bool, policies ...*Keep) error {
	bad := func(msg string) error { return fulgur.E(fulgur.KindInvalid, op, msg, nil) }
	switch input {
	case ByEnv, ByFile, ByStdin:
	default:
		return bad(fmt.Sprintf("agent.input %q is none of env, file, stdin", input))
	}
	if state == "" && (workspace || input == ByFile) {
		return bad("a workspace and an input file need a folder to be in")
	}
	for _, k := range policies {
		switch *k {
		case "":
			*k = KeepFailures
		case KeepFailures, KeepAll, KeepNone:
		default:
			return bad(fmt.Sprintf("%q is none of failures, all, none", *k))
		}
	}
	return nil
}
