package plan

import (
	"testing"

	"github.com/fulgur-rl/fulgur"
)

func TestGraded(t *testing.T) {
	zero := 0.0
	graded, fixed, mask := fulgur.Follow{}, fulgur.Follow{Value: &zero}, fulgur.Follow{Mask: true}
	then := func(reason string, f fulgur.Follow) map[string]Rule { return map[string]Rule{reason: {Then: &f}} }
	none := Table{Agent: fixed}
	all := Table{Agent: graded}
	late := Table{Agent: fixed, Reasons: then(ReasonTimeout, graded)}
	for name, test := range map[string]struct {
		f        Facts
		table    Table
		train    bool
		want     bool
		failures bool // of the table
	}{
		"one that went well":                       {Facts{Calls: 1}, none, true, true, false},
		"one that asked nothing":                   {Facts{}, none, true, true, false},
		"one that went well after a failed call":   {Facts{Calls: 1, Upstream: "500"}, all, true, false, true},
		"an exit, by default":                      {Facts{Exit: Exit{Code: 3}}, none, true, false, false},
		"an exit":                                  {Facts{Exit: Exit{Code: 3}}, all, true, true, true},
		"an exit after a failed call":              {Facts{Exit: Exit{Code: 3}, Upstream: "500"}, all, true, false, true},
		"memory":                                   {Facts{Exit: Failed(ReasonMemory, "")}, all, true, true, true},
		"memory after a failed call":               {Facts{Exit: Failed(ReasonMemory, ""), Upstream: "500"}, all, true, true, true},
		"a timeout":                                {Facts{Stopped: ReasonTimeout}, late, true, true, true},
		"a timeout in validation":                  {Facts{Stopped: ReasonTimeout}, late, false, false, true},
		"idle beside timeouts that are graded":     {Facts{Stopped: ReasonIdle}, late, true, false, true},
		"an eviction before its first call":        {Facts{Exit: Failed(ReasonEvicted, "")}, all, true, false, true},
		"an eviction after it":                     {Facts{Exit: Failed(ReasonEvicted, ""), Calls: 1}, all, true, true, true},
		"a stopped controller":                     {Facts{Stopped: ReasonShutdown}, all, true, false, true},
		"an image that is not there":               {Facts{Exit: Failed(ReasonImage, "")}, all, true, false, true},
		"one that is masked in training":           {Facts{Exit: Exit{Code: 3}}, Table{Reasons: then(ReasonExit, mask)}, true, false, true},
		"one that is masked in training, measured": {Facts{Exit: Exit{Code: 3}}, Table{Reasons: then(ReasonExit, mask)}, false, true, true},
		"a node that is graded, but never is":      {Facts{Exit: Failed(ReasonNode, "")}, Table{Agent: fixed, Reasons: then(ReasonNode, graded)}, true, false, false},
		"an eviction that is graded":               {Facts{Exit: Failed(ReasonEvicted, ""), Calls: 1}, Table{Agent: fixed, Reasons: then(ReasonEvicted, graded)}, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			test.f.Limits.Table = test.table
			if got := Graded(test.f, test.train); got != test.want {
				t.Errorf("graded: %v", got)
			}
			if got := test.table.Failures(); got != test.failures {
				t.Errorf("the table grades failures: %v", got)
			}
		})
	}
}
