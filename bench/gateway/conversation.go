package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
)

// A conversation is one rollout's append-only history: the request of call k+1 goes on
// from that of call k by the answer to it and a tool's output, in text and in token
// ids. A recorder that keeps what is new has little to keep. Each conversation has its
// own texts, ids and log probs. After 100 calls a request has 124 KB, an answer 215 KB.
type conversation struct {
	ids      []int
	text     []byte // the ids, each with a comma behind it
	off      []int  // off[i]: where id i starts in text
	messages []byte // joined by commas
	ends     []int  // ends[i]: where message i ends
	answers  [][]byte
}

const (
	systemIDs, answerIDs, toolIDs = 512, 200, 115 // per call 315 ids, about 1,270 bytes
	turns                         = 100
)

func promptLen(k int) int { return systemIDs + k*(answerIDs+toolIDs) }

type conversations struct {
	mu    sync.Mutex
	known map[int]*conversation
}

func (cs *conversations) of(seed int) *conversation {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.known[seed]
	if c == nil {
		c = newConversation(seed)
		cs.known[seed] = c
	}
	return c
}

func newConversation(seed int) *conversation {
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	c := &conversation{ids: make([]int, promptLen(turns)+answerIDs)}
	for i := range c.ids {
		c.ids[i] = rng.IntN(vocabulary)
		c.off = append(c.off, len(c.text))
		c.text = append(strconv.AppendInt(c.text, int64(c.ids[i]), 10), ',')
	}
	add := func(m object) {
		b, _ := json.Marshal(m)
		if len(c.messages) > 0 {
			c.messages = append(c.messages, ',')
		}
		c.messages = append(c.messages, b...)
		c.ends = append(c.ends, len(c.messages))
	}
	add(object{"role": "system", "content": "You are a coding agent. Use the tools. Finish with submit."})
	add(object{"role": "user", "content": "Fix the failing test in the repository. " + prose(rng, 600)})
	for k := range turns {
		answer := prose(rng, 300)
		text, _ := json.Marshal(answer)
		c.answers = append(c.answers, text)
		add(object{"role": "assistant", "content": answer})
		add(object{"role": "user", "content": fmt.Sprintf("output %d:\n%s", k, code(rng, 800))})
	}
	return c
}

// request is the body of call k; "user" tells the model server which answer is due.
func (c *conversation) request(seed, k int) []byte {
	messages := c.messages[:c.ends[1+2*k]]
	b := make([]byte, 0, len(messages)+400)
	b = fmt.Appendf(b, `{"model":"`+model+`","user":"conv-%d-%d","max_tokens":1024,"messages":[`, seed, k)
	b = append(b, messages...)
	return append(b, `],"tools":[{"type":"function","function":{"name":"bash","description":"Run a command","parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}}]}`...)
}

// response is what a model server answers to call k.
func (c *conversation) response(k int) []byte {
	rng := rand.New(rand.NewPCG(uint64(k), uint64(c.ids[0])))
	p := promptLen(k)
	b := make([]byte, 0, c.off[p+answerIDs]+90*answerIDs+1000)
	b = append(b, `{"id":"chatcmpl-`...)
	b = strconv.AppendUint(b, rng.Uint64(), 16)
	b = append(b, `","object":"chat.completion","created":1700000000,"model":"`+model+`","prompt_token_ids":[`...)
	b = append(b, c.text[:c.off[p]-1]...)
	b = append(b, `],"choices":[{"index":0,"finish_reason":"stop","stop_reason":null,"token_ids":[`...)
	b = append(b, c.text[c.off[p]:c.off[p+answerIDs]-1]...)
	b = append(b, `],"message":{"role":"assistant","content":`...)
	b = append(b, c.answers[k]...)
	b = append(b, `,"tool_calls":[]},"logprobs":{"content":[`...)
	for i := range answerIDs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"token":" w`...)
		b = strconv.AppendInt(b, int64(c.ids[p+i]), 10)
		b = append(b, `","logprob":`...)
		b = strconv.AppendFloat(b, -rng.Float64()*3, 'f', 6, 64)
		b = append(b, `,"bytes":null,"top_logprobs":[]}`...)
	}
	return appendUsage(append(b, `]}}],"usage":{"prompt_tokens":`...), p, answerIDs)
}

// dueAnswer reads conversation and call from a request's "user"; ok is false for other bodies.
func dueAnswer(body []byte) (seed, k int, ok bool) {
	_, rest, found := bytes.Cut(body[:min(len(body), 200)], []byte(`"user":"conv-`))
	if !found {
		return 0, 0, false
	}
	_, err := fmt.Sscanf(string(rest), `%d-%d`, &seed, &k)
	return seed, k, err == nil && k < turns
}
