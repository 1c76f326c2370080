package store

import (
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/google/go-cmp/cmp"
)

// What could not be removed counts on, and is removed with the next: it keeps no upload away
// but by its bytes.
func TestUploadsThatCouldNotBeRemoved(t *testing.T) {
	var u uploads
	key := fulgur.AttemptKey{Rollout: "r", Attempt: "0"}
	begin := func(id string, want fulgur.Kind) *upload {
		t.Helper()
		up, err := u.begin("test", key, id, 100)
		if got := fulgur.KindOf(err); got != want {
			t.Fatalf("%s: %v", id, err)
		}
		return up
	}
	grow := func(up *upload, bytes int64, want fulgur.Kind) {
		t.Helper()
		if err := u.grow("test", up, bytes, 100); fulgur.KindOf(err) != want {
			t.Errorf("%s, %d bytes: %v", up.id, bytes, err)
		}
	}
	lost, other := begin("lost", ""), begin("other", "")
	grow(lost, 60, "")
	grow(lost, 60, "") // asked again
	begin("third", fulgur.KindUnavailable)
	u.keep([]*upload{lost})
	next := begin("next", "")
	grow(next, 41, fulgur.KindUnavailable)
	grow(next, 40, "")
	left := u.remains()
	if d := cmp.Diff([]string{"lost"}, ids(left)); d != "" {
		t.Errorf("to be removed (-want +got):\n%s", d)
	}
	if again := u.remains(); again != nil {
		t.Errorf("twice: %v", ids(again))
	}
	u.forget(left...)
	grow(next, 100, "")
	u.forget(next, other)
	if len(u.open) > 0 {
		t.Errorf("held for nobody: %v", u.open)
	}
}

func ids(ups []*upload) (out []string) {
	for _, up := range ups {
		out = append(out, up.id)
	}
	return out
}
