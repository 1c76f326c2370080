// Package report writes the report of a run: one HTML file that needs nothing
// else, no network, no server. It gets plain data and knows no store.
package report

import (
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Limits that keep a report readable and under about two megabytes. What they
// cut off is said on the page.
const (
	maxProblems = 12
	maxGroups   = 4
	maxTokens   = 3000 // of a rollout
	maxSteps    = 4000
)

// uPlot 1.6.32 (MIT, github.com/leeoniya/uPlot) draws the charts.
//
//go:embed assets
var assets embed.FS

// page is what the template sees.
type page struct {
	Data
	CPUTotal time.Duration
	Style    template.CSS
	Library  template.JS
	Script   template.JS
	Curve    template.HTML
	Island   island
	Cut      []string
}

// island is the data that the page's script draws from.
type island struct {
	Steps       [][]float64 `json:"steps"` // step, reward, mixed share, rollout, update, validation seconds
	Validations [][]any     `json:"validations"`
	Target      float64     `json:"target"`
	Problems    []Problem   `json:"problems"`
	Groups      []Group     `json:"groups"`
}

// MarshalJSON writes a token as a short list: [text, id, kind, weight, log prob,
// version, reason]. kind: 0 read, 1 sampled but not trained, 2 trained.
func (t Token) MarshalJSON() ([]byte, error) {
	kind := 0
	switch {
	case t.Sampled && t.Trained:
		kind = 2
	case t.Sampled:
		kind = 1
	}
	if kind == 0 {
		return json.Marshal([]any{t.Text, t.ID})
	}
	list := []any{t.Text, t.ID, kind, round(t.Weight, 6), round(t.LogProb, 3), t.Version}
	if t.Reason != "" {
		list = append(list, t.Reason)
	}
	return json.Marshal(list)
}

// round cuts digits that nobody reads. What is not finite becomes 0: JSON has
// no word for it, and such a token did not train.
func round(x float64, digits int) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	p := math.Pow10(digits)
	return math.Round(x*p) / p
}

// Write writes the report to w.
func Write(w io.Writer, d Data) error {
	t, err := template.New("report.html").Funcs(functions()).ParseFS(assets, "assets/report.html")
	if err != nil {
		return fulgur.E(fulgur.KindInternal, "write report", "", err)
	}
	p := page{Data: d}
	for _, s := range d.CPU {
		p.CPUTotal += s.Time
	}
	for name, to := range map[string]*string{
		"assets/uplot.min.css": (*string)(&p.Style), "assets/uplot.min.js": (*string)(&p.Library), "assets/report.js": (*string)(&p.Script),
	} {
		src, err := assets.ReadFile(name)
		if err != nil {
			return fulgur.E(fulgur.KindInternal, "write report", "", err)
		}
		*to = string(src)
	}
	own, err := assets.ReadFile("assets/report.css")
	if err != nil {
		return fulgur.E(fulgur.KindInternal, "write report", "", err)
	}
	p.Style += template.CSS(own)
	p.Curve = template.HTML(CurveSVG(d)) //nolint:gosec // made of numbers and escaped text only
	p.Island, p.Cut = newIsland(d)
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("writing report: %w", err)
	}
	return nil
}

func newIsland(d Data) (island, []string) {
	i := island{Target: round(d.Target, 4), Problems: d.Problems, Groups: d.Groups, Steps: [][]float64{}, Validations: [][]any{}}
	var cut []string
	stride := (len(d.Steps) + maxSteps - 1) / maxSteps
	if stride > 1 {
		cut = append(cut, fmt.Sprintf("The charts show every %d-th of %d steps.", stride, len(d.Steps)))
	}
	for n, s := range d.Steps {
		if stride > 1 && n%stride != 0 {
			continue
		}
		mixed := 0.0
		if s.Groups > 0 {
			mixed = float64(s.Mixed) / float64(s.Groups)
		}
		i.Steps = append(i.Steps, []float64{float64(s.Step), round(s.Reward, 4), round(mixed, 3),
			round(s.Rollout.Seconds(), 3), round(s.Update.Seconds(), 3), round(s.Validation.Seconds(), 3)})
	}
	for _, v := range d.Validations {
		i.Validations = append(i.Validations, []any{v.Step, rounded(&v.Score), rounded(v.Greedy)})
	}
	if len(i.Problems) > maxProblems {
		cut = append(cut, fmt.Sprintf("%d of %d problems are shown.", maxProblems, len(i.Problems)))
		i.Problems = i.Problems[:maxProblems]
	}
	if len(i.Groups) > maxGroups {
		cut = append(cut, fmt.Sprintf("%d of %d groups are shown.", maxGroups, len(i.Groups)))
		i.Groups = i.Groups[:maxGroups]
	}
	problems := make([]Problem, len(i.Problems))
	for n, p := range i.Problems {
		p.Before, p.After = shortened(p.Before), shortened(p.After)
		problems[n] = p
	}
	groups := make([]Group, len(i.Groups))
	for n, g := range i.Groups {
		rollouts := make([]Rollout, len(g.Rollouts))
		for k := range g.Rollouts {
			rollouts[k] = *shortened(&g.Rollouts[k])
		}
		g.Rollouts = rollouts
		groups[n] = g
	}
	i.Problems, i.Groups = problems, groups
	return i, cut
}

func rounded(s *Score) *Score {
	if s == nil {
		return nil
	}
	return &Score{Value: round(s.Value, 4), Low: round(s.Low, 4), High: round(s.High, 4), Problems: s.Problems, Reward: s.Reward}
}

// shortened cuts a rollout to maxTokens, and says so in its last token.
func shortened(r *Rollout) *Rollout {
	if r == nil {
		return nil
	}
	out := *r
	out.Samples = [][]Token{}
	if r.Reward != nil {
		v := round(*r.Reward, 4)
		out.Reward = &v
	}
	if r.Advantage != nil {
		v := round(*r.Advantage, 4)
		out.Advantage = &v
	}
	room, left := maxTokens, 0
	for _, s := range r.Samples {
		if n := min(room, len(s)); n > 0 {
			out.Samples = append(out.Samples, s[:n:n])
			room -= n
			left += len(s) - n
		} else {
			left += len(s)
		}
	}
	if left > 0 && len(out.Samples) > 0 {
		last := len(out.Samples) - 1
		out.Samples[last] = append(out.Samples[last], Token{Text: fmt.Sprintf(" … %d more tokens", left)})
	}
	return &out
}

// functions of the template.
func functions() template.FuncMap {
	return template.FuncMap{
		"mean":    func(x *float64) string { return fmt.Sprintf("%.3f", *x) },
		"percent": func(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) },
		"share": func(a, b int) string {
			if b == 0 {
				return "–"
			}
			return fmt.Sprintf("%.1f %%", 100*float64(a)/float64(b))
		},
		"ratio": func(a, b int) string {
			if b == 0 {
				return "–"
			}
			return fmt.Sprintf("%.2f", float64(a)/float64(b))
		},
		"thousands": thousands,
		"clock": func(d time.Duration) string {
			if d < time.Minute {
				return fmt.Sprintf("%.1f s", d.Seconds())
			}
			if d < time.Hour {
				return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
			}
			return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
		},
		"seconds": func(d time.Duration) string { return fmt.Sprintf("%.0f", d.Seconds()) },
		"day":     func(t time.Time) string { return t.Format("2006-01-02 15:04 MST") },
		"total": func(o []Outcome) (n int) {
			for _, x := range o {
				n += x.Count
			}
			return n
		},
	}
}

// thousands writes a count with thin spaces between groups of three digits.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u2009" + s[i:]
	}
	return s
}
