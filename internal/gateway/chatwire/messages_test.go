package chatwire

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var requestSeeds = []string{
	`{"model":"m","messages":[{"role":"user","content":"a\n\"b\"\\ \u00e9 \ud83d\ude00 é"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]}],"temperature":0.5}`,
	`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}],"name":null}, {"Role":"odd case"} ],"stop":"a"}`,
	`{"messages":[{"role":1}]}`, `{"messages":[null,{"role":"a"}]}`, `{"messages":[7]}`, `{"messages":{}}`, `{"messages":null}`, `{}`, `[]`, `{"messages":[]}`,
	`{"messages":[{"role":"a","role":"b","content":"\ud800 lone"}],"n":"x"}`, `{"messages":[{"tool_calls":[{"id":5}]}]}`, `{"Messages":[{"role":"a"}]}`,
	`{"messages":[{"role":"a"}],"MESSAGES":[{"role":"b"}]}`, `{"messages":[{"role":"a","tool_calls":null,"content":"\u0000\b\f\r\t\/"}]}`, `{"messages":[{"role":"a"`, "{\"messages\":[{\"role\":\"\xff\"}]}",
	`{"messages":[{"reasoning":"r","reasoning_content":"c","tool_call_id":"t","name":"n","x":{"role":"no"}}],"logprobs":true}`, `{"m\u0065ssages":[{"r\u006fle":"a"}]}`,
	`{"messages":[{"role":"a","content":"\ud83d\ude00 \ud83d \ude00 \ud83dx\ud83d\n\ud83d\ud83d\ude00\u00e9\udfff","name":"\ud83d\ude0"},{"role":"long and plain","content":"0123456789 no escape é","content":[]}]}`,
	`{"messages":[{"role":"a","content":[],"content":"a\tb"},{"role":"a","content":"x","content":null}],"tools":[{"é":"é"}]}`,
}

// FuzzDecode holds the reader of messages against encoding/json.
func FuzzDecode(f *testing.F) {
	for _, s := range requestSeeds {
		f.Add([]byte(s))
	}
	for _, more := range []string{`"model":"m","max_tokens":48`, `"max_tokens":1.5,"model":3`, `"max_tokens":99999999999999999999`, `"model":"a","model":"b"`, `"max_tokens":5,"max_tokens":null`,
		`"Model":"m","model":"n"`, `"model":"\u00e9\n","max_tokens":0`, `"model":null,"max_tokens":7e0`, `"model":"","max_tokens":05`} {
		f.Add([]byte(`{` + more + `,"messages":[{"role":"user","content":"x"}],"tools":[]}`))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var want, got Request
		wantErr := json.Unmarshal(body, &want)
		_, gotErr := decode(body, &got)
		if (wantErr == nil) != (gotErr == nil) || wantErr != nil && wantErr.Error() != gotErr.Error() {
			t.Fatalf("error %v, want %v", gotErr, wantErr)
		}
		if wantErr != nil {
			return // fields may be read in another order
		}
		if len(want.Messages) == 0 && len(got.Messages) == 0 {
			want.Messages, got.Messages = nil, nil
		}
		for i := range got.Messages {
			m := &got.Messages[i]
			if text, ok := m.Text(); ok {
				var said string
				if err := json.Unmarshal(m.Content, &said); err != nil || said != text {
					t.Errorf("%s: %q, %v", m.Content, text, err)
				}
			}
			m.text, m.plain = "", false
		}
		if got.Members != nil && !utf8.Valid(body) {
			t.Error("taken for UTF-8")
		}
		got.Members = nil
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Message{})); diff != "" {
			t.Error(diff)
		}
	})
}

// TestUnquoteIsJSONs reads every escape, and every character below 0x3000, as
// encoding/json does.
func TestUnquoteIsJSONs(t *testing.T) {
	for c := range rune(0x3000) {
		for _, s := range []string{string(c) + "x", "a\\u" + string("0123456789abcdef"[c>>12&15]) + string("0123456789ABCDEF"[c>>8&15]) + string("0123456789abcdef"[c>>4&15]) + string("0123456789abcdef"[c&15])} {
			raw := []byte(`"` + s + `"`)
			if !json.Valid(raw) {
				continue
			}
			var want string
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			if got, err := Unquote(raw); err != nil || got != want {
				t.Fatalf("%s: %q, %v; want %q", raw, got, err, want)
			}
		}
	}
}
