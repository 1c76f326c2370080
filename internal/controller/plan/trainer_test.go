package plan

import (
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
)

func TestTrainerThatIsGone(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	lease := func(holder string, expires int) fulgur.Lease {
		return fulgur.Lease{Holder: holder, Expires: at(expires)}
	}
	type look struct {
		now   int
		lease fulgur.Lease
		gone  bool
	}
	for name, looks := range map[string][]look{
		"a run that never had one":         {{0, fulgur.Lease{}, false}, {1000, fulgur.Lease{}, false}},
		"one that renews":                  {{0, lease("a", 10), false}, {50, lease("a", 60), false}, {100, lease("a", 110), false}},
		"one that died":                    {{0, lease("a", 10), false}, {50, lease("a", 10), false}, {60, lease("a", 10), true}},
		"one with a lease for long":        {{0, lease("a", 1000), false}, {900, lease("a", 1000), false}, {1000, lease("a", 1000), true}},
		"one that stopped":                 {{0, lease("a", 10), false}, {10, fulgur.Lease{}, false}, {70, fulgur.Lease{}, true}},
		"one that comes back":              {{0, lease("a", 10), false}, {60, lease("a", 10), true}, {70, lease("b", 80), false}},
		"dead before the controller began": {{0, lease("a", -500), false}, {60, lease("a", -500), true}},
		"the record's clock is behind":     {{0, lease("a", -500), false}, {50, lease("a", -450), false}, {100, lease("a", -400), false}},
	} {
		t.Run(name, func(t *testing.T) {
			var seen Trainer
			for _, l := range looks {
				var gone bool
				if seen, gone = seen.See(l.lease, at(l.now), time.Minute); gone != l.gone {
					t.Errorf("after %d s: gone %v", l.now, gone)
				}
			}
		})
	}
}
