package v1

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/tidwall/gjson"
)

type event struct {
	Type      string           `json:"event_type"`
	Rollout   fulgur.RolloutID `json:"rollout_id"`
	Attempt   fulgur.AttemptID `json:"attempt_id"`
	Timestamp float64          `json:"timestamp"`
	Data      json.RawMessage  `json:"data"`

	seq   fulgur.Seq
	quick *quick // its triplet, in place of Data
}

const modelRequest = "model_request"

func (s *server) postEvent(ctx context.Context, r *in) (int, any, error) {
	v, text, err := s.body(r)
	if err != nil {
		return 0, nil, err
	}
	c := &checker{}
	o := c.object(v, "body")
	kind := c.needText(o, "event_type", "body")
	if data, ok := o["data"]; ok {
		if _, ok := data.(object); !ok {
			c.add("dict_type", "Input should be a valid dictionary", data, "body", "data")
		}
	}
	if err := c.err(); err != nil {
		return 0, nil, err
	}
	if r.who.Scope == fulgur.ScopeAttempt && kind == modelRequest {
		return 0, nil, fulgur.E(fulgur.KindForbidden, "", "Model calls are recorded by the gateway, an agent cannot post them", nil)
	}
	var raw map[string]json.RawMessage // keeps the bytes that came
	if err := json.Unmarshal(text, &raw); err != nil {
		return 0, nil, problems{{"json_invalid", []any{"body"}, "JSON decode error", nil}}
	}
	if err := s.Events.Take(ctx, r.who, kind, raw["data"]); err != nil {
		return 0, nil, err
	}
	ev, err := s.Store.AppendEvent(ctx, fulgur.Event{Rollout: r.rollout, Attempt: r.attempt, Type: kind, Data: raw["data"]})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, viewEvent(ev), nil
}

func viewEvent(ev fulgur.Event) event {
	return event{Type: ev.Type, Rollout: ev.Rollout, Attempt: ev.Attempt, Timestamp: seconds(ev.At), Data: ev.Data, seq: ev.Seq}
}

func (s *server) events(ctx context.Context, r *in) (int, any, error) {
	q := r.URL.Query()
	c := &checker{}
	experts := c.queryBool(q, "include_routed_experts", true)
	if err := c.err(); err != nil {
		return 0, nil, err
	}
	ro, err := s.one(ctx, r.rollout)
	if err != nil {
		return 0, nil, err
	}
	attempt := ro.LastAttempt
	if attempt == "" {
		attempt = "0"
	}
	kind := q.Get("event_type")
	triplet := q.Get("format") == "triplet"
	list, err := s.record(ctx, r.rollout, attempt, kind, experts, triplet)
	if err != nil {
		return 0, nil, err
	}
	out := make([]event, 0, len(list))
	for _, e := range list {
		if kind == "" || e.Type == kind {
			out = append(out, e)
		}
	}
	if !triplet {
		return http.StatusOK, out, nil
	}
	body, err := quickEvents(triplets(out))
	return http.StatusOK, body, err
}

