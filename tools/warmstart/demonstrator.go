package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// mistakes are how often a demonstrator does what.
type mistakes struct {
	guess    float64        // answers at once with two numbers of the story
	hasty    float64        // stops after a call that is not the last
	operand  float64        // takes another number of the story
	digit    float64        // slips in a digit of a number it copies
	format   float64        // writes a call that can't be read
	giveUp   float64        // after an error: answers with a number of the story
	copying  float64        // slips in a digit of the answer
	multiple float64        // puts two operations into one call
	swap     float64        // subtracts the wrong way round
	wrong    [kinds]float64 // takes another operation for an event of that kind
}

// skill is what the warm start learns from: its most likely behaviour is wrong
// where it matters (it guesses at once, and adds for "times"), so neither
// sampling nor greedy decoding solves the task well, while every part of the
// right behaviour is there to be found.
var skill = mistakes{guess: .58, hasty: .02, operand: .004, digit: .002, format: .015, giveUp: .5, copying: .003, multiple: .015, swap: .015,
	wrong: [kinds]float64{gain: .02, lose: .04, bags: .04, sell: .04, times: .6, share: .6}}

// demonstrator tells what to say in a conversation about a story. It never
// looks at whether the outcome is right.
type demonstrator struct {
	r    *rand.Rand
	x    mistakes
	s    *story
	done []string // results of the operations so far
	try  int      // errors in a row
}

func newDemonstrator(r *rand.Rand, x mistakes, s *story) *demonstrator {
	return &demonstrator{r: r, x: x, s: s}
}

// say returns the next message. feedback is what the harness answered the last
// one, "" at the beginning.
func (d *demonstrator) say(feedback string) string {
	switch {
	case feedback == "":
		if d.hit(d.x.guess) {
			return d.final(d.guess())
		}
	case strings.HasPrefix(feedback, "error"):
		if d.try++; d.try == 3 || d.hit(d.x.giveUp) {
			return d.final(d.number())
		}
	default:
		d.done, d.try = append(d.done, feedback), 0
		n, _ := strconv.Atoi(feedback) // the calculator's result
		if len(d.done) == len(d.s.ops) || d.hit(d.x.hasty) {
			return d.final(n)
		}
	}
	return d.call()
}

func (d *demonstrator) hit(p float64) bool { return d.r.Float64() < p }

func (d *demonstrator) number() int { return d.s.numbers[d.r.IntN(len(d.s.numbers))] }

func (d *demonstrator) guess() int {
	a, b := d.number(), d.number()
	return []int{a, a + b, max(a, b) - min(a, b), a * b}[d.r.IntN(4)]
}

func (d *demonstrator) final(n int) string {
	if d.hit(d.x.copying) {
		n = d.slip(n)
	}
	return fmt.Sprintf("Answer: %d", n)
}

func (d *demonstrator) slip(n int) int {
	s := []byte(strconv.Itoa(n))
	s[len(s)-1-d.r.IntN(len(s))] = byte('1' + d.r.IntN(9))
	out, _ := strconv.Atoi(string(s)) // a number still, even where the sign was hit
	return out
}

func (d *demonstrator) value(o operand) string {
	switch {
	case d.hit(d.x.operand):
		return strconv.Itoa(d.number())
	case o.result >= 0:
		return d.done[o.result]
	case d.hit(d.x.digit):
		return strconv.Itoa(d.slip(o.number))
	}
	return strconv.Itoa(o.number)
}

func (d *demonstrator) call() string {
	i := len(d.done)
	o := d.s.ops[i]
	a, b, op := d.value(o.a), d.value(o.b), o.op
	if d.hit(d.x.wrong[o.of]) {
		others := map[byte]string{'+': "-*", '-': "+/", '*': "+-", '/': "-*"}[op]
		op = others[d.r.IntN(len(others))]
	}
	if op == '-' && d.hit(d.x.swap) {
		a, b = b, a
	}
	expression := a + string(op) + b
	if i+1 < len(d.s.ops) && d.hit(d.x.multiple) {
		if next := d.s.ops[i+1]; next.b.result < 0 || next.b.result < i {
			expression += string(next.op) + d.value(next.b)
		}
	}
	text := callText(expression)
	if d.hit(d.x.format) {
		text = d.spoil(text, expression)
	}
	return text
}

// spoil makes a call unreadable: a brace is missing, the tool has another name,
// the quotes are missing.
func (d *demonstrator) spoil(text, expression string) string {
	switch d.r.IntN(3) {
	case 0:
		return strings.Replace(text, `"}}`, `"}`, 1)
	case 1:
		return strings.Replace(text, `"calc"`, `"calculator"`, 1)
	}
	return strings.Replace(text, `"`+expression+`"`, expression, 1)
}

// kindList is the story's kinds by name, for the dataset.
func kindList(ks []kind) []string {
	out := make([]string, 0, len(ks))
	for _, k := range ks {
		out = append(out, kindNames[k])
	}
	return out
}
