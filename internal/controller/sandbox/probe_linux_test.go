package sandbox

import (
	"os"
	"testing"
)

// scene makes a scene and the options of a box for it.
func scene(t testing.TB, without ...Guard) (*Scene, Options) {
	t.Helper()
	needBox(t)
	s, err := NewScene("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	o := Options{View: View{Read: []string{s.Dir}, Hide: s.Hide}, Upstream: s.Gateway, Limits: Limits{Memory: 1 << 30, Processes: 256, File: 64 << 20}, without: map[Guard]bool{}}
	for _, g := range without {
		o.without[g] = true
	}
	return s, o
}

func TestNoProbeEscapes(t *testing.T) {
	s, o := scene(t)
	found, err := s.Probe(t.Context(), newBox(t, o))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 20 {
		t.Errorf("%d findings", len(found))
	}
	for _, f := range found {
		t.Logf("%-24s escaped %-5v skipped %-5v %s", f.Name, f.Escaped, f.Skipped, f.Detail)
		if f.Escaped {
			t.Errorf("%s escaped: %s", f.Name, f.Detail)
		}
	}
}

// A probe that cannot escape shows nothing: each has to when its guard alone is off.
func TestEachProbeEscapesWithoutItsGuard(t *testing.T) {
	for _, p := range Probes() {
		t.Run(p.Name, func(t *testing.T) {
			s, o := scene(t, p.Guard)
			var found []Finding
			var err error
			if p.Guard == GuardAll {
				found, err = s.Outside(t.Context(), p.Name)
			} else {
				found, err = s.Probe(t.Context(), newBox(t, o), p.Name)
			}
			if err != nil {
				t.Fatal(err)
			}
			f := found[0]
			switch {
			case f.Skipped && p.Name == "files/home":
				t.Skip("this user's home has nothing to hide")
			case f.Skipped && p.Name == "network/lan":
				t.Skip("this machine has no address but its own")
			case p.Guard == GuardKernel && os.Geteuid() != 0:
				t.Skip("the kernel's settings are root's: run this as root")
			case !f.Escaped:
				t.Errorf("it stays in without its guard %s: %s", p.Guard, f.Detail)
			}
		})
	}
}

func TestLimitsStopEachExcess(t *testing.T) {
	if testing.Short() {
		t.Skip("seconds of CPU time")
	}
	s, o := scene(t)
	for _, test := range []struct {
		name   string
		limits Limits
		held   bool
	}{{"with limits", Scarce(), true}, {"without", Limits{}, false}} {
		t.Run(test.name, func(t *testing.T) {
			o.Limits = test.limits
			found, err := s.Limits(t.Context(), newBox(t, o))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				if f.Escaped == test.held {
					t.Errorf("%s: escaped %v (%s)", f.Name, f.Escaped, f.Detail)
				}
			}
		})
	}
}

func TestProveNamesWhatGotOut(t *testing.T) {
	s, o := scene(t)
	hidden := map[string]string{"store": s.t.Files["store"], "data": s.t.Files["data"]}
	if err := newBox(t, o).Prove(t.Context(), hidden); err != nil {
		t.Error(err)
	}
	o.without[GuardHide] = true
	err := newBox(t, o).Prove(t.Context(), hidden)
	if err == nil {
		t.Fatal("files that are not hidden were not found")
	}
	t.Log(err)
	o.without, o.Upstream = nil, "http://127.0.0.1:1"
}
