package chatwire

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSplice(t *testing.T) {
	f := func(k, v string) Field { return Field{k, []byte(v)} }
	for is, c := range map[string]struct {
		in     string
		fields []Field
		want   string
	}{
		"replaced where it stands":         {`{"a":1, "b" : {"a":2} ,"c":[1]}`, []Field{f("a", "9")}, `{"a":9, "b" : {"a":2} ,"c":[1]}`},
		"added at the end":                 {` {"a":1 } `, []Field{f("b", "2"), f("c", `"x"`)}, ` {"a":1 ,"b":2,"c":"x"} `},
		"into an empty object":             {`{ }`, []Field{f("a", "1"), f("b", "2")}, `{ "a":1,"b":2}`},
		"every one of a doubled key":       {`{"a":1,"a":2}`, []Field{f("a", "3")}, `{"a":3,"a":3}`},
		"a key with escapes":               {`{"\u0061":"x\"}"}`, []Field{f("a", "3")}, `{"\u0061":3}`},
		"braces and quotes inside strings": {`{"m":"}{\"a\":1,","a":true}`, []Field{f("a", "false")}, `{"m":"}{\"a\":1,","a":false}`},
		"GW-05 key order and big numbers":  {`{"t":{"z":1,"a":98765432109876543210},"model":"x","e":1E-7}`, []Field{f("model", `"y"`)}, `{"t":{"z":1,"a":98765432109876543210},"model":"y","e":1E-7}`},
	} {
		t.Run(is, func(t *testing.T) {
			got, err := Splice([]byte(c.in), c.fields...)
			if err != nil || string(got) != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
		})
	}
	for _, bad := range []string{``, `[]`, `"x"`, `null`, `{"a"`} {
		if _, err := Splice([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestMend(t *testing.T) {
	in := `{"a":NaN,"b":[-Infinity,Infinity,1],"c":"NaN \"Infinity"}`
	want := `{"a":null,"b":[null,null,1],"c":"NaN \"Infinity"}`
	if got := Mend([]byte("{\"a\":\"o\xff\xfek\xe5\x8c\",\"b\":NaN}")); string(got) != "{\"a\":\"o\ufffdk\ufffd\",\"b\":null}" {
		t.Errorf("bytes that are no UTF-8: %s", got)
	}
	if got := Mend([]byte(in)); string(got) != want {
		t.Errorf("got %s", got)
	}
}

func TestGet(t *testing.T) {
	b := []byte(`{"a":1,"b":{"a":1},"a" : [2]}`)
	if got := Get(b, "a"); string(got) != "[2]" {
		t.Errorf("got %s, want the last", got)
	}
	if Get(b, "x") != nil {
		t.Error("a key that is not there")
	}
}

func TestFloats(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if string(AppendFloat(nil, v)) != "null" || string(AppendFloat32(nil, float32(v))) != "null" {
			t.Errorf("%v is written", v)
		}
	}
	if got := string(AppendFloat32(nil, -1.88601553440094)); got != "-1.8860155" {
		t.Error(got)
	}
}

// A spliced object has the fields set and is otherwise the same value; what is
// no object is refused; nothing panics.
func FuzzSplice(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"model":[1,"}"]}}`), "model")
	f.Add([]byte(`{"\u006dodel":"x"}`), "model")
	f.Add([]byte(" {\n} "), "é\"")
	f.Add([]byte(`{"a":1e5}x`), "a")
	f.Add([]byte(`{"`), "a") // a key that is torn
	f.Fuzz(func(t *testing.T, body []byte, key string) {
		before := append([]byte(nil), body...)
		out, err := Splice(body, Field{key, []byte(`"spliced"`)})
		Get(body, key)
		Repeated(body)
		Mend(body)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if !json.Valid(body) || !utf8.Valid(body) || !utf8.ValidString(key) {
			return // not a body that gets this far
		}
		var want, got map[string]json.RawMessage
		if json.Unmarshal(body, &want) != nil || want == nil {
			if err == nil {
				t.Fatalf("%s is taken for an object", body)
			}
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s became %s: %v", body, out, err)
		}
		want[key] = json.RawMessage(`"spliced"`)
		if !reflect.DeepEqual(want, got) {
			t.Errorf("%s became %s", body, out)
		}
	})
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\x00\x7f\u2028北\xff")
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		out := AppendString(nil, s)
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q became %s: %v", s, out, err)
		}
		var want strings.Builder
		for _, r := range s {
			want.WriteRune(r)
		}
		if got != want.String() {
			t.Errorf("%q became %q", s, got)
		}
	})
}

