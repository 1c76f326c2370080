package wire

import (
	"encoding/base64"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// skyrl is a result as SkyRL 0.4 sent it, its first three tokens kept.
const skyrl = "ChwSDHAAAADVAQAAEwAAABoMRDSVwPWdi8CwTlzA"

func bytesOf(t testing.TB, b64 string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadFuture(t *testing.T) {
	want := Sequence{Tokens: []int32{112, 469, 19}, LogProbs: []float32{-4.662630081176758, -4.36303186416626, -3.442302703857422}, StopReason: "stop"}
	nan := float32(math.NaN())
	for is, c := range map[string]struct {
		contentType, body string
		want              Future
		bad               bool
	}{
		"protobuf": {Protobuf, string(bytesOf(t, skyrl)), Future{Sample: &Sample{Sequences: []Sequence{want}}}, false},
		"protobuf with fields of later versions": {Protobuf, string(bytesOf(t, skyrl)) + "\x20\x07\x7d\x01\x02\x03\x04\xfa\x01\x01x",
			Future{Sample: &Sample{Sequences: []Sequence{want}, CacheHitTokens: 7}}, false},
		"JSON": {JSON + "; charset=utf-8", `{"sequences":[{"tokens":[112,469,19],"logprobs":[-4.662630081176758,-4.36303186416626,-3.442302703857422],"stop_reason":"stop"}],"prompt_logprobs":null,"later":1}`,
			Future{Sample: &Sample{Sequences: []Sequence{want}}}, false},
		"JSON with an unknown log prob": {JSON, `{"sequences":[{"tokens":[1,2],"logprobs":[null,-1],"stop_reason":"length"}]}`,
			Future{Sample: &Sample{Sequences: []Sequence{{Tokens: []int32{1, 2}, LogProbs: []float32{nan, -1}, StopReason: "length"}}}}, false},
		"JSON without log probs": {JSON, `{"sequences":[{"tokens":[1,2],"logprobs":null,"stop_reason":"length"}]}`,
			Future{Sample: &Sample{Sequences: []Sequence{{Tokens: []int32{1, 2}, StopReason: "length"}}}}, false},
		"not done":              {JSON, `{"type":"try_again","request_id":"1","queue_state":"paused_capacity","queue_state_reason":"full"}`, Future{Pending: true, Reason: "full"}, false},
		"failed":                {JSON, `{"error":"no","category":"user"}`, Future{Failed: &Failure{"no", "user"}}, false},
		"half a message":        {Protobuf, string(bytesOf(t, skyrl)[:9]), Future{}, true},
		"tokens of seven bytes": {Protobuf, "\x0a\x09\x12\x07\x00\x00\x00\x00\x00\x00\x00", Future{}, true},
		"an unknown end":        {Protobuf, "\x0a\x02\x08\x07", Future{}, true},
		"nothing":               {Protobuf, "", Future{}, true},
		"text":                  {"text/plain", "ok", Future{}, true},
		"no content type":       {"", "{}", Future{}, true},
		"a token that is none":  {JSON, `{"sequences":[{"tokens":[1.5],"stop_reason":"stop"}]}`, Future{}, true},
		"a token over 32 bits":  {JSON, `{"sequences":[{"tokens":[4294967296],"stop_reason":"stop"}]}`, Future{}, true},
	} {
		got, err := ReadFuture(c.contentType, []byte(c.body))
		if (err != nil) != c.bad {
			t.Errorf("%s: %v", is, err)
		}
		if err != nil {
			continue
		}
		if d := cmp.Diff(c.want, got, cmpopts.EquateNaNs()); d != "" {
			t.Errorf("%s (-want +got):\n%s", is, d)
		}
	}
}

// Whatever a server sends, what is read has one log prob per token, or none.
func FuzzReadFuture(f *testing.F) {
	f.Add(true, bytesOf(f, skyrl))
	f.Add(false, []byte(`{"sequences":[{"tokens":[1,2],"logprobs":[null,-1],"stop_reason":"length"}]}`))
	f.Add(false, []byte(`{"type":"try_again"}`))
	f.Fuzz(func(t *testing.T, proto bool, body []byte) {
		kind := JSON
		if proto {
			kind = Protobuf
		}
		got, err := ReadFuture(kind, body)
		if err != nil || got.Sample == nil {
			return
		}
		for _, q := range got.Sample.Sequences {
			if q.LogProbs != nil && len(q.LogProbs) != len(q.Tokens) || q.StopReason == "" {
				t.Errorf("%+v", q)
			}
		}
	})
}
