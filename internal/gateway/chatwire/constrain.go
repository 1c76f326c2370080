package chatwire

import (
	"bytes"
	"encoding/json"
)

// Constraints are what model servers add to the API that keeps tokens out of an
// answer: with one of them log probs are of another distribution than the
// policy's. Sources: vLLM's ChatCompletionRequest and CompletionRequest (0.11 to
// 0.32; guided_* were replaced by structured_outputs), SGLang's (0.5).
type Constraints struct {
	StructuredOutputs    json.RawMessage `json:"structured_outputs"`
	GuidedJSON           json.RawMessage `json:"guided_json"`
	GuidedRegex          json.RawMessage `json:"guided_regex"`
	GuidedChoice         json.RawMessage `json:"guided_choice"`
	GuidedGrammar        json.RawMessage `json:"guided_grammar"`
	Regex                json.RawMessage `json:"regex"`
	EBNF                 json.RawMessage `json:"ebnf"`
	AllowedTokenIDs      json.RawMessage `json:"allowed_token_ids"`
	BadWords             json.RawMessage `json:"bad_words"`
	MinTokens            json.RawMessage `json:"min_tokens"`
	BeamSearch           json.RawMessage `json:"use_beam_search"`
	LogitsProcessors     json.RawMessage `json:"logits_processors"`
	CustomLogitProcessor json.RawMessage `json:"custom_logit_processor"`
}

// constraining names those that are in use.
func (c *Constraints) constraining() []string {
	var out []string
	for _, p := range []struct {
		name  string
		value json.RawMessage
	}{
		{"structured_outputs", c.StructuredOutputs}, {"guided_json", c.GuidedJSON}, {"guided_regex", c.GuidedRegex},
		{"guided_choice", c.GuidedChoice}, {"guided_grammar", c.GuidedGrammar}, {"regex", c.Regex}, {"ebnf", c.EBNF},
		{"allowed_token_ids", c.AllowedTokenIDs}, {"bad_words", c.BadWords}, {"min_tokens", c.MinTokens},
		{"use_beam_search", c.BeamSearch}, {"logits_processors", c.LogitsProcessors}, {"custom_logit_processor", c.CustomLogitProcessor},
	} {
		switch string(bytes.TrimSpace(p.value)) {
		case "", "null", "false", "0", "[]", "{}", `""`:
		default:
			out = append(out, p.name)
		}
	}
	return out
}
