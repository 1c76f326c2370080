package tokens

import (
	"context"
	"fmt"
	"testing"
	"unsafe"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/google/go-cmp/cmp"
)

func user(s string) fulgur.Message { return fulgur.Message{Role: "user", Content: s} }
func said(s string) fulgur.Message { return fulgur.Message{Role: "assistant", Content: s} }

func order(rollout fulgur.RolloutID, msgs ...fulgur.Message) *call.Order {
	return &call.Order{Request: &call.Request{Messages: msgs}, Rollout: rollout, Attempt: "0", Index: 5}
}

func TestLongestKnownConversation(t *testing.T) {
	list := []Known{
		{Messages: []fulgur.Message{user("a")}, Reply: said("b"), PromptIDs: []int32{1}},
		{Messages: []fulgur.Message{user("a"), said("b"), user("c")}, Reply: said("d"), PromptIDs: []int32{2}},
		{Messages: []fulgur.Message{user("a"), said("b"), user("c")}, Reply: said("other"), PromptIDs: []int32{3}},
		{Messages: []fulgur.Message{user("sub-agent")}, Reply: fulgur.Message{Role: "assistant", Content: "x", Reasoning: "hm"}, PromptIDs: []int32{4}},
		{Messages: []fulgur.Message{user("a")}, Tools: []fulgur.Tool{{Name: "f"}}, Reply: said("b"), PromptIDs: []int32{5}},
	}
	for is, c := range map[string]struct {
		msgs []fulgur.Message
		want int32 // first prompt id; 0: none
	}{
		"the longest":                               {[]fulgur.Message{user("a"), said("b"), user("c"), said("d"), user("e")}, 2},
		"the one with the right reply":              {[]fulgur.Message{user("a"), said("b"), user("c"), said("other"), user("e")}, 3},
		"an earlier place of a branch":              {[]fulgur.Message{user("a"), said("b"), user("z")}, 1},
		"a sub-agent, its reasoning left out":       {[]fulgur.Message{user("sub-agent"), said("x"), user("y")}, 4},
		"the same prompt again is not gone on from": {[]fulgur.Message{user("a")}, 0},
		"a new conversation":                        {[]fulgur.Message{user("q"), said("b"), user("c")}, 0},
	} {
		t.Run(is, func(t *testing.T) {
			k, ok := longest(list, c.msgs, nil)
			if ok != (c.want != 0) || ok && k.PromptIDs[0] != c.want {
				t.Errorf("got %v %v", k.PromptIDs, ok)
			}
		})
	}
}

type recorded []fulgur.Call

func (r recorded) Calls(context.Context, fulgur.RolloutID, fulgur.AttemptID) ([]fulgur.Call, error) {
	return r, nil
}

// After a restart what is known is rebuilt from the record; a call that broke
// off is not gone on from.
func TestMemoryIsRebuilt(t *testing.T) {
	reply := said("b")
	calls := recorded{
		{Messages: []fulgur.Message{user("a")}, Reply: &reply, PromptIDs: []int32{1}, SampledIDs: []int32{2}, FinishReason: "stop"},
		{Messages: []fulgur.Message{user("x")}, Reply: &reply, PromptIDs: []int32{1}, SampledIDs: []int32{2}},
	}
	m := newMemory(10, calls)
	if k, ok, err := m.find(t.Context(), order("r", user("a"), said("b"), user("c"))); !ok || err != nil || k.SampledIDs[0] != 2 {
		t.Errorf("%+v %v %v", k, ok, err)
	}
	if _, ok, _ := m.find(t.Context(), order("r", user("x"), said("b"), user("c"))); ok {
		t.Error("a broken call is gone on from")
	}
	if _, ok, _ := m.find(t.Context(), order("", user("a"), said("b"), user("c"))); ok {
		t.Error("plain serving remembers")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m := newMemory(40, nil)
	for i := range 100 {
		for j := range 20 {
			o := order(fulgur.RolloutID(fmt.Sprint("r", i)), user("a"))
			m.add(o, Known{Messages: o.Messages, PromptIDs: make([]int32, 10+j)})
		}
	}
	sum := 0
	for e := m.recent.Front(); e != nil; e = e.Next() {
		sum += len(e.Value.(*attemptMemory).list)
	}
	if m.count != sum || m.count > 40 || len(m.attempts) != m.recent.Len() {
		t.Errorf("%d counted, %d kept, %d attempts", m.count, sum, len(m.attempts))
	}
	if _, seen := m.of(attemptKey{"r99", "0"}); !seen {
		t.Error("the most recent attempt is forgotten")
	}
	for m.recent.Len() > 0 { // counts come out even
		a := m.recent.Remove(m.recent.Front()).(*attemptMemory)
		for _, k := range a.list {
			m.countLocked(k, -1)
		}
	}
	if m.count != 0 || m.bytes != 0 {
		t.Errorf("%d conversations and %d bytes are left of nothing", m.count, m.bytes)
	}
}

// What is kept of a conversation is in memory of its own: a request's body goes with
// its call. What turns have in common is kept once.
func TestMemoryHoldsNoBodies(t *testing.T) {
	m := newMemory(10, nil)
	body := []byte(`user|hello|read|{"path":"a"}|{"name":"read"}`)
	cut := func(from, n int) string { return unsafe.String(&body[from], n) }
	first := fulgur.Message{Role: cut(0, 4), Content: cut(5, 5)}
	called := fulgur.Message{Role: cut(0, 4), ToolCalls: []fulgur.ToolCall{{Name: cut(11, 4), Arguments: cut(16, 12)}}}
	tools := []fulgur.Tool{{Name: cut(11, 4), Raw: body[29:44]}}
	want := Known{Messages: ownMessages([]fulgur.Message{first, called}, nil), Tools: ownTools(tools)}
	o := order("r", first)
	m.add(o, Known{Messages: []fulgur.Message{first}, Tools: tools})
	m.add(o, Known{Messages: []fulgur.Message{first, called}, Tools: tools})
	m.add(order("r2", first), Known{Messages: []fulgur.Message{first, called}, Tools: tools})
	clear(body)
	list, _ := m.of(keyOf(o))
	other, _ := m.of(attemptKey{"r2", "0"})
	for _, k := range []Known{list[1], other[0]} {
		if d := cmp.Diff(want, k); d != "" {
			t.Error(d)
		}
		if &k.Tools[0] != &list[0].Tools[0] {
			t.Error("the same tools are kept twice")
		}
	}
	if unsafe.StringData(list[0].Messages[0].Content) != unsafe.StringData(list[1].Messages[0].Content) {
		t.Error("a turn that two conversations have is kept twice")
	}
}

// Lists of tools that are kept once are few and small; larger ones count.
func TestMemoryOfTools(t *testing.T) {
	m := newMemory(1000, nil)
	for i := range 3 * sharedLists {
		m.add(order("r", user("a")), Known{Tools: []fulgur.Tool{{Name: fmt.Sprint(i)}}})
	}
	if len(m.tools) != sharedLists {
		t.Errorf("%d lists of tools are shared", len(m.tools))
	}
	before := m.bytes
	m.add(order("r2", user("a")), Known{Tools: []fulgur.Tool{{Name: "large", Raw: make([]byte, maxShared+1)}}})
	if len(m.tools) != sharedLists || m.bytes-before < maxShared {
		t.Errorf("%d lists, %d bytes for a large one", len(m.tools), m.bytes-before)
	}
}
