package calc

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"strings"
	"testing"
)

type row struct {
	Question string
	Answer   *int
	Events   int
	Kinds    []string
}

func rows(t *testing.T, name string) []row {
	t.Helper()
	f, err := Files.Open("data/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []row
	for s := bufio.NewScanner(f); s.Scan(); {
		out = append(out, row{})
		if err := json.Unmarshal(s.Bytes(), &out[len(out)-1]); err != nil {
			t.Fatalf("%s, row %d: %v", name, len(out), err)
		}
	}
	return out
}

func TestNoMeasuredQuestionIsTrainedOn(t *testing.T) {
	seen := map[string]string{}
	for name, want := range map[string]int{"train.jsonl": 4096, "val.jsonl": 200, "test.jsonl": 500} {
		got := rows(t, name)
		if len(got) != want {
			t.Errorf("%s has %d rows, want %d", name, len(got), want)
		}
		for _, r := range got {
			if other, ok := seen[r.Question]; ok {
				t.Errorf("%q is in %s and %s", r.Question, other, name)
			}
			seen[r.Question] = name
			if r.Answer == nil || r.Events != len(r.Kinds) || r.Events < 1 || r.Events > 2 {
				t.Errorf("%s: a row that is not whole: %+v", name, r)
			}
		}
	}
}

func TestTheModelBelongsToItsTokenizer(t *testing.T) {
	tokenizer, err := fs.ReadFile(Files, "model/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	figures, err := fs.ReadFile(Files, "model/warmstart.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Hash string `json:"tokenizer_sha256"`
	}
	if err := json.Unmarshal(figures, &f); err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(tokenizer); hex.EncodeToString(sum[:]) != f.Hash {
		t.Error("tokenizer.json is not the one the weights were trained with: run make warmstart")
	}
	size := int64(0)
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"} {
		info, err := fs.Stat(Files, "model/"+name)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 5<<20 {
		t.Errorf("the model takes %d bytes", size)
	}
}

func TestTheAgentsSourceIsWhole(t *testing.T) {
	for _, dir := range []string{"agent", "agent/loop"} {
		here, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range here {
			if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
				if _, err := fs.Stat(Files, dir+"/"+name); err != nil {
					t.Errorf("%s/%s is not embedded: the demo could not build the agent", dir, name)
				}
			}
		}
	}
}
