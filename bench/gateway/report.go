package main

import "fmt"

// report prints figures, and counts the bars.
type report struct {
	passed, missed int
	missedNames    []string
}

func (r *report) title(s string) { fmt.Printf("\n== %s\n", s) }

// figure prints a figure that has no bar.
func (r *report) figure(name, format string, args ...any) {
	fmt.Printf("     %-66s %s\n", name, fmt.Sprintf(format, args...))
}

// most prints a figure whose bar is the most that it may be.
func (r *report) most(name string, got, bar float64, unit string) {
	verdict := "pass"
	if got <= bar {
		r.passed++
	} else {
		verdict = "MISS"
		r.missed++
		r.missedNames = append(r.missedNames, name)
	}
	fmt.Printf("%s %-66s %s %s (bar: at most %s)\n", verdict, name, number(got), unit, number(bar))
}

// close prints the sum: bars are never asserted, a busy machine misses them.
func (r *report) close() {
	fmt.Printf("\nbars met: %d, missed: %d\n", r.passed, r.missed)
	for _, n := range r.missedNames {
		fmt.Println("missed:", n)
	}
}

// number is x with three digits that say something.
func number(x float64) string {
	switch {
	case x >= 100 || x <= -100:
		return fmt.Sprintf("%.0f", x)
	case x >= 1 || x <= -1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}
