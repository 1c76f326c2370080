package chat

import (
	"strconv"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// forced are the fields that put the run's sampling in place of the client's.
func forced(o *call.Order) []chatwire.Field {
	var out []chatwire.Field
	if o.ForceCut {
		topP := o.Sampling.TopP
		if topP <= 0 {
			topP = 1
		}
		out = append(out, chatwire.Field{Key: "top_p", Value: chatwire.AppendFloat(nil, topP)})
		if k := o.Sampling.TopK; k > 0 || o.Wishes.TopK != nil {
			if k <= 0 {
				k = -1 // off: vLLM and SGLang both take it
			}
			out = append(out, chatwire.Field{Key: "top_k", Value: strconv.AppendInt(nil, int64(k), 10)})
		}
	}
	for _, name := range o.Neutral {
		out = append(out, chatwire.Field{Key: name, Value: []byte(neutral(name))})
	}
	return out
}

// neutral is the value with which a parameter changes nothing. Some servers
// refuse null where they want a number.
func neutral(name string) string {
	switch name {
	case "frequency_penalty", "presence_penalty", "min_p", "min_tokens":
		return "0"
	case "bad_words":
		return "[]"
	case "use_beam_search":
		return "false"
	case "repetition_penalty":
		return "1"
	}
	return "null"
}
