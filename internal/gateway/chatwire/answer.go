package chatwire

import (
	"math"
	"unsafe"

	"github.com/fulgur-rl/fulgur"
)

// Answer is what is read of a chat or text completion, or of a chunk of one.
type Answer struct {
	ID, Model string
	Created   int64
	Choices   []Choice
	Usage     *fulgur.Usage
	PromptIDs []int32 // nil: none, or what is no list of ids
	Error     string  // what stands in place of an answer, as JSON; "": nothing
	Object    bool    // it is a JSON object at all

	// Set by Take: the bytes as they can go on, without what is no JSON and without
	// routed experts, and those.
	Body, Experts []byte

	experts bool // a choice may have routed experts
}

// Choice is one answer, or a piece of it.
type Choice struct {
	Index     int
	Text      string // content, or a text completion's text
	Reasoning string
	ToolCalls []ToolCall // those of a whole message have no Index
	Finish    string
	Stopped   string // vLLM's stop_reason, where that is a text
	TokenIDs  []int32
	PromptIDs []int32
	LogProbs  []float32 // NaN: one that is missing or no number
	Tokens    []string  // texts of the tokens of LogProbs; read only if asked for
}

// Take reads an answer, or a chunk of one, as servers send it: mended (Mend), and its
// routed experts taken out of it. False: it is not JSON even so. Fields of a wrong type
// are as good as missing. Texts are cut out of data, which must not change any more.
func Take(data []byte, tokens bool) (a Answer, ok bool) {
	a, ok = read(data, tokens)
	if !ok {
		clean := Mend(data)
		if len(clean) == 0 || unsafe.SliceData(clean) == unsafe.SliceData(data) {
			return Answer{}, false
		}
		if a, ok = read(clean, tokens); !ok {
			return Answer{}, false
		}
		data = clean
	}
	a.Body = data
	if a.experts {
		a.Body, a.Experts = TakeExperts(data)
	}
	return a, true
}

// read is Take for data that needs no mending; false: it does, or is no JSON.
func read(data []byte, tokens bool) (a Answer, ok bool) {
	r := reader{scanner{b: data}, tokens}
	if r.peek() == '{' {
		r.answer(&a)
	} else {
		r.skip()
	}
	if !r.ended() || !r.utf8() {
		return Answer{}, false
	}
	return a, true
}

// reader reads answers.
type reader struct {
	scanner
	tokens bool // texts of tokens too
}

func (r *reader) answer(a *Answer) {
	a.Object = true
	for more := r.enter('}'); more; more = r.next('}') {
		switch r.key() {
		case "id":
			a.ID = r.text()
		case "model":
			a.Model = r.text()
		case "created":
			a.Created = r.whole()
		case "choices":
			if r.peek() != '[' {
				r.skip()
				continue
			}
			for more := r.enter(']'); more; more = r.next(']') {
				if r.peek() != '{' {
					r.skip()
					continue
				}
				a.Choices = append(a.Choices, Choice{})
				a.experts = r.choice(&a.Choices[len(a.Choices)-1]) || a.experts
			}
		case "usage":
			if r.peek() != '{' {
				r.skip()
				continue
			}
			a.Usage = &fulgur.Usage{}
			r.usage(a.Usage)
		case "prompt_token_ids":
			a.PromptIDs = r.ids()
		case "error":
			null := r.peek() == 'n'
			if from, to := r.skip(); !null {
				a.Error = r.cut(from, to)
			}
		default:
			r.skip()
		}
	}
}

func (r *reader) choice(c *Choice) (experts bool) {
	for more := r.enter('}'); more; more = r.next('}') {
		switch r.key() {
		case "index":
			c.Index = int(r.whole())
		case "message", "delta":
			r.message(c)
		case "text":
			c.Text += r.text()
		case "finish_reason":
			c.Finish = r.text()
		case "stop_reason":
			c.Stopped = r.text()
		case "token_ids":
			c.TokenIDs = r.ids()
		case "prompt_token_ids":
			c.PromptIDs = r.ids()
		case "logprobs":
			r.probs(c)
		case "routed_experts":
			experts = true
			r.skip()
		default:
			r.skip()
		}
	}
	return experts
}

