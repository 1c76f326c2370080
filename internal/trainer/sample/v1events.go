package sample

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// This file and v1rows.go are what agent-lightning v1.0 (c632d8dd8041) makes of
// recorded events, its quirks included: `compat: v1`, checked against
// golden/adapter.json. Fulgur's own way is in sample.go.

// V1Event is one event as v1's server has it, in order of recording.
type V1Event struct {
	Attempt string          `json:"attempt_id"`
	Type    string          `json:"event_type"`
	Data    json.RawMessage `json:"data"`
}

// V1Rollout is an ended rollout as v1's trainer reads it.
type V1Rollout struct {
	ID      string    `json:"rollout_id"`
	DataID  string    `json:"data_id"` // its group
	Step    int       `json:"step"`
	Index   int       `json:"sample_idx_in_step"`
	Attempt string    `json:"last_attempt_id"` // "": attempt "0"
	Events  []V1Event `json:"events"`
}

// V1Call is a model call that survived v1's filters.
type V1Call struct {
	Prompt   []int32
	Response []int32
	LogProbs []float64 // as recorded, of any length; nil: none
}

// V1Completed is what v1's rollout manager makes of a rollout.
type V1Completed struct {
	ID, DataID  string
	Step, Index int
	Reward      *float64 // nil: none
	Calls       []V1Call
}

// V1Complete reads a rollout's events: those of its last attempt; of the model
// requests with equal prompt ids the last one only, before failed ones are taken
// out; the last reward event's value if it is a number. Data on which v1 itself
// fails is an error.
func V1Complete(r V1Rollout) (V1Completed, error) {
	out := V1Completed{ID: r.ID, DataID: r.DataID, Step: r.Step, Index: r.Index}
	attempt := r.Attempt
	if attempt == "" {
		attempt = "0"
	}
	var requests []v1Request
	last := map[string]int{}
	for i := range r.Events {
		e := &r.Events[i]
		if e.Attempt != attempt {
			continue
		}
		switch e.Type {
		case "model_request":
			q, err := v1Trim(e.Data)
			if err != nil {
				return out, fmt.Errorf("rollout %s, event %d: %w", r.ID, i, err)
			}
			last[q.key()] = len(requests)
			requests = append(requests, q)
		case "reward":
			var d map[string]json.RawMessage
			if len(e.Data) > 0 {
				if err := json.Unmarshal(e.Data, &d); err != nil {
					return out, fmt.Errorf("rollout %s, event %d: %w", r.ID, i, err)
				}
			}
			out.Reward = v1Number(d["value"])
		}
	}
	for i, q := range requests {
		if last[q.key()] == i && !q.failed && len(q.response) > 0 {
			out.Calls = append(out.Calls, V1Call{Prompt: q.prompt, Response: q.response, LogProbs: q.logProbs})
		}
	}
	return out, nil
}

// v1Request is a model request in v1's triplet form.
type v1Request struct {
	prompt, response []int32
	logProbs         []float64
	failed           bool
}

// key is what v1 takes two requests for the same by: those without prompt ids
// share one.
func (q *v1Request) key() string {
	b := make([]byte, 0, 4*len(q.prompt))
	for _, t := range q.prompt {
		b = append(b, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
	}
	return string(b)
}

// v1Choice is a choice of a response, or a chunk of one.
type v1Choice struct {
	TokenIDs       []int32         `json:"token_ids"`
	PromptTokenIDs []int32         `json:"prompt_token_ids"`
	LogProbs       json.RawMessage `json:"logprobs"`
}

type v1Response struct {
	PromptTokenIDs []int32           `json:"prompt_token_ids"`
	Choices        []json.RawMessage `json:"choices"`
}

// first is the first choice; nil if there is none. Others are never looked at.
func (r *v1Response) first() (*v1Choice, error) {
	if len(r.Choices) == 0 {
		return nil, nil
	}
	c := &v1Choice{}
	return c, json.Unmarshal(r.Choices[0], c)
}

func v1Trim(data json.RawMessage) (q v1Request, err error) {
	var d struct {
		Response   json.RawMessage            `json:"response"`
		Status     json.RawMessage            `json:"status"`
		HTTPStatus json.RawMessage            `json:"http_status"`
		Server     map[string]json.RawMessage `json:"server"`
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &d); err != nil {
			return q, err
		}
	}
	if code, ok := new(big.Int).SetString(string(d.HTTPStatus), 10); ok { // no text, no 500.0
		q.failed = code.Cmp(big.NewInt(400)) >= 0
	}
	q.failed = q.failed || string(d.Status) == `"error"`
	switch body := bytes.TrimSpace(d.Response); {
	case len(body) > 0 && body[0] == '{':
		var r v1Response
		if err := json.Unmarshal(body, &r); err != nil {
			return q, err
		}
		c, err := r.first()
		if q.prompt = r.PromptTokenIDs; c == nil || err != nil {
			return q, err
		}
		if len(q.prompt) == 0 {
			q.prompt = c.PromptTokenIDs
		}
		q.response, q.logProbs = c.TokenIDs, v1LogProbs(c.LogProbs)
	case len(body) > 0 && body[0] == '[': // chunks of a stream, as older recorders kept them
		var chunks []v1Response
		if err := json.Unmarshal(body, &chunks); err != nil {
			return q, err
		}
		for i := range chunks {
			if len(q.prompt) == 0 {
				q.prompt = chunks[i].PromptTokenIDs
			}
			c, err := chunks[i].first()
			if err != nil {
				return q, err
			}
			if c != nil {
				q.response = append(q.response, c.TokenIDs...)
			}
		}
	}
	return q, nil
}

