package chatwire

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestPromptIDs: a list of ids is read alike, in whatever form it comes.
func TestPromptIDs(t *testing.T) {
	long := strings.Repeat("12345,0,7,2147483647,99999999,100000000,12345678,1234567,", 60)
	n := strings.Count(long, ",")
	for name, c := range map[string]struct {
		list string
		want int // how many ids; -1: none, but JSON; -2: no JSON
	}{
		"long":                       {"[" + long + "7]", n + 1},
		"with spaces":                {"[" + strings.ReplaceAll(long, ",", ", ") + "0]", n + 1},
		"with a space missing":       {"[" + strings.ReplaceAll(long, ",", ", ") + "1,2, 3]", n + 3},
		"with a space too many":      {"[" + long + "1, 2,3]", n + 3},
		"of one digit each":          {"[" + strings.Repeat("7,", 400) + "7]", 401},
		"with a long number in each": {"[" + strings.Repeat("2147483647,1,", 200) + "7]", 401},
		"with more spaces":           {"[ " + strings.ReplaceAll(long, ",", " ,\n") + "0 ]", n + 1},
		"short":                      {"[1,2]", 2},
		"one":                        {"[1]", 1},
		"empty":                      {"[]", 0},
		"empty, with a space":        {"[ ]", 0},
		"a number that is none":      {"[" + long + "01]", -2},
		"zeroes":                     {"[" + long + "00000000]", -2},
		"a comma at the end":         {"[" + long + "]", -2},
		"two commas":                 {"[" + long + ",7]", -2},
		"a float":                    {"[" + long + "1.5]", -1},
		"an exponent":                {"[" + long + "1e2]", -1},
		"one that is too large":      {"[" + long + "2147483648]", -1},
		"one that is much too large": {"[" + long + strings.Repeat("9", 80) + "]", -1},
		"a negative one":             {"[" + long + "-1]", -1},
		"a list in it":               {"[" + long + "[1]]", -1},
		"a word in it":               {"[" + long + "null]", -1},
		"cut":                        {"[" + long, -2},
		"cut in a number":            {"[" + long + "1", -2},
	} {
		for where, f := range map[string]string{"in front": `{"prompt_token_ids":%,"id":"x","choices":[]}`, "at the end": `{"id":"x","choices":[],"prompt_token_ids":%}`} {
			answer := []byte(strings.Replace(f, "%", c.list, 1))
			a, ok := read(answer, true)
			if ok != (c.want >= -1) || ok != json.Valid(answer) {
				t.Errorf("%s, %s: taken %t", name, where, ok)
			}
			if c.want < 0 {
				if a.PromptIDs != nil {
					t.Errorf("%s, %s: read as ids", name, where)
				}
				continue
			}
			var want struct {
				IDs []int32 `json:"prompt_token_ids"`
			}
			if err := json.Unmarshal(answer, &want); err != nil {
				t.Fatal(err)
			}
			if len(a.PromptIDs) != c.want || a.PromptIDs == nil || !slices.Equal(a.PromptIDs, want.IDs) || a.ID != "x" {
				t.Errorf("%s, %s: %d ids, want %d", name, where, len(a.PromptIDs), c.want)
			}
		}
	}
}

// TestNumbers reads numbers as strconv does, to the last bit.
func TestNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	list := []string{"0", "-0", "0.0", "-0.1", "1e400", "-1e400", "9007199254740991", "9007199254740992", "9007199254740993", "0.000000000000000001", "123456789012345678", "1234567890123456789",
		"99999999999999999999999999999999", "1E5", "1e-7", "4.35", "-2.220446049250313e-16"}
	for i := range 20000 {
		f := math.Float64frombits(math.Float64bits(float64(rng.Float32()))&^(1<<29-1) + 1<<28 + uint64(i%9) - 4) // near the middle of two float32s
		list = append(list, strconv.FormatFloat(-f, 'g', -1, 64), strconv.FormatFloat(f, 'f', 17+i%3, 64))
		list = append(list, strconv.FormatFloat(-rng.ExpFloat64(), 'g', -1, 64), strconv.FormatFloat(rng.NormFloat64(), 'f', rng.IntN(18), 64))
	}
	for _, in := range list {
		r := scanner{b: []byte(in)}
		want, _ := strconv.ParseFloat(in, 64)
		if got := r.number(); math.Float64bits(got) != math.Float64bits(want) || !r.ended() {
			t.Errorf("%s: %v", in, got)
		}
		r = scanner{b: []byte(in)}
		if got := r.float32(); math.Float32bits(got) != math.Float32bits(float32(want)) || !r.ended() {
			t.Errorf("%s as a float32: %v, want %v", in, got, float32(want))
		}
	}
}

// FuzzScan: what encoding/json takes for JSON is taken, and nothing else.
func FuzzScan(f *testing.F) {
	for _, s := range append(requestSeeds, `"\u12x4"`, `"a`, "\"\x1f\"", `"0123456\`, `[1,]`, `{"a":1,}`, `-`, `1.`, `1e+`, `tru`, `nullx`, "\"\xff\xfe aaaaaaaaaaaaa\"", "1\x00", `{"a" 1}`, `{1:2}`, `01`, ` [ ] `) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := scanner{b: b}
		r.skip()
		if got, want := r.ended(), json.Valid(b); got != want {
			t.Fatalf("%q: taken %t", b, got)
		}
		if validUTF8(b) != utf8.Valid(b) {
			t.Errorf("%q: UTF-8 %t", b, validUTF8(b))
		}
		if s := (&scanner{b: b}); json.Valid(b) && s.peek() == '"' {
			start := s.i
			s.quoted()
			var want string
			if err := json.Unmarshal(b, &want); err != nil {
				t.Fatal(err)
			}
			if got, err := Unquote(b[start:s.i]); got != want || err != nil {
				t.Errorf("%q: %q, want %q", b, got, want)
			}
			if !utf8.Valid(b) && r.utf8() {
				t.Errorf("%q is taken for UTF-8", b)
			}
		}
	})
}

// TestDeepAnswers: brackets without end are no JSON, and end nothing else.
func TestDeepAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want bool
	}{
		"8 MB of brackets":             {strings.Repeat("[", 8<<20), false},
		"as deep as encoding/json":     {strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), true},
		"one deeper":                   {strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1), false},
		"many, but not deep":           {"[" + strings.Repeat("[],", 2*maxDepth) + "[]]", true},
		"many in a text":               {`"` + strings.Repeat(`[\"`, 2*maxDepth) + `"`, true},
		"many, and a text that is cut": {`["` + strings.Repeat("[", 2*maxDepth) + `\`, false},
	} {
		if _, ok := Take([]byte(c.data), false); ok != c.want {
			t.Errorf("%s: taken %t", name, ok)
		}
		if json.Valid([]byte(c.data)) != c.want {
			t.Errorf("%s: encoding/json takes it otherwise", name)
		}
		var w Request
		if _, err := decode([]byte(`{"messages":[{"role":"user","content":`+c.data+`}]}`), &w); err == nil && !c.want {
			t.Errorf("%s: a request takes it", name)
		}
	}
}
