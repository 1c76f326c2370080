package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const heldCalls = 2000

// holds has 2,000 calls arrive in a pause: the memory that each takes beyond its body,
// and how soon after the resume all have reached the model server.
func (b *bench) holds() error {
	for _, z := range []size{small, agent} {
		if err := b.hold(z); err != nil {
			return fmt.Errorf("%s calls: %w", z.name, err)
		}
	}
	return nil
}

func (b *bench) hold(z size) error {
	s, err := b.startFulgur("holds-"+z.name, "--pause", "hold")
	if err != nil {
		return err
	}
	defer s.stop()
	body := z.request()
	if err := s.create("w", heldCalls); err != nil {
		return err
	}
	// Connections, pools and the store have been used before.
	call := func(i int) error { return post(s.path(fmt.Sprintf("w-%d", i)), body) }
	if _, err := s.load(64, 500, time.Minute, call); err != nil {
		return err
	}
	if err := s.do("POST", "/proxy/pause", object{"retry_after_seconds": 5}, nil); err != nil {
		return err
	}
	client.CloseIdleConnections()
	time.Sleep(time.Second)
	before := measure(s.pid())
	errs := make([]error, heldCalls)
	var wg sync.WaitGroup
	for i := range heldCalls {
		wg.Go(func() { errs[i] = call(i) })
	}
	time.Sleep(pick(b, 10*time.Second, 60*time.Second))
	held := measure(s.pid())
	already, sampled := b.mock.served.Load(), make(chan struct{})
	b.mock.thinks.Store(&sampled)
	resumed := stamp()
	if err := s.do("POST", "/proxy/resume", nil, nil); err != nil {
		return err
	}
	for b.mock.served.Load() < already+heldCalls && stamp()-resumed < int64(time.Minute) {
		time.Sleep(5 * time.Millisecond)
	}
	b.mock.thinks.Store(nil)
	close(sampled)
	last := time.Duration(b.mock.arrived.Load() - resumed)
	wg.Wait()
	if err := errors.Join(errs[:8]...); err != nil {
		return err
	}
	if n := b.mock.served.Load() - already; n != heldCalls {
		return fmt.Errorf("%d calls reached the model server, want %d", n, heldCalls)
	}
	each := (held.rss-before.rss)*1024/heldCalls - float64(len(body))/1024
	b.report.figure(fmt.Sprintf("%d held %s calls: memory before and while held", heldCalls, z.name), "%.0f and %.0f MiB, bodies %.0f MiB; CPU %.2f s",
		before.rss, held.rss, float64(heldCalls*len(body))/(1<<20), held.cpu-before.cpu)
	b.report.most(fmt.Sprintf("memory of a held %s call beyond its body", z.name), each, 64, "KiB")
	b.report.most(fmt.Sprintf("all %d %s calls on their way after resume", heldCalls, z.name), last.Seconds(), 1, "s")
	return nil
}
