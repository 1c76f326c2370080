package main

import (
	"math/rand/v2"
	"strings"

	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
)

// callText is how the policy writes a call of the calculator.
func callText(expression string) string {
	return `<tool_call>{"name":"calc","arguments":{"expression":"` + expression + `"}}</tool_call>`
}

// corpus counts the words of what is said in conversations about stories of one
// to four events. It has its own random stream and its own mistakes, so that
// another mix of demonstrators leaves the vocabulary as it is: other token ids
// would make every checkpoint useless.
func corpus(seed uint64) (map[string]int, error) {
	splitter, err := tokenizer.NewSplitter(tokenizer.DigitsPattern(2))
	if err != nil {
		return nil, err
	}
	r := stream(seed, streamCorpus)
	words := map[string]int{}
	count := func(text string) {
		for _, s := range specials {
			text = strings.ReplaceAll(text, s.text, "\x00")
		}
		for part := range strings.SplitSeq(text, "\x00") {
			splitter.Words(part, func(w string) { words[w]++ })
		}
	}
	for i := range 3000 {
		s := newStory(r, 1+i%4, func(*story) bool { return true })
		count("system\n" + loop.System + "\ncalc(expression): one operation per call")
		count("\n")
		count("user\n" + s.question)
		for _, turn := range playText(r, s) {
			count("\n")
			count(turn)
		}
	}
	return words, nil
}

// playText is a conversation about a story as text, without a model's tokens.
func playText(r *rand.Rand, s *story) []string {
	x := mistakes{operand: .05, multiple: .05, wrong: [kinds]float64{.1, .1, .1, .1, .3, .3}}
	d := newDemonstrator(r, x, s)
	var out []string
	for feedback := ""; ; {
		said := d.say(feedback)
		out = append(out, "assistant\n"+said)
		_, rest, called := strings.Cut(said, `"expression":"`)
		if !called {
			return out
		}
		expression, _, _ := strings.Cut(rest, `"`)
		feedback = loop.Calc(expression)
		out = append(out, "tool\n"+feedback)
	}
}
