// Package view shows a training run in the terminal: a live block where the
// output is a terminal, plain lines where it is not. The trainer sends events
// and is never held up by a slow terminal.
package view

import (
	"fmt"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
)

// Options of a view.
type Options struct {
	Title   string // the run's name
	TTY     bool   // w is a terminal that may be drawn on
	NoColor bool   // NO_COLOR is set, or the user said so
	Width   int    // of the terminal in columns, if known
}

// View shows events. Send may be called from any goroutine.
type View struct {
	w       io.Writer
	options Options
	start   time.Time

	mu     sync.Mutex
	queue  []arrived
	closed bool
	wake   chan struct{} // holds one token: there is something in queue, or closed

	finished chan struct{} // closed when run has returned
}

// New starts a view that writes to w. Close ends it.
func New(w io.Writer, o Options) *View {
	v := &View{w: w, options: o, start: time.Now(), wake: make(chan struct{}, 1), finished: make(chan struct{})}
	go v.run()
	return v
}

// Send hands an event over. It never waits for the terminal: events queue up,
// and of several progress reports only the newest is kept.
func (v *View) Send(e Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	item := arrived{e, time.Now()}
	if n := len(v.queue); n > 0 {
		_, isProgress := e.(StepProgress)
		if _, was := v.queue[n-1].event.(StepProgress); was && isProgress {
			v.queue[n-1] = item
			return
		}
	}
	v.queue = append(v.queue, item)
	v.wakeLocked()
}

func (v *View) wakeLocked() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Close shows what is still queued, takes the live block away, prints the
// summary of Done, and returns when all is written. It may be called twice.
func (v *View) Close() {
	v.mu.Lock()
	v.closed = true
	v.wakeLocked()
	v.mu.Unlock()
	<-v.finished
}

// take returns what is queued, and whether Close was called.
func (v *View) take() ([]arrived, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	items := v.queue
	v.queue = nil
	return items, v.closed
}

// run is the goroutine of the view; it ends after Close.
func (v *View) run() {
	defer close(v.finished)
	b := &board{said: v.start}
	show := func(item arrived) { v.print(b.apply(item.event, item.at)) }
	end := func() {}
	if v.options.TTY {
		show, end = v.live(b)
	}
	for range v.wake {
		items, closed := v.take()
		for _, item := range items {
			show(item)
		}
		if closed {
			break
		}
	}
	end()
	if b.done != nil {
		v.print(b.done.summary(), true)
	}
}

func (v *View) print(lines []string, _ bool) {
	for _, l := range lines {
		fmt.Fprintln(v.w, l) //nolint:errcheck // nowhere to tell it: the run goes on without a view
	}
}

// live starts the live block and returns how to show an event and how to end.
// It takes no input and no signals: Ctrl-C stays the command's.
func (v *View) live(b *board) (show func(arrived), end func()) {
	options := []tea.ProgramOption{tea.WithOutput(v.w), tea.WithInput(nil), tea.WithoutSignalHandler()}
	if v.options.NoColor {
		options = append(options, tea.WithColorProfile(colorprofile.Ascii))
	}
	if v.options.Width > 0 {
		options = append(options, tea.WithWindowSize(v.options.Width, 24))
	}
	width := v.options.Width
	if width == 0 {
		width = 80
	}
	p := tea.NewProgram(model{board: b, title: clean(v.options.Title), width: width, now: v.start, start: v.start}, options...)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.Run() //nolint:errcheck // a terminal that cannot be drawn on: lines follow below
	}()
	show = func(item arrived) {
		select {
		case <-stopped: // the terminal went away: go on with lines
			v.print(b.apply(item.event, item.at))
		default:
			p.Send(item)
		}
	}
	return show, func() { p.Send(closing{}); <-stopped }
}
