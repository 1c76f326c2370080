package container

import (
	"context"
	"os"

	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Acknowledge implements controller.Acknowledger: the ends are on record, and
// the containers go.
func (r *Runner) Acknowledge(keys []plan.Key) {
	r.grader.Forget(keys...) // of those that nobody grades any more
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return // Close removes them all
	}
	var names, folders []string
	for _, k := range keys {
		if l, ok := r.kept[k]; ok {
			names, folders = append(names, l.name), append(folders, l.folder)
			delete(r.kept, k)
		}
	}
	if len(names) == 0 {
		return
	}
	r.wg.Go(func() {
		r.removeAll(names)
		r.tidy(folders...)
	})
}

// tidy removes attempts' folders; "": there is none.
func (r *Runner) tidy(folders ...string) {
	for _, f := range folders {
		if f == "" {
			continue
		}
		if err := controller.RemoveAll(f); err != nil {
			r.Log.Warn("an attempt's folder could not be removed", "folder", f, "err", err)
		}
	}
}

func (r *Runner) removeAll(names []string) {
	if err := r.client.remove(context.WithoutCancel(r.life), names...); err != nil {
		r.Log.Warn("containers that have ended could not be removed", "containers", names, "err", err)
	}
}

// Leave implements controller.Leaver: the containers go on, and those that have
// ended stay, for the next runner of this scope.
func (r *Runner) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = true
}

// leaving says whether the runner is closed and leaves its containers.
func (r *Runner) leaving() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed && r.left
}

// Close implements controller.Runner.
func (r *Runner) Close() error {
	if !r.halt() {
		return nil
	}
	if r.leaving() {
		r.end() // the clients that wait
	}
	done := make(chan struct{})
	go func() { r.wg.Wait(); close(done) }()
	for waiting := true; waiting; { // hear what nobody else listens to any more
		select {
		case <-r.events:
		case <-done:
			waiting = false
		}
	}
	r.end()
	if !r.leaving() {
		names := make([]string, 0, len(r.kept))
		for _, l := range r.kept {
			names = append(names, l.name)
			r.tidy(l.folder)
		}
		r.removeAll(names)
	}
	r.disk.Close()
	if r.grader != nil {
		r.grader.Close()
	}
	_ = os.Remove(r.doors()) // if it is empty
	close(r.events)
	return nil
}

// halt starts nothing more and stops what runs; false: it had been called.
func (r *Runner) halt() bool {
	r.mu.Lock()
	was := r.closed
	r.closed = true
	all := make([]*box, 0, len(r.live))
	for _, x := range r.live {
		if !r.left {
			all = append(all, x)
		}
	}
	r.mu.Unlock()
	for _, x := range all {
		r.stop(x)
	}
	return !was
}

// Kill ends everything by force and at once, for a process that is about to
// exit; it may be called while Close waits.
func (r *Runner) Kill() {
	r.halt()
	r.mu.Lock()
	var names []string
	for _, x := range r.live {
		if !r.left {
			names = append(names, x.name)
		}
	}
	r.mu.Unlock()
	r.removeAll(names)
}
