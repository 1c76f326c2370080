package api

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/fulgur-rl/fulgur"
)

// AppendRecords appends the wire form of records: what encoding/json makes of their
// Record, but for the order of fields. Nearly all of a record are texts and numbers
// of its calls, which a trainer reads of each rollout: these are written here, for a
// third of what reflection over them costs.
func AppendRecords(b []byte, records []fulgur.Record) ([]byte, error) {
	size := 2
	for i := range records {
		size += 1<<10 + 2<<10*len(records[i].Calls)
	}
	b = append(slices.Grow(b, size), '[')
	for i := range records {
		if i > 0 {
			b = append(b, ',')
		}
		rollout, err := json.Marshal(&records[i].Rollout)
		if err != nil {
			return b, err
		}
		b = append(append(append(b, `{"rollout":`...), rollout...), `,"calls":[`...)
		for j := range records[i].Calls {
			if j > 0 {
				b = append(b, ',')
			}
			if b, err = appendCall(b, &records[i].Calls[j]); err != nil {
				return b, err
			}
		}
		b = append(b, "]}"...)
	}
	return append(b, ']'), nil
}

func appendCall(b []byte, c *fulgur.Call) ([]byte, error) {
	rest := Call{Call: *c, Request: Raw(c.Request), Sent: Raw(c.Sent), Response: Raw(c.Response)}
	rest.Messages, rest.Reply, rest.PromptIDs, rest.SampledIDs = nil, nil, nil, nil
	head, err := json.Marshal(&rest)
	if err != nil {
		return b, err
	}
	b = append(b, head[:len(head)-1]...)
	if len(c.Messages) > 0 {
		b = append(b, `,"messages":[`...)
		for i := range c.Messages {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendMessage(b, &c.Messages[i])
		}
		b = append(b, ']')
	}
	if c.Reply != nil {
		b = appendMessage(append(b, `,"reply":`...), c.Reply)
	}
	b = appendIDs(b, `,"prompt_ids":[`, c.PromptIDs)
	b = appendIDs(b, `,"sampled_ids":[`, c.SampledIDs)
	if len(c.LogProbs) > 0 {
		b = Floats(c.LogProbs).append(append(b, `,"log_probs":`...))
	}
	return append(b, '}'), nil
}

func appendMessage(b []byte, m *fulgur.Message) []byte {
	b = appendText(append(b, `{"role":`...), m.Role)
	b = appendText(append(b, `,"content":`...), m.Content)
	b = appendWord(b, `,"reasoning":`, m.Reasoning)
	for i := range m.ToolCalls {
		if i == 0 {
			b = append(b, `,"tool_calls":[`...)
		} else {
			b = append(b, ',')
		}
		c := &m.ToolCalls[i]
		b = appendText(append(b, `{"name":`...), c.Name)
		b = appendText(append(b, `,"arguments":`...), c.Arguments)
		b = append(appendWord(b, `,"id":`, c.ID), '}')
	}
	if len(m.ToolCalls) > 0 {
		b = append(b, ']')
	}
	b = appendWord(b, `,"tool_call_id":`, m.ToolCallID)
	return append(appendWord(b, `,"name":`, m.Name), '}')
}

// appendWord appends a field that is left out where it is empty.
func appendWord(b []byte, key, s string) []byte {
	if s == "" {
		return b
	}
	return appendText(append(b, key...), s)
}

// appendText appends a string as encoding/json has it.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			js, _ := json.Marshal(s) // a string can't fail
			return append(b, js...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

func appendIDs(b []byte, key string, ids []int32) []byte {
	if len(ids) == 0 {
		return b
	}
	b = append(slices.Grow(b, 6*len(ids)), key...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']')
}
