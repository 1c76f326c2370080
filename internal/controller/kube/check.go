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
	_, err := t.objects(jobName(t.m.scope, trialKey), input)
	return err
}

var trialKey = plan.Key{Rollout: "trial", Attempt: "0"}

func (t *Trial) objects(name string, input json.RawMessage) (objects, error) {
	const credential = "a-credential-of-the-usual-length-0123456789"
	e := controller.Execution{Key: trialKey, Input: input, Timeout: time.Minute, Secrets: []string{credential}, Env: map[string]string{"OPENAI_API_KEY": credential}}
	return t.m.build(name, e)
}
