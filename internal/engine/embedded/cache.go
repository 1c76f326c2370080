package embedded

import (
	"cmp"
	"slices"
)

// blockTokens is the number of positions whose keys and values lie together: a
// multiple of every kernel set's panel width.
const blockTokens = 32

// block holds the keys and values of up to blockTokens positions, for all layers
// and key-value heads. Blocks form a tree by the tokens that they stand for:
// the path from the root is a prefix of some sequence. Full blocks are shared by
// all sequences that begin so; a block that is not full has one owner at most,
// which appends to it, and others copy what they need of it.
type block struct {
	parent   *block
	children []*block
	tokens   [blockTokens]int32
	n        int // positions computed
	refs     int // sequences that hold it
	owner    *sequence
	used     int64 // when it was last let go
	epoch    int64 // of the cache when it was made
	kv       []float32
}

// prefixCache owns the tree. Only the scheduler's goroutine touches it; while a
// step runs, workers write the key and value floats of blocks that their own
// sequences own, and nothing else.
type prefixCache struct {
	root   *block
	epoch  int64 // counts publications: what was computed with older weights is not found
	clock  int64
	floats int   // of a block
	limit  int64 // bytes
	total  int64 // bytes, those in use included
	free   [][]float32
}

func newPrefixCache(l *layout, columns int, limit int64) *prefixCache {
	return &prefixCache{root: &block{}, floats: l.Layers * l.KVHeads * kvUnit(l.HeadDim, columns), limit: limit}
}

// kvUnit is the number of floats of one head in a block: keys as a right operand
// of headDim rows and blockTokens columns, then values as one of blockTokens rows
// and headDim columns.
func kvUnit(headDim, columns int) int {
	return headDim*blockTokens + (headDim+columns-1)/columns*columns*blockTokens
}

func (c *prefixCache) blockBytes() int64 { return 4 * int64(c.floats) }

func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// find returns the blocks that hold a prefix of tokens, full ones but for the
// last, and the length of that prefix.
func (c *prefixCache) find(tokens []int32) (path []*block, n int) {
	at := c.root
	for n < len(tokens) {
		var best *block
		most := 0
		for _, b := range at.children {
			k := common(b.tokens[:b.n], tokens[n:])
			if k > most || k == most && k > 0 && best.owner != nil {
				best, most = b, k
			}
		}
		if best == nil {
			break
		}
		path, n, at = append(path, best), n+most, best
		if most < blockTokens {
			break
		}
	}
	return path, n
}

// attach gives the sequence the blocks of the longest known prefix of its tokens,
// but for the last token, which must be computed to sample after it.
func (c *prefixCache) attach(s *sequence) {
	path, n := c.find(s.tokens[:len(s.tokens)-1])
	s.epoch, s.parent = c.epoch, c.root
	for i, b := range path {
		k := min(blockTokens, n-i*blockTokens)
		switch {
		case k == blockTokens:
			b.refs++
		case k == b.n && b.owner == nil:
			b.refs, b.owner = b.refs+1, s
		default:
			from := b
			from.refs++ // add may evict
			b = c.add(s)
			from.refs--
			copy(b.kv, from.kv)
			b.tokens, b.n = from.tokens, k
			s.blocks, s.parent = append(s.blocks, b), b
			continue
		}
		s.blocks, s.parent = append(s.blocks, b), b
	}
	s.pos, s.cached = n, n
}

// extend makes sure that the sequence has blocks for its first n positions and
// notes the tokens from its present position on.
func (c *prefixCache) extend(s *sequence, n int) {
	for len(s.blocks)*blockTokens < n {
		b := c.add(s)
		s.blocks, s.parent = append(s.blocks, b), b
	}
	for i := s.pos; i < n; i++ {
		s.blocks[i/blockTokens].tokens[i%blockTokens] = s.tokens[i]
	}
}

// add makes a new block below the sequence's last one.
func (c *prefixCache) add(s *sequence) *block {
	if c.total+c.blockBytes() > c.limit {
		c.evict()
	}
	b := &block{parent: s.parent, refs: 1, owner: s, epoch: s.epoch}
	if n := len(c.free); n > 0 {
		b.kv, c.free = c.free[n-1], c.free[:n-1]
	} else {
		b.kv = make([]float32, c.floats)
	}
	c.total += c.blockBytes()
	s.parent.children = append(s.parent.children, b)
	return b
}

// advance notes that the positions up to n have been computed.
func (c *prefixCache) advance(s *sequence, n int) {
	for i := s.pos / blockTokens; i*blockTokens < n; i++ {
		s.blocks[i].n = min(blockTokens, n-i*blockTokens)
		if s.blocks[i].n == blockTokens {
			s.blocks[i].owner = nil
		}
	}
	s.pos = n
}

// release lets the sequence's blocks go: they stay to be found again, but for
// those of older weights and those in which nothing was computed.
func (c *prefixCache) release(s *sequence) {
	c.clock++
	for _, b := range slices.Backward(s.blocks) {
		b.refs--
		b.used = c.clock
		if b.owner == s {
			b.owner = nil
		}
		if b.refs == 0 && len(b.children) == 0 && (b.epoch != c.epoch || b.n == 0) {
			c.discard(b)
		}
	}
	s.blocks, s.parent = nil, nil
}

func (c *prefixCache) discard(b *block) {
	if b.parent != nil {
		i := slices.Index(b.parent.children, b)
		b.parent.children = slices.Delete(b.parent.children, i, i+1)
	}
	c.total -= c.blockBytes()
	if int64(len(c.free))*c.blockBytes() < c.limit/8 {
		c.free = append(c.free, b.kv)
	}
	b.kv, b.parent = nil, nil
}

// leaves returns the blocks that nothing needs, longest unused first.
func (c *prefixCache) leaves() []*block {
	var out []*block
	var walk func(b *block)
	walk = func(b *block) {
		for _, x := range b.children {
			walk(x)
		}
		if b != c.root && b.refs == 0 && len(b.children) == 0 {
			out = append(out, b)
		}
	}
	walk(c.root)
	slices.SortStableFunc(out, func(a, b *block) int { return cmp.Compare(a.used, b.used) })
	return out
}

// evict discards what was longest unused until an eighth of the limit is free, or
// all that is left is in use.
func (c *prefixCache) evict() {
	for c.total > c.limit/8*7 {
		leaves := c.leaves()
		if len(leaves) == 0 {
			return
		}
		for _, b := range leaves {
			if c.total <= c.limit/8*7 {
				return
			}
			c.discard(b)
		}
	}
}

// drop forgets everything, because the weights have changed. Running sequences
// keep what they hold.
func (c *prefixCache) drop() {
	for leaves := c.leaves(); len(leaves) > 0; leaves = c.leaves() {
		for _, b := range leaves {
			c.discard(b)
		}
	}
	c.epoch++
	c.root = &block{}
}
