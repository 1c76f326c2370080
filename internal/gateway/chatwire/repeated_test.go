package chatwire

import (
	"fmt"
	"strings"
	"testing"
)

func TestRepeated(t *testing.T) {
	many := func(n int, last string) string {
		b := []byte("{")
		for i := range n { // each compared with each would be a minute
			b = fmt.Appendf(b, `"k%d":1,`, i)
		}
		return string(b) + last + "}"
	}
	for body, want := range map[string]string{
		`{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}`: "",
		`{"a":1,"b":2,"a":[2]}`:                     "a",
		`{"a":1,"\u0061":2}`:                        "a",
		`{"model":1,"Model":2}`:                     "Model",
		`{"messages":[{"role":"user"},{"role":"user","content":"a","content":"b"}]}`:   "messages[1].content",
		`{"messages":[{"content":"a","con\u0074ent":"b"}]}`:                            "messages[0].content",
		`{"messages":[{"content":"a","Content":"b"}]}`:                                 "messages[0].Content",
		`{"messages":[{"meſſages":"a","messages":"b"}]}`:                               "messages[0].messages",
		`{"messages":[{"tool_calls":[{"function":{"name":"a","NAME":"b"}}]}]}`:         "messages[0].tool_calls[0].function.NAME",
		`{"messages":[{"content":[{"text":"a"},{"text":"a","text":"b"}]}]}`:            "messages[0].content[1].text",
		`{"tools":[{"function":{"parameters":{"properties":{"name":{},"Name":{}}}}}]}`: "",
		`{"tools":[{"function":{"parameters":{"anyOf":[{"name":{},"Name":{}}]}}}]}`:    "",
		`{"tools":[{"function":{"parameters":{"anyOf":[{"name":{},"name":{}}]}}}]}`:    "tools[0].function.parameters.anyOf[0].name",
		`{"response_format":{"type":"json_schema","Type":"text"}}`:                     "response_format.Type",
		`[[1,{"":1,"":2}]]`:                                "[0][1].",
		many(200_000, `"k7":2`):                            "k7",
		many(200_000, `"K7":2`):                            "K7",
		many(200, `"s":2,"ſ":2`):                           "ſ",
		many(200, `"k":2,"\u212a":2`):                      "\u212a",
		many(few-1, `"k7":2`):                              "k7",
		many(few, `"k7":2`):                                "k7",
		`{"a":` + many(200, `"b":{"k1":{},"k1":{}}`) + `}`: "a.b.k1",
		`"text"`: "",
	} {
		at, again := Repeated([]byte(body))
		if at != want || again != (want != "") {
			t.Errorf("%.80s: %q %v, want %q", body, at, again, want)
		}
	}
}

func BenchmarkRepeated(b *testing.B) {
	var body []byte
	for i := range 100 {
		body = fmt.Appendf(body, `,{"role":"user","content":"%s"},{"role":"assistant","content":null,"tool_calls":[{"id":"%d","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}`, strings.Repeat("word ", 200), i)
	}
	body = []byte(`{"model":"m","messages":[` + string(body[1:]) + `]}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		Repeated(body)
	}
}
