package sampler

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"time"
)

// direct is a transport for plain HTTP/1.1 that has no goroutine: the caller writes its
// request and reads the answer. http.Transport has two for each connection, with buffers
// and stacks that are read at each collection; with a thousand calls in flight they were
// a large part of what those cost. What is no plain request goes by other.
type direct struct {
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
	other *http.Transport
	keep  time.Duration // how long an idle connection is kept

	mu    sync.Mutex
	idle  map[string][]*wire // by address, the last used at the end
	sweep *time.Timer        // nil: there are none
}

const (
	maxIdle = 4096     // connections to one address
	maxHead = 10 << 20 // bytes of an answer's head, as for http.Transport
	// A body of more is written while the answer is read: a server may answer, and read no
	// more of it.
	maxInline = 256 << 10
)

// wire is a connection.
type wire struct {
	net.Conn
	addr  string
	br    *bufio.Reader
	left  int       // bytes that may be read yet
	since time.Time // of its last use
}

var errHead = errors.New("the head of the server's answer is too long")

// Read implements io.Reader, with a limit.
func (w *wire) Read(p []byte) (int, error) {
	if w.left <= 0 {
		return 0, errHead
	}
	n, err := w.Conn.Read(p)
	w.left -= n
	return n, err
}

// RoundTrip implements http.RoundTripper.
func (d *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	if !plain(req) {
		return d.other.RoundTrip(req)
	}
	if req.Body != nil {
		defer req.Body.Close()
	}
	ctx := req.Context()
	w, err := d.connect(ctx, req)
	if err != nil {
		return nil, err
	}
	// A connection of a call that ends is closed: servers know by it that nobody waits.
	stop := context.AfterFunc(ctx, func() { _ = w.SetDeadline(time.Unix(1, 0)) })
	resp, unsent, err := w.exchange(req)
	if err != nil {
		stop()
		_ = w.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	body := &answerBody{ReadCloser: resp.Body, d: d, w: w, ctx: ctx, stop: stop, unsent: unsent, keep: !resp.Close && !req.Close}
	if resp.Body == http.NoBody {
		body.end(true)
	}
	resp.Body = body
	if resp.Header.Get("Content-Encoding") == "gzip" && req.Header["Accept-Encoding"] == nil { // not asked for, but a proxy may
		resp.Header.Del("Content-Encoding")
		resp.Header.Del("Content-Length")
		resp.Body, resp.ContentLength, resp.Uncompressed = &unzipped{answerBody: body}, -1, true
	}
	return resp, nil
}

// plain says whether a request is one as calls are.
func plain(r *http.Request) bool {
	if r.URL.Scheme != "http" || r.Header["Expect"] != nil || r.Header["Upgrade"] != nil || r.Header["Connection"] != nil || len(r.TransferEncoding)+len(r.Trailer) > 0 {
		return false
	}
	if r.Method != http.MethodPost && r.Method != http.MethodGet || r.Body != nil && r.ContentLength <= 0 && r.Body != http.NoBody {
		return false
	}
	for _, c := range []byte(r.URL.Host) {
		if c <= ' ' || c >= 0x7f || c == '%' { // names that have to be translated, zones
			return false
		}
	}
	return r.URL.Host != "" && (r.Host == "" || r.Host == r.URL.Host)
}

// connect takes an idle connection that the server has not closed, or opens one.
func (d *direct) connect(ctx context.Context, req *http.Request) (*wire, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	addr := req.URL.Host
	if req.URL.Port() == "" {
		addr = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	for {
		w := d.take(addr)
		if w == nil {
			break
		}
		if time.Since(w.since) < d.keep && quiet(w.Conn) {
			return w, nil
		}
		_ = w.Close()
	}
	c, err := d.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: c, addr: addr}
	w.br = bufio.NewReader(w)
	return w, nil
}

func (d *direct) take(addr string) *wire {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.idle[addr]
	n := len(list) - 1
	if n < 0 {
		return nil
	}
	w := list[n]
	list[n] = nil
	d.idle[addr] = list[:n]
	return w
}

// put keeps a connection for the next call.
func (d *direct) put(w *wire) {
	w.since = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.idle[w.addr]) >= maxIdle {
		_ = w.Close()
		return
	}
	if d.idle == nil {
		d.idle = map[string][]*wire{}
	}
	d.idle[w.addr] = append(d.idle[w.addr], w)
	if d.sweep == nil {
		d.sweep = time.AfterFunc(d.keep, d.swept)
	}
}

// swept closes what has been idle for too long.
func (d *direct) swept() {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := time.Duration(-1)
	for addr, list := range d.idle {
		n := 0
		for n < len(list) && time.Since(list[n].since) >= d.keep {
			_ = list[n].Close()
			n++
		}
		if list = append(list[:0:0], list[n:]...); len(list) == 0 {
			delete(d.idle, addr)
			continue
		}
		d.idle[addr] = list
		if wait := max(d.keep-time.Since(list[0].since), time.Millisecond); next < 0 || wait < next {
			next = wait
		}
	}
	if d.sweep = nil; next >= 0 {
		d.sweep = time.AfterFunc(next, d.swept)
	}
}

// CloseIdleConnections does so, for http.Client.
func (d *direct) CloseIdleConnections() {
	d.other.CloseIdleConnections()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, list := range d.idle {
		for _, w := range list {
			_ = w.Close()
		}
	}
	d.idle = nil
}

