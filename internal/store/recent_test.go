package store

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/fulgur-rl/fulgur"
)

// TestAHistoryThatGrowsIsInMemoryOnce: calls of one conversation share one list of ids and
// one of messages, also when these have outgrown their memory, and each still says its own.
func TestAHistoryThatGrowsIsInMemoryOnce(t *testing.T) {
	r := &recent{e: &entry{}}
	var ids []int32
	var messages []fulgur.Message
	for k := range 60 {
		for range 100 {
			ids = append(ids, int32(len(ids)))
		}
		messages = append(messages, fulgur.Message{Role: "user", Content: fmt.Sprint(k)})
		c := fulgur.Call{Attempt: "0", PromptIDs: slices.Clone(ids), Messages: slices.Clone(messages)}
		if k%10 == 9 { // another conversation's, in between
			c.PromptIDs, c.Messages = []int32{7}, []fulgur.Message{{Role: "user", Content: "a title"}}
		}
		r.own(&c)
		r.calls = append(r.calls, c)
	}
	lists := map[*int32]bool{}
	for k, c := range r.calls {
		if k%10 == 9 {
			if len(c.PromptIDs) != 1 || c.PromptIDs[0] != 7 || c.Messages[0].Content != "a title" {
				t.Errorf("call %d: %v %v", k, c.PromptIDs, c.Messages)
			}
			continue
		}
		if !slices.Equal(c.PromptIDs, ids[:100*(k+1)]) || len(c.Messages) != k+1 || c.Messages[k].Content != fmt.Sprint(k) {
			t.Errorf("call %d says another's", k)
		}
		lists[unsafe.SliceData(c.PromptIDs)] = true
		if k%10 > 0 && unsafe.SliceData(c.Messages) != unsafe.SliceData(r.calls[k-1].Messages) {
			t.Errorf("call %d has messages of its own", k)
		}
	}
	if len(lists) != 6 {
		t.Errorf("%d lists of ids, want 6", len(lists))
	}
}
