package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
)

func anyStory(*story) bool { return true }

func TestStoriesAreSolvedByTheirOperations(t *testing.T) {
	r := stream(1, 100)
	for i := range 2000 {
		s := newStory(r, 1+i%4, anyStory)
		d := newDemonstrator(r, mistakes{}, s)
		feedback := ""
		for range len(s.ops) {
			said := d.say(feedback)
			expression := strings.Split(said, `"`)[9]
			feedback = loop.Calc(expression)
		}
		if got, want := d.say(feedback), "Answer: "+strconv.Itoa(s.answer); got != want {
			t.Fatalf("%s: a demonstrator without mistakes says %q, want %q", s.question, got, want)
		}
		for _, n := range s.numbers {
			if !strings.Contains(s.question, strconv.Itoa(n)) {
				t.Fatalf("%s has no %d", s.question, n)
			}
		}
	}
}

func TestAThirdOfThePairsIsHeldOut(t *testing.T) {
	held := 0
	for a := range kinds {
		for b := range kinds {
			if heldOut([]kind{a, b}) {
				held++
			}
		}
	}
	if held != 12 {
		t.Errorf("%d of 36 pairs are held out", held)
	}
}

func TestTheSplitKeepsMeasuredQuestionsApart(t *testing.T) {
	s := newSplit(1)
	measured := s.measured()
	if len(measured) != valRows+testRows || len(s.train) != trainRows {
		t.Fatalf("%d measured, %d to train on", len(measured), len(s.train))
	}
	one := 0
	for _, p := range s.train {
		if measured[p.question] {
			t.Errorf("measured and trained: %s", p.question)
		}
		if len(p.kinds) == 1 {
			one++
		}
	}
	if share := float64(one) / trainRows; share < .29 || share > .31 {
		t.Errorf("share of one-event problems %.3f", share)
	}
	held := 0
	for _, p := range s.test {
		if heldOut(p.kinds) {
			held++
		}
	}
	if two := testRows * 7 / 10; held < two*2/5 || held > two*3/5 {
		t.Errorf("%d of %d two-event problems have a held-out pair", held, two)
	}
	if again := newSplit(1); !slices.EqualFunc(again.train, s.train, func(a, b *story) bool { return a.question == b.question }) {
		t.Error("the same seed gives other data")
	}
}

func TestTheVocabularyIsFullAndHasAtMostTwoDigitsAToken(t *testing.T) {
	words, err := corpus(1)
	if err != nil {
		t.Fatal(err)
	}
	v, err := trainBPE(words)
	if err != nil {
		t.Fatal(err)
	}
	if len(v.tokens) != vocabSize {
		t.Errorf("%d tokens", len(v.tokens))
	}
	seen := map[string]bool{}
	for id, token := range v.tokens {
		if n := strings.IndexFunc(token, func(r rune) bool { return r >= '0' && r <= '9' }); n >= 0 && len(token) > 2 {
			t.Errorf("token %d is %q", id, token)
		}
		if token == "" || seen[token] {
			t.Errorf("token %d is %q, empty or twice", id, token)
		}
		seen[token] = true
	}
	again, err := trainBPE(words)
	if err != nil || !slices.Equal(again.tokens, v.tokens) {
		t.Error("the same corpus gives other tokens", err)
	}
	a, err := v.tokenizerJSON()
	b, err2 := again.tokenizerJSON()
	if err != nil || err2 != nil || string(a) != string(b) {
		t.Error("the same tokens give another file", err, err2)
	}
}