// heads are buffers for requests' heads, and bodies that fit in with them.
var heads = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// exchange writes a request and reads the head of its answer.
func (w *wire) exchange(req *http.Request) (resp *http.Response, unsent chan error, err error) {
	unsent, err = w.send(req)
	if unsent == nil {
		wrote(req, err)
	}
	// Where it could not be written whole, the server may have said why.
	w.left = maxHead
	resp, rerr := http.ReadResponse(w.br, req)
	for rerr == nil && resp.StatusCode >= 100 && resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
		resp, rerr = http.ReadResponse(w.br, req)
	}
	if rerr != nil {
		return nil, nil, cmp.Or(err, rerr)
	}
	w.left = math.MaxInt
	resp.Close = resp.Close || err != nil || resp.StatusCode == http.StatusSwitchingProtocols
	return resp, unsent, nil
}

// wrote tells who watches that a request has been written, or can't be.
func wrote(req *http.Request, err error) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{Err: err})
	}
}

// send writes a request; what is long is written on while the answer is read, and
// unsent then says when that is done.
func (w *wire) send(req *http.Request) (unsent chan error, err error) {
	buf := heads.Get().(*bytes.Buffer)
	defer heads.Put(buf)
	buf.Reset()
	buf.WriteString(req.Method)
	buf.WriteByte(' ')
	buf.WriteString(req.URL.RequestURI())
	buf.WriteString(" HTTP/1.1\r\nHost: ")
	buf.WriteString(req.URL.Host)
	if req.Header["User-Agent"] == nil {
		buf.WriteString("\r\nUser-Agent: Go-http-client/1.1")
	}
	if req.Body != nil || req.Method == http.MethodPost {
		buf.WriteString("\r\nContent-Length: ")
		buf.Write(strconv.AppendInt(buf.AvailableBuffer(), max(req.ContentLength, 0), 10))
	}
	if req.Close {
		buf.WriteString("\r\nConnection: close")
	}
	buf.WriteString("\r\n")
	_ = req.Header.Write(buf) // to memory
	buf.WriteString("\r\n")
	n := req.ContentLength
	if req.Body == nil {
		n = 0
	}
	if n > 0 && n <= 8<<10 {
		if _, err := io.CopyN(buf, req.Body, n); err != nil {
			return nil, err
		}
		n = 0
	}
	if _, err := w.Write(buf.Bytes()); err != nil || n == 0 {
		return nil, err
	}
	return w.sendBody(req, n)
}

func (w *wire) sendBody(req *http.Request, n int64) (unsent chan error, err error) {
	send := func() error {
		k, err := io.Copy(w.Conn, req.Body)
		if err == nil && k != n {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if n <= maxInline {
		return nil, send()
	}
	unsent = make(chan error, 1)
	go func() {
		err := send()
		wrote(req, err)
		unsent <- err
	}()
	return unsent, nil
}

// answerBody gives its connection back at its end.
type answerBody struct {
	io.ReadCloser // closed with the connection only: it would read what is left
	d             *direct
	w             *wire
	ctx           context.Context
	stop          func() bool
	unsent        chan error
	keep          bool // the connection may be used again
	over          bool
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end(err == io.EOF)
		if err != io.EOF && b.ctx.Err() != nil {
			err = context.Cause(b.ctx)
		}
	}
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	b.end(false)
	return nil
}

func (b *answerBody) end(whole bool) {
	if b.over {
		return
	}
	b.over = true
	b.giveBack(b.stop() && whole)
}

// finish reads what is left of an answer that has said all, for finishTime at most.
func (b *answerBody) finish() {
	if b.over {
		return
	}
	b.over = true
	if !b.stop() || !b.keep {
		b.giveBack(false)
		return
	}
	go func() {
		_ = b.w.SetReadDeadline(time.Now().Add(finishTime))
		n, err := io.CopyN(io.Discard, b.ReadCloser, 4<<10)
		whole := n < 4<<10 && errors.Is(err, io.EOF)
		_ = b.w.SetReadDeadline(time.Time{})
		b.giveBack(whole)
	}()
}

// finishTime is how long the end of an answer is waited for that has said all.
const finishTime = 100 * time.Millisecond

// Finish is to be called in place of closing the body of a stream whose last event has
// been read: its connection, which has yet to say that it was the last, can be used again.
// The body may be closed all the same.
func Finish(resp *http.Response) {
	if b, ok := resp.Body.(interface{ finish() }); ok {
		b.finish()
	}
}

func (b *answerBody) giveBack(whole bool) {
	keep := whole && b.keep && b.w.br.Buffered() == 0
	if b.unsent != nil {
		select {
		case err := <-b.unsent:
			keep = keep && err == nil
		default:
			keep = false
		}
	}
	if !keep {
		_ = b.w.Close()
		return
	}
	b.d.put(b.w)
}

// unzipped is a body that was packed by gzip.
type unzipped struct {
	*answerBody
	r *gzip.Reader
}

// Read implements io.Reader.
func (u *unzipped) Read(p []byte) (int, error) {
	if u.r == nil {
		r, err := gzip.NewReader(u.answerBody)
		if err != nil {
			return 0, err
		}
		u.r = r
	}
	return u.r.Read(p)
}
