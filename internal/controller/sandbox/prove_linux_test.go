package sandbox

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// What a run is told before its first rollout names each probe whose guard is off: a
// proof that leaves one out shows nothing of it.
func TestProveNamesEachProbe(t *testing.T) {
	if testing.Short() {
		t.Skip("a sandbox for each guard: left out by -short, make test-sandbox runs it")
	}
	guards := map[Guard][]string{}
	for _, p := range Probes() {
		guards[p.Guard] = append(guards[p.Guard], p.Name)
	}
	for guard, names := range guards {
		if guard == GuardAll { // no box lacks all: Outside shows these, and the other test
			continue
		}
		t.Run(strings.Join(names, ","), func(t *testing.T) {
			s, o := scene(t, guard)
			err := newBox(t, o).Prove(t.Context(), s.t.Files)
			if fulgur.KindOf(err) != fulgur.KindForbidden {
				if guard == GuardKernel && os.Geteuid() != 0 {
					t.Skip("the kernel's settings are root's: run this as root")
				}
				t.Fatalf("error %v", err)
			}
			for _, name := range names {
				here := name != "files/home" || s.t.Files["home"] != ""
				here = here && (name != "network/lan" || s.t.LAN != "") && (guard != GuardKernel || os.Geteuid() == 0)
				if here && !strings.Contains(err.Error(), name+" (") {
					t.Errorf("%s is not in %v", name, err)
				}
			}
			for _, p := range Probes() {
				if !slices.Contains(names, p.Name) && strings.Contains(err.Error(), p.Name+" (") {
					t.Logf("%s gets out too", p.Name)
				}
			}
		})
	}
}

// A gateway that is not reached is no way out, and no run either.
func TestProveTellsOfAGatewayThatIsNotThere(t *testing.T) {
	if testing.Short() {
		t.Skip("tries each way out: left out by -short, make test-sandbox runs it")
	}
	s, o := scene(t)
	o.Upstream = "http://127.0.0.1:1"
	err := newBox(t, o).Prove(t.Context(), map[string]string{"store": s.t.Files["store"]})
	if fulgur.KindOf(err) != fulgur.KindUnavailable || !strings.Contains(err.Error(), "agents would not reach their model") {
		t.Errorf("error %v", err)
	}
}
