package trace

import "github.com/fulgur-rl/fulgur"

// trie is a radix tree of token histories. An edge is a stretch of the history
// of the call that made it, so nothing is copied.
type trie struct {
	calls    []fulgur.Call
	nodes    []node
	ended    []int32 // of each call, the node where its history ends
	twin     []int32 // of each call, the one with the same history that was added before it, or NoParent
	taken    []bool  // of each call: one continues it
	distinct int     // tokens on all edges
}

// node is where histories part or end. It holds the edge that leads to it.
type node struct {
	call       int32 // whose history the edge is part of
	start, end int32 // the edge: that stretch of the history
	ends       int32 // the first call by arrival whose history ends here, or NoParent
	last       int32 // the call added last of those, or NoParent
	first      int32 // the first call by arrival that passes or ends here; places fills it in
	tip        int32 // a call that passed here lately

	// Most nodes have one child: it stands here, with the first token of its edge.
	child, token int32 // child 0: none
	more         map[int32]int32
}

func newTrie(calls []fulgur.Call) *trie {
	n := len(calls)
	t := &trie{calls: calls, ended: make([]int32, n), twin: make([]int32, n), taken: make([]bool, n), nodes: make([]node, 0, n+1)}
	t.nodes = append(t.nodes, node{call: NoParent, ends: NoParent, last: NoParent, tip: NoParent})
	return t
}

// next returns the child whose edge begins with a token, 0 if there is none.
func (n *node) next(token int32) int32 {
	if n.child != 0 && n.token == token {
		return n.child
	}
	return n.more[token]
}

func (n *node) link(token, child int32) {
	switch {
	case n.child == 0 || n.token == token:
		n.child, n.token = child, token
	case n.more == nil:
		n.more = map[int32]int32{token: child}
	default:
		n.more[token] = child
	}
}

// at returns token i of a call's history.
func (t *trie) at(call, i int32) int32 {
	c := &t.calls[call]
	if int(i) < len(c.PromptIDs) {
		return c.PromptIDs[i]
	}
	return c.SampledIDs[int(i)-len(c.PromptIDs)]
}

// jump says whether the prompt, of which depth tokens are known to be shared, goes
// on with all of another call's history, and returns that one's node and length.
// Most calls continue the latest one of their conversation: two comparisons then
// save the way down past all calls before it.
func (t *trie) jump(other int32, prompt []int32, depth int) (at int32, length int, ok bool) {
	c := &t.calls[other]
	p := len(c.PromptIDs)
	n := p + len(c.SampledIDs)
	if n <= depth || n > len(prompt) || prompt[n-1] != c.SampledIDs[n-p-1] {
		return 0, 0, false
	}
	if depth < p && same(c.PromptIDs[depth:], prompt[depth:]) < p-depth {
		return 0, 0, false
	}
	from := max(depth, p)
	return t.ended[other], n, same(c.SampledIDs[from-p:], prompt[from:]) == n-from
}

// add puts a call's history into the tree and returns the call with the longest
// history that is a prefix of its prompt, NoParent if none. All of these must be
// in the tree.
func (t *trie) add(call int) (parent int) {
	c := &t.calls[call]
	from := int32(NoParent) // the node of the longest history that the prompt continues
	at, depth, failed := int32(0), 0, int32(NoParent)
	prompt, total := len(c.PromptIDs), len(c.PromptIDs)+len(c.SampledIDs)
	for depth < total {
		tip := t.nodes[at].tip
		t.nodes[at].tip = int32(call)
		if tip != NoParent && tip != failed && depth < prompt {
			if node, length, ok := t.jump(tip, c.PromptIDs, depth); ok {
				at, depth, from = node, length, node
				continue
			}
			failed = tip
		}
		child := t.nodes[at].next(t.at(int32(call), int32(depth)))
		if child == 0 {
			nd := node{call: int32(call), start: int32(depth), end: int32(total), ends: NoParent, last: NoParent, tip: NoParent}
			at = t.append(at, t.at(int32(call), int32(depth)), nd)
			t.distinct += total - depth
			break
		}
		nd := &t.nodes[child]
		edge := int(nd.end - nd.start)
		n := 0
		if depth < prompt {
			n = t.shared(nd, 0, c.PromptIDs[depth:])
		}
		if depth+n >= prompt && n < edge {
			n += t.shared(nd, n, c.SampledIDs[depth+n-prompt:])
		}
		if depth += n; n < edge {
			child = t.split(at, child, nd.start+int32(n))
			nd = &t.nodes[child]
		}
		if nd.ends != NoParent && depth <= prompt {
			from = child
		}
		at = child
	}
	nd := &t.nodes[at]
	if nd.ends == NoParent || nd.ends > int32(call) {
		nd.ends = int32(call)
	}
	t.twin[call], nd.last = nd.last, int32(call)
	t.ended[call] = at
	if from == NoParent {
		return NoParent
	}
	return t.take(from, int32(call))
}

