// Package goldentest finds the golden data that other implementations made, and
// compares numbers with it.
package goldentest

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Root returns the folder of the golden data: $FULGUR_GOLDEN, or
// testdata/golden of this repository.
func Root(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("FULGUR_GOLDEN"); dir != "" {
		return dir
	}
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("no source path: set FULGUR_GOLDEN")
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "testdata", "golden")
}

// Path returns the path of something in the golden data. Where it is absent the
// test fails; see Optional.
func Path(t testing.TB, elem ...string) string {
	t.Helper()
	p := filepath.Join(append([]string{Root(t)}, elem...)...)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("golden data: %v", err)
	}
	return p
}

// Load reads a JSON file of the golden data into v.
func Load(t testing.TB, v any, elem ...string) {
	t.Helper()
	p := Path(t, elem...)
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatalf("golden data: %v", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("golden data: %s: %v", p, err)
	}
}

// Folders returns the names of the folders under one of the golden data, all
// that there are, and fails if there is none.
func Folders(t testing.TB, elem ...string) []string {
	t.Helper()
	p := Path(t, elem...)
	entries, err := os.ReadDir(p)
	if err != nil {
		t.Fatalf("golden data: %v", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	Count(t, p, len(names))
	return names
}

// Count logs the number of cases that a file has, and fails at none.
func Count(t testing.TB, file string, n int) {
	t.Helper()
	if n == 0 {
		t.Fatalf("golden data: %s has no cases", file)
	}
	t.Logf("golden data: %s: %d cases", file, n)
}

// Skip skips the test, or fails it where golden data must be complete: with CI or
// FULGUR_GOLDEN set.
func Skip(t testing.TB, format string, a ...any) {
	t.Helper()
	if os.Getenv("CI") != "" || os.Getenv("FULGUR_GOLDEN") != "" {
		t.Fatalf("golden data must not be skipped: "+format, a...)
	}
	t.Skipf(format, a...)
}

// Tolerance is how far a number may be from the expected one: by Abs, or by Rel
// of the expected one's size, whichever is more.
type Tolerance struct{ Abs, Rel float64 }

// Near says whether got is within the tolerance of want. NaN equals NaN, and an
// infinity itself.
func (tol Tolerance) Near(got, want float64) bool {
	if got == want || math.IsNaN(got) && math.IsNaN(want) {
		return true
	}
	return math.Abs(got-want) <= max(tol.Abs, tol.Rel*math.Abs(want))
}

// Check reports a number that is out of tolerance.
func (tol Tolerance) Check(t testing.TB, what string, got, want float64) {
	t.Helper()
	if !tol.Near(got, want) {
		t.Errorf("%s: got %v, want %v (off by %.3g)", what, got, want, got-want)
	}
}

// CheckAll compares two slices element by element.
func (tol Tolerance) CheckAll(t testing.TB, what string, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d numbers, want %d", what, len(got), len(want))
		return
	}
	for i := range want {
		tol.Check(t, fmt.Sprintf("%s[%d]", what, i), got[i], want[i])
	}
}
