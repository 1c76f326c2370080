package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var client = &http.Client{Transport: &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 4096, DisableCompression: true}}

func newReader(b []byte) *bytes.Reader { return bytes.NewReader(b) }

// send makes a request with the server key, and fails with what was answered if it is no 2xx.
func send(ctx context.Context, method, url string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, newReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 200))
		res.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, res.Status, b)
	}
	return res, nil
}

var sinks = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// drain reads an answer to its end and returns its size.
func drain(res *http.Response) (n int64, err error) {
	defer res.Body.Close()
	buf := sinks.Get().(*[]byte)
	defer sinks.Put(buf)
	for {
		k, err := res.Body.Read(*buf)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// post makes a call and reads the answer.
func post(url string, body []byte) error {
	res, err := send(context.Background(), "POST", url, body)
	if err != nil {
		return err
	}
	_, err = drain(res)
	return err
}

// get fetches a page and returns its size.
func get(url string) (int64, error) {
	res, err := send(context.Background(), "GET", url, nil)
	if err != nil {
		return 0, err
	}
	return drain(res)
}

// do makes one control request.
func (s *server) do(method, path string, in, out any) error {
	var body []byte
	if in != nil {
		body, _ = json.Marshal(in)
	}
	res, err := send(context.Background(), method, s.url+path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	return err
}

// create makes n rollouts PREFIX-0, PREFIX-1, …
func (s *server) create(prefix string, n int) error {
	if s.plain {
		return nil
	}
	for i := 0; i < n; i += 500 {
		var list []any
		for j := i; j < min(n, i+500); j++ {
			list = append(list, map[string]any{"rollout_id": fmt.Sprintf("%s-%d", prefix, j),
				"input": map[string]any{"data_id": fmt.Sprintf("row%d", j/8), "prompt": "Fix the failing test."}})
		}
		if err := s.do("POST", "/api/rollouts", list, nil); err != nil {
			return err
		}
	}
	return nil
}

// path is where a rollout's calls go.
func (s *server) path(rollout string) string {
	if s.plain {
		return s.url + "/v1/chat/completions"
	}
	return s.url + "/proxy/rollout/" + rollout + "/attempt/0/mode/train/openai/v1/chat/completions"
}

// measured is what a load took.
type measured struct {
	n              int
	perSecond, cpu float64       // cpu: seconds of the server for 1000 operations
	p50, p90, p99  time.Duration // of an operation
	rss            float64       // MiB at the end
	first          float64       // cpu of the first call of each caller
}

// load runs n operations by c callers, at most limit long, and measures the server.
// One failure fails it: a gateway under load loses no call.
func (s *server) load(c, n int, limit time.Duration, op func(i int) error) (measured, error) {
	lat := make([][]time.Duration, c)
	errs := make([]error, c)
	var next atomic.Int64
	var before usage
	if s.cmd != nil {
		before = measure(s.pid())
	}
	start := time.Now()
	var wg sync.WaitGroup
	for w := range c {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || time.Since(start) > limit {
					return
				}
				began := time.Now()
				if err := op(i); err != nil {
					errs[w] = err
					return
				}
				lat[w] = append(lat[w], time.Since(began))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:min(c, 8)]...); err != nil {
		return measured{}, err
	}
	m := measured{}
	all := slices.Concat(lat...)
	m.n = len(all)
	m.perSecond = float64(m.n) / time.Since(start).Seconds()
	m.p50, m.p90, m.p99 = percentile(all, 50), percentile(all, 90), percentile(all, 99)
	if s.cmd != nil {
		after := measure(s.pid())
		m.cpu, m.rss = (after.cpu-before.cpu)/float64(m.n)*1000, after.rss
	}
	return m, nil
}

// percentile sorts v and returns its p-th percentile, 0 for none.
func percentile(v []time.Duration, p int) time.Duration {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(len(v)-1, len(v)*p/100)]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
