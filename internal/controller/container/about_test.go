package container

import "testing"

func TestRootless(t *testing.T) {
	for name, test := range map[string]struct {
		info      string
		rootless  bool
		unbounded bool
	}{
		"Podman":              {`{"host":{"cgroupVersion":"v2","security":{"rootless":true}},"store":{}}`, true, false},
		"Podman on cgroups 1": {`{"host":{"cgroupVersion":"v1","cgroupControllers":[],"security":{"rootless":true}}}`, true, true},
		"Podman of root":      {`{"host":{"cgroupVersion":"v1","security":{"rootless":false}}}`, false, false},
		"Docker, rootless":    {`{"ID":"x","CgroupDriver":"systemd","SecurityOptions":["name=seccomp,profile=builtin","name=rootless"]}`, true, false},
		"one on cgroups 1":    {`{"ID":"x","CgroupDriver":"none","SecurityOptions":["name=rootless"]}`, true, true},
		"Docker":              {`{"ID":"x","CgroupDriver":"cgroupfs","SecurityOptions":["name=seccomp,profile=builtin"]}`, false, false},
		"something else":      {`hello`, false, false},
		"an answer of null":   {`null`, false, false},
	} {
		var c Client
		if c.tell([]byte(test.info)); c.Rootless != test.rootless || c.Unbounded != test.unbounded {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
