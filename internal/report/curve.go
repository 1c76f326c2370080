package report

import (
	"bytes"
	"fmt"
	"html"
	"strings"
)

// Size of the curve's drawing, in pixels.
const (
	curveWidth, curveHeight              = 760, 340
	marginLeft, marginRight, marginTop   = 52, 16, 34
	marginBottom                         = 44
	colorTrain, colorGreedy, colorReward = "#2f7ed8", "#1a9e5c", "#b0b7c3"
)

// CurveSVG draws the learning curve as one SVG image that needs nothing else,
// for a README or for a page without scripts: validation at the training
// temperature and greedy, with 95 % intervals, and the mean reward of training.
func CurveSVG(d Data) []byte {
	last := 1
	for _, s := range d.Steps {
		last = max(last, s.Step)
	}
	for _, v := range d.Validations {
		last = max(last, v.Step)
	}
	x := func(step int) float64 {
		return marginLeft + float64(step)/float64(last)*(curveWidth-marginLeft-marginRight)
	}
	y := func(v float64) float64 {
		v = min(max(round(v, 6), 0), 1)
		return marginTop + (1-v)*(curveHeight-marginTop-marginBottom)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="system-ui, sans-serif" font-size="12">`, curveWidth, curveHeight, curveWidth, curveHeight)
	fmt.Fprintf(&out, `<title>%s</title>`, html.EscapeString("Learning curve of "+d.Title))
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#ffffff" rx="8"/>`, curveWidth, curveHeight)
	for _, v := range []float64{0, 0.2, 0.4, 0.6, 0.8, 1} {
		fmt.Fprintf(&out, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e6e9ee"/><text x="%d" y="%.1f" text-anchor="end" fill="#5b6472">%.1f</text>`,
			marginLeft, curveWidth-marginRight, y(v), y(v), marginLeft-8, y(v)+4, v)
	}
	for i := 0; i <= 4; i++ {
		step := last * i / 4
		fmt.Fprintf(&out, `<text x="%.1f" y="%d" text-anchor="middle" fill="#5b6472">%d</text>`, x(step), curveHeight-marginBottom+18, step)
	}
	fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="middle" fill="#5b6472">training step</text>`, (curveWidth+marginLeft-marginRight)/2, curveHeight-8)
	if d.Target > 0 {
		fmt.Fprintf(&out, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#d98324" stroke-dasharray="5 4"/>`, marginLeft, curveWidth-marginRight, y(d.Target), y(d.Target))
	}

	var reward []string
	for _, s := range d.Steps {
		reward = append(reward, fmt.Sprintf("%.1f,%.1f", x(s.Step), y(s.Reward)))
	}
	line(&out, reward, colorReward, 1.2)
	type series struct {
		name, color string
		of          func(Validation) *Score
	}
	both := []series{
		{"validation, T=1", colorTrain, func(v Validation) *Score { return &v.Score }},
		{"validation, greedy", colorGreedy, func(v Validation) *Score { return v.Greedy }},
	}
	at := float64(marginLeft)
	legend := func(name, color string) {
		fmt.Fprintf(&out, `<circle cx="%.0f" cy="16" r="5" fill="%s"/><text x="%.0f" y="20" fill="#2b323c">%s</text>`, at+5, color, at+15, name)
		at += 34 + 6.6*float64(len(name))
	}
	for _, s := range both {
		var points, low, high []string
		for _, v := range d.Validations {
			score := s.of(v)
			if score == nil {
				continue
			}
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(v.Step), y(score.Value)))
			high = append(high, fmt.Sprintf("%.1f,%.1f", x(v.Step), y(score.High)))
			low = append([]string{fmt.Sprintf("%.1f,%.1f", x(v.Step), y(score.Low))}, low...)
		}
		if points == nil {
			continue
		}
		fmt.Fprintf(&out, `<polygon points="%s" fill="%s" fill-opacity="0.15"/>`, strings.Join(append(high, low...), " "), s.color)
		line(&out, points, s.color, 2.4)
		for _, p := range points {
			cx, cy, _ := strings.Cut(p, ",")
			fmt.Fprintf(&out, `<circle cx="%s" cy="%s" r="3" fill="%s"/>`, cx, cy, s.color)
		}
		legend(s.name, s.color)
	}
	if reward != nil {
		legend("training reward", colorReward)
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func line(out *bytes.Buffer, points []string, color string, width float64) {
	if len(points) > 0 {
		fmt.Fprintf(out, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f" stroke-linejoin="round"/>`, strings.Join(points, " "), color, width)
	}
}