func TestReadPrompts(t *testing.T) {
	for in, want := range map[string]Prompts{
		`"a"`:            {Texts: []string{"a"}},
		`["a","b"]`:      {Texts: []string{"a", "b"}},
		` [1, 2] `:       {IDs: [][]int32{{1, 2}}},
		`[[1],[2,3]]`:    {IDs: [][]int32{{1}, {2, 3}}},
		`[[]]`:           {IDs: [][]int32{{}}},
		``:               {},
		`null`:           {},
		`[]`:             {},
		`[null]`:         {},
		`[1,null]`:       {},
		`[-1]`:           {},
		`[1.5]`:          {},
		`["a",[1]]`:      {},
		`[[1],"a"]`:      {},
		`[1,"a"]`:        {},
		`{"a":1}`:        {},
		`7`:              {},
		`[4294967296]`:   {},
		`[{"prompt":1}]`: {},
	} {
		got, err := ReadPrompts(json.RawMessage(in))
		if bad := want.Texts == nil && want.IDs == nil; (err != nil) != bad || !bad && !reflect.DeepEqual(want, got) {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
}

// R3: the first choice that has routed experts loses them, every other byte stays.
func TestTakeExperts(t *testing.T) {
	for in, want := range map[string][2]string{
		`{"choices":[{"token_ids":[2], "routed_experts": [[0],[1]] }],"x":1}`:                       {`{"choices":[{"token_ids":[2] }],"x":1}`, `[[0],[1]]`},
		`{"choices":[{"routed_experts":"eA==","a":1}]}`:                                             {`{"choices":[{"a":1}]}`, `"eA=="`},
		`{"choices":[ { "routed_experts":[1] } ]}`:                                                  {`{"choices":[ { } ]}`, `[1]`},
		`{"choices":[{"a":1,"routed_experts":null}],"b":[]}`:                                        {`{"choices":[{"a":1}],"b":[]}`, ``},
		`{"choices":[{"routed_experts":null},{"i":1,"routed_experts":[1]},{"routed_experts":[2]}]}`: {`{"choices":[{},{"i":1},{"routed_experts":[2]}]}`, `[1]`},
		`{"choices":[{"message":{"content":"routed_experts"}}]}`:                                    {`{"choices":[{"message":{"content":"routed_experts"}}]}`, ``},
		`{"choices":{"routed_experts":1},"routed_experts":[3]}`:                                     {`{"choices":{"routed_experts":1},"routed_experts":[3]}`, ``},
		`{"choices":["routed_experts",7,{"routed_experts":{"a":1}}]}`:                               {`{"choices":["routed_experts",7,{}]}`, `{"a":1}`},
		`["routed_experts"]`: {`["routed_experts"]`, ``},
	} {
		rest, experts := TakeExperts([]byte(in))
		if string(rest) != want[0] || string(experts) != want[1] {
			t.Errorf("%s: %s and %s", in, rest, experts)
		}
	}
}

func FuzzTakeExperts(f *testing.F) {
	f.Add([]byte(`{"choices":[{"routed_experts":[1],"a":{}},{"b":"\"}"}]}`))
	f.Add([]byte(`{"choices":[{"routed_experts"`))
	f.Fuzz(func(t *testing.T, body []byte) {
		rest, experts := TakeExperts(body)
		if json.Valid(body) && (!json.Valid(rest) || experts != nil && !json.Valid(experts)) {
			t.Errorf("%s became %s and %s", body, rest, experts)
		}
	})
}
