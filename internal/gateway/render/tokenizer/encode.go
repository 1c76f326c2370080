package tokenizer

import (
	"container/heap"
	"hash/maphash"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// Span is a half-open range of bytes of a text.
type Span struct{ Start, End int }

const (
	cacheSize    = 1 << 13
	maxCacheWord = 64  // longer words are not kept
	shortWord    = 128 // symbols; longer words merge by a heap
)

// cacheEntry is a word and its ids. Entries are immutable.
type cacheEntry struct {
	word string
	ids  []int32
}

// Encode appends the ids of text to dst; added tokens in it are recognised. No
// first or last token is added.
func (t *Tokenizer) Encode(dst []int32, text string) []int32 {
	return t.EncodeSpans(dst, text, nil)
}

// EncodePlain is Encode without added tokens: what a person or a tool wrote can
// spell a control token, but never be one.
func (t *Tokenizer) EncodePlain(dst []int32, text string) []int32 {
	return t.words(dst, text)
}

// EncodeSpans is Encode where added tokens are not recognised if they touch one
// of the spans of data, which are sorted and disjoint. Elsewhere, and in how the
// text is cut into words, it is the same as Encode.
func (t *Tokenizer) EncodeSpans(dst []int32, text string, data []Span) []int32 {
	start := 0
	for i := 0; i < len(text); {
		list := t.addedByByte[text[i]]
		if len(list) == 0 {
			i++
			continue
		}
		for len(data) > 0 && data[0].End <= i {
			data = data[1:]
		}
		a := t.addedAt(text, i, list, data)
		if a == nil {
			i++
			continue
		}
		before := text[start:i]
		if a.lstrip {
			before = strings.TrimRightFunc(before, unicode.IsSpace)
		}
		dst = t.words(dst, before)
		dst = append(dst, a.ID)
		i += len(a.Text)
		if a.rstrip {
			i = len(text) - len(strings.TrimLeftFunc(text[i:], unicode.IsSpace))
		}
		start = i
	}
	return t.words(dst, text[start:])
}

// addedAt returns the longest added token at i that touches no data.
func (t *Tokenizer) addedAt(text string, i int, list []int, data []Span) *Added {
	limit := len(text)
	if len(data) > 0 {
		limit = data[0].Start
	}
	for _, k := range list {
		if a := &t.added[k]; i+len(a.Text) <= limit && strings.HasPrefix(text[i:], a.Text) {
			return a
		}
	}
	return nil
}

// words encodes text that holds no added token.
func (t *Tokenizer) words(dst []int32, text string) []int32 {
	if t.nfc && !ascii(text) {
		text = norm.NFC.String(text)
	}
	return t.plain(dst, text, 0)
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// plain encodes text that holds no added token, from the given stage of the
// pre-tokenizer on.
func (t *Tokenizer) plain(dst []int32, text string, stage int) []int32 {
	if stage == len(t.stages) {
		if text == "" {
			return dst
		}
		return t.word(dst, text)
	}
	sp := t.stages[stage]
	for i := 0; i < len(text); {
		j := sp.next(text, i)
		dst = t.plain(dst, text[i:j], stage+1)
		i = j
	}
	return dst
}

// word appends the ids of a word, from the cache if it was met lately.
func (t *Tokenizer) word(dst []int32, w string) []int32 {
	if len(w) == 1 {
		return t.appendByte(dst, w[0])
	}
	if len(w) > maxCacheWord {
		return t.merge(dst, w)
	}
	slot := &t.cache[maphash.String(t.seed, w)%cacheSize]
	if e := slot.Load(); e != nil && e.word == w {
		return append(dst, e.ids...)
	}
	from := len(dst)
	dst = t.merge(dst, w)
	slot.Store(&cacheEntry{word: strings.Clone(w), ids: append([]int32(nil), dst[from:]...)})
	return dst
}

func (t *Tokenizer) appendByte(dst []int32, b byte) []int32 {
	switch id := t.byteIDs[b]; {
	case id >= 0:
		return append(dst, id)
	case t.unk >= 0:
		return append(dst, t.unk)
	}
	return dst
}

// merge appends the ids of w: byte pair encoding, the lowest rank first, the
// leftmost of equals.
func (t *Tokenizer) merge(dst []int32, w string) []int32 {
	if t.ignoreMerges {
		if id, ok := t.vocab[w]; ok {
			return append(dst, id)
		}
	}
	from := len(dst)
	for i := range len(w) {
		dst = t.appendByte(dst, w[i])
	}
	ids := dst[from:]
	if len(ids) > shortWord {
		return dst[:from+t.mergeLong(ids)]
	}
	var buf [shortWord]merge
	ms := buf[:len(ids)] // ms[i]: the merge of ids[i] and ids[i+1], id -1: none
	for i := 0; i+1 < len(ids); i++ {
		ms[i] = t.mergeOf(ids[i], ids[i+1])
	}
	for {
		best := -1
		for i := 0; i+1 < len(ids); i++ {
			if ms[i].id >= 0 && (best < 0 || ms[i].rank < ms[best].rank) {
				best = i
			}
		}
		if best < 0 {
			return dst[:from+len(ids)]
		}
		ids[best] = ms[best].id
		copy(ids[best+1:], ids[best+2:])
		copy(ms[best+1:], ms[best+2:])
		ids = ids[:len(ids)-1]
		if best > 0 {
			ms[best-1] = t.mergeOf(ids[best-1], ids[best])
		}
		if best+1 < len(ids) {
			ms[best] = t.mergeOf(ids[best], ids[best+1])
		}
	}
}

func (t *Tokenizer) mergeOf(a, b int32) merge {
	if m, ok := t.merges[pair(a, b)]; ok {
		return m
	}
	return merge{id: -1}
}

// candidate is a merge that may still be possible: of the symbols at a and b,
// while they are what they were.
type candidate struct {
	merge
	at, right int
	a, b      int32
}

type candidates []candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	return c[i].rank < c[j].rank || c[i].rank == c[j].rank && c[i].at < c[j].at
}
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)   { *c = append(*c, x.(candidate)) }
func (c *candidates) Pop() any {
	old := *c
	x := old[len(old)-1]
	*c = old[:len(old)-1]
	return x
}

// mergeLong merges ids in place over a linked list with a heap, in time
// n log n, and returns how many are left.
func (t *Tokenizer) mergeLong(ids []int32) int {
	n := len(ids)
	prev, next := make([]int, n), make([]int, n)
	for i := range ids {
		prev[i], next[i] = i-1, i+1
	}
	var h candidates
	push := func(i int) {
		if i < 0 || next[i] >= n {
			return
		}
		j := next[i]
		if m := t.mergeOf(ids[i], ids[j]); m.id >= 0 {
			heap.Push(&h, candidate{m, i, j, ids[i], ids[j]})
		}
	}
	for i := range ids {
		push(i)
	}
	for h.Len() > 0 {
		c := heap.Pop(&h).(candidate)
		if ids[c.at] != c.a || next[c.at] != c.right || ids[c.right] != c.b {
			continue
		}
		ids[c.at], ids[c.right] = c.id, -1
		next[c.at] = next[c.right]
		if next[c.right] < n {
			prev[next[c.right]] = c.at
		}
		push(prev[c.at])
		push(c.at)
	}
	k := 0
	for i := 0; i < n; i = next[i] {
		ids[k] = ids[i]
		k++
	}
	return k
}
