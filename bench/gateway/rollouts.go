package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// rollouts measures the control plane over 100,000 rollouts that have ended, and the
// reading of one rollout of 100 agent-sized calls.
func (b *bench) rollouts() error {
	s, err := b.startFulgur("rollouts")
	if err != nil {
		return err
	}
	ended := pick(b, 30_000, 100_000)
	if err := b.fill(s, ended); err != nil {
		return err
	}
	pages := []struct {
		name, path string
		n          int
		bar        float64 // ms of CPU
	}{
		{"listing queued and running, limit 50 (reference: 63)", "/api/rollouts?state_in=queuing&state_in=running&limit=50", 1000, 1},
		{"a cursor page of 1000 (reference: 21)", fmt.Sprintf("/api/rollouts/terminal?after=%d&limit=1000", ended-1000), 300, 5},
	}
	for _, p := range pages {
		m, err := s.load(1, p.n, 20*time.Second, func(int) error { _, err := get(s.url + p.path); return err })
		if err != nil {
			return err
		}
		b.report.most(fmt.Sprintf("%d rollouts: %s, CPU", ended, p.name), m.cpu, p.bar, "ms")
	}
	b.report.figure("memory", "%.0f MiB", measure(s.pid()).rss)
	reference := 0.19
	if b.reference != "" {
		ref, err := b.startReference()
		if err != nil {
			return err
		}
		m, _, err := b.triplets(ref, 5)
		if err != nil {
			return err
		}
		reference = m.cpu / 1000
		ref.stop()
	}
	m, bytes, err := b.triplets(s, 50)
	if err != nil {
		return err
	}
	b.report.figure("a rollout of 100 calls as triplets", "%.1f MB, %.0f ms", float64(bytes)/1e6, ms(m.p50))
	b.report.most("a rollout of 100 calls as triplets, CPU; a fifth of the reference's", m.cpu/1000, reference/5, "s")
	return b.healthMeanwhile(s)
}

// fill makes n rollouts that end, and 50 that wait.
func (b *bench) fill(s *server, n int) error {
	if err := s.create("t", n); err != nil {
		return err
	}
	m, err := s.load(64, n, 10*time.Minute, func(i int) error {
		return s.do("PATCH", fmt.Sprintf("/api/rollouts/t-%d", i), object{"status": object{"state": "failed"}}, nil)
	})
	if err != nil {
		return err
	}
	b.report.figure("ending a rollout by PATCH, 64 callers", "%.0f a second, %.3f CPU s per 1000 (reference: 0.81)", m.perSecond, m.cpu)
	return s.create("waiting", 50)
}

// triplets records 100 agent-sized calls of one rollout, and reads them as triplets.
func (b *bench) triplets(s *server, times int) (m measured, size int64, err error) {
	const seed = 1 << 20
	talk := b.mock.talks.of(seed)
	if err := s.create("triplets", 1); err != nil {
		return m, 0, err
	}
	for k := range turns {
		if err := post(s.path("triplets-0"), talk.request(seed, k)); err != nil {
			return m, 0, err
		}
	}
	m, err = s.load(1, times, 30*time.Second, func(int) (err error) {
		size, err = get(s.url + "/api/rollouts/triplets-0/events?format=triplet")
		return err
	})
	return m, size, err
}

// healthMeanwhile asks for /healthz while a reader loops over triplets and raw events.
func (b *bench) healthMeanwhile(s *server) error {
	var stop atomic.Bool
	failed := make(chan error, 1)
	go func() {
		var err error
		for !stop.Load() && err == nil {
			_, err = get(s.url + "/api/rollouts/triplets-0/events?format=triplet")
			if err == nil {
				_, err = get(s.url + "/api/rollouts/triplets-0/events")
			}
		}
		failed <- err
	}()
	n := pick(b, 300, 1500)
	took := make([]time.Duration, n)
	var err error
	for i := 0; i < n && err == nil; i++ {
		time.Sleep(5 * time.Millisecond)
		began := time.Now()
		_, err = get(s.url + "/healthz")
		took[i] = time.Since(began)
	}
	stop.Store(true)
	if err := errors.Join(err, <-failed); err != nil {
		return err
	}
	b.report.most("/healthz p99 while a rollout of 100 calls is read in a loop", ms(percentile(took, 99)), 20, "ms")
	return nil
}
