package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

var sampleFile = flag.String("sample", "", "write the sample report to this file (test/browser opens it)")

const hostile = `</script><script>alert("x")</script><img src=x onerror=alert(1)>{{.Config}}` + "\u2028"

// sample is a run as large as the demo's.
func sample() Data {
	rng := rand.New(rand.NewPCG(1, 2))
	score := func(v float64, n int) Score {
		e := 1.96 * math.Sqrt(v*(1-v)/float64(n))
		return Score{Value: v, Low: max(0, v-e), High: min(1, v+e), Problems: n}
	}
	d := Data{
		Title: "calc", Model: "builtin:calc", Program: "fulgur v0.1.0", Created: time.Date(2026, 11, 29, 20, 15, 0, 0, time.UTC),
		Verdict: "Reached 0.9 in two validations in a row, after step 120.", Reached: true, Target: 0.9,
		Wall: 151 * time.Second, CPU: []Share{{"engine", 231 * time.Second}, {"gateway, store and controller", 52 * time.Second}, {"agents", 88 * time.Second}},
		Rollouts: 15360, Updates: 240,
		Outcomes: []Outcome{{"ok", "answered", 15102, ""}, {"agent_failure", "exit", 251, "train-0-17-3-5a1c: exit status 2: no answer after 6 calls"}, {"infrastructure", "upstream", 7, hostile}},
		Samples:  Fragmentation{Rollouts: 15102, Single: 14890, Samples: 15330, Breaks: []Count{{"retokenisation", 198}, {"history rewritten", 14}}, Again: 41207},
		Wasted:   []Waste{{"no advantage", 211904, 5210, 81234.5}, {"masked infrastructure", 310, 7, 12}},
		Warnings: []string{"runner.sandbox: agents run with all rights of this user " + hostile},
		Config:   "version: 1\nrun: calc # " + hostile,
	}
	before, after, bg, ag := score(0.264, 500), score(0.914, 500), score(0.11, 500), score(0.986, 500)
	d.Before, d.After, d.BeforeGreedy, d.AfterGreedy = &before, &after, &bg, &ag
	curve := func(s int) float64 { return 0.27 + 0.66*(1-math.Exp(-float64(s)/28)) }
	for s := 1; s <= 120; s++ {
		step := Step{Step: s, Reward: curve(s) + 0.05*(rng.Float64()-0.5), Groups: 16, Mixed: 10, Rollout: time.Duration(600+rng.IntN(200)) * time.Millisecond, Update: time.Duration(350+rng.IntN(80)) * time.Millisecond}
		if s%20 == 0 {
			step.Validation = 1900 * time.Millisecond
			greedy := score(min(0.99, curve(s)+0.1), 200)
			d.Validations = append(d.Validations, Validation{Step: s, Score: score(curve(s), 200), Greedy: &greedy, Best: s == 120})
		}
		d.Steps = append(d.Steps, step)
	}
	start, greedy := score(0.27, 200), score(0.1, 200)
	d.Validations = append([]Validation{{Step: 0, Score: start, Greedy: &greedy}}, d.Validations...)
	rollout := func(id string, reward, weight float64, trained bool, expression, answer string) *Rollout {
		var ts []Token
		add := func(sampled bool, text string) {
			for _, w := range strings.SplitAfter(text, " ") {
				t := Token{Text: w, ID: int32(rng.IntN(576)), Sampled: sampled}
				if sampled {
					t.Trained, t.LogProb, t.Version = trained, -rng.ExpFloat64()*0.4, 40
					t.Weight = weight / 40
					if !trained {
						t.Reason = "an evaluation does not train"
					}
				}
				ts = append(ts, t)
			}
		}
		add(false, "<|im_start|>system\nUse the tool calc.<|im_end|>\n<|im_start|>user\nMia has 14 pens. She buys 3 bags of 6 pens, then loses 5. How many pens?<|im_end|>\n<|im_start|>assistant\n")
		add(true, `<tool_call> {"name": "calc", "arguments": {"expression": "`+expression+`"}} </tool_call><|im_end|>`)
		add(false, "\n<|im_start|>tool\n18<|im_end|>\n<|im_start|>assistant\n")
		add(true, "Answer: "+answer+"<|im_end|>")
		r := &Rollout{ID: id, Reward: &reward, Outcome: "ok", Samples: [][]Token{ts}}
		if trained {
			a := weight
			r.Advantage = &a
		}
		return r
	}
	for i := range 12 {
		d.Problems = append(d.Problems, Problem{Text: fmt.Sprintf("Mia has %d pens. She buys 3 bags of 6 pens, then loses 5. How many pens?", 14+i), Expected: fmt.Sprint(27 + i),
			Before: rollout(fmt.Sprintf("before-0-%d-0", i), 0, 0, false, "3+6", "9"), After: rollout(fmt.Sprintf("after-0-%d-0", i), 1, 0, false, "3*6", "27")})
	}
	d.Problems[0].Text += hostile
	d.Problems[1].Before.Samples[0][3].Text = hostile
	d.Problems[2].After = nil
	for g := range 3 {
		group := Group{Text: "Mia has 14 pens. She buys 3 bags of 6 pens, then loses 5. How many pens?", Step: 1 + 40*g}
		for k := range 8 {
			weight, reward, e := -0.6, 0.0, "3+6"
			if k%3 == 0 {
				weight, reward, e = 1.6, 1, "3*6"
			}
			group.Rollouts = append(group.Rollouts, *rollout(fmt.Sprintf("train-0-%d-%d", g, k), reward, weight, true, e, "27"))
		}
		d.Groups = append(d.Groups, group)
	}
	return d
}

