package chat

import (
	"sync"
	"time"
)

// silence calls a function when nothing has been heard until a time. To set a timer anew
// for each piece of a stream takes as long as to read one: the time alone moves on, and
// the timer looks at it when it fires.
type silence struct {
	mu    sync.Mutex
	until time.Time
	over  bool
	timer *time.Timer
}

func watchSilence(limit time.Duration, end func()) *silence {
	s := &silence{until: time.Now().Add(limit)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(limit, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if left := time.Until(s.until); left > 0 && !s.over {
			s.timer.Reset(left)
		} else if !s.over {
			s.over = true
			end()
		}
	})
	return s
}

// heard starts the silence anew, of which at most limit is borne.
func (s *silence) heard(limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(limit)
	if at.Before(s.until) { // the timer would come too late
		s.timer.Reset(limit)
	}
	s.until = at
}

func (s *silence) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}