// take chooses which of the calls whose history ends at a node a call continues:
// the latest before it that nothing continues yet, so that two conversations that
// went alike for a while are two lineages and not one and its splinters.
func (t *trie) take(node, call int32) int {
	const most = 64 // looked at: a thousand equal calls shall not cost a million steps
	best := int32(NoParent)
	for k, n := t.nodes[node].last, 0; k != NoParent && n < most; k, n = t.twin[k], n+1 {
		if t.taken[k] {
			continue
		}
		if best == NoParent {
			best = k
		}
		if k < call {
			best = k
			break
		}
	}
	if best == NoParent {
		best = t.nodes[node].ends
	}
	t.taken[best] = true
	return int(best)
}

// shared returns how many leading tokens of an edge, from its token skip on, are
// those given.
func (t *trie) shared(nd *node, skip int, tokens []int32) int {
	c := &t.calls[nd.call]
	start, end, prompt := int(nd.start)+skip, int(nd.end), len(c.PromptIDs)
	n := 0
	if start < prompt {
		edge := c.PromptIDs[start:min(end, prompt)]
		if n = same(edge, tokens); n < len(edge) {
			return n
		}
	}
	if start+n < end {
		n += same(c.SampledIDs[start+n-prompt:end-prompt], tokens[n:])
	}
	return n
}

// same returns the length of the common beginning, compared in blocks, which the
// runtime does at the speed of memory. One memory is equal to itself.
func same(a, b []int32) int {
	const block = 256
	n, end := 0, min(len(a), len(b))
	if end > 0 && &a[0] == &b[0] {
		return end
	}
	for n+block <= end && *(*[block]int32)(a[n:]) == *(*[block]int32)(b[n:]) {
		n += block
	}
	for n < end && a[n] == b[n] {
		n++
	}
	return n
}

func (t *trie) append(parent, token int32, nd node) int32 {
	id := int32(len(t.nodes))
	t.nodes = append(t.nodes, nd)
	t.nodes[parent].link(token, id)
	return id
}

// split cuts the edge into child at position i of its history and returns the
// new node in the middle.
func (t *trie) split(parent, child, i int32) int32 {
	nd := t.nodes[child]
	mid := t.append(parent, t.at(nd.call, nd.start), node{call: nd.call, start: nd.start, end: i, ends: NoParent, last: NoParent, tip: NoParent})
	t.nodes[child].start = i
	t.nodes[mid].link(t.at(nd.call, i), child)
	return mid
}

// nearest follows a call's history as far as calls that arrived before it go,
// and returns the last node of which it shares a token, and the number of tokens
// shared.
func (t *trie) nearest(call int) (at int32, common int) {
	prompt := t.calls[call].PromptIDs
	for common < len(prompt) {
		child := t.nodes[at].next(prompt[common])
		if child == 0 || int(t.nodes[child].first) >= call {
			break
		}
		nd := &t.nodes[child]
		at = child
		n := t.shared(nd, 0, prompt[common:])
		if common += n; n < int(nd.end-nd.start) {
			break
		}
	}
	return at, common
}

// places tells which call arrived last among those that pass a node. Nodes are
// numbered so that what lies below one is an interval; the latest call of each
// place is kept in a tree of maxima over them.
type places struct {
	from, to []int32 // of each node: the places of it and of what lies below
	of       []int32 // of each call: its history's node
	max      []int32 // tree of maxima, leaves behind len(from); a call's index + 1, 0: none yet
}

func (t *trie) places() *places {
	n := len(t.nodes)
	p := &places{from: make([]int32, n), to: make([]int32, n), of: t.ended, max: make([]int32, 2*n)}
	place := int32(0)
	stack := []int32{0}
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		if at < 0 { // all below is numbered
			stack = stack[:len(stack)-1]
			p.to[^at] = place
			t.settle(^at)
			continue
		}
		p.from[at] = place
		place++
		stack[len(stack)-1] = ^at
		if nd := &t.nodes[at]; nd.child != 0 {
			stack = append(stack, nd.child)
			for _, child := range nd.more {
				stack = append(stack, child)
			}
		}
	}
	return p
}

// settle finds the first call by arrival at a node, once its children are settled.
func (t *trie) settle(at int32) {
	nd := &t.nodes[at]
	nd.first = int32(len(t.calls))
	if nd.ends != NoParent {
		nd.first = nd.ends
	}
	if nd.child != 0 {
		nd.first = min(nd.first, t.nodes[nd.child].first)
		for _, child := range nd.more {
			nd.first = min(nd.first, t.nodes[child].first)
		}
	}
}

// arrive notes that a call has arrived.
func (p *places) arrive(call int) {
	n := int32(len(p.from))
	for i := p.from[p.of[call]] + n; i > 0; i /= 2 {
		p.max[i] = max(p.max[i], int32(call)+1)
	}
}

// latest returns the call that arrived last of those that pass a node, or
// NoParent.
func (p *places) latest(at int32) int {
	n := int32(len(p.from))
	best := int32(0)
	for l, r := p.from[at]+n, p.to[at]+n; l < r; l, r = l/2, r/2 {
		if l&1 == 1 {
			best = max(best, p.max[l])
			l++
		}
		if r&1 == 1 {
			r--
			best = max(best, p.max[r])
		}
	}
	return int(best) - 1
}
