package store

import (
	"slices"
	"sync"

	"github.com/fulgur-rl/fulgur"
)

// Calls of an attempt form chains: a call is kept as a delta of an earlier one.
// Which one is a skip list: number k of a chain is told against k-1; where k is
// a multiple of 8, against k-8; of 64, k-64; of 512, k-512. What is new in the
// history is so written at most four times, and reading one call of the first
// 512 takes at most 21 others.
const (
	fanout = 8
	levels = 3
)

// anchor is how a tip's text is told against an earlier one of its chain.
type anchor struct {
	seq       fulgur.Seq
	body, ids []piece
}

// tip is the newest call of a chain, with what its next one is compared with.
type tip struct {
	marks   tellMarks
	seq     fulgur.Seq
	k       int            // its number in the chain
	anchors [levels]anchor // the last multiple of 8, of 64, of 512
}

// maxTips is how many conversations of one attempt are told apart: sub-agents,
// titles, summaries.
const maxTips = 4

// maxChained bounds the memory for tips, in bytes: an agent-sized one has 15 KB.
const maxChained = 28 << 20

// chain holds the tips of one attempt's conversations, the last used in front.
type chain struct {
	key  chainKey
	mu   sync.Mutex
	tips []*tip
	read bool // that the record was asked for a tip
	size int  // as chains counts it; under the mutex of chains
}

type chainKey struct {
	num     int64
	attempt fulgur.AttemptID
}

// chains are the chains of attempts that may call again. What is dropped costs time,
// not truth: the next call of such an attempt reads its tip from the record. Any is
// dropped, not the one that called longest ago: where there are more agents than there
// is memory for, and they call in turn, that one is the next to call, and each call of
// each would read its tip.
type chains struct {
	limit int // bytes of all tips

	mu    sync.Mutex
	byKey map[chainKey]*chain
	bytes int
}

func newChains(limit int) *chains {
	return &chains{limit: limit, byKey: map[chainKey]*chain{}}
}

// of returns the chain of an attempt, a new one if there is none.
func (c *chains) of(k chainKey) *chain {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.byKey[k]
	if ch == nil {
		ch = &chain{key: k}
		c.byKey[k] = ch
	}
	return ch
}

// keep makes t, whose call is on record, a tip of ch; old, if it is still one, goes.
func (c *chains) keep(ch *chain, t, old *tip) {
	size := ch.put(t, old)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[ch.key] == ch {
		c.bytes += size - ch.size
		ch.size = size
	}
	for k, other := range c.byKey { // in an order that is another each time
		if c.bytes <= c.limit {
			break
		}
		if other != ch {
			delete(c.byKey, k)
			c.bytes -= other.size
		}
	}
}

// drop forgets the chain of an attempt.
func (c *chains) drop(k chainKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch := c.byKey[k]; ch != nil {
		delete(c.byKey, k)
		c.bytes -= ch.size
	}
}

// forget gives up all chains of some rollouts.
func (c *chains) forget(nums []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, ch := range c.byKey {
		if slices.Contains(nums, k.num) {
			delete(c.byKey, k)
			c.bytes -= ch.size
		}
	}
}

func (ch *chain) put(t, old *tip) (size int) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	kept := make([]*tip, 1, maxTips)
	kept[0] = t
	for _, x := range ch.tips {
		if x != old && len(kept) < maxTips {
			kept = append(kept, x)
		}
	}
	ch.tips = kept
	for _, x := range kept {
		size += 1024 + x.marks.size()
	}
	return size
}

// recall gives a chain without a tip, of an attempt that called before a restart
// or too long ago, the one that read finds on record: nil for none.
func (ch *chain) recall(read func() *tip) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.read || len(ch.tips) > 0 {
		return
	}
	ch.read = true
	if t := read(); t != nil {
		t.stand()
		t.recorded(t.seq)
		ch.tips = []*tip{t}
	}
}

// told is a call's text as it is kept.
type told struct {
	base      fulgur.Seq // 0: it stands for itself
	body, ids []piece
	// next is the tip that the call makes, old the one that it goes on from, nil
	// where it starts a conversation.
	next, old *tip
}

// tell finds the tip that says the most of d, and tells d against it; a nil chain
// has none. Hashes of blocks find what stands where it stood before. Where that leaves
// much, read gives the text of the tip's call, to look closer.
func (ch *chain) tell(d *draft, read func(fulgur.Seq) (text, error)) told {
	if ch == nil {
		return d.alone()
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	var best *tip
	said, ids := -1, 0
	for _, x := range ch.tips {
		if s, i := x.common(d); s+i > said+ids {
			best, said, ids = x, s, i
		}
	}
	if best == nil {
		out := d.alone()
		out.next.stand()
		return out
	}
	out := told{base: best.seq, next: &tip{marks: d.marks}}
	out.body, out.ids = d.against(best, read)
	if best.goesOn(said, ids) {
		out.old = best
	}
	out.next.follow(best, &out)
	return out
}

// goesOn says whether a call that has so much in common with x is of its conversation:
// three quarters of x's messages or of its prompt ids. By both together a server that
// starts each prompt with an id of its own had every call begin a conversation.
func (x *tip) goesOn(said, ids int) bool {
	allSaid, allIDs := x.marks.segs[segSaid].n, x.marks.ids.n
	return allSaid > 0 && said >= allSaid*3/4-block || allIDs > 0 && ids >= allIDs*3/4-block
}

// common is in bytes of messages and prompt ids: those in which d goes on from x.
func (x *tip) common(d *draft) (said, ids int) {
	return d.marks.segs[segSaid].shared(d.seed, &x.marks.segs[segSaid], d.segs[segSaid]), d.marks.ids.shared(d.seed, &x.marks.ids, d.ids)
}

// same are the pieces of a text of n bytes against itself.
func same(n int) []piece { return []piece{{0, n}} }

// stand makes t the first of its chain.
func (t *tip) stand() {
	for l := range t.anchors {
		t.anchors[l] = anchor{body: same(t.marks.len()), ids: same(t.marks.ids.n)}
	}
}

// follow makes t the one behind prev, against which out tells it, and turns out
// to the anchor where it is that one's turn.
func (t *tip) follow(prev *tip, out *told) {
	t.k = prev.k + 1
	body, ids := out.body, out.ids
	at := t.k
	turn := true
	for l := range t.anchors {
		turn = turn && at%fanout == 0
		at /= fanout
		a := anchor{seq: prev.anchors[l].seq, body: compose(body, prev.anchors[l].body), ids: compose(ids, prev.anchors[l].ids)}
		if turn {
			out.base, out.body, out.ids = a.seq, a.body, a.ids
			a = anchor{body: same(t.marks.len()), ids: same(t.marks.ids.n)}
		}
		t.anchors[l] = a
	}
}

// recorded sets the position that t's call has got.
func (t *tip) recorded(seq fulgur.Seq) {
	t.seq = seq
	for l := range t.anchors {
		if t.anchors[l].seq == 0 {
			t.anchors[l].seq = seq
		}
	}
}
