package report

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// Simulation is what the page of simulated schedules shows.
type Simulation struct {
	Title    string
	Program  string
	Facts    []string // one sentence each: the workload, the device
	Ideal    float64  // seconds a step, at least
	Verdict  string
	Outcomes []SimulatedSchedule
}

// SimulatedSchedule is one schedule's outcome, and what the device did.
type SimulatedSchedule struct {
	Name           string
	SecondsPerStep float64
	SpeedUp        float64 // over synchronous; 0: not known
	IdealShare     float64
	MeanStaleness  float64
	MaxStaleness   int64
	WastedShare    float64
	Drain          float64 // seconds a step
	Sampling       float64 // shares of the device's time
	Training       float64
	Running        float64 // rollouts, mean
	Slots          int

	// What the device did from the start of the simulation on, in bins of Width
	// seconds: shares of it that sampled and trained, and how many rollouts ran.
	Width                   float64
	Sample, Train, Rollouts []float64
}

const simulationPage = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title><style>{{.Style}}
table.wide { font-size: 13px } table.wide th { vertical-align: bottom; white-space: normal } table.wide th, table.wide td { padding-right: 9px }</style></head><body><main>
<p class="crumb"><b>{{.Title}}</b></p>
<header><h2>{{.Verdict}}</h2>{{range .Facts}}<p class="note">{{.}}</p>{{end}}</header>
<section><h2>Schedules</h2><table class="wide"><thead><tr><th>schedule</th><th class="n">s a step</th><th class="n">over synchronous</th><th class="n">of the ideal</th>
<th class="n">staleness, mean</th><th class="n">most</th><th class="n">wasted tokens</th><th class="n">drain, s a step</th><th class="n">device samples</th><th class="n">trains</th><th class="n">is idle</th><th class="n">rollouts run</th><th class="n">slots</th></tr></thead>
<tbody>{{range .Rows}}<tr><td>{{.Name}}</td>{{range .Cells}}<td class="n">{{.}}</td>{{end}}</tr>{{end}}</tbody></table>
<p class="note">Ideal: a step's tokens at the engine's peak, and the update: {{.IdealText}} s. Staleness: policy versions between a group's first call and its training. A device that samples below its peak counts as idle for the rest.</p></section>
{{range .Charts}}<section><h2>{{.Name}}</h2>{{.SVG}}</section>{{end}}
<p class="note"><span style="color:#2f7ed8">■</span> sampling, share of the engine's peak · <span style="color:#d98324">■</span> training · <span style="color:#667085">─</span> rollouts under way (right)</p>
<footer>{{.Program}}</footer></main></body></html>
`

// WriteSimulation writes the page: one file that needs nothing else.
func WriteSimulation(w io.Writer, s Simulation) error {
	style, err := assets.ReadFile("assets/report.css")
	if err != nil {
		return fulgur.E(fulgur.KindInternal, "write the simulation's page", "", err)
	}
	t, err := template.New("simulation").Parse(simulationPage)
	if err != nil {
		return fulgur.E(fulgur.KindInternal, "write the simulation's page", "", err)
	}
	type row struct {
		Name  string
		Cells []string
	}
	type chart struct {
		Name string
		SVG  template.HTML
	}
	p := struct {
		Simulation
		Style     template.CSS
		IdealText string
		Rows      []row
		Charts    []chart
	}{Simulation: s, Style: template.CSS(style), IdealText: figure(s.Ideal)}
	for _, o := range s.Outcomes {
		over := "-"
		if o.SpeedUp > 0 {
			over = fmt.Sprintf("%.2fx", o.SpeedUp)
		}
		p.Rows = append(p.Rows, row{o.Name, []string{figure(o.SecondsPerStep), over, percent(o.IdealShare), fmt.Sprintf("%.1f", o.MeanStaleness),
			fmt.Sprint(o.MaxStaleness), percent(o.WastedShare), figure(o.Drain), percent(o.Sampling), percent(o.Training),
			percent(max(0, 1-o.Sampling-o.Training)), figure(o.Running), fmt.Sprint(o.Slots)}})
	}
	window, most := simulationWindow(s.Outcomes)
	for _, o := range s.Outcomes {
		svg := DeviceSVG(o, window, most)
		p.Charts = append(p.Charts, chart{o.Name, template.HTML(svg)}) //nolint:gosec // made of numbers only
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("writing the simulation's page: %w", err)
	}
	return nil
}

func percent(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }

// figure writes three digits.
func figure(x float64) string {
	if x >= 100 || x == 0 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.*f", 2-int(math.Floor(math.Log10(max(x, .1)))), x)
}

// simulationWindow is the time that all charts show, so that they compare: the
// shortest run's; and the most rollouts that any of them shows.
func simulationWindow(all []SimulatedSchedule) (seconds, rollouts float64) {
	seconds = math.Inf(1)
	for _, o := range all {
		seconds = min(seconds, o.Width*float64(len(o.Sample)))
	}
	for _, o := range all {
		for i, r := range o.Rollouts {
			if float64(i)*o.Width < seconds {
				rollouts = max(rollouts, r)
			}
		}
	}
	return seconds, max(rollouts, 1)
}

// Size of a device's drawing, in pixels.
const (
	deviceWidth, deviceHeight = 1040, 170
	deviceColumns             = 480
)

// DeviceSVG draws what the device did in the first seconds of a simulation, as
// one SVG image that needs nothing else; most is the scale of the rollouts' line.
func DeviceSVG(o SimulatedSchedule, seconds, most float64) []byte {
	if !(seconds > 0) || math.IsInf(seconds, 0) || o.Width <= 0 {
		return nil
	}
	n := min(deviceColumns, max(1, int(seconds/o.Width)))
	sample, train, rollouts := columns(o.Sample, o.Width, seconds, n), columns(o.Train, o.Width, seconds, n), columns(o.Rollouts, o.Width, seconds, n)
	const left, right, top, bottom = 44, 52, 8, 30
	x := func(i int) float64 { return left + float64(i)/float64(n)*(deviceWidth-left-right) }
	y := func(v float64) float64 { return top + (1-min(max(v, 0), 1))*(deviceHeight-top-bottom) }
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="100%%" role="img" font-family="system-ui, sans-serif" font-size="12"><title>device use over time</title>`, deviceWidth, deviceHeight)
	for _, v := range []float64{0, .5, 1} {
		fmt.Fprintf(&out, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#8888" stroke-width="0.5"/><text x="%d" y="%.1f" text-anchor="end" fill="#667085">%.0f %%</text><text x="%d" y="%.1f" fill="#667085">%s</text>`,
			left, deviceWidth-right, y(v), y(v), left-6, y(v)+4, 100*v, deviceWidth-right+6, y(v)+4, figure(v*most))
	}
	for i := range 5 {
		at := seconds * float64(i) / 4
		fmt.Fprintf(&out, `<text x="%.1f" y="%d" text-anchor="middle" fill="#667085">%s</text>`, left+float64(i)/4*(deviceWidth-left-right), deviceHeight-10, clock(at))
	}
	stack := func(low, high []float64, color string) {
		fmt.Fprintf(&out, `<path d="M%.1f %.1f`, x(0), y(low[0]))
		for i := range n {
			fmt.Fprintf(&out, "L%.1f %.1fL%.1f %.1f", x(i), y(high[i]), x(i+1), y(high[i]))
		}
		for i := n - 1; i >= 0; i-- {
			fmt.Fprintf(&out, "L%.1f %.1fL%.1f %.1f", x(i+1), y(low[i]), x(i), y(low[i]))
		}
		fmt.Fprintf(&out, `Z" fill="%s" fill-opacity="0.8"/>`, color)
	}
	both := make([]float64, n)
	for i := range both {
		both[i] = sample[i] + train[i]
	}
	stack(make([]float64, n), sample, colorTrain)
	stack(sample, both, "#d98324")
	out.WriteString(`<polyline fill="none" stroke="#667085" stroke-width="1.2" points="`)
	for i := range n {
		fmt.Fprintf(&out, "%.1f,%.1f ", (x(i)+x(i+1))/2, y(rollouts[i]/most))
	}
	out.WriteString(`"/></svg>`)
	return []byte(out.String())
}

// columns averages bins of a width to n columns of the first seconds.
func columns(bins []float64, width, seconds float64, n int) []float64 {
	out := make([]float64, n)
	each := seconds / float64(n)
	for c := range out {
		from, to := float64(c)*each, float64(c+1)*each
		for i := int(from / width); i < len(bins) && float64(i)*width < to; i++ {
			overlap := min(to, float64(i+1)*width) - max(from, float64(i)*width)
			out[c] += bins[i] * max(0, overlap) / each
		}
	}
	return out
}

// clock writes a time of the simulation.
func clock(seconds float64) string {
	switch {
	case seconds >= 7200:
		return figure(seconds/3600) + " h"
	case seconds >= 300:
		return figure(seconds/60) + " min"
	}
	return figure(seconds) + " s"
}
