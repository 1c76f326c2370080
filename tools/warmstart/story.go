package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// A kind of event changes the count in one way.
type kind int

const (
	gain  kind = iota // + N
	lose              // - N
	bags              // + K * N
	sell              // - K * N
	times             // * K
	share             // / K
	kinds
)

var kindNames = [kinds]string{"gain", "lose", "bags", "sell", "times", "share"}

// Two ways to say each. A is who has the things, B another person, K and N numbers.
var phrases = [kinds][2]string{
	{"A gets N more.", "B brings N more."},
	{"A gives N to B.", "A loses N."},
	{"A buys K bags of N.", "B brings K boxes with N each."},
	{"A sells K packs of N.", "B takes K bags of N."},
	{"Then there are K times as many.", "The pile grows K times."},
	{"A keeps one part in K.", "They are split in K equal parts; A keeps one."},
}

var (
	people = strings.Fields("Mia Tom Ann Ben Eva Max Zoe Sam Lea Jon Amy Leo")
	things = strings.Fields("pens cups eggs nuts keys hats toys figs pins jars")
)

// operand of an operation: a number of the story, or the result of an earlier operation.
type operand struct {
	number int
	result int // index of the operation, -1 for a number
}

// operation is one call of the calculator on the way to the answer.
type operation struct {
	a, b operand
	op   byte
	of   kind
}

// story is a problem: events on one count. Every value on the way is 1 to 99.
type story struct {
	question string
	answer   int
	kinds    []kind
	ops      []operation
	numbers  []int // in the order of the text
}

// heldOut says whether an ordered pair of adjacent events is one of the third
// of all pairs that the warm start never sees.
func heldOut(ks []kind) bool {
	for i := 0; i+1 < len(ks); i++ {
		if (ks[i]*5+ks[i+1]*7+3)%3 == 0 {
			return true
		}
	}
	return false
}

// newStory draws stories until one with that many events is accepted.
func newStory(r *rand.Rand, events int, accept func(*story) bool) *story {
	for {
		if s := drawStory(r, events); s != nil && accept(s) {
			return s
		}
	}
}

// drawStory returns nil where the numbers did not work out.
func drawStory(r *rand.Rand, events int) *story {
	s := &story{}
	order := r.Perm(len(people))
	a, b, thing := people[order[0]], people[order[1]], things[r.IntN(len(things))]
	count := 3 + r.IntN(47)
	s.numbers = append(s.numbers, count)
	text := []string{fmt.Sprintf("There are %d %s.", count, thing)}
	if r.IntN(2) == 0 {
		text[0] = fmt.Sprintf("%s has %d %s.", a, count, thing)
	}
	at := operand{count, -1}
	for range events {
		k := kind(r.IntN(int(kinds)))
		if n := len(s.kinds); n > 0 && s.kinds[n-1] == k {
			return nil
		}
		factor, amount := 2+r.IntN(7), 2+r.IntN(28)
		if k == bags || k == sell {
			amount = 2 + r.IntN(13)
		}
		var ok bool
		if at, count, ok = s.apply(k, at, count, factor, amount); !ok {
			return nil
		}
		text = append(text, s.say(phrases[k][r.IntN(2)], a, b, factor, amount))
	}
	s.question = strings.Join(append(text, fmt.Sprintf("How many %s?", thing)), " ")
	s.answer = count
	return s
}

// apply adds the operations of an event and returns where the count then is.
func (s *story) apply(k kind, at operand, count, factor, amount int) (operand, int, bool) {
	do := func(a operand, op byte, b operand) operand {
		s.ops = append(s.ops, operation{a, b, op, k})
		return operand{0, len(s.ops) - 1}
	}
	number := func(n int) operand { return operand{n, -1} }
	s.kinds = append(s.kinds, k)
	switch k {
	case gain:
		at, count = do(at, '+', number(amount)), count+amount
	case lose:
		at, count = do(at, '-', number(amount)), count-amount
	case bags:
		at, count = do(at, '+', do(number(factor), '*', number(amount))), count+factor*amount
	case sell:
		at, count = do(at, '-', do(number(factor), '*', number(amount))), count-factor*amount
	case times:
		at, count = do(at, '*', number(factor)), count*factor
	case share:
		if count%factor != 0 {
			return at, 0, false
		}
		at, count = do(at, '/', number(factor)), count/factor
	}
	return at, count, count >= 1 && count <= 99
}

func (s *story) say(phrase, a, b string, factor, amount int) string {
	var out strings.Builder
	for _, c := range phrase {
		switch c {
		case 'A':
			out.WriteString(a)
		case 'B':
			out.WriteString(b)
		case 'K':
			s.numbers = append(s.numbers, factor)
			out.WriteString(strconv.Itoa(factor))
		case 'N':
			s.numbers = append(s.numbers, amount)
			out.WriteString(strconv.Itoa(amount))
		default:
			out.WriteRune(c)
		}
	}
	return out.String()
}
