package tokens

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// counting renders a message as its length, and counts.
type counting struct {
	Renderer
	n    int
	fail error
}

func (c *counting) Render(msgs []fulgur.Message, _ []fulgur.Tool) ([]int32, error) {
	c.n++
	var ids []int32
	for _, m := range msgs {
		ids = append(ids, int32(len(m.Content)))
	}
	return ids, c.fail
}

func TestAGroupsOpeningIsRenderedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s openings
		r := &counting{}
		hi := []fulgur.Message{{Role: "system", Content: "s"}, {Role: "user", Content: "hi"}}
		tools := []fulgur.Tool{{Name: "f", Raw: []byte(`{"a":1}`)}}
		for _, step := range []struct {
			name  string
			msgs  []fulgur.Message
			tools []fulgur.Tool
			wait  time.Duration
			fail  error
			n     int
		}{
			{name: "new", msgs: hi, tools: tools, n: 1},
			{name: "again", msgs: slices.Clone(hi), tools: tools, n: 1},
			{name: "other tools", msgs: hi, n: 2},
			{name: "another role", msgs: []fulgur.Message{{Role: "system", Content: "s"}, {Role: "tool", Content: "hi"}}, tools: tools, n: 3},
			{name: "tool calls are not compared", msgs: []fulgur.Message{{Role: "assistant", ToolCalls: []fulgur.ToolCall{{Name: "f"}}}}, n: 4},
			{name: "nor kept", msgs: []fulgur.Message{{Role: "assistant", ToolCalls: []fulgur.ToolCall{{Name: "f"}}}}, n: 5},
			{name: "later: it may print the date", msgs: hi, tools: tools, wait: openingFor, n: 6},
			{name: "an error is not kept", msgs: hi[:1], fail: errors.New("no"), n: 7},
			{name: "so it is tried again", msgs: hi[:1], n: 8},
		} {
			time.Sleep(step.wait)
			r.fail = step.fail
			ids, err := s.render(r, step.msgs, step.tools)
			if r.n != step.n || !errors.Is(err, step.fail) || err == nil && len(ids) != len(step.msgs) {
				t.Errorf("%s: rendered %d times, want %d; %v %v", step.name, r.n, step.n, ids, err)
			}
		}
	})
}