func (r *reader) message(c *Choice) {
	if r.peek() != '{' {
		r.skip()
		return
	}
	other := ""
	for more := r.enter('}'); more; more = r.next('}') {
		switch r.key() {
		case "content":
			c.Text += r.text()
		case "reasoning_content":
			c.Reasoning = r.text()
		case "reasoning":
			other = r.text()
		case "tool_calls":
			r.toolCalls(c)
		default:
			r.skip()
		}
	}
	if c.Reasoning == "" {
		c.Reasoning = other
	}
}

func (r *reader) toolCalls(c *Choice) {
	if r.peek() != '[' {
		r.skip()
		return
	}
	for more := r.enter(']'); more; more = r.next(']') {
		c.ToolCalls = append(c.ToolCalls, ToolCall{})
		if r.peek() != '{' {
			r.skip()
			continue
		}
		k := &c.ToolCalls[len(c.ToolCalls)-1]
		for more := r.enter('}'); more; more = r.next('}') {
			switch r.key() {
			case "index":
				k.Index = int(r.whole())
			case "id":
				k.ID = r.text()
			case "function":
				r.function(k)
			default:
				r.skip()
			}
		}
	}
}

func (r *reader) function(k *ToolCall) {
	if r.peek() != '{' {
		r.skip()
		return
	}
	for more := r.enter('}'); more; more = r.next('}') {
		switch r.key() {
		case "name":
			k.Function.Name = r.text()
		case "arguments":
			k.Function.Arguments = r.text()
		default:
			r.skip()
		}
	}
}

func (r *reader) usage(u *fulgur.Usage) {
	for more := r.enter('}'); more; more = r.next('}') {
		switch r.key() {
		case "prompt_tokens":
			u.PromptTokens = r.count()
		case "completion_tokens":
			u.CompletionTokens = r.count()
		case "prompt_tokens_details":
			if r.peek() != '{' {
				r.skip()
				continue
			}
			for more := r.enter('}'); more; more = r.next('}') {
				if r.key() == "cached_tokens" {
					u.CachedTokens = r.count()
				} else {
					r.skip()
				}
			}
		default:
			r.skip()
		}
	}
}

func (r *reader) count() int {
	if n, ok := r.maybe(); ok && n >= 0 && n <= math.MaxInt32 {
		return int(n)
	}
	return 0
}

// probs reads log probs of chat completions (content), or of text completions.
func (r *reader) probs(c *Choice) {
	if r.peek() != '{' {
		r.skip()
		return
	}
	for more := r.enter('}'); more; more = r.next('}') {
		key := r.key()
		if r.peek() != '[' {
			r.skip()
			continue
		}
		switch {
		case key == "content":
			r.content(c)
		case key == "token_logprobs":
			for more := r.enter(']'); more; more = r.next(']') {
				c.LogProbs = append(c.LogProbs, r.prob())
			}
		case key == "tokens" && r.tokens:
			for more := r.enter(']'); more; more = r.next(']') {
				c.Tokens = append(c.Tokens, r.text())
			}
		default:
			r.skip()
		}
	}
}

func (r *reader) content(c *Choice) {
	if n := len(c.TokenIDs); cap(c.LogProbs) < n {
		c.LogProbs = append(make([]float32, 0, n), c.LogProbs...)
	}
	for more := r.enter(']'); more; more = r.next(']') {
		p, t := float32(math.NaN()), ""
		if r.peek() != '{' {
			r.skip()
		} else {
			for more := r.enter('}'); more; more = r.next('}') {
				switch r.key() {
				case "logprob":
					p = r.prob()
				case "token":
					if r.tokens {
						t = r.text()
					} else {
						r.skip()
					}
				default:
					r.skip()
				}
			}
		}
		c.LogProbs = append(c.LogProbs, p)
		if r.tokens {
			c.Tokens = append(c.Tokens, t)
		}
	}
}

// prob reads a log prob; NaN is one that is missing or no number.
func (r *reader) prob() float32 {
	if c := r.peek(); c != '-' && c-'0' > 9 {
		r.skip()
		return float32(math.NaN())
	}
	return r.float32()
}
