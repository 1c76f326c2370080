package container

import "testing"

func TestRootless(t *testing.T) {
	for name, test := range map[string]struct {
		info string
		want bool
	}{
		"Podman":            {`{"host":{"security":{"rootless":true}},"store":{}}`, true},
		"Podman of root":    {`{"host":{"security":{"rootless":false}}}`, false},
		"Docker, rootless":  {`{"ID":"x","SecurityOptions":["name=seccomp,profile=builtin","name=rootless"]}`, true},
		"Docker":            {`{"ID":"x","SecurityOptions":["name=seccomp,profile=builtin"]}`, false},
		"something else":    {`hello`, false},
		"an answer of null": {`null`, false},
	} {
		if got := rootless([]byte(test.info)); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
