package storetest

import (
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/google/go-cmp/cmp"
)

// sound checks the database of a store, open or not, where its driver can.
func sound(t *testing.T, d store.Driver, calls int) {
	t.Helper()
	k, ok := d.(store.Keeper)
	if !ok {
		return
	}
	r := must(store.Check(t.Context(), k))(t)
	if !r.OK() || calls >= 0 && r.Calls != calls {
		t.Errorf("the check of the store: %+v", r)
	}
}

func testHistories(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	ids := []fulgur.RolloutID{"a", "b"}
	create(t, s, ids...)
	for _, id := range ids {
		must(s.OpenAttempt(ctx, id))(t)
	}
	want := map[fulgur.RolloutID][]fulgur.Call{}
	talks := map[fulgur.RolloutID]*Talk{"a": NewTalk(1), "b": NewTalk(2)}
	record := func(n int) {
		for range n {
			for _, id := range ids {
				c := talks[id].Call(id)
				noError(t, s.AppendCall(ctx, c))
				want[id] = append(want[id], *c)
			}
		}
	}
	check := func() {
		t.Helper()
		for _, id := range ids {
			got := must(s.Calls(ctx, id, "0"))(t)
			if d := cmp.Diff(len(want[id]), len(got)); d != "" {
				t.Fatalf("calls of %s: %s", id, d)
			}
			for i := range got {
				if !reflect.DeepEqual(got[i], want[id][i]) { // cmp is slow
					t.Fatalf("call %d (-want +got):\n%s", i, cmp.Diff(want[id][i], got[i]))
				}
			}
			for i, r := range must(s.Records(ctx, []fulgur.RolloutID{id}))(t)[0].Calls {
				w := want[id][i]
				w.Request, w.Sent, w.Response, w.Tools = nil, nil, nil, nil
				if !reflect.DeepEqual(r, w) {
					t.Fatalf("record %d (-want +got):\n%s", i, cmp.Diff(w, r))
				}
			}
			for i, r := range must(s.Responses(ctx, id, "0"))(t) {
				w := want[id][i]
				w.Request, w.Sent, w.Messages, w.Tools, w.Reply, w.PromptIDs = nil, nil, nil, nil, nil, nil
				if !reflect.DeepEqual(r, w) {
					t.Fatalf("response %d (-want +got):\n%s", i, cmp.Diff(w, r))
				}
			}
			for _, i := range []int{0, 1, 7, 8, 9, len(got) - 1} {
				if one := must(s.Call(ctx, got[i].ID))(t); !reflect.DeepEqual(one, got[i]) {
					t.Errorf("call %d alone:\n%s", i, cmp.Diff(got[i], one))
				}
			}
		}
	}
	record(20)
	check()
	sound(t, driver(), 40)
	Close(t, s)
	s = Open(t, driver())
	record(5)
	check()
	sound(t, driver(), 50)
}

func testDrop(t *testing.T, driver func() store.Driver) {
	ctx := t.Context()
	s := Open(t, driver())
	ids := []fulgur.RolloutID{"r0", "r1", "r2", "r3"}
	create(t, s, ids...)
	failed := fulgur.Failed
	for _, id := range ids { // ended, and calls still come
		must(s.PatchStatus(ctx, id, fulgur.StatusPatch{State: &failed}))(t)
	}
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			talk := NewTalk(uint64(i))
			for range 40 {
				noErrorIn(t, s.AppendCall(ctx, talk.Call(id)))
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	drop := func() int { return must(s.DropRecords(ctx, "", time.Now().Add(time.Hour)))(t) }
	dropped := 0
	for dropping := true; dropping; {
		select {
		case <-done:
			dropping = false
		default:
			dropped += drop()
		}
	}
	sound(t, driver(), -1)
	if drop(); dropped == 0 {
		t.Error("nothing was dropped")
	}
	noError(t, s.AppendCall(ctx, call("r0", "0", 100)))
	create(t, s, "open")
	noError(t, s.AppendCall(ctx, call("open", "0", 0)))
	noError(t, s.Vacuum(ctx))
	equal(t, "of one that is open", must(s.DropRecords(ctx, fulgur.DefaultRun, time.Now().Add(time.Hour)))(t), 1)
	head := must(s.Head(ctx))(t)
	Close(t, s)
	sound(t, driver(), 1)
	s = Open(t, driver())
	if now := must(s.Head(ctx))(t); now < head {
		t.Errorf("positions went back from %d to %d", head, now)
	}
	equal(t, "rollouts stay", len(must(s.Rollouts(ctx, fulgur.RolloutQuery{}))(t)), len(ids)+1)
	equal(t, "so do their places", must(s.Terminal(ctx, 0, 10))(t).Total, len(ids))
	if calls := must(s.Calls(ctx, "open", ""))(t); !slices.ContainsFunc(calls, func(c fulgur.Call) bool { return c.Index == 0 }) {
		t.Errorf("calls of the open one: %v", calls)
	}
	_, err := s.DropRecords(ctx, "nobody", time.Now())
	wantKind(t, err, fulgur.KindNotFound)
}
