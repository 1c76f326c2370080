package chatwire

import (
	"math"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

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

// ReadAnswer reads an answer; false: it is not JSON. Fields of a wrong type are
// as good as missing. There is one a call, of up to some hundred kilobytes, most
// of it the prompt's echo: reading it by reflection costs ten times as much.
func ReadAnswer(data []byte, tokens bool) (a Answer, ok bool) {
	return read(string(data), tokens)
}

// ReadWhole is ReadAnswer for data that nobody changes from now on: the answer's
// texts are cut out of it, and keep it.
func ReadWhole(data []byte, tokens bool) (a Answer, ok bool) {
	return read(unsafe.String(unsafe.SliceData(data), len(data)), tokens)
}

func read(data string, tokens bool) (a Answer, ok bool) {
	if rest, ids := cutEcho(data); ids != nil {
		if a, used, ok := readRest(rest, tokens, ids); ok && used {
			return a, true
		}
	}
	a, _, ok = readRest(data, tokens, nil)
	return a, ok
}

// echoes is the key of the prompt's ids: two thirds of a long answer.
const echoes = `"prompt_token_ids"`

// cutEcho empties the answer's one list of prompt ids and reads it: it is then not
// checked, sought through and read one after the other. nil: there is no such list,
// or not one alone, or not one of ids. A quote is never within a JSON string, so
// that what is found is a key, or a value that no list follows.
func cutEcho(data string) (rest string, ids []int32) {
	at := strings.Index(data, echoes+":[")
	if at < 0 || strings.Count(data, echoes) > 1 {
		return "", nil
	}
	at += len(echoes) + len(":[")
	end := strings.IndexByte(data[at:], ']')
	if end < 1<<10 {
		return "", nil // as quickly read with the rest
	}
	if ids = plainIDs(data[at : at+end]); ids == nil {
		return "", nil
	}
	return data[:at] + data[at+end:], ids
}

// plainIDs reads the inside of a JSON list of numbers from 0 to 2^31-1; nil for anything else.
func plainIDs(list string) []int32 {
	out := make([]int32, 0, strings.Count(list, ",")+1)
	for i := 0; ; i++ {
		for i < len(list) && list[i] == ' ' {
			i++
		}
		first, n := i, int64(0)
		for i < len(list) && list[i] >= '0' && list[i] <= '9' && n <= math.MaxInt32 {
			n = n*10 + int64(list[i]-'0')
			i++
		}
		if i == first || n > math.MaxInt32 || list[first] == '0' && i > first+1 {
			return nil
		}
		out = append(out, int32(n))
		if i == len(list) {
			return out
		}
		if list[i] != ',' {
			return nil
		}
	}
}

// maxDepth is encoding/json's limit of nesting.
const maxDepth = 10000

// valid says whether data is JSON, and not nested deeper than encoding/json takes it:
// gjson takes any depth, on the stack, and some megabytes of brackets ended the process.
func valid(data string) bool { return !tooDeep(data) && gjson.Valid(data) }

// tooDeep says whether brackets nest deeper than maxDepth. Hardly anything has so many.
func tooDeep(data string) bool {
	if strings.Count(data, "[")+strings.Count(data, "{") <= maxDepth {
		return false
	}
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '[', '{':
			if depth++; depth > maxDepth {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}

// readRest reads an answer; an empty list of prompt ids in it stands for echo, if
// there is one: used says whether there was.
func readRest(data string, tokens bool, echo []int32) (a Answer, used, ok bool) {
	promptIDs := func(v gjson.Result) []int32 {
		if echo != nil && v.Raw == "[]" {
			used = true
			return echo
		}
		return idList(v)
	}
	if !valid(data) {
		return a, false, false
	}
	root := gjson.Parse(data)
	if a.Object = root.IsObject(); !a.Object {
		return a, false, true
	}
	root.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "id":
			a.ID = text(v)
		case "model":
			a.Model = text(v)
		case "created":
			a.Created = v.Int()
		case "choices":
			if v.IsArray() {
				v.ForEach(func(_, c gjson.Result) bool {
					if c.IsObject() {
						a.Choices = append(a.Choices, readChoice(c, tokens, promptIDs))
					}
					return true
				})
			}
		case "usage":
			if v.IsObject() {
				a.Usage = &fulgur.Usage{PromptTokens: count(v.Get("prompt_tokens")), CompletionTokens: count(v.Get("completion_tokens")),
					CachedTokens: count(v.Get("prompt_tokens_details.cached_tokens"))}
			}
		case "prompt_token_ids":
			a.PromptIDs = promptIDs(v)
		case "error":
			if v.Type != gjson.Null {
				a.Error = v.Raw
			}
		}
		return true
	})
	return a, used, true
}

