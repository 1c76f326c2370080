package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

func TestSampleFilesGiveBackWhatTheyGot(t *testing.T) {
	reward := 0.25
	want := []LabelledSample{
		{Step: 3, Reward: &reward, Advantage: -1.5, Weight: -0.003, Sample: fulgur.Sample{Rollout: "r", Group: "g", Tokens: []int32{5, 6, 7}, Mask: []bool{false, true, true},
			LogProbs: []float32{0, -0.1, -1e-9}, Versions: []fulgur.PolicyVersion{-1, 4, 5}, Calls: []fulgur.CallID{"a", "b"}, Experts: [][]uint16{nil, {1, 700}, {0, 3}}}},
		{Sample: fulgur.Sample{Rollout: "s", Group: "g", Tokens: []int32{5, 151000}, Mask: []bool{false, true}, LogProbs: []float32{0, -3}, Versions: []fulgur.PolicyVersion{-1, 0}, Calls: []fulgur.CallID{"c"}}},
	}
	for _, name := range []string{"x.jsonl", "x.parquet"} {
		path := filepath.Join(t.TempDir(), name)
		w, err := CreateSamples(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range want {
			if err := w.Write(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		var got []LabelledSample
		if err := ReadSamples(path, func(s LabelledSample) error { got = append(got, s); return nil }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if _, err := CreateSamples(path); fulgur.KindOf(err) != fulgur.KindConflict {
			t.Errorf("%s is written over: %v", name, err)
		}
	}
}

func TestBrokenSamplesAreNamed(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ file, text, want string }{
		"no JSON":                   {"a.jsonl", "{\"tokens\":[1,2],", "sample 1: "},
		"lengths differ":            {"a.jsonl", `{"tokens":[1,2],"mask":[false],"log_probs":[0,0]}`, "mask has 1 entries for 2 tokens"},
		"the second":                {"a.jsonl", "{\"tokens\":[1,2],\"mask\":[false,true],\"log_probs\":[0,-1]}\n\n{}", "sample 2: it has no tokens"},
		"a positive log prob":       {"a.jsonl", `{"tokens":[1,2],"mask":[false,true],"log_probs":[0,1]}`, "log prob 1 is 1"},
		"a sentinel (AL-13)":        {"a.jsonl", `{"tokens":[1,2],"mask":[false,true],"log_probs":[0,-9999]}`, "log prob 1 is -9999, which stands for none"},
		"trained, never sampled":    {"a.jsonl", `{"tokens":[1,2],"mask":[false,true],"log_probs":[0,-1],"versions":[-1,-1]}`, "version 1 is -1"},
		"the first token trains":    {"a.jsonl", `{"tokens":[1],"mask":[true],"log_probs":[-1]}`, "first token"},
		"nothing trains":            {"a.jsonl", `{"tokens":[1],"mask":[false],"log_probs":[0]}`, "nothing of it trains"},
		"no Parquet":                {"a.parquet", "PAR1 but not really PAR1", "no whole Parquet"},
		"another format by its end": {"a.csv", "1", ".jsonl or .parquet"},
	} {
		path := filepath.Join(dir, c.file)
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		err := ReadSamples(path, func(LabelledSample) error { return nil })
		if fulgur.KindOf(err) != fulgur.KindInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ReadSamples(filepath.Join("testdata", "rows.parquet"), func(LabelledSample) error { return nil }); err == nil || !strings.Contains(err.Error(), `no list "tokens"`) {
		t.Errorf("a Parquet file of rows: %v", err)
	}
	if err := ReadSamples(filepath.Join(dir, "none.jsonl"), nil); fulgur.KindOf(err) != fulgur.KindNotFound {
		t.Errorf("no file: %v", err)
	}
}
