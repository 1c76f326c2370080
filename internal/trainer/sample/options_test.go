package sample

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

func TestLevelCallIsASampleACall(t *testing.T) {
	calls := numbered(call(ids(1), ids(11)), call(ids(1, 11, 2), ids(12)), call(ids(1, 11, 3), ids(13)))
	calls[1].Trainable, calls[1].Untrainable = false, []string{fulgur.UntrainableAborted}
	b := Build("g", calls, Options{Level: PerCall})
	if diff := cmp.Diff([]string{"(1) 11", "(1) (11) (3) 13"}, masks(b)); diff != "" {
		t.Error(diff)
	}
	if b.Sampled != 3 || b.Trained != 2 || b.Lost[fulgur.UntrainableAborted] != 1 {
		t.Errorf("%+v", b)
	}
}

// AD-11: what is over long goes as the policy says, never without a count.
func TestOverLongByPolicy(t *testing.T) {
	fits, long := call(ids(1), ids(11)), call(ids(1, 11, 2, 2, 2), ids(12))
	other := call(ids(7), ids(13))
	for name, c := range map[string]struct {
		o     Options
		want  []string
		count int // calls over long
	}{
		"cut: the call behind the limit doesn't train": {Options{MaxTokens: 5}, []string{"(1) 11", "(7) 13"}, 1},
		"mask: its lineage doesn't train":              {Options{MaxTokens: 5, OverLong: Mask}, []string{"(7) 13"}, 2},
		"drop: its rollout doesn't train":              {Options{MaxTokens: 5, OverLong: Drop}, nil, 3},
		"mask at level call: the call doesn't train":   {Options{MaxTokens: 5, OverLong: Mask, Level: PerCall}, []string{"(1) 11", "(7) 13"}, 1},
		"it fits": {Options{MaxTokens: 6, OverLong: Drop}, []string{"(1) 11 (2) (2) (2) 12", "(7) 13"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := Build("g", numbered(fits, long, other), c.o)
			if diff := cmp.Diff(c.want, masks(b)); diff != "" {
				t.Error(diff)
			}
			n := 0
			for _, why := range b.Reasons {
				if why == OverLong {
					n++
				}
			}
			if n != c.count || b.Lost[OverLong] != c.count || b.Sampled != 3 || b.Trained != 3-c.count {
				t.Errorf("%d calls over long, %+v", n, b)
			}
		})
	}
}

// rows makes routed experts: row i is [i, tag] in one layer.
func rows(n, tag int) json.RawMessage {
	out := make([][][]int, n)
	for i := range out {
		out[i] = [][]int{{i, tag}}
	}
	b, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	return b
}

func TestExpertsComeFromThePassThatSampled(t *testing.T) {
	calls := numbered(call(ids(1, 2), ids(11, 12)), call(ids(1, 2, 11, 12, 3), ids(13, 14)))
	calls[0].RoutedExperts, calls[1].RoutedExperts = rows(3, 100), rows(6, 200)
	b := Build("g", calls, Options{Replay: true})
	// The last sampled token of the first call was no input there: what follows it is the second call's.
	want := [][]uint16{nil, {0, 100}, {1, 100}, {2, 100}, {3, 200}, {4, 200}, {5, 200}}
	if diff := cmp.Diff(want, b.Samples()[0].Experts); diff != "" || b.NoRows != 0 {
		t.Errorf("%d without a row\n%s", b.NoRows, diff)
	}
	calls[1].RoutedExperts = rows(2, 200) // of what it sampled alone
	b = Build("g", calls, Options{Replay: true})
	want = [][]uint16{nil, {0, 100}, {1, 100}, {2, 100}, nil, {0, 200}, {1, 200}}
	if diff := cmp.Diff(want, b.Samples()[0].Experts); diff != "" || b.NoRows != 1 {
		t.Errorf("%d without a row\n%s", b.NoRows, diff)
	}
	calls[0].RoutedExperts = rows(1, 100) // for two tokens: one is missing
	b = Build("g", calls, Options{Replay: true})
	if diff := cmp.Diff([]string{MissingExperts, ""}, b.Reasons); diff != "" || b.Trained != 2 || b.Lost[MissingExperts] != 2 {
		t.Errorf("%+v\n%s", b, diff)
	}
	if b = Build("g", calls, Options{}); b.Trained != 4 || b.NoRows != 4 {
		t.Errorf("without replay: %+v", b)
	}
	calls[0].RoutedExperts, calls[1].RoutedExperts = nil, nil
	if b = Build("g", calls, Options{Replay: true}); b.Trained != 0 || b.Lost[MissingExperts] != 4 {
		t.Errorf("none at all: %+v", b)
	}
}