func write(t *testing.T, d Data) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, d); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestSampleReport(t *testing.T) {
	page := write(t, sample())
	if *sampleFile != "" {
		if err := os.WriteFile(*sampleFile, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d bytes", len(page))
	if len(page) > 2<<20 {
		t.Errorf("a report of the demo's size has %d bytes, more than 2 MiB", len(page))
	}
	for _, want := range []string{
		"26.4 %", "91.4 %", "2 min 31 s", "15\u2009360", "Reached 0.9 in two validations", "98.3 %", "1.02",
		"How rollouts ended", "Training samples", "Where the time went", "Effective configuration", "Content-Security-Policy",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	for _, bad := range []string{`src="http`, `href="http`, "<link", "@import", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("%q is on the page: it must need nothing else", bad)
		}
	}
}

func TestHostileTextIsOnlyText(t *testing.T) {
	page := write(t, sample())
	if strings.Contains(page, "<img src=x") || strings.Contains(page, `<script>alert`) {
		t.Error("hostile text became markup")
	}
	if n := strings.Count(page, "</script>"); n != 3 {
		t.Errorf("%d ends of scripts, want the page's own 3", n)
	}
	_, rest, _ := strings.Cut(page, `id="data">`)
	raw, _, _ := strings.Cut(rest, "</script>")
	var i struct {
		Problems []struct {
			Before struct{ Samples [][][]any }
		}
	}
	if err := json.Unmarshal([]byte(raw), &i); err != nil {
		t.Fatal(err)
	}
	if got := i.Problems[1].Before.Samples[0][3][0]; got != hostile {
		t.Errorf("a token's text changed: %q", got)
	}
	d := sample()
	d.Title = hostile
	if strings.Contains(write(t, d), "<img src=x") {
		t.Error("a hostile title became markup")
	}
}

func TestAnEmptyRunHasAReport(t *testing.T) {
	page := write(t, Data{Title: "nothing", Verdict: "Stopped before the first step."})
	for _, absent := range []string{"How rollouts ended", "before and after</h2>", "Warnings"} {
		if strings.Contains(page, absent) {
			t.Errorf("%q is on the page of a run that has none", absent)
		}
	}
}

func TestNumbersThatAreNoneAreShownAsZero(t *testing.T) {
	d := Data{Steps: []Step{{Step: 1, Reward: math.NaN()}}, Groups: []Group{{Rollouts: []Rollout{{Samples: [][]Token{{{Sampled: true, LogProb: math.Inf(-1)}}}}}}}}
	write(t, d)
	if strings.Contains(string(CurveSVG(d)), "NaN") {
		t.Error("NaN in the curve")
	}
}

func TestWhatIsCutOffIsSaid(t *testing.T) {
	long := make([]Token, maxTokens+5)
	page := write(t, Data{Problems: make([]Problem, maxProblems+1), Steps: make([]Step, maxSteps+1),
		Groups: []Group{{Rollouts: []Rollout{{Samples: [][]Token{long[:10], long}}}}}})
	for _, want := range []string{"12 of 13 problems are shown", "every 2-th of 4001 steps", "15 more tokens"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not said", want)
		}
	}
}

func TestCurveSVG(t *testing.T) {
	d := sample()
	d.Title = hostile
	svg := CurveSVG(d)
	dec := xml.NewDecoder(bytes.NewReader(svg))
	names := map[string]int{}
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok {
			names[e.Name.Local]++
		}
	}
	if names["polyline"] != 3 || names["polygon"] != 2 || names["img"]+names["script"] != 0 {
		t.Errorf("elements: %v", names)
	}
	if len(CurveSVG(Data{})) == 0 {
		t.Error("no drawing of an empty run")
	}
}
