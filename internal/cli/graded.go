package cli

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// gradedOf is what an outcome says of how a program graded.
func gradedOf(o *fulgur.Outcome) fulgur.Graded {
	if o == nil || o.Graded == nil {
		return fulgur.Graded{}
	}
	return *o.Graded
}

// printGraded prints how an attempt's tests ended, and what its grader had to say.
func (a *app) printGraded(g fulgur.Graded) {
	indented := func(s string) string {
		return "    " + strings.ReplaceAll(readable(s), "\n", "\n    ")
	}
	if t := g.Tests; t != nil {
		end := fmt.Sprintf("ended with code %d", t.ExitCode)
		switch {
		case t.TimedOut:
			end = "had not ended after reward.timeout"
		case t.ExitCode < 0:
			end = "were ended by a signal, or did not start"
		}
		if t.Output == "" {
			fmt.Fprintf(a.Stdout, "  tests %s, and printed nothing\n", end)
		} else {
			fmt.Fprintf(a.Stdout, "  tests %s; last lines of what they printed:\n%s\n", end, indented(t.Output))
		}
	}
	if g.Log != "" {
		fmt.Fprintf(a.Stdout, "  last lines of what the grader printed on standard error:\n%s\n", indented(g.Log))
	}
}

// readable is a program's output without what moves a terminal's cursor, or colours it.
func readable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, colours.ReplaceAllString(s, ""))
}

var colours = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")