// record returns what v1 would have recorded of an attempt: its events, and
// its calls as model_request events, in order of arrival.
func (s *server) record(ctx context.Context, id fulgur.RolloutID, attempt fulgur.AttemptID, kind string, experts, triplet bool) ([]event, error) {
	var out []event
	events, err := s.Store.Events(ctx, id, attempt)
	if err != nil {
		return nil, err
	}
	for _, ev := range events {
		out = append(out, viewEvent(ev))
	}
	if kind != "" && kind != modelRequest {
		return out, nil
	}
	if triplet {
		list, err := s.quickList(ctx, id, attempt)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	} else {
		calls, err := s.Store.Calls(ctx, id, attempt)
		if err != nil {
			return nil, err
		}
		for i := range calls {
			if recordedByV1(&calls[i]) {
				e, err := viewCall(&calls[i])
				if err != nil {
					return nil, err
				}
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b event) int { return cmp.Compare(a.seq, b.seq) })
	if experts {
		dropSuperseded(out)
		return out, nil
	}
	for i := range out {
		if out[i].Type == modelRequest && out[i].quick == nil {
			out[i].Data = without(out[i].Data, expertsKey)
		}
	}
	return out, nil
}

// recordedByV1 says whether v1 would have a record of the call: the upstream
// answered, and the client waited for it. Calls of frozen models are none of its: it
// has no such models, and its trainer would take them for the policy's.
func recordedByV1(c *fulgur.Call) bool {
	return len(c.Response) > 0 && c.Fate != fulgur.FateLeft && c.HTTPStatus != 0 &&
		!slices.Contains(c.Untrainable, fulgur.UntrainableAborted) && !slices.Contains(c.Untrainable, fulgur.UntrainableFrozen)
}

type callData struct {
	Model        string               `json:"model"`
	ModelVersion fulgur.PolicyVersion `json:"model_version"`
	Request      json.RawMessage      `json:"request"`
	Response     json.RawMessage      `json:"response"`
	Server       callServer           `json:"server"`
	LatencyMS    float64              `json:"latency_ms"`
	HTTPStatus   int                  `json:"http_status"`
	Status       string               `json:"status"`
	Retries      int                  `json:"retry_count"`
	Experts      json.RawMessage      `json:"routed_experts"`
	Usage        json.RawMessage      `json:"usage"`
	FinishReason json.RawMessage      `json:"finish_reason"`
}

// expertsKey is where a model request has its routed experts.
const expertsKey = "routed_experts"

type callServer struct {
	Model    string               `json:"model"`
	Endpoint string               `json:"endpoint"`
	Version  fulgur.PolicyVersion `json:"version"`
}

// viewCall shows a call as v1's model_request event.
func viewCall(c *fulgur.Call) (event, error) {
	sent := c.Sent
	if len(sent) == 0 {
		sent = c.Request
	}
	d := callData{Model: c.Endpoint.Model, ModelVersion: c.Version(), Request: jsonOr(sent, "null"), Response: withTokens(jsonOr(c.Response, "{}"), c), Experts: c.RoutedExperts,
		Server: callServer{c.Endpoint.Model, c.Endpoint.URL, c.Endpoint.Version}, LatencyMS: float64(c.Latency) / float64(time.Millisecond),
		HTTPStatus: c.HTTPStatus, Status: "ok", Retries: c.Retries}
	if c.HTTPStatus >= 400 {
		d.Status = "error"
	}
	if u := gjson.GetBytes(d.Response, "usage"); u.IsObject() {
		d.Usage = json.RawMessage(u.Raw)
	}
	if f := gjson.GetBytes(d.Response, "choices.0.finish_reason"); f.Exists() {
		d.FinishReason = json.RawMessage(f.Raw)
	}
	data, err := encode(d)
	return event{Type: modelRequest, Rollout: c.Rollout, Attempt: c.Attempt, Timestamp: seconds(c.StartedAt.Add(c.Latency)), Data: data, seq: c.Seq}, err
}

// jsonOr returns b as JSON. What an upstream sent may hold NaN, which no JSON
// parser of the trainer's side must meet: such numbers become null.
func jsonOr(b json.RawMessage, other string) json.RawMessage {
	if json.Valid(b) {
		return b
	}
	if mended := mendNaN(b); json.Valid(mended) {
		return mended
	}
	return json.RawMessage(other)
}

// mendNaN replaces NaN, Infinity and -Infinity outside of strings by null.
func mendNaN(b []byte) []byte {
	var out []byte
	inString := false
	for i := 0; i < len(b); i++ {
		ch := b[i]
		if inString {
			out = append(out, ch)
			if ch == '\\' && i+1 < len(b) {
				i++
				out = append(out, b[i])
			} else if ch == '"' {
				inString = false
			}
			continue
		}
		replaced := false
		for _, word := range []string{"NaN", "-Infinity", "Infinity"} {
			if bytes.HasPrefix(b[i:], []byte(word)) {
				out = append(out, "null"...)
				i += len(word) - 1
				replaced = true
				break
			}
		}
		if !replaced {
			inString = ch == '"'
			out = append(out, ch)
		}
	}
	return out
}

// triplets is v1's training view: of several model requests with the same prompt
// ids only the last one is kept, where it stood. Rewards that came after the
// rollout's end are in it: hooks of v1's trainer, which run then, grade so.
func triplets(list []event) []event {
	keys, lengths := make([]string, len(list)), map[int]int{}
	for i, e := range list {
		if e.Type != modelRequest {
			continue
		}
		if e.quick != nil {
			keys[i] = e.quick.key()
		} else {
			keys[i] = promptKey(promptIDs(gjson.GetBytes(e.Data, "response")))
		}
		lengths[len(keys[i])]++
	}
	last := map[string]int{} // of prompts as long as another: to hash all takes a tenth of the whole time
	for i, k := range keys {
		if lengths[len(k)] > 1 {
			last[k] = i
		}
	}
	out := make([]event, 0, len(list))
	for i, e := range list {
		switch {
		case e.Type == modelRequest:
			if at, again := last[keys[i]]; again && keys[i] != "" && at != i {
				continue
			}
			if e.quick == nil {
				e.Data = tripletData(gjson.ParseBytes(e.Data))
			}
		case e.Type == fulgur.EventReward:
			e.Data = rewardData(gjson.ParseBytes(e.Data))
		}
		out = append(out, e)
	}
	return out
}

// promptKey identifies a prompt; "" for one that equals no other: empty, or not
// all integers.
func promptKey(ids gjson.Result) string {
	if !ids.IsArray() {
		return ""
	}
	var b strings.Builder
	whole := true
	ids.ForEach(func(_, v gjson.Result) bool {
		whole = v.Type == gjson.Number && !strings.ContainsAny(v.Raw, ".eE")
		b.WriteString(v.Raw)
		b.WriteByte(',')
		return whole
	})
	if !whole {
		return ""
	}
	return strings.TrimSuffix(b.String(), ",")
}

func promptIDs(response gjson.Result) gjson.Result {
	if response.IsArray() { // chunks
		var found gjson.Result
		response.ForEach(func(_, chunk gjson.Result) bool {
			found = promptIDs(chunk)
			return !found.IsArray()
		})
		return found
	}
	if p := response.Get("prompt_token_ids"); p.IsArray() {
		return p
	}
	return response.Get("choices.0.prompt_token_ids")
}

func arrayOr(v gjson.Result, other string) string {
	if v.IsArray() {
		return v.Raw
	}
	return other
}

func tripletData(data gjson.Result) json.RawMessage {
	response := data.Get("response")
	ids, probs := arrayOr(response.Get("choices.0.token_ids"), "[]"), logProbs(response.Get("choices.0.logprobs"))
	if response.IsArray() {
		ids, probs = chunkTokens(response)
	}
	var b bytes.Buffer
	b.WriteString(`{"prompt_token_ids":` + arrayOr(promptIDs(response), "[]"))
	b.WriteString(`,"response_token_ids":` + ids + `,"response_log_probs":` + probs)
	b.WriteString(`,"server":{"model":` + rawOr(data.Get("server.model")) + `,"version":` + rawOr(data.Get("server.version")) + `}`)
	for _, f := range []struct {
		key string
		v   gjson.Result
	}{
		{expertsKey, data.Get(expertsKey)}, {"http_status", data.Get("http_status")}, {"status", data.Get("status")}, {"error", response.Get("error")},
	} {
		if !f.v.Exists() || f.v.Type == gjson.Null || f.key == "error" && !response.IsObject() {
			continue
		}
		b.WriteString(`,"` + f.key + `":` + f.v.Raw)
	}
	b.WriteByte('}')
	return b.Bytes()
}

func rawOr(v gjson.Result) string {
	if v.Exists() {
		return v.Raw
	}
	return "null"
}

// chunkTokens joins the tokens and log probs of the first choices of chunks.
func chunkTokens(chunks gjson.Result) (ids, probs string) {
	var tokens, values []string
	whole := true
	chunks.ForEach(func(_, chunk gjson.Result) bool {
		chunk.Get("choices.0.token_ids").ForEach(func(_, id gjson.Result) bool {
			tokens = append(tokens, id.Raw)
			return true
		})
		if lp := chunk.Get("choices.0.logprobs"); lp.IsObject() {
			p := logProbs(lp)
			whole = whole && p != "null"
			if p = strings.Trim(p, "[]"); p != "" && whole {
				values = append(values, p)
			}
		}
		return true
	})
	if !whole || len(values) == 0 {
		return "[" + strings.Join(tokens, ",") + "]", "null"
	}
	return "[" + strings.Join(tokens, ",") + "]", "[" + strings.Join(values, ",") + "]"
}

// logProbs reads content[].logprob or token_logprobs; "null" if one is missing
// or not finite. A numeric text or a truth value counts as its number.
func logProbs(lp gjson.Result) string {
	list, key := lp.Get("content"), "logprob"
	if !list.IsArray() {
		if list, key = lp.Get("token_logprobs"), ""; !list.IsArray() {
			return "null"
		}
	}
	out, ok := []string{}, true
	list.ForEach(func(_, v gjson.Result) bool {
		if key != "" {
			v = v.Get(key)
		}
		var x float64
		switch v.Type {
		case gjson.Number:
			x = v.Num
		case gjson.True:
			x = 1
		case gjson.False:
		case gjson.String:
			var err error
			x, err = strconv.ParseFloat(strings.TrimSpace(v.Str), 64)
			ok = err == nil
		default:
			ok = false
		}
		if ok = ok && !math.IsNaN(x) && !math.IsInf(x, 0); ok {
			out = append(out, strconv.FormatFloat(x, 'g', -1, 64))
		}
		return ok
	})
	if !ok {
		return "null"
	}
	return "[" + strings.Join(out, ",") + "]"
}

func rewardData(data gjson.Result) json.RawMessage {
	b := `{"value":` + rawOr(data.Get("value"))
	for _, key := range []string{"source", "reason"} {
		if v := data.Get(key); v.Exists() {
			b += `,"` + key + `":` + v.Raw
		}
	}
	return json.RawMessage(b + "}")
}
