package v1

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unsafe"

	"github.com/fulgur-rl/fulgur"
)

// An agent's call has a prompt of a hundred kilobytes of ids, and a trainer reads
// all calls of a rollout at once. The usual answer, which the gateway has read and
// found exact, is therefore not made an event and then a triplet of it: what the
// triplet needs is cut out of it. Anything unusual goes the long way.

// quickList are the calls of an attempt as quick triplets, where that can be, else
// as viewCall shows them.
func (s *server) quickList(ctx context.Context, id fulgur.RolloutID, attempt fulgur.AttemptID) ([]event, error) {
	calls, err := s.Store.Responses(ctx, id, attempt)
	if err != nil {
		return nil, err
	}
	calls = slices.DeleteFunc(calls, func(c fulgur.Call) bool { return !recordedByV1(&c) })
	out := make([]event, 0, len(calls))
	var before *quick
	var long map[fulgur.CallID]int // where to put those that go the long way
	for i := range calls {
		c := &calls[i]
		q := quickTriplet(c, before)
		if q == nil {
			if long == nil {
				long = map[fulgur.CallID]int{}
			}
			long[c.ID] = i
		} else {
			before = q
		}
		out = append(out, event{Type: modelRequest, Rollout: c.Rollout, Attempt: c.Attempt, Timestamp: seconds(c.StartedAt.Add(c.Latency)), seq: c.Seq, quick: q})
	}
	if long == nil {
		return out, nil
	}
	if calls, err = s.Store.Calls(ctx, id, attempt); err != nil {
		return nil, err
	}
	for i := range calls {
		if at, ok := long[calls[i].ID]; ok {
			if out[at], err = viewCall(&calls[i]); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// quick is the triplet of an exact call, in the memory of its response.
type quick struct {
	prompt, ids, probs []byte
	rest               []byte // the members behind these
}

// key is the prompt's, as promptKey makes it.
func (q *quick) key() string {
	ids := q.prompt[1 : len(q.prompt)-1]
	return unsafe.String(&ids[0], len(ids)) // nobody writes to a response, and a copy is a tenth of the whole time
}

// parts are what tripletData makes of the call's event.
func (q *quick) parts() [7][]byte {
	return [7][]byte{[]byte(`{"prompt_token_ids":`), q.prompt, []byte(`,"response_token_ids":`), q.ids, []byte(`,"response_log_probs":`), q.probs, q.rest}
}

// quickTriplet cuts a call's triplet out of it; nil if the call is not an exact
// one. before is the triplet of an earlier call of the attempt, nil for none:
// its prompt, which this one's mostly starts with, is not looked at again.
func quickTriplet(c *fulgur.Call, before *quick) *quick {
	if len(c.SampledIDs) == 0 || len(c.LogProbs) != len(c.SampledIDs) || len(c.RoutedExperts) > 0 || c.HTTPStatus >= 400 {
		return nil
	}
	var known []byte
	if before != nil {
		known = before.prompt[:len(before.prompt)-1]
	}
	q := &quick{}
	r := c.Response
	choice := func(name []byte, i int) int {
		switch {
		case string(name) == "token_ids" && q.ids == nil:
			end := skipInts(r, i, nil)
			if end > 0 {
				q.ids = r[i:end]
			}
			return end
		case string(name) == "logprobs" && q.probs == nil:
			return q.readLogProbs(r, i)
		}
		return skipValue(r, i)
	}
	end := members(r, skipSpace(r, 0), func(name []byte, i int) int {
		switch string(name) {
		case "prompt_token_ids":
			end := skipInts(r, i, known)
			if end > 0 && q.prompt == nil {
				q.prompt = r[i:end]
			}
			return end
		case "choices":
			if q.ids != nil || r[i] != '[' {
				return -1
			}
			end := members(r, skipSpace(r, i+1), choice)
			if end = skipSpace(r, max(end, 0)); end < len(r) && r[end] == ']' && end > 0 {
				return end + 1
			}
			return -1 // more choices than one go the long way
		case "error":
			return -1
		}
		return skipValue(r, i)
	})
	if end < 0 || skipSpace(r, end) != len(r) || q.prompt == nil || q.ids == nil || q.probs == nil {
		return nil
	}
	model, err := encode(c.Endpoint.Model)
	if err != nil {
		return nil
	}
	q.rest = fmt.Appendf(nil, `,"server":{"model":%s,"version":%d},"http_status":%d,"status":"ok"}`, model, c.Endpoint.Version, c.HTTPStatus)
	return q
}

// readLogProbs reads the numbers of {"content": [{"logprob": number, …}, …]} at i
// of r, and returns its end; -1 for anything else.
func (q *quick) readLogProbs(r []byte, i int) int {
	b := append(make([]byte, 0, 4096), '[')
	entry := func(name []byte, i int) int {
		end := skipValue(r, i)
		if string(name) != "logprob" || end < 0 {
			return end
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		if b = appendNumber(b, r[i:end]); b == nil {
			return -1
		}
		return end
	}
	end := members(r, i, func(name []byte, i int) int {
		if string(name) != "content" {
			return skipValue(r, i)
		}
		if r[i] != '[' {
			return -1
		}
		for i = skipSpace(r, i+1); i < len(r) && r[i] == '{'; {
			n := len(b)
			if i = members(r, i, entry); i < 0 || len(b) == n || bytes.IndexByte(b[n+1:], ',') >= 0 {
				return -1 // one number an entry
			}
			if i = skipSpace(r, i); i < len(r) && r[i] == ',' {
				i = skipSpace(r, i+1)
			}
		}
		if i >= len(r) || r[i] != ']' {
			return -1
		}
		q.probs = []byte{}
		return i + 1
	})
	if end < 0 || q.probs == nil {
		return -1
	}
	q.probs = append(b, ']')
	return end
}

// appendNumber appends a number as logProbs does; nil if it is none. Most are
// written so already.
func appendNumber(b, raw []byte) []byte {
	digits, dot := 0, -1
	for i, c := range raw {
		switch {
		case c-'0' <= 9:
			digits++
		case c == '.' && dot < 0 && digits > 0:
			dot = i
		case c == '-' && i == 0:
		default:
			dot = len(raw) // an exponent, or no number
		}
	}
	first := bytes.TrimPrefix(raw, []byte("-"))
	// The shortest form of up to 15 digits is themselves, with a zero or another
	// digit before the dot, and none behind the last that counts.
	if dot > 0 && dot < len(raw)-1 && digits <= 15 && raw[len(raw)-1] != '0' && (first[0] != '0' || first[1] == '.' && first[2] != '0') {
		return append(b, raw...)
	}
	x, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) || !json.Valid(raw) {
		return nil
	}
	return strconv.AppendFloat(b, x, 'g', -1, 64)
}

// members calls visit with the name of each member of the object at i, and where
// its value starts; visit returns the value's end, or -1 to give up. The object's
// end is returned; -1 if it is none.
func members(b []byte, i int, visit func(name []byte, i int) int) int {
	if i >= len(b) || b[i] != '{' {
		return -1
	}
	for i = skipSpace(b, i+1); i < len(b) && b[i] == '"'; {
		end := skipString(b, i)
		if end < 0 {
			return -1
		}
		name := b[i+1 : end-1]
		if i = skipSpace(b, end); i == len(b) || b[i] != ':' {
			return -1
		}
		if i = skipSpace(b, i+1); i == len(b) {
			return -1
		}
		if i = visit(name, i); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i < len(b) && b[i] == ',' {
			i = skipSpace(b, i+1)
		}
	}
	if i >= len(b) || b[i] != '}' {
		return -1
	}
	return i + 1
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the end of the string that starts at i; -1 if it has none.
func skipString(b []byte, i int) int {
	for at := i + 1; ; {
		for near := min(len(b), at+16); at < near && b[at] != '"'; { // most are short
			at++
		}
		n := bytes.IndexByte(b[at:], '"')
		if n < 0 {
			return -1
		}
		at += n
		escapes := 0
		for b[at-1-escapes] == '\\' { // ends at the first quote at the latest
			escapes++
		}
		if at++; escapes%2 == 0 {
			return at
		}
	}
}

// skipInts returns the end of the list of whole numbers that starts at i; -1 if
// it is none. It may start with known, which is the front of such a list and ends
// with a number.
func skipInts(b []byte, i int, known []byte) int {
	if i >= len(b) || b[i] != '[' {
		return -1
	}
	comma := true // a number has to come
	if len(known) > 1 && bytes.HasPrefix(b[i:], known) {
		i += len(known) - 1
		comma = false
	}
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c-'0' <= 9:
			comma = false
		case c == ',' && !comma:
			comma = true
		case c == ']' && !comma:
			return i + 1
		default:
			return -1
		}
	}
	return -1
}

// skipValue returns the end of the value that starts at i; -1 if it has none.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '[', '{':
	default:
		for ; i < len(b); i++ {
			switch b[i] {
			case ',', ']', '}', ' ', '\n', '\t', '\r':
				return i
			}
		}
		return i
	}
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			continue
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

// quickEvents writes a list of events, of which some are triplets already: these
// stay where they are.
func quickEvents(list []event) (written, error) {
	out := make(written, 0, 2+8*len(list))
	for i, e := range list {
		before := byte(',')
		if i == 0 {
			before = '['
		}
		if e.quick != nil {
			e.Data = json.RawMessage("0")
		}
		head, err := encode(e)
		if err != nil {
			return nil, err
		}
		head = append([]byte{before}, head...)
		if e.quick == nil {
			out = append(out, head)
			continue
		}
		parts := e.quick.parts()
		out = append(append(append(out, bytes.TrimSuffix(head, []byte("0}"))), parts[:]...), []byte{'}'})
	}
	if len(list) == 0 {
		return written{[]byte("[]")}, nil
	}
	return append(out, []byte{']'}), nil
}

// written is an answer's body as it goes out, in pieces: one of many megabytes is
// not copied together first.
type written [][]byte

func (w written) size() (n int) {
	for _, part := range w {
		n += len(part)
	}
	return n
}
