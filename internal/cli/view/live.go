package view

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
)

// model is the live view: a block of lines at the bottom of the screen that is
// drawn anew, under lines that stay.
type model struct {
	board *board
	title string
	width int
	now   time.Time
	start time.Time
	ended bool
}

type tick time.Time

// arrived is an event with the time it was sent.
type arrived struct {
	event Event
	at    time.Time
}

const frame = 250 * time.Millisecond // between two looks at the clock

func nextTick() tea.Cmd { return tea.Tick(frame, func(t time.Time) tea.Msg { return tick(t) }) }

func (m model) Init() tea.Cmd { return nextTick() }

func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tick:
		m.now = time.Time(msg)
		return m, nextTick()
	case tea.WindowSizeMsg:
		m.width = msg.Width
	case closing:
		m.ended = true // the last frame is empty: the summary takes its place
		return m, tea.Quit
	case arrived:
		m.now = msg.at
		lines, lasting := m.board.apply(msg.event, msg.at)
		if lasting && len(lines) > 0 {
			return m, tea.Println(strings.Join(lines, "\n"))
		}
	}
	return m, nil
}

// closing ends the live view.
type closing struct{}

func (m model) View() tea.View {
	if m.ended {
		return tea.View{DisableBracketedPasteMode: true}
	}
	view := tea.NewView(m.text())
	view.DisableBracketedPasteMode = true // nothing is read: leave the terminal as it is
	return view
}

// text is the block that is drawn anew, at most five lines.
func (m model) text() string {
	b := m.board
	width := max(m.width, 40)
	bold, dim := lipgloss.NewStyle().Bold(true), lipgloss.NewStyle().Faint(true)
	good, accent := lipgloss.NewStyle().Foreground(lipgloss.Green), lipgloss.NewStyle().Foreground(lipgloss.Cyan)

	head := []string{}
	if b.progress.Step > 0 || b.progress.Label != "" {
		head = append(head, stepName(b.progress))
	}
	head = append(head, short(m.now.Sub(m.start)))
	if left := b.left(); left > 0 {
		head = append(head, "about "+short(left)+" left")
	}
	lines := []string{bold.Render(m.title) + " " + string(b.phase.Name) + dim.Render("  "+strings.Join(head, " · "))}

	if p := b.progress; p.Total > 0 {
		done := min(p.Done, p.Total)
		cells := min(width-36, 48)
		full := cells * done / p.Total
		bar := accent.Render(strings.Repeat("█", full)) + dim.Render(strings.Repeat("░", cells-full))
		counts := fmt.Sprintf(" %d/%d rollouts", done, p.Total)
		if p.Active > 0 {
			counts += fmt.Sprintf(", %d agents", p.Active)
		}
		lines = append(lines, bar+counts)
	}
	if len(b.rewards) > 0 {
		lines = append(lines, fmt.Sprintf("reward      %s %.3f  %s", good.Render(spark(b.rewards, min(width-30, 40))), b.last.Reward,
			dim.Render(fmt.Sprintf("mixed groups %d/%d", b.last.Mixed, b.last.Groups))))
		lines = append(lines, "speed       "+b.speed())
	}
	if b.validation != nil {
		lines = append(lines, fmt.Sprintf("validation  step %d: %s", b.validation.Step, scores(*b.validation)))
	}
	lines = append(lines, dim.Render("Ctrl-C: save a checkpoint and stop; twice: stop at once"))
	for i, l := range lines {
		lines[i] = lipgloss.NewStyle().MaxWidth(width).Render(l)
	}
	return strings.Join(lines, "\n")
}

// spark draws values between 0 and the largest (at least 1) as a line of at
// most n blocks, each the mean of its share of the values.
func spark(values []float64, n int) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	n = min(n, len(values))
	top := 1.0
	for _, v := range values {
		top = max(top, v)
	}
	var out strings.Builder
	for i := range n {
		from, to := i*len(values)/n, (i+1)*len(values)/n
		sum := 0.0
		for _, v := range values[from:to] {
			sum += max(v, 0)
		}
		at := sum / float64(to-from) / top * float64(len(blocks)-1)
		out.WriteRune(blocks[int(at+0.5)])
	}
	return out.String()
}
