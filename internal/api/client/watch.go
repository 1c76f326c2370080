package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

// watch is an open stream of changes. It has no goroutine: who waits reads.
type watch struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	lines  *bufio.Reader
	at     fulgur.Seq // what was delivered
}

func (w *watch) close() {
	w.cancel()
	_ = w.body.Close() // the connection is gone either way
}

// Changes is store.Store's, over server-sent events: a stream is kept
// between calls that go on where the last one ended. A stream that breaks is
// opened again; a server that is down is waited for as long as RetryFor.
func (c *Client) Changes(ctx context.Context, run fulgur.RunID, after fulgur.Seq) ([]fulgur.Change, error) {
	const op = "watch changes"
	broken, wait := time.Time{}, 50*time.Millisecond
	for {
		w, again, err := c.watchAt(ctx, run, after)
		if err == nil {
			var out []fulgur.Change
			var alive bool
			if out, alive, err = c.next(ctx, w); err == nil {
				c.keep(run, w)
				return out, nil
			}
			w.close()
			if ctx.Err() != nil {
				return nil, canceled(op, ctx)
			}
			if again = fulgur.KindOf(err) != fulgur.KindInvalid; alive {
				broken, wait = time.Time{}, 50*time.Millisecond
			}
		}
		if !again {
			return nil, err
		}
		if broken.IsZero() {
			broken = time.Now()
		}
		if time.Since(broken)+wait > c.o.RetryFor {
			return nil, err
		}
		if !sleep(ctx, wait) {
			return nil, canceled(op, ctx)
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// maxIdle bounds the idle streams of a run: one for each that reads it in turns.
const maxIdle = 4

// watchAt returns an idle stream of the run that stands at after, else a new one.
func (c *Client) watchAt(ctx context.Context, run fulgur.RunID, after fulgur.Seq) (w *watch, again bool, err error) {
	const op = "watch changes"
	c.mu.Lock()
	ws := c.watches[run]
	if i := slices.IndexFunc(ws, func(w *watch) bool { return w.at == after }); i >= 0 {
		w = ws[i]
		c.watches[run] = slices.Delete(ws, i, i+1)
	}
	c.mu.Unlock()
	if w != nil {
		return w, false, nil
	}
	// The stream outlives ctx; while it is opened, and while it is read, ctx ends it.
	stream, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	query := url.Values{"run": {string(run)}, "after": {strconv.FormatInt(int64(after), 10)}}
	for _, state := range c.o.States {
		query.Add("state", string(state))
	}
	r := request{op: op, method: "GET", path: "/watch", query: query}
	resp, err := c.send(stream, r, nil)
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			return nil, false, canceled(op, ctx)
		}
		return nil, true, fulgur.E(fulgur.KindUnavailable, op, "the server at "+c.base+" cannot be reached", err)
	}
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // what came of it is told
		cancel()
		_ = resp.Body.Close()
		return nil, resp.StatusCode == http.StatusServiceUnavailable, problem(op, resp.StatusCode, b)
	}
	return &watch{body: resp.Body, cancel: cancel, lines: bufio.NewReaderSize(resp.Body, 1<<16), at: after}, false, nil
}

// keep puts a stream back for the next call.
func (c *Client) keep(run fulgur.RunID, w *watch) {
	if w.at < 0 {
		w.close()
		return
	}
	c.mu.Lock()
	ws := append(c.watches[run], w)
	var old *watch
	if len(ws) > maxIdle {
		old, ws = ws[0], ws[1:]
	}
	c.watches[run] = ws
	c.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// next reads the next changes; alive says that the server showed itself.
func (c *Client) next(ctx context.Context, w *watch) (out []fulgur.Change, alive bool, err error) {
	const op = "watch changes"
	stop := context.AfterFunc(ctx, w.cancel)
	defer stop()
	silence := time.AfterFunc(c.o.Silence, w.cancel)
	defer silence.Stop()
	event := ""
	for {
		line, err := readLine(w.lines)
		if err != nil {
			return nil, alive, fulgur.E(fulgur.KindUnavailable, op, "the server at "+c.base+" broke off the watch", err)
		}
		alive = true
		silence.Reset(c.o.Silence)
		if name, ok := bytes.CutPrefix(line, []byte("event: ")); ok {
			event = string(name)
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case !ok:
		case event == "error":
			var p api.Problem
			if json.Unmarshal(data, &p) != nil || p.Kind == "" {
				p.Kind, p.Detail = fulgur.KindUnavailable, string(data)
			}
			return nil, alive, fulgur.E(p.Kind, op, p.Detail, nil)
		default:
			if err := json.Unmarshal(data, &out); err != nil || len(out) == 0 {
				return nil, alive, fulgur.E(fulgur.KindInternal, op, "the server's watch cannot be read", err)
			}
			if stop() {
				w.at = out[len(out)-1].Seq
			} else {
				w.at = -1 // ctx ended meanwhile and took the stream with it
			}
			return out, alive, nil
		}
	}
}

// readLine reads a line of any length, without its end.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err == nil {
		return bytes.TrimRight(line, "\r\n"), nil
	}
	long := bytes.Clone(line)
	for err == bufio.ErrBufferFull {
		line, err = r.ReadSlice('\n')
		long = append(long, line...)
	}
	return bytes.TrimRight(long, "\r\n"), err
}
