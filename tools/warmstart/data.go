package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Sizes of the datasets. Training draws 16 problems a step: the longest run of
// the example sees a problem once.
const (
	trainRows = 4096
	valRows   = 200
	testRows  = 500
)

// oneEventIn10 is how many problems in ten have one event; the others have two.
const oneEventIn10 = 3

// Random streams, one for each use: changing one changes no other.
const (
	streamVal = iota + 1
	streamTest
	streamTrain
	streamCorpus
	streamDemonstrations
	streamAcceptance
	streamWeights
)

func stream(seed uint64, n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }

// problem is a row of a dataset.
type problem struct {
	Question string   `json:"question"`
	Answer   int      `json:"answer"`
	Events   int      `json:"events"`
	Kinds    []string `json:"kinds"`
	HeldOut  bool     `json:"held_out"` // has a pair of events that the warm start never saw
}

// split are the datasets of the example.
type split struct{ train, val, test []*story }

// mixed is the example's mix: how many events the i-th problem has.
func mixed(i int) int {
	if i%10 < oneEventIn10 {
		return 1
	}
	return 2
}

// newSplit draws the datasets; events says how many events the i-th problem of
// one has. No question is in two of them. In validation and test every other
// problem of several events has a held-out pair; training takes what comes.
func newSplit(seed uint64, events func(i int) int) split {
	used := map[string]bool{}
	draw := func(r *rand.Rand, n int, balanced bool) (out []*story) {
		for i := range n {
			n := events(i)
			s := newStory(r, n, func(s *story) bool {
				return !used[s.question] && (!balanced || n == 1 || heldOut(s.kinds) == (i%2 == 0))
			})
			used[s.question] = true
			out = append(out, s)
		}
		return out
	}
	// The measured sets come first: training is what avoids them.
	return split{val: draw(stream(seed, streamVal), valRows, true), test: draw(stream(seed, streamTest), testRows, true),
		train: draw(stream(seed, streamTrain), trainRows, false)}
}

// measured are the questions of validation and test, which nothing may train on.
func (s split) measured() map[string]bool {
	out := map[string]bool{}
	for _, set := range [][]*story{s.val, s.test} {
		for _, p := range set {
			out[p.question] = true
		}
	}
	return out
}

// write makes train.jsonl, val.jsonl and test.jsonl in dir.
func (s split) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the data folder: %w", err)
	}
	for name, set := range map[string][]*story{"train.jsonl": s.train, "val.jsonl": s.val, "test.jsonl": s.test} {
		var out bytes.Buffer
		for _, p := range set {
			row, err := json.Marshal(problem{p.question, p.answer, len(p.kinds), kindList(p.kinds), heldOut(p.kinds)})
			if err != nil {
				return fmt.Errorf("writing a problem: %w", err)
			}
			out.Write(append(row, '\n'))
		}
		if err := os.WriteFile(filepath.Join(dir, name), out.Bytes(), 0o644); err != nil {
			return fmt.Errorf("writing data: %w", err)
		}
	}
	return nil
}
