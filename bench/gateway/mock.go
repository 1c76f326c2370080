package main

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// mock is the model server: it answers bytes as vLLM's, whole or as a stream.
type mock struct {
	url    string
	served atomic.Int64
	// arrived is when the last call came, since start.
	arrived atomic.Int64
	// thinks, if not nil, is closed when calls may be answered: a model server takes
	// seconds to sample an answer, and meanwhile none of the machine's cores.
	thinks      atomic.Pointer[chan struct{}]
	few, many   *responder
	talks       conversations
	streamFor   atomic.Int64 // nanoseconds: how long a stream lasts
	streamEvery time.Duration
}

// bodies are buffers of requests: what the model server takes of the machine's cores
// is not what is measured.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// start is the clock of stamps.
var start = time.Now()

func stamp() int64 { return int64(time.Since(start)) }

func startMock() (*mock, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &mock{url: "http://" + l.Addr().String(), few: newResponder(20), many: newResponder(500), streamEvery: time.Second / tokensPerSecond,
		talks: conversations{known: map[int]*conversation{}}}
	go func() { _ = http.Serve(l, m) }()
	return m, nil
}

func (m *mock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	buf := bodies.Get().(*bytes.Buffer)
	buf.Reset()
	_, err := buf.ReadFrom(r.Body)
	size, streams := buf.Len(), bytes.Contains(buf.Bytes(), []byte(`"stream":true`))
	seed, k, due := dueAnswer(buf.Bytes())
	bodies.Put(buf)
	if err != nil {
		return
	}
	n := m.served.Add(1)
	m.arrived.Store(stamp())
	if c := m.thinks.Load(); c != nil {
		<-*c
	}
	if streams {
		m.stream(w, r, n)
		return
	}
	var data []byte
	if due {
		data = m.talks.of(seed).response(k)
	} else if size < 4000 {
		data = m.few.response(n, size)
	} else {
		data = m.many.response(n, size)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data)
}

// stream answers a token every 50 ms, as vLLM does, each with the time at which it was written.
func (m *mock) stream(w http.ResponseWriter, r *http.Request, n int64) {
	flush := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	id := `data: {"id":"chatcmpl-` + strconv.FormatInt(n, 10) + `","object":"chat.completion.chunk","created":1795975314,"model":"` + model + `","choices":[`
	b := append([]byte(id), `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1`...)
	for i := range 600 {
		b = strconv.AppendInt(append(b, ','), int64(1000+i), 10)
	}
	b = append(b, "]}\n\n"...)
	sampled := int(time.Duration(m.streamFor.Load()) / m.streamEvery)
	wait(r.Context(), time.Duration(rand.Int64N(int64(m.streamEvery)))) // streams are not in step
	tick := time.NewTicker(m.streamEvery)
	defer tick.Stop()
	for i := range sampled {
		if i > 0 {
			b = append(b[:0], id...)
			b = append(b, `{"index":0,"delta":{"content":"`+stampMark...)
			b = strconv.AppendInt(b, stamp(), 10)
			b = append(b, ` "},"logprobs":{"content":[{"token":" tok","logprob":-1.88601553440094,"bytes":[32,116,111,107],"top_logprobs":[]}]},"finish_reason":`...)
			if i == sampled-1 {
				b = append(b, `"length","stop_reason":null,"token_ids":[265]}]}`+"\n\n"+id+`],"usage":{"prompt_tokens":601,`...)
				b = append(strconv.AppendInt(append(b, `"completion_tokens":`...), int64(i), 10), `}}`+"\n\ndata: [DONE]\n\n"...)
			} else {
				b = append(b, `null,"token_ids":[265]}]}`+"\n\n"...)
			}
		}
		if _, err := w.Write(b); err != nil || flush.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}
