package kube

import (
	"encoding/json"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Trial makes Jobs without a cluster, to find out what would be refused.
type Trial struct{ m *maker }

// NewTrial looks at the options.
func NewTrial(o Options) (*Trial, error) {
	m, err := newMaker(o)
	if err != nil {
		return nil, err
	}
	return &Trial{m}, nil
}

// Job makes the objects of an attempt with this input, and throws them away. Its
// error is what Start would return.
func (t *Trial) Job(input json.RawMessage) error {
	key := plan.Key{Rollout: "trial", Attempt: "0"}
	const credential = "a-credential-of-the-usual-length-0123456789"
	e := controller.Execution{Key: key, Input: input, Timeout: time.Minute, Secrets: []string{credential}, Env: map[string]string{"OPENAI_API_KEY": credential}}
	_, err := t.m.build(jobName(t.m.scope, key), e)
	return err
}
