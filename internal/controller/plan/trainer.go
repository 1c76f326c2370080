package plan

import (
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Trainer is what was seen of the lease of a run's trainer.
type Trainer struct {
	holder  string
	expires time.Time
	since   time.Time // when it was seen to change last; zero: never seen
}

// See takes the lease as it is on record (the zero Lease: nobody has it) and says
// whether the trainer is gone: it had the lease, which has ended, and for so long
// nobody has renewed it. The clocks of record and controller need not agree well:
// it is changes that count.
func (t Trainer) See(l fulgur.Lease, now time.Time, patience time.Duration) (Trainer, bool) {
	switch {
	case l.Holder == "" && t.since.IsZero():
		return t, false
	case l.Holder != "" && (l.Holder != t.holder || !l.Expires.Equal(t.expires)):
		return Trainer{l.Holder, l.Expires, now}, false
	}
	return t, now.Sub(t.since) >= patience && !now.Before(l.Expires)
}
