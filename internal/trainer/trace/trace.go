// Package trace turns the model calls of one attempt into a forest of lineages:
// a call continues the call whose full token history (prompt and sampled
// tokens) is an exact prefix of its prompt, the longest such one, in whatever
// order the calls arrived. Nothing is repaired: where a conversation does not
// continue exactly, a new lineage starts and the break is classified.
package trace

import (
	"github.com/fulgur-rl/fulgur"
)

// NoParent marks a call that starts a lineage.
const NoParent = -1

// Forest is the result. All indexes are positions in the calls that Build got.
type Forest struct {
	// Parent of each call; NoParent for a root and for a skipped call.
	Parent []int
	// Children of each call, in order of the calls.
	Children [][]int
	// Roots, in order of the calls.
	Roots []int
	// Skipped says why a call has no place in the forest, "" if it has one.
	Skipped []string
	// Breaks has one entry for each root but the first.
	Breaks []Break
}

// Reasons why a call has no place in the forest.
const (
	SkipNoPrompt  = "no_prompt_ids"  // the upstream gave none, or the call never reached it
	SkipNoSampled = "no_sampled_ids" // nothing was sampled
)

// Build makes the forest of an attempt's calls, given in order of arrival. Its
// time is linear in the number of tokens of all prompts and answers; beyond the
// calls it holds a few words per call. It changes no call.
//
// Of calls with equal histories (the same prompt and the same answer), the
// first one is continued.
func Build(calls []fulgur.Call) *Forest {
	n := len(calls)
	f := &Forest{Parent: make([]int, n), Children: make([][]int, n), Skipped: make([]string, n)}
	type near struct{ call, common int }
	nearest := make([]near, n)
	t := newTrie(calls)
	for i := range calls {
		f.Parent[i] = NoParent
		switch c := &calls[i]; {
		case len(c.PromptIDs) == 0:
			f.Skipped[i] = SkipNoPrompt
		case len(c.SampledIDs) == 0:
			f.Skipped[i] = SkipNoSampled
		default:
			_, common, witness := t.walk(c.PromptIDs)
			nearest[i] = near{witness, common}
			t.insert(i)
		}
	}
	for i := range calls {
		if f.Skipped[i] != "" {
			continue
		}
		parent, _, _ := t.walk(calls[i].PromptIDs)
		f.Parent[i] = parent
		if parent != NoParent {
			f.Children[parent] = append(f.Children[parent], i)
			continue
		}
		f.Roots = append(f.Roots, i)
		if len(f.Roots) > 1 {
			f.Breaks = append(f.Breaks, classify(calls, i, nearest[i].call, nearest[i].common))
		}
	}
	return f
}

// trie is a radix tree of token histories. An edge is a stretch of the history
// of the call that made it, so nothing is copied.
type trie struct {
	calls []fulgur.Call
	nodes []node
}

type node struct {
	call       int           // whose history the edge into this node is part of
	start, end int           // the edge: that stretch of the history
	ends       int           // the first call whose history ends here, or NoParent
	next       map[int32]int // nodes by the first token of their edge; nil: none
}

func newTrie(calls []fulgur.Call) *trie {
	return &trie{calls: calls, nodes: []node{{call: NoParent, ends: NoParent}}}
}

// at returns token i of a call's history.
func (t *trie) at(call, i int) int32 {
	c := &t.calls[call]
	if i < len(c.PromptIDs) {
		return c.PromptIDs[i]
	}
	return c.SampledIDs[i-len(c.PromptIDs)]
}

func (t *trie) length(call int) int {
	return len(t.calls[call].PromptIDs) + len(t.calls[call].SampledIDs)
}

// walk follows tokens down the tree. It returns the call with the longest
// history that is a prefix of tokens (NoParent if none), the number of leading
// tokens that any history shares, and the call of that history.
func (t *trie) walk(tokens []int32) (longest, common, witness int) {
	longest, witness = NoParent, NoParent
	at := 0
	for common < len(tokens) {
		child, ok := t.nodes[at].next[tokens[common]]
		if !ok {
			break
		}
		nd := &t.nodes[child]
		witness = nd.call
		n := t.shared(nd, tokens[common:])
		common += n
		if nd.start+n < nd.end {
			break
		}
		if nd.ends != NoParent {
			longest = nd.ends
		}
		at = child
	}
	return longest, common, witness
}

// shared returns how many leading tokens of an edge are those given.
func (t *trie) shared(nd *node, tokens []int32) int {
	c := &t.calls[nd.call]
	n := 0
	if nd.start < len(c.PromptIDs) {
		edge := c.PromptIDs[nd.start:min(nd.end, len(c.PromptIDs))]
		if n = same(edge, tokens); n < len(edge) {
			return n
		}
	}
	if from := nd.start + n - len(c.PromptIDs); nd.start+n < nd.end {
		n += same(c.SampledIDs[from:nd.end-len(c.PromptIDs)], tokens[n:])
	}
	return n
}

// same returns the length of the common beginning, compared in blocks, which the
// runtime does at the speed of memory.
func same(a, b []int32) int {
	const block = 64
	n, end := 0, min(len(a), len(b))
	for n+block <= end && [block]int32(a[n:n+block]) == [block]int32(b[n:n+block]) {
		n += block
	}
	for n < end && a[n] == b[n] {
		n++
	}
	return n
}

func (t *trie) insert(call int) {
	at, depth, total := 0, 0, t.length(call)
	for depth < total {
		child, ok := t.nodes[at].next[t.at(call, depth)]
		if !ok {
			t.link(at, t.at(call, depth), node{call: call, start: depth, end: total, ends: call})
			return
		}
		nd := t.nodes[child]
		c := &t.calls[call]
		n := 0
		if depth < len(c.PromptIDs) {
			n = t.shared(&nd, c.PromptIDs[depth:])
		}
		if depth+n >= len(c.PromptIDs) && nd.start+n < nd.end {
			rest := nd
			rest.start += n
			n += t.shared(&rest, c.SampledIDs[depth+n-len(c.PromptIDs):])
		}
		if depth += n; nd.start+n < nd.end {
			child = t.split(at, child, nd.start+n)
		}
		at = child
	}
	if t.nodes[at].ends == NoParent {
		t.nodes[at].ends = call
	}
}

func (t *trie) link(parent int, first int32, nd node) int {
	t.nodes = append(t.nodes, nd)
	id := len(t.nodes) - 1
	if t.nodes[parent].next == nil {
		t.nodes[parent].next = make(map[int32]int, 1)
	}
	t.nodes[parent].next[first] = id
	return id
}

// split cuts the edge into child at position i of its history and returns the
// new node in the middle.
func (t *trie) split(parent, child, i int) int {
	nd := t.nodes[child]
	mid := t.link(parent, t.at(nd.call, nd.start), node{call: nd.call, start: nd.start, end: i, ends: NoParent})
	t.nodes[child].start = i
	t.nodes[mid].next = map[int32]int{t.at(nd.call, i): child}
	return mid
}