// v1LogProbs reads a choice's log probs; nil if anything in them is missing or
// not finite. Their number is not compared with that of the ids.
func v1LogProbs(raw json.RawMessage) []float64 {
	var lp struct {
		Content       json.RawMessage `json:"content"`
		TokenLogProbs json.RawMessage `json:"token_logprobs"`
	}
	if len(raw) == 0 || json.Unmarshal(raw, &lp) != nil {
		return nil
	}
	var values []json.RawMessage
	if items, ok := v1List(lp.Content); ok {
		for _, item := range items {
			var entry map[string]json.RawMessage
			if json.Unmarshal(item, &entry) != nil {
				return nil
			}
			v, ok := entry["logprob"]
			if !ok {
				return nil
			}
			values = append(values, v)
		}
	} else if values, ok = v1List(lp.TokenLogProbs); !ok {
		return nil
	}
	out := make([]float64, len(values))
	for i, v := range values {
		x, ok := v1Float(v)
		if !ok || math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		out[i] = x
	}
	return out
}

func v1List(raw json.RawMessage) ([]json.RawMessage, bool) {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '[' {
		return nil, false
	}
	var list []json.RawMessage
	return list, json.Unmarshal(raw, &list) == nil
}

// v1Float converts as Python's float() does: numbers, truth values, and texts
// that are numbers.
func v1Float(raw json.RawMessage) (float64, bool) {
	switch s := string(raw); {
	case s == "true":
		return 1, true
	case s == "false":
		return 0, true
	case s == "" || s == "null":
		return 0, false
	case s[0] == '"':
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return 0, false
		}
		text = strings.TrimSpace(strings.Map(v1Character, text))
		if strings.ContainsAny(text, "xXpP") || !v1Underscores(text) {
			return 0, false // hexadecimal is none of Python's
		}
		x, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
		return x, err == nil
	default:
		x, err := strconv.ParseFloat(s, 64)
		return x, err == nil
	}
}

// v1Character makes ASCII of a character as Python's float() does: any script's
// decimal digit is one, any space is a space.
func v1Character(r rune) rune {
	switch {
	case r < 0x80:
		return r
	case unicode.IsSpace(r):
		return ' '
	}
	for _, t := range unicode.Nd.R16 { // each range starts with a zero
		if lo := rune(t.Lo); r >= lo && r <= rune(t.Hi) {
			return '0' + (r-lo)%10
		}
	}
	for _, t := range unicode.Nd.R32 {
		if lo := rune(t.Lo); r >= lo && r <= rune(t.Hi) {
			return '0' + (r-lo)%10
		}
	}
	return r
}

// v1Underscores says whether each underscore stands between two digits.
func v1Underscores(s string) bool {
	digit := func(i int) bool { return i >= 0 && i < len(s) && s[i] >= '0' && s[i] <= '9' }
	for i := range len(s) {
		if s[i] == '_' && (!digit(i-1) || !digit(i+1)) {
			return false
		}
	}
	return true
}

// v1Number is a reward's value: a JSON number, nothing else.
func v1Number(raw json.RawMessage) *float64 {
	if len(raw) == 0 || raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return nil
	}
	x, err := strconv.ParseFloat(string(raw), 64)
	if err != nil && !math.IsInf(x, 0) {
		return nil
	}
	return &x
}
