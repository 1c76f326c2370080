package v1

import (
	"bytes"
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/fulgur-rl/fulgur"
)

// dropSuperseded does to model requests what v1 does when one arrives that has
// routed experts: the one before it loses its own if the newer has the same
// prompt, or one that goes on from prompt and response, for the newer ones cover
// both. Requests without prompt ids supersede nothing (v1 takes them all for
// equal).
func dropSuperseded(list []event) {
	last := -1 // the model request before
	for i := range list {
		if list[i].Type != modelRequest {
			continue
		}
		if v := gjson.GetBytes(list[i].Data, expertsKey); last >= 0 && v.Exists() && v.Type != gjson.Null && supersedes(list[i].Data, list[last].Data) {
			list[last].Data = without(list[last].Data, expertsKey)
		}
		last = i
	}
}

func supersedes(later, before json.RawMessage) bool {
	next, _ := tokensOf(later)
	prompt, response := tokensOf(before)
	if len(next) == 0 || len(prompt) == 0 {
		return false
	}
	return bytes.Equal(next, prompt) || bytes.HasPrefix(next, append(prompt, response...))
}

// tokensOf returns the prompt and response ids of a model request, each id with
// a comma behind it.
func tokensOf(data json.RawMessage) (prompt, response []byte) {
	r := gjson.GetBytes(data, "response")
	prompt = joined(promptIDs(r))
	if !r.IsArray() {
		return prompt, joined(r.Get("choices.0.token_ids"))
	}
	r.ForEach(func(_, chunk gjson.Result) bool {
		response = append(response, joined(chunk.Get("choices.0.token_ids"))...)
		return true
	})
	return prompt, response
}

func joined(list gjson.Result) []byte {
	if !list.IsArray() {
		return nil
	}
	var out []byte
	list.ForEach(func(_, v gjson.Result) bool {
		out = append(append(out, v.Raw...), ',')
		return true
	})
	return out
}

// without returns an object without a key, other bytes as they are.
func without(data json.RawMessage, key string) json.RawMessage {
	if !gjson.GetBytes(data, key).Exists() {
		return data
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(data, &m) != nil {
		return data
	}
	delete(m, key)
	b, err := encode(m)
	if err != nil {
		return data
	}
	return b
}

// withTokens returns a response that shows the call's token ids and log probs
// where v1's trainer looks for them. An answer that a dialect has written (of
// Messages, of Responses, of a model that takes tokens) shows them only to
// clients that asked.
func withTokens(response json.RawMessage, c *fulgur.Call) json.RawMessage {
	if len(c.SampledIDs) == 0 || len(c.PromptIDs) == 0 || promptIDs(gjson.ParseBytes(response)).IsArray() {
		return response
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(response, &m) != nil || m == nil {
		return response
	}
	var choices []map[string]json.RawMessage
	if json.Unmarshal(m["choices"], &choices) != nil || len(choices) == 0 {
		finish, _ := json.Marshal(c.FinishReason) // a string can't fail
		choices = []map[string]json.RawMessage{{"index": json.RawMessage("0"), "finish_reason": finish}}
	}
	set := func(to map[string]json.RawMessage, key string, v any) {
		if b, err := json.Marshal(v); err == nil {
			to[key] = b
		}
	}
	set(choices[0], "token_ids", c.SampledIDs)
	if old := choices[0]["logprobs"]; len(c.LogProbs) > 0 && (old == nil || string(old) == "null") {
		set(choices[0], "logprobs", map[string]any{"token_logprobs": c.LogProbs})
	}
	set(m, "choices", choices)
	set(m, "prompt_token_ids", c.PromptIDs)
	b, err := encode(m)
	if err != nil {
		return response
	}
	return b
}