func readChoice(v gjson.Result, tokens bool, promptIDs func(gjson.Result) []int32) (c Choice) {
	v.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "index":
			c.Index = int(v.Int())
		case "message", "delta":
			if v.IsObject() {
				readMessage(&c, v)
			}
		case "text":
			c.Text += text(v)
		case "finish_reason":
			c.Finish = text(v)
		case "stop_reason":
			c.Stopped = text(v)
		case "token_ids":
			c.TokenIDs = idList(v)
		case "prompt_token_ids":
			c.PromptIDs = promptIDs(v)
		case "logprobs":
			readProbs(&c, v, tokens)
		}
		return true
	})
	return c
}

func readMessage(c *Choice, m gjson.Result) {
	other := ""
	m.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "content":
			c.Text += text(v)
		case "reasoning_content":
			c.Reasoning = text(v)
		case "reasoning":
			other = text(v)
		case "tool_calls":
			if !v.IsArray() {
				return true
			}
			v.ForEach(func(_, t gjson.Result) bool {
				k := ToolCall{Index: int(t.Get("index").Int()), ID: text(t.Get("id"))}
				k.Function.Name, k.Function.Arguments = text(t.Get("function.name")), text(t.Get("function.arguments"))
				c.ToolCalls = append(c.ToolCalls, k)
				return true
			})
		}
		return true
	})
	if c.Reasoning == "" {
		c.Reasoning = other
	}
}

// readProbs reads those of chat completions (content), or of text completions.
func readProbs(c *Choice, v gjson.Result, tokens bool) {
	if !v.IsObject() {
		return
	}
	v.ForEach(func(key, list gjson.Result) bool {
		switch key.Str {
		case "content":
			readContent(c, list, tokens)
		case "token_logprobs":
			if list.IsArray() {
				list.ForEach(func(_, p gjson.Result) bool {
					c.LogProbs = append(c.LogProbs, prob(p))
					return true
				})
			}
		case "tokens":
			if tokens && list.IsArray() {
				list.ForEach(func(_, t gjson.Result) bool {
					c.Tokens = append(c.Tokens, text(t))
					return true
				})
			}
		}
		return true
	})
}

func readContent(c *Choice, list gjson.Result, tokens bool) {
	if !list.IsArray() {
		return
	}
	list.ForEach(func(_, item gjson.Result) bool {
		p, t := float32(math.NaN()), ""
		item.ForEach(func(key, v gjson.Result) bool {
			switch key.Str {
			case "logprob":
				p = prob(v)
			case "token":
				if tokens {
					t = text(v)
				}
			}
			return true
		})
		c.LogProbs = append(c.LogProbs, p)
		if tokens {
			c.Tokens = append(c.Tokens, t)
		}
		return true
	})
}

func text(v gjson.Result) string {
	if v.Type == gjson.String {
		return v.Str
	}
	return ""
}

func count(v gjson.Result) int {
	if v.Type == gjson.Number && v.Num >= 0 && v.Num <= math.MaxInt32 {
		return int(v.Num)
	}
	return 0
}

// prob reads a log prob; NaN is one that is missing or no number.
func prob(v gjson.Result) float32 {
	if v.Type != gjson.Number {
		return float32(math.NaN())
	}
	return float32(v.Num)
}

// idList reads a list of token ids; nil if it is anything else.
func idList(v gjson.Result) []int32 {
	if !v.IsArray() {
		return nil
	}
	body := v.Raw[1:] // up to and with the bracket: valid JSON
	out := make([]int32, 0, strings.Count(body, ",")+1)
	const none = -1
	n := int64(none)
	for i := range len(body) {
		switch c := body[i]; {
		case c >= '0' && c <= '9':
			if n = max(n, 0)*10 + int64(c-'0'); n > math.MaxInt32 {
				return nil
			}
		case c == ',' || c == ']':
			if n == none {
				if len(out) > 0 || c == ',' {
					return nil
				}
				return out // an empty list
			}
			out = append(out, int32(n))
			n = none
		case c != ' ' && c != '\n' && c != '\t' && c != '\r':
			return nil
		}
	}
	return out
}
