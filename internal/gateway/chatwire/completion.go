package chatwire

import (
	"errors"
	"math"

	"github.com/tidwall/gjson"
)

// Completion is what is read of a text completion, or of a chunk of one.
type Completion struct {
	Choices      []CompletionChoice
	CachedTokens int    // of the prompt
	Error        string // what stands in place of an answer, as JSON; "": nothing
}

// CompletionChoice is a choice of a Completion.
type CompletionChoice struct {
	FinishReason string
	TokenIDs     []int32
	LogProbs     []float32 // in order of TokenIDs, as many as there are; NaN where one is missing
	Version      *int64    // Fulgur's: the policy version that the tokens come from
}

// ReadCompletion reads a completion. There is one a call, and most of it (the
// text, the prompt's echo) is passed over: reading it by reflection costs five
// times as much. What is not JSON, or has another shape, is an error.
func ReadCompletion(data []byte) (Completion, error) {
	var c Completion
	text := string(data)
	if !valid(data) {
		return c, errors.New("it is no JSON")
	}
	root := gjson.Parse(text)
	if !root.IsObject() {
		return c, errors.New("it is no JSON object")
	}
	var err error
	root.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "choices":
			err = readChoices(v, &c)
		case "usage":
			c.CachedTokens = int(v.Get("prompt_tokens_details.cached_tokens").Int())
		case "error":
			if v.Type != gjson.Null {
				c.Error = v.Raw
			}
		}
		return err == nil
	})
	return c, err
}

func readChoices(list gjson.Result, c *Completion) (err error) {
	if !list.IsArray() {
		if list.Type == gjson.Null {
			return nil
		}
		return errors.New("its choices are no list")
	}
	list.ForEach(func(_, v gjson.Result) bool {
		var ch CompletionChoice
		if !v.IsObject() {
			err = errors.New("a choice is no object")
			return false
		}
		v.ForEach(func(key, v gjson.Result) bool {
			switch key.Str {
			case "finish_reason":
				ch.FinishReason = v.Str
			case "token_ids":
				ch.TokenIDs, err = readIDs(v)
			case "logprobs":
				ch.LogProbs = readLogProbs(v.Get("token_logprobs"))
			case "policy_version":
				if v.Type == gjson.Number {
					n := v.Int()
					ch.Version = &n
				}
			}
			return err == nil
		})
		c.Choices = append(c.Choices, ch)
		return err == nil
	})
	return err
}

func readIDs(list gjson.Result) (ids []int32, err error) {
	if list.Type == gjson.Null {
		return nil, nil
	}
	if !list.IsArray() {
		return nil, errors.New("its token_ids are no list")
	}
	list.ForEach(func(_, v gjson.Result) bool {
		if v.Type != gjson.Number || v.Num != math.Trunc(v.Num) || v.Num < math.MinInt32 || v.Num > math.MaxInt32 {
			err = errors.New("a token id is no whole number of 32 bits")
			return false
		}
		ids = append(ids, int32(v.Num))
		return true
	})
	return ids, err
}

func readLogProbs(list gjson.Result) (out []float32) {
	if !list.IsArray() {
		return nil
	}
	list.ForEach(func(_, v gjson.Result) bool {
		p := float32(math.NaN())
		if v.Type == gjson.Number {
			p = float32(v.Num)
		}
		out = append(out, p)
		return true
	})
	return out
}
