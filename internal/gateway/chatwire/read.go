package chatwire

import (
	"bytes"
	"encoding/json"
	"errors"
)

// Altering names the sampling parameters of a request, of those that change the
// distribution and have no field of their own, that are not neutral.
func (w *Request) Altering() []string {
	var out []string
	for _, p := range []struct {
		name    string
		value   *float64
		neutral float64
	}{
		{"frequency_penalty", w.FrequencyPenalty, 0},
		{"presence_penalty", w.PresencePenalty, 0},
		{"repetition_penalty", w.RepetitionPenalty, 1},
		{"min_p", w.MinP, 0},
	} {
		if p.value != nil && *p.value != p.neutral {
			out = append(out, p.name)
		}
	}
	if b := string(bytes.TrimSpace(w.LogitBias)); b != "" && b != "null" && b != "{}" {
		out = append(out, "logit_bias")
	}
	return append(out, w.constraining()...)
}

// StopList reads stop strings: one, a list, or null.
func StopList(raw json.RawMessage) ([]string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		if one == "" {
			return nil, nil
		}
		return []string{one}, nil
	}
	var many []string
	if err := json.Unmarshal(raw, &many); err != nil {
		return nil, errors.New("stop must be a string or a list of strings")
	}
	out := many[:0]
	for _, s := range many {
		if s != "" {
			out = append(out, s)
		}
	}
	return out, nil
}

// Prompts are the prompts of a text completions request; one of the lists is set.
type Prompts struct {
	Texts []string
	IDs   [][]int32
}

// ReadPrompts reads a prompt in any of its four forms: a text, a list of texts,
// a list of token ids, a list of such lists.
func ReadPrompts(raw json.RawMessage) (p Prompts, err error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return p, errors.New("prompt is missing")
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return Prompts{Texts: []string{text}}, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return p, errors.New("prompt must be a text or a list of token ids")
	}
	if len(list) == 0 {
		return p, errors.New("prompt must not be empty")
	}
	if list[0][0] != '"' && list[0][0] != '[' {
		list = []json.RawMessage{raw}
	}
	for _, r := range list {
		var text *string
		var ids []*int32 // a null is no 0
		switch {
		case r[0] == '"' && p.IDs == nil && json.Unmarshal(r, &text) == nil:
			p.Texts = append(p.Texts, *text)
		case r[0] == '[' && p.Texts == nil && json.Unmarshal(r, &ids) == nil:
			one := make([]int32, len(ids))
			for i, id := range ids {
				if id == nil || *id < 0 {
					return Prompts{}, errors.New("prompt has a token id that is no whole number from 0 on")
				}
				one[i] = *id
			}
			p.IDs = append(p.IDs, one)
		default:
			return Prompts{}, errors.New("prompt must be a text or a list of token ids")
		}
	}
	return p, nil
}
