package main

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"

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
	s := newSplit(1, mixed)
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
	if again := newSplit(1, mixed); !slices.EqualFunc(again.train, s.train, func(a, b *story) bool { return a.question == b.question }) {
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

func newTestTalk(t *testing.T) (*talk, map[string][]byte) {
	t.Helper()
	files, err := options{seed: 1}.files()
	if err != nil {
		t.Fatal(err)
	}
	talk, err := newTalk(memory(files))
	if err != nil {
		t.Fatal(err)
	}
	return talk, files
}

// The prompt of turn n+1 must begin with the tokens of turn n as they were
// sampled, and be what the template makes of the messages: then a demonstration's
// tokens are those that the gateway prompts with.
func TestDemonstrationsAreTokenForTokenWhatTheGatewayRenders(t *testing.T) {
	talk, _ := newTestTalk(t)
	r := stream(1, 101)
	for i := range 200 {
		s := newStory(r, 1+i%4, anyStory)
		x := skill
		x.guess = .1
		c, err := talk.demonstrate(t.Context(), s, newDemonstrator(r, x, s))
		if err != nil {
			t.Fatal(err)
		}
		if i < 10 {
			t.Logf("%s\n", talk.r.Decode(c.tokens))
		}
		text, err := talk.r.Text(c.messages, talk.tools)
		if err != nil {
			t.Fatal(err)
		}
		said := talk.r.Decode(c.tokens)
		if want := strings.TrimSuffix(text, "\n<|im_start|>assistant\n"); said != want {
			t.Fatalf("the tokens say\n%s\nthe template\n%s", said, want)
		}
		malformed := slices.ContainsFunc(c.messages, func(m fulgur.Message) bool { return m.Content == loop.BadCall && m.Role == "user" })
		again, err := talk.r.Render(c.messages, talk.tools)
		if err != nil {
			t.Fatal(err)
		}
		if !malformed && !slices.Equal(c.tokens, again[:len(c.tokens)]) {
			t.Fatalf("rendered at once the tokens are others:\n%q\n%q", talk.r.TokenTexts(c.tokens), talk.r.TokenTexts(again))
		}
		if len(c.tokens) != len(c.sampled) || c.sampled[0] || !c.sampled[len(c.sampled)-1] {
			t.Fatal("the mask does not fit")
		}
	}
}

func TestThePromptIsAsReadable(t *testing.T) {
	talk, _ := newTestTalk(t)
	c, err := talk.converse(t.Context(), "Mia has 12 pens. Mia gets 5 more. How many pens?", func(c *conversation) ([]int32, error) {
		text := []string{callText("12+5"), callText("12+5+1"), `<tool_call>{"name":}</tool_call>`, "Answer: 17"}[c.calls]
		return append(talk.words.Encode(nil, text), talk.end), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `<|im_start|>system
Use the tool, then say Answer: N
calc(expression): one operation per call<|im_end|>
<|im_start|>user
Mia has 12 pens. Mia gets 5 more. How many pens?<|im_end|>
<|im_start|>assistant
<tool_call>{"name":"calc","arguments":{"expression":"12+5"}}</tool_call><|im_end|>
<|im_start|>tool
17<|im_end|>
<|im_start|>assistant
<tool_call>{"name":"calc","arguments":{"expression":"12+5+1"}}</tool_call><|im_end|>
<|im_start|>tool
error: one operation<|im_end|>
<|im_start|>assistant
<tool_call>{"name":}</tool_call><|im_end|>
<|im_start|>user
error: bad call<|im_end|>
<|im_start|>assistant
Answer: 17<|im_end|>`
	if got := talk.r.Decode(c.tokens); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if c.final != "Answer: 17" || c.calls != 4 {
		t.Errorf("final %q after %d calls", c.final, c.calls)
	}
}

func TestTheSameStepsGiveTheSameBytes(t *testing.T) {
	problems := newSplit(1, mixed)
	_, files := newTestTalk(t)
	var first [2][]byte
	for i := range first {
		o := options{seed: 1, recipe: standard, problems: 4, quiet: true}
		o.recipe.steps = 3
		dir := t.TempDir() + "/checkpoint"
		f, err := o.make(t.Context(), files, problems, dir)
		if err != nil {
			t.Fatal(err)
		}
		if f.Loss < 5 || f.Loss > 8 || f.Tokens < 1000 {
			t.Errorf("loss %.3f after three steps of %d tokens", f.Loss, f.Tokens)
		}
		if first[i], err = os.ReadFile(dir + "/model.safetensors"); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first[0], first[1]) {
		t.Error("two runs of the same steps give other weights")
	}
}

func TestTheAcceptanceTestRefusesABadStart(t *testing.T) {
	good := acceptance{Mix: score{Sampled: .27, Greedy: .01}, Events: []score{{Demonstrators: .4, Sampled: .36}}}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*acceptance){
		"nothing to learn from":      func(a *acceptance) { a.Mix.Sampled = .1 },
		"little left to learn":       func(a *acceptance) { a.Mix.Sampled = .4 },
		"greedy decoding solves it":  func(a *acceptance) { a.Mix.Greedy = .5 },
		"a number of events is lost": func(a *acceptance) { a.Events[0].Sampled = .3 },
	} {
		bad := good
		bad.Events = slices.Clone(good.Events)
		if spoil(&bad); bad.check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
