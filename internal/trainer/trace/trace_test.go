package trace

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

func TestBreaksAreClassified(t *testing.T) { // AD-02, AD-13
	msg := func(role, text string) fulgur.Message { return fulgur.Message{Role: role, Content: text} }
	sys, user, obs := msg("system", "s"), msg("user", "u"), msg("tool", "o")
	answer := msg("assistant", "a")
	thought := answer
	thought.Reasoning = "hm"
	summary := msg("assistant", "the parser is mended, tests are left")
	tool := fulgur.Message{Role: "assistant", ToolCalls: []fulgur.ToolCall{{Name: "f", Arguments: `{"a": 1}`}}}
	rewritten := fulgur.Message{Role: "assistant", ToolCalls: []fulgur.ToolCall{{Name: "f", Arguments: `{"a":1}`}}}
	first := func(reply fulgur.Message) fulgur.Call {
		return fulgur.Call{PromptIDs: []int32{1, 2}, SampledIDs: []int32{3, 4}, Messages: []fulgur.Message{sys, user}, Reply: &reply}
	}
	next := func(ids []int32, m ...fulgur.Message) fulgur.Call {
		return fulgur.Call{PromptIDs: ids, SampledIDs: []int32{9}, Messages: m}
	}
	for name, c := range map[string]struct {
		calls []fulgur.Call
		want  Break
	}{
		"the answer's text came back as other tokens": {
			[]fulgur.Call{first(answer), next([]int32{1, 2, 3, 5, 6}, sys, user, answer, obs)}, Break{Call: 1, Nearest: 0, Position: 3, Expected: 4, Got: 5, Class: Retokenisation, Again: 1}},
		"the template writes an earlier turn in another way": {
			[]fulgur.Call{first(answer), next([]int32{1, 7, 3, 4, 6}, sys, user, answer, obs)}, Break{Call: 1, Nearest: 0, Position: 1, Expected: 2, Got: 7, Class: Template, Again: 3}},
		"reasoning was dropped": {
			[]fulgur.Call{first(thought), next([]int32{1, 2, 4, 6}, sys, user, answer, obs)}, Break{Call: 1, Nearest: 0, Position: 2, Expected: 3, Got: 4, Class: ReasoningDropped, Again: 2}},
		"a tool call was written in another way": {
			[]fulgur.Call{first(tool), next([]int32{1, 2, 3, 8, 6}, sys, user, rewritten, obs)}, Break{Call: 1, Nearest: 0, Position: 3, Expected: 4, Got: 8, Class: ToolReserialised, Again: 1}},
		"the harness changed the user's turn": {
			[]fulgur.Call{first(answer), next([]int32{1, 2, 8, 8}, sys, user, msg("assistant", "b"), obs)}, Break{Call: 1, Nearest: 0, Position: 2, Expected: 3, Got: 8, Class: Rewritten, Again: 2}},
		"a summary took the place of the history": {
			[]fulgur.Call{{PromptIDs: []int32{1, 2, 3, 4, 5}, SampledIDs: []int32{6}, Messages: []fulgur.Message{sys, user, answer, obs, answer, obs}, Reply: &answer},
				next([]int32{1, 2, 9}, sys, user, msg("user", "summary"))}, Break{Call: 1, Nearest: 0, Position: 2, Expected: 3, Got: 9, Class: Compaction, Again: 1}},
		"the template left earlier reasoning out, though the harness sent it": {
			[]fulgur.Call{{PromptIDs: []int32{1, 2}, SampledIDs: []int32{50, 51, 52, 3, 4}, Messages: []fulgur.Message{sys, user}, Reply: &thought},
				next([]int32{1, 2, 3, 4, 6}, sys, user, thought, obs)}, Break{Call: 1, Nearest: 0, Position: 2, Expected: 50, Got: 3, Class: ReasoningDropped, Again: 3}},
		"a new history begins with the summary that the last call wrote": {
			[]fulgur.Call{{PromptIDs: []int32{1, 2, 3, 4, 5}, SampledIDs: []int32{6}, Messages: []fulgur.Message{sys, user, answer, obs}, Reply: &summary},
				next([]int32{1, 9}, sys, msg("user", "So far: "+summary.Content))}, Break{Call: 1, Nearest: 0, Position: 1, Expected: 2, Got: 9, Class: Compaction, Again: 1}},
		"the oldest turns were left out": {
			[]fulgur.Call{{PromptIDs: []int32{1, 2, 3, 4, 5}, SampledIDs: []int32{6}, Messages: []fulgur.Message{sys, user, answer, obs, msg("assistant", "b")}, Reply: &answer},
				next([]int32{1, 4, 5, 6, 7}, sys, obs, msg("assistant", "b"), answer)}, Break{Call: 1, Nearest: 0, Position: 1, Expected: 2, Got: 4, Class: Compaction, Again: 4}},
		"a sub-agent with the same system prompt": {
			[]fulgur.Call{{PromptIDs: []int32{1, 2, 3, 4, 5}, SampledIDs: []int32{6}, Messages: []fulgur.Message{sys, user, answer, obs}, Reply: &answer},
				next([]int32{1, 9}, sys, msg("user", "look for the file"))}, Break{Call: 1, Nearest: 0, Position: 1, Expected: 2, Got: 9, Class: NewConversation}},
		"of several, the latest before it is what it failed to continue": {
			[]fulgur.Call{first(answer), {PromptIDs: []int32{1, 2, 3, 4, 5}, SampledIDs: []int32{6}, Messages: []fulgur.Message{sys, user, answer, obs}, Reply: &answer},
				next([]int32{1, 2, 8, 8}, sys, user, msg("assistant", "b"), obs, answer, obs), next([]int32{1, 2, 3, 4, 5, 6, 7}, sys, user, answer, obs, answer, obs)},
			Break{Call: 2, Nearest: 1, Position: 2, Expected: 3, Got: 8, Class: Rewritten, Again: 2}},
		"another conversation": {
			[]fulgur.Call{first(answer), next([]int32{5, 6}, msg("system", "t"), msg("user", "v"))}, Break{Call: 1, Nearest: NoParent, Position: 0, Expected: -1, Got: 5, Class: NewConversation}},
	} {
		t.Run(name, func(t *testing.T) {
			f := Build(c.calls)
			if diff := cmp.Diff([]Break{c.want}, f.Breaks); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCallsWithoutTokensAreSkippedWithAReason(t *testing.T) { // ST-01
	f := Build([]fulgur.Call{{SampledIDs: []int32{1}}, {SampledIDs: []int32{2}}, {PromptIDs: []int32{1}}})
	if diff := cmp.Diff([]string{SkipNoPrompt, SkipNoPrompt, SkipNoSampled}, f.Skipped); diff != "" {
		t.Error(diff)
	}
	if len(f.Roots) != 0 || len(f.Breaks) != 0 {
		t.Errorf("roots %v, breaks %v", f.Roots, f.Breaks)
	}
}

func TestATurnAskedForOnceMoreIsNoBreak(t *testing.T) {
	f := Build([]fulgur.Call{{PromptIDs: []int32{1, 2}, SampledIDs: []int32{3}}, {PromptIDs: []int32{1, 2}, SampledIDs: []int32{4}}})
	if len(f.Roots) != 2 || len(f.Breaks) != 0 {
		t.Errorf("roots %v, breaks %v", f.Roots, f.Breaks)
	}
}

func TestABreakShowsItsTexts(t *testing.T) { // AD-02
	words := []string{"", "sys ", "ask ", "an", "swer", "answer", "go ", "on "}
	decode := func(ids []int32) (out string) {
		for _, id := range ids {
			out += words[id]
		}
		return out
	}
	calls := []fulgur.Call{{PromptIDs: []int32{1, 2}, SampledIDs: []int32{3, 4}}, {PromptIDs: []int32{1, 2, 5, 6, 7}, SampledIDs: []int32{3}}}
	b := Build(calls).Breaks[0]
	if diff := cmp.Diff(Sides{Before: "sys ask ", Expected: "answer", Got: "answergo "}, b.Sides(calls, decode, 2)); diff != "" {
		t.Error(diff)
	}
	if c := b.ByText(calls, decode); c != Retokenisation {
		t.Errorf("class %s", c)
	}
	calls[1].PromptIDs = []int32{1, 6, 5}
	if c := Build(calls).Breaks[0].ByText(calls, decode); c != Rewritten && c != NewConversation {
		t.Errorf("class %s of another text", c)
	}
	calls[0].PromptIDs, calls[0].SampledIDs, calls[1].PromptIDs = []int32{1, 3, 4}, []int32{6}, []int32{1, 5, 6, 7}
	if c := Build(calls).Breaks[0].ByText(calls, decode); c != Template {
		t.Errorf("class %s of the same text in the prompt", c)
	}
}

// random draws calls over a small alphabet, so that they share much.
func random(r *rand.Rand) []fulgur.Call {
	some := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32(r.IntN(2))
		}
		return out
	}
	calls := make([]fulgur.Call, 1+r.IntN(25))
	for i := range calls {
		prompt := some(1 + r.IntN(5))
		if i > 0 && r.IntN(3) > 0 {
			p := &calls[r.IntN(i)]
			prompt = slices.Concat(p.PromptIDs, p.SampledIDs, some(r.IntN(3)))
		}
		calls[i] = fulgur.Call{PromptIDs: prompt, SampledIDs: some(1 + r.IntN(3))}
	}
	r.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	return calls
}

func TestForestsAreWhatPairwiseComparisonFinds(t *testing.T) {
	for seed := range uint64(400) {
		calls := random(rand.New(rand.NewPCG(seed, 7)))
		f := Build(calls)
		h := make([][]int32, len(calls))
		distinct := map[string]bool{}
		for i, c := range calls {
			h[i] = slices.Concat(c.PromptIDs, c.SampledIDs)
			for j := range h[i] {
				distinct[fmt.Sprint(h[i][:j+1])] = true
			}
		}
		if f.Distinct != len(distinct) {
			t.Fatalf("seed %d: %d distinct tokens, want %d", seed, f.Distinct, len(distinct))
		}
		breaks := map[int]Break{}
		for _, b := range f.Breaks {
			breaks[b.Call] = b
		}
		for i, c := range calls {
			parent, nearest, common := NoParent, NoParent, 0
			for j := range calls {
				n := same(h[j], c.PromptIDs)
				if n == len(h[j]) && j != i && (parent == NoParent || n > len(h[parent])) {
					parent = j
				}
				if j < i && n > 0 && n >= common {
					nearest, common = j, n
				}
			}
			if got := f.Parent[i]; got != parent && (got == NoParent || parent == NoParent || !slices.Equal(h[got], h[parent])) {
				t.Fatalf("seed %d: parent of %d is %d, want %d or its like", seed, i, got, parent)
			}
			b, broken := breaks[i]
			if want := parent == NoParent && i != f.Roots[0] && common < len(c.PromptIDs); broken != want {
				t.Fatalf("seed %d: call %d broken %t, want %t", seed, i, broken, want)
			}
			if broken && (b.Nearest != nearest || b.Position != common) {
				t.Fatalf("seed %d: %+v, want nearest %d, position %d", seed, b, nearest, common)
			}
		}
	}
}

func TestOfEqualCallsEachIsContinuedOnceBeforeOneIsTwice(t *testing.T) {
	ids := func(ids ...int32) []int32 { return ids }
	one, two, other := fulgur.Call{PromptIDs: ids(1), SampledIDs: ids(2)}, fulgur.Call{PromptIDs: ids(1, 2, 3), SampledIDs: ids(4)}, fulgur.Call{PromptIDs: ids(1, 2, 3), SampledIDs: ids(5)}
	for name, c := range map[string]struct {
		calls []fulgur.Call
		want  []int
	}{
		"a conversation that went as the one before it": {[]fulgur.Call{one, two, one, two}, []int{-1, 0, -1, 2}},
		"two that went alike at once":                   {[]fulgur.Call{one, one, two, two}, []int{-1, -1, 1, 0}},
		"three answers to two":                          {[]fulgur.Call{one, one, two, other, two}, []int{-1, -1, 1, 0, 0}},
		"the calls that are continued arrived last":     {[]fulgur.Call{two, other, one, one}, []int{3, 2, -1, -1}},
	} {
		if diff := cmp.Diff(c.want, Build(c.calls).Parent); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// lineages draws n calls: per conversation turns, each adds some tokens.
func lineages(n, turns, adds int) []fulgur.Call {
	calls := make([]fulgur.Call, n)
	var h []int32
	for i := range calls {
		if i%turns == 0 {
			h = []int32{7, int32(i)}
		}
		for j := range adds {
			h = append(h, int32(i), int32(j))
		}
		calls[i] = fulgur.Call{PromptIDs: slices.Clone(h), SampledIDs: []int32{int32(i), -1, -2, -3}}
		h = append(h, calls[i].SampledIDs...)
	}
	return calls
}

func TestTenThousandCallsOfOneRollout(t *testing.T) {
	for name, c := range map[string]struct{ turns, roots int }{
		"conversations of a hundred turns": {100, 100},
		"conversations of one turn":        {1, 10000},
		"conversations of two thousand":    {2000, 5},
	} {
		calls := lineages(10000, c.turns, 2)
		start := time.Now()
		f := Build(calls)
		t.Logf("%s: %s", name, time.Since(start).Round(time.Millisecond)) // the bar is 2 s: BenchmarkBuild
		if len(f.Roots) != c.roots || len(f.Breaks) != c.roots-1 {
			t.Errorf("%s: %d roots, %d breaks, want %d", name, len(f.Roots), len(f.Breaks), c.roots)
		}
	}
}

func TestWorkingMemoryIsAFractionOfTheDistinctTokens(t *testing.T) {
	calls := lineages(300, 30, 250)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f := Build(calls)
	runtime.ReadMemStats(&after)
	// Another test may allocate meanwhile, so the bound is loose: an eighth of what is allowed.
	if used := after.TotalAlloc - before.TotalAlloc; used > uint64(2*8*f.Distinct/8) {
		t.Errorf("%d bytes for %d distinct tokens", used, f.Distinct)
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		calls := lineages(n, 100, 50)
		tokens := 0
		for i := range calls {
			tokens += len(calls[i].PromptIDs)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Build(calls)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(tokens), "ns/token")
		})
	}
}
