package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	tokensPerSecond = 20
	stampMark       = "t="
)

// streams measures live streams: by how much a token is later at the client than it
// left the model server. The bar is for 2,000, or for the most at which a plain Go proxy
// keeps its own p99 under 15 ms: model server and clients share its cores.
func (b *bench) streams() error {
	b.mock.streamFor.Store(int64(pick(b, 3*time.Second, 10*time.Second)))
	n, err := b.streamCount, error(nil)
	if n == 0 {
		if n, err = b.proxiedStreams(); err != nil {
			return err
		}
	}
	s, err := b.startFulgur("streams")
	if err != nil {
		return err
	}
	if err := s.create("s", n); err != nil {
		return err
	}
	before := measure(s.pid())
	d, err := b.streamed(s, n)
	if err != nil {
		return err
	}
	after := measure(s.pid())
	b.report.figure(fmt.Sprintf("%d streams through fulgur: a token's delay, p50", n), "%.1f ms", ms(percentile(d, 50)))
	b.report.most(fmt.Sprintf("%d streams through fulgur: a token's delay, p99", n), ms(percentile(d, 99)), 25, "ms")
	b.report.figure("CPU s per 1000 tokens; memory before and at its peak", "%.4f; %.0f and %.0f MiB", (after.cpu-before.cpu)/float64(len(d))*1000, before.rss, peakRSS(s.pid()))
	b.report.figure("memory for a stream, at the peak", "%.0f KiB", (peakRSS(s.pid())-before.rss)*1024/float64(n))
	return nil
}

// proxiedStreams finds at how many streams a plain Go proxy holds, and measures the CPU
// that they take it.
func (b *bench) proxiedStreams() (n int, err error) {
	proxy, err := b.startProxy()
	if err != nil {
		return 0, err
	}
	defer proxy.stop()
	var before, after usage
	for _, n = range pick(b, []int{2000, 1000, 500, 250, 125}, []int{2000, 1400, 1000, 700, 500, 350, 250, 175, 125}) {
		direct, err := b.streamed(&server{url: b.mock.url, plain: true}, n)
		if err != nil {
			return 0, err
		}
		before = measure(proxy.pid())
		d, err := b.streamed(proxy, n)
		if err != nil {
			return 0, err
		}
		after = measure(proxy.pid())
		b.report.figure(fmt.Sprintf("%d streams: a token's delay, p50 / p99, direct and Go proxy", n), "%.1f / %.1f and %.1f / %.1f ms",
			ms(percentile(direct, 50)), ms(percentile(direct, 99)), ms(percentile(d, 50)), ms(percentile(d, 99)))
		if percentile(d, 99) < 15*time.Millisecond {
			break
		}
	}
	b.report.figure("CPU s per 1000 tokens, Go proxy", "%.4f", (after.cpu-before.cpu)/float64(n*b.tokens())*1000)
	return n, nil
}

// tokens is how many stamped tokens a stream has.
func (b *bench) tokens() int {
	return int(time.Duration(b.mock.streamFor.Load())/b.mock.streamEvery) - 1
}

// streamed runs n streams at once and returns the delays of their tokens.
func (b *bench) streamed(s *server, n int) ([]time.Duration, error) {
	body := bytes.Replace(small.request(), []byte(`{`), []byte(`{"stream":true,"stream_options":{"include_usage":true},`), 1)
	delays := make([][]time.Duration, n)
	errs := make([]error, n)
	want := b.tokens()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			time.Sleep(time.Second * time.Duration(i) / time.Duration(n)) // they begin within a second
			delays[i], errs[i] = readStream(s.path(fmt.Sprintf("s-%d", i)), body, want)
		})
	}
	wg.Wait()
	return slices.Concat(delays...), errors.Join(errs[:min(n, 8)]...)
}

// readStream reads a stream of so many stamped tokens.
func readStream(url string, body []byte, want int) ([]time.Duration, error) {
	res, err := send(context.Background(), "POST", url, body)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	out := make([]time.Duration, 0, want)
	for r := bufio.NewReaderSize(res.Body, 8<<10); ; {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		now := stamp()
		_, rest, ok := bytes.Cut(line, []byte(`"content":"`+stampMark))
		if !ok {
			continue
		}
		digits, _, _ := bytes.Cut(rest, []byte(" "))
		sent, err := strconv.ParseInt(string(digits), 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, time.Duration(now-sent))
	}
	if len(out) != want {
		return nil, fmt.Errorf("a stream had %d tokens, want %d", len(out), want)
	}
	return out, nil
}