func TestExpertsAreReadAsUpstreamsGiveThem(t *testing.T) {
	c := call(ids(1, 2), ids(11))
	numpy := func(kind, shape string, body ...byte) json.RawMessage {
		head := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }\n", kind, shape)
		file := append([]byte("\x93NUMPY\x01\x00"), byte(len(head)), 0)
		file = append(append(file, head...), body...)
		return json.RawMessage(`"` + base64.StdEncoding.EncodeToString(file) + `"`)
	}
	for name, x := range map[string]struct {
		raw  json.RawMessage
		want [][]uint16
	}{
		"nested lists":                {json.RawMessage(`[[[0,7],[1,2]],[[3,4],[5,6]]]`), [][]uint16{{0, 7, 1, 2}, {3, 4, 5, 6}}},
		"a NumPy file of bytes":       {numpy("|u1", "2, 1, 2", 0, 7, 1, 2), [][]uint16{{0, 7}, {1, 2}}},
		"a NumPy file of int16":       {numpy("<i2", "2, 1, 1", 1, 1, 2, 0), [][]uint16{{257}, {2}}},
		"a NumPy file of big endians": {numpy(">u2", "2, 1", 0, 1, 1, 0), [][]uint16{{1}, {256}}},
		"rows of different lengths":   {json.RawMessage(`[[0],[1,2]]`), nil},
		"too few rows":                {json.RawMessage(`[]`), nil},
		"no list":                     {json.RawMessage(`{"a":1}`), nil},
		"a NumPy file cut off":        {numpy("|u1", "2, 1, 2", 0, 7), nil},
		"a NumPy file of floats":      {numpy("<f4", "2, 1, 1", 0, 0, 0, 0, 0, 0, 0, 0), nil},
		"a huge shape":                {numpy("|u1", "9999999999, 9999999999", 1), nil},
		"no base64":                   {json.RawMessage(`"%%"`), nil},
	} {
		c.RoutedExperts = x.raw
		r, err := readRoutes(&c)
		if (err != nil) != (x.want == nil) {
			t.Errorf("%s: error %v", name, err)
		} else if err == nil {
			if diff := cmp.Diff(x.want, r.rows); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

func TestHashTellsWhatTeachesApart(t *testing.T) {
	base := func() []fulgur.Sample {
		b := Build("g", numbered(call(ids(1), ids(11)), call(ids(1, 11, 2), ids(12))), Options{})
		return b.Samples()
	}
	want := Hash(base())
	same := base()
	same[0].Rollout, same[0].Calls = "other", []fulgur.CallID{"x"}
	if Hash(same) != want || len(want) != 64 {
		t.Error("ids count")
	}
	for name, change := range map[string]func(s *fulgur.Sample){
		"token": func(s *fulgur.Sample) { s.Tokens[0]++ }, "mask": func(s *fulgur.Sample) { s.Mask[1] = false },
		"log prob": func(s *fulgur.Sample) { s.LogProbs[1] *= 1.0000001 }, "version": func(s *fulgur.Sample) { s.Versions[3]++ },
		"experts": func(s *fulgur.Sample) { s.Experts = [][]uint16{nil, {1}, nil, nil} },
		"length":  func(s *fulgur.Sample) { s.Tokens = s.Tokens[:3] },
	} {
		x := base()
		change(&x[0])
		if Hash(x) == want {
			t.Errorf("another %s is not seen", name)
		}
	}
}

// Whatever the options: at most once, what is lost is counted, twice the same,
// and the calls stay as they are.
func TestInvariantsUnderAllOptions(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		calls := forest(r)
		o := Options{Level: []Level{"", Lineage, PerCall}[r.IntN(3)], OverLong: []Limit{"", Cut, Mask, Drop}[r.IntN(4)], MaxTokens: r.IntN(16), Replay: r.IntN(4) == 0}
		for i := range calls {
			if n := len(calls[i].PromptIDs) + len(calls[i].SampledIDs) - r.IntN(3); r.IntN(2) == 0 {
				calls[i].RoutedExperts = rows(n, i)
			}
		}
		before := fmt.Sprint(calls)
		b := Build("g", calls, o)
		if again := Build("g", calls, o); b.Hash() != again.Hash() || o.Replay && b.Hash() != Hash(b.Samples()) || fmt.Sprint(calls) != before {
			t.Fatalf("seed %d: building changes something", seed)
		}
		trained, lost, sampled := map[int32]int{}, 0, 0
		for _, s := range b.Samples() {
			if !slices.Contains(s.Mask, true) || o.MaxTokens > 0 && len(s.Tokens) > o.MaxTokens {
				t.Fatalf("seed %d: a sample of %d tokens, mask %v", seed, len(s.Tokens), s.Mask)
			}
			for j, on := range s.Mask {
				if on {
					trained[s.Tokens[j]]++
					if o.Replay && s.Experts[j] == nil {
						t.Fatalf("seed %d: a token trains without its experts", seed)
					}
				}
			}
		}
		for id, n := range trained {
			if n > 1 {
				t.Fatalf("seed %d: token %d trains %d times", seed, id, n)
			}
		}
		for _, n := range b.Lost {
			lost += n
		}
		for _, c := range calls {
			sampled += len(c.SampledIDs)
		}
		if len(trained) != b.Trained || b.Trained+lost != sampled {
			t.Fatalf("seed %d, %+v: %d of %d tokens train, %d lost of %d", seed, o, len(trained), b.Trained, lost, sampled)
		}
	}
}
