package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/fulgur-rl/fulgur"
)

// maxUploads is how many uploads an attempt may have open where its bytes are bounded: one,
// and that of a client which went without a word and came again. Each holds a part in memory.
const maxUploads = 2

// uploads are the artifacts that are coming in. What is written of one counts against its
// attempt's bound from its first part on, not only when all of it is there.
type uploads struct {
	mu   sync.Mutex
	open map[fulgur.AttemptKey][]*upload
	left []*upload // ended in vain, and their parts could not be removed: they count on
}

type upload struct {
	key     fulgur.AttemptKey
	id      string
	bounded bool
	ended   bool
	bytes   int64 // on record, or about to be
}

// begin opens an upload of an attempt, most bytes for all that it leaves.
func (u *uploads) begin(op string, key fulgur.AttemptKey, id string, most int64) (*upload, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	up := &upload{key: key, id: id, bounded: most < math.MaxInt64}
	open := 0
	for _, o := range u.open[key] {
		if o.bounded && !o.ended {
			open++
		}
	}
	if up.bounded && open >= maxUploads {
		return nil, fulgur.E(fulgur.KindUnavailable, op, fmt.Sprintf("attempt %s of rollout %s has %d uploads open: try again when one has ended", key.Attempt, key.Rollout, open), nil)
	}
	if u.open == nil {
		u.open = map[fulgur.AttemptKey][]*upload{}
	}
	u.open[key] = append(u.open[key], up)
	return up, nil
}

// grow says whether an upload may have so many bytes, of room for all of its attempt's.
// It may be asked again.
func (u *uploads) grow(op string, up *upload, bytes, room int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range u.open[up.key] {
		if o != up {
			room -= o.bytes
		}
	}
	if bytes > room {
		return fulgur.E(fulgur.KindUnavailable, op, fmt.Sprintf("other uploads of attempt %s of rollout %s have the room that it needs: try again when they have ended", up.key.Attempt, up.key.Rollout), nil)
	}
	up.bytes = bytes
	return nil
}

// forget ends uploads of which nothing is left but what an artifact's row counts.
func (u *uploads) forget(ups ...*upload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, up := range ups {
		rest := slices.DeleteFunc(u.open[up.key], func(o *upload) bool { return o == up })
		if u.open[up.key] = rest; len(rest) == 0 {
			delete(u.open, up.key)
		}
	}
}

// remains takes what is to be removed still.
func (u *uploads) remains() []*upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := u.left
	u.left = nil
	return left
}

func (u *uploads) keep(ups []*upload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, up := range ups {
		up.ended = true
	}
	u.left = append(u.left, ups...)
}

// removeUploads removes the parts of uploads that ended in vain, and of earlier ones where
// that failed. Where it fails now, the next does it, or the next start.
func (s *Store) removeUploads(ctx context.Context, op string, ups ...*upload) {
	ups = append(ups, s.uploads.remains()...)
	if len(ups) == 0 {
		return
	}
	err := s.do(context.WithoutCancel(ctx), op, func(b *batch) error {
		for _, up := range ups {
			b.artifacts.gone = append(b.artifacts.gone, up.id)
		}
		return nil
	})
	if err != nil {
		s.uploads.keep(ups)
		return
	}
	s.uploads.forget(ups...)
}
