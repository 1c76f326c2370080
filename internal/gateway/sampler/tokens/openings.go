package tokens

import (
	"sync"
	"time"

	"github.com/fulgur-rl/fulgur"
)

const (
	// maxOpenings is how many rendered first prompts are kept: those of the groups
	// that start about now.
	maxOpenings = 32
	// openingFor is how long: a template may print the date.
	openingFor = 10 * time.Second
)

// openings keep the tokens of conversations that begin: all rollouts of a group
// begin with the same one, at about the same time.
type openings struct {
	mu   sync.Mutex
	list [maxOpenings]opening
	next int
}

type opening struct {
	messages []fulgur.Message
	tools    []fulgur.Tool
	ids      []int32 // not to be changed
	at       time.Time
}

// render is r.Render, or what it gave for the same messages a moment ago.
func (s *openings) render(r Renderer, msgs []fulgur.Message, tools []fulgur.Tool) ([]int32, error) {
	now := time.Now()
	s.mu.Lock()
	for i := range s.list {
		if o := &s.list[i]; o.ids != nil && now.Sub(o.at) < openingFor && sameWords(o.messages, msgs) && sameTools(o.tools, tools) {
			ids := o.ids
			s.mu.Unlock()
			return ids, nil
		}
	}
	s.mu.Unlock()
	ids, err := r.Render(msgs, tools)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list[s.next] = opening{ownMessages(msgs, nil), ownTools(tools), ids[:len(ids):len(ids)], now}
	s.next = (s.next + 1) % maxOpenings
	return ids, nil
}

// sameWords says whether two conversations without tool calls are equal.
func sameWords(a, b []fulgur.Message) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if len(a[i].ToolCalls) > 0 || !equal(&a[i], &b[i]) {
			return false
		}
	}
	return true
}
