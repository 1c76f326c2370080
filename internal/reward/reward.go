// Package reward has the graders that are built in: pure functions of a
// rollout's input and of what its attempt's calls were. They need no change of
// the agent, which never sees what they compare with.
package reward

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// Grader gives the reward of an attempt that has ended. It is safe for
// concurrent use.
type Grader interface {
	// Grade gives the reward and a word that says why, from the rollout's whole
	// input and the attempt's calls in order of arrival. An error is the
	// grader's failure or the input's, never the agent's.
	Grade(input json.RawMessage, calls []fulgur.Call) (value float64, reason string, err error)
	// Check says whether this input can be graded at all, so that a data row
	// without its answer is found before anything runs: KindInvalid.
	Check(input json.RawMessage) error
}

// Options are those of the run file's `reward`.
type Options struct {
	Expected string // where the right answer is: "input.answer"
	Compare  string // exact, number, pattern; "": exact
	Pattern  string // pattern: a regular expression (RE2) whose first group is the answer
	Prefix   string // exact, number: only what follows its last occurrence counts, such as "Answer:"; "": the whole reply
}

// Reasons that graders give.
const (
	Right    = "right"
	Wrong    = "wrong"
	NoAnswer = "no_answer"
)

// builtin makes each grader that is built in. A new one is one line here.
func builtin() map[string]func(Options) (Grader, error) {
	return map[string]func(Options) (Grader, error){
		"final-answer": newFinalAnswer,
	}
}

// Names returns the names of the built-in graders, sorted.
func Names() []string { return slices.Sorted(maps.Keys(builtin())) }

// New makes a grader by its name; KindInvalid if there is none, or if its
// options are wrong.
func New(name string, o Options) (Grader, error) {
	build, ok := builtin()[name]
	if !ok {
		return nil, invalid(fmt.Sprintf("there is no grader %q; there are: %s", name, strings.Join(Names(), ", ")))
	}
	return build(o)
}

func invalid(msg string) error { return fulgur.E(fulgur.KindInvalid, "set up the reward", msg, nil) }
