// Package trace turns the model calls of one attempt into a forest of lineages:
// a call continues the call whose full token history (prompt and sampled
// tokens) is an exact prefix of its prompt, the longest such one, in whatever
// order the calls arrived. Nothing is repaired: where a conversation does not
// continue exactly, a new lineage starts and the break is classified.
package trace

import (
	"slices"

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
	// Breaks has one entry for each root but the first, and but for those whose
	// whole prompt an earlier call had (a turn that was asked for once more).
	Breaks []Break
	// Distinct is the number of tokens of all histories, those that histories
	// share counted once.
	Distinct int
}

// Reasons why a call has no place in the forest.
const (
	SkipNoPrompt  = "no_prompt_ids"  // the upstream gave none, or the call never reached it
	SkipNoSampled = "no_sampled_ids" // nothing was sampled
)

// Build makes the forest of an attempt's calls, given in order of arrival. Each
// prompt is compared once, with the histories it shares, at the speed of memory
// (one that shares its memory with them, not at all); prompts that start a
// lineage once more. Beyond the calls it holds some hundred bytes a call. It
// changes no call.
//
// Of calls with equal histories (the same prompt and the same answer), each is
// continued once before one is continued twice, the latest before a call first.
func Build(calls []fulgur.Call) *Forest {
	n := len(calls)
	f := &Forest{Parent: make([]int, n), Children: make([][]int, n), Skipped: make([]string, n)}
	order := make([]int, 0, n)
	for i := range calls {
		f.Parent[i] = NoParent
		switch c := &calls[i]; {
		case len(c.PromptIDs) == 0:
			f.Skipped[i] = SkipNoPrompt
		case len(c.SampledIDs) == 0:
			f.Skipped[i] = SkipNoSampled
		default:
			order = append(order, i)
		}
	}
	// A history that is a prefix of a prompt has a shorter prompt itself: in this
	// order each call meets all that it may continue, whenever they arrived.
	slices.SortStableFunc(order, func(a, b int) int { return len(calls[a].PromptIDs) - len(calls[b].PromptIDs) })
	t := newTrie(calls)
	for _, i := range order {
		f.Parent[i] = t.add(i)
	}
	f.Distinct = t.distinct
	for i, parent := range f.Parent {
		switch {
		case f.Skipped[i] != "":
		case parent != NoParent:
			f.Children[parent] = append(f.Children[parent], i)
		default:
			f.Roots = append(f.Roots, i)
		}
	}
	if len(f.Roots) > 1 {
		f.findBreaks(calls, t)
	}
	return f
}

// findBreaks finds, for each root but the first, what it failed to continue: the latest of the earlier calls
// with the longest common beginning.
func (f *Forest) findBreaks(calls []fulgur.Call, t *trie) {
	p := t.places()
	roots := f.Roots
	for i := range calls {
		if f.Skipped[i] != "" {
			continue
		}
		if len(roots) > 0 && roots[0] == i {
			if roots = roots[1:]; i != f.Roots[0] {
				at, common := t.nearest(i)
				nearest := NoParent
				if common > 0 {
					nearest = p.latest(at)
				}
				if common < len(calls[i].PromptIDs) {
					f.Breaks = append(f.Breaks, newBreak(calls, i, nearest, common))
				}
			}
		}
		p.arrive(i)
	}
}

// Lineage returns the calls from a root to call i, i included.
func (f *Forest) Lineage(i int) []int {
	var out []int
	for ; i != NoParent; i = f.Parent[i] {
		out = append(out, i)
	}
	slices.Reverse(out)
	return out
}
