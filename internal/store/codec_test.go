package store

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/google/go-cmp/cmp"
)

func TestDataIDIsTheFirstThatIsNotMissing(t *testing.T) {
	for input, want := range map[string]string{
		`{"data_id":"row-1","instance_id":"x"}`:      "row-1",
		`{"data_id":"","instance_id":"x"}`:           "x",
		`{"data_id":0,"instance_id":"x"}`:            "x",
		`{"data_id":0.0,"instance_id":false}`:        "",
		`{"data_id":17}`:                             "17",
		`{"data_id":1.5}`:                            "1.5",
		`{"data_id":true}`:                           "True",
		`{"data_id":null,"instance_id":"\u00e9"}`:    "é",
		`{"data_id":[],"instance_id":{}}`:            "",
		`{"DATA_ID":"other case"}`:                   "",
		`[{"data_id":"x"}]`:                          "",
		`"data_id"`:                                  "",
		`null`:                                       "",
		`{"data_id":98765432109876543210}`:           "98765432109876543210",
		`{"nested":{"data_id":"x"},"instance_id":7}`: "7",
	} {
		if got := dataID(json.RawMessage(input)); got != want {
			t.Errorf("%s: %q, want %q", input, got, want)
		}
	}
}

// FuzzDecode feeds damaged columns: an error or a call, never a panic, and never
// more memory than the bound.
func FuzzDecode(f *testing.F) {
	c, err := newCodec()
	if err != nil {
		f.Fatal(err)
	}
	call := &fulgur.Call{ID: "x", Request: json.RawMessage(`{"a":1}`), PromptIDs: []int32{1, 2}, LogProbs: []float32{-1},
		Messages: []fulgur.Message{{Role: "user", Content: "hi"}}}
	row := encoded(f, c, &chain{}, call)
	base, err := c.read(columnsOf(row), text{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(row.meta), row.promptIDs, row.logProbs, row.bodies, true)
	f.Add([]byte("{}"), []byte{1}, []byte{}, []byte{}, false)
	f.Add([]byte("{}"), []byte{}, []byte{}, c.enc.EncodeAll([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, nil), false)
	f.Add([]byte("{}"), []byte{1, 1, 17, 0}, []byte{}, []byte{1, 2, 5, 0, 6, 7, 8, 9}, true)
	f.Fuzz(func(t *testing.T, meta, ids, probs, bodies []byte, delta bool) {
		var call fulgur.Call
		cols := &columns{base: sql.NullInt64{Int64: 1, Valid: delta}, meta: meta, prompt: ids, probs: probs, bodies: bodies}
		got, err := c.read(cols, base)
		if err == nil && c.decode(&call, cols, got, nil) == nil && len(call.PromptIDs) != len(got.ids)/4 {
			t.Errorf("%d ids of %d bytes", len(call.PromptIDs), len(got.ids))
		}
		if err == nil {
			if d, err := c.located(got); err == nil && !bytes.Equal(bytes.Join(d.segs[:], nil), got.body) {
				t.Errorf("%q is cut into %q", got.body, d.segs)
			}
		}
	})
}

// encoded is a call's row, told as the next of ch by marks alone.
func encoded(t testing.TB, c *codec, ch *chain, call *fulgur.Call) *callRow {
	t.Helper()
	return encodedWith(t, c, ch, call, nil)
}

func encodedWith(t testing.TB, c *codec, ch *chain, call *fulgur.Call, read func(fulgur.Seq) (text, error)) *callRow {
	t.Helper()
	row, err := c.encode(call)
	if err != nil {
		t.Fatal(err)
	}
	d := c.draft(call)
	told := ch.tell(&d, read)
	c.write(row, &told, &d)
	row.seq = call.Seq
	if ch != nil {
		told.next.recorded(call.Seq)
		ch.put(told.next, told.old)
	}
	c.free(&d)
	return row
}

func columnsOf(row *callRow) *columns {
	return &columns{base: sql.NullInt64{Int64: int64(row.base), Valid: true}, meta: row.meta, prompt: row.promptIDs, sampled: row.sampledIDs, probs: row.logProbs, bodies: row.bodies}
}

func TestACallIsTheSameAfterTheCodec(t *testing.T) {
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fulgur.Call{
		"empty":              {},
		"outside a rollout":  {Run: "default"},
		"no ids is not none": {PromptIDs: []int32{}, SampledIDs: nil, LogProbs: []float32{}},
		"a large body":       {Rollout: "r", Request: json.RawMessage(`"` + strings.Repeat("long ", 20_000) + `"`)},
	} {
		cols := columnsOf(encoded(t, c, nil, &want))
		got := fulgur.Call{Rollout: want.Rollout}
		txt, err := c.read(cols, text{})
		if err == nil {
			err = c.decode(&got, cols, txt, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func FuzzIsTextOf(f *testing.F) {
	f.Add([]byte("1,2"), []byte{1, 0, 0, 0, 2, 0, 0, 0})
	f.Add([]byte("00000001,9999999,10000000,-1"), []byte{1, 0, 0, 0, 0x7f, 0x96, 0x98, 0, 0x80, 0x96, 0x98, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, list, ids []byte) {
		own := textIDs(nil, ids)
		if !isTextOf(own, ids) {
			t.Errorf("%s is not taken for %x", own, ids)
		}
		if got := isTextOf(list, ids); got != bytes.Equal(own, list) {
			t.Errorf("%q for %x: %t", list, ids, got)
		}
		for _, x := range [][]byte{append(bytes.Clone(own), list...), append(bytes.Clone(list), own...)} {
			if got := isTextOf(x, ids); got != bytes.Equal(own, x) {
				t.Errorf("%q for %x: %t", x, ids, got)
			}
		}
	})
}

// TestWhatFollowsFromTheRestIsNotKept: what was sent upstream costs what differs from the
// request, and the ids in the first response nothing; in whatever way both look.
func TestWhatFollowsFromTheRestIsNotKept(t *testing.T) {
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	ids := make([]int32, 4000)
	for i := range ids {
		ids[i] = rng.Int32N(150000)
	}
	ids[7], ids[8], ids[9] = 0, math.MaxInt32, -5
	list := string(textIDs(nil, idBytes(ids)))
	request := `{"model":"m","messages":["` + string(randomBytes(rng, 9000)) + `"],"n":1}`
	sent := strings.Replace(request, `"m"`, `"other"`, 1) + " "
	for name, x := range map[string]struct {
		response, sent string
		most           int // bytes
	}{
		"as servers write it":     {`{"prompt_token_ids":[` + list + `],"x":1}`, sent, 9500},
		"in a choice":             {`{"choices":[{"prompt_token_ids":[` + list + `]}]}`, sent, 9500},
		"with spaces":             {`{"prompt_token_ids":[` + strings.ReplaceAll(list, ",", ", ") + `]}`, sent, 39000},
		"one is another":          {`{"prompt_token_ids":[` + list + `1]}`, sent, 39000},
		"cut":                     {`{"prompt_token_ids":[` + list, sent, 39000},
		"sent something else":     {`{"prompt_token_ids":[` + list + `]}`, string(randomBytes(rng, 9000)), 19000},
		"nothing sent, no answer": {``, ``, 9500},
	} {
		for _, ch := range []*chain{nil, {}} {
			want := fulgur.Call{Seq: 1, Rollout: "r", PromptIDs: ids, Request: json.RawMessage(request), Sent: json.RawMessage(x.sent), Response: json.RawMessage(x.response)}
			if x.response == "" {
				want.Sent, want.Response = nil, nil
			}
			row := encoded(t, c, ch, &want)
			if n := len(row.bodies); n > x.most {
				t.Errorf("%s: %d bytes", name, n)
			}
			cols := columnsOf(row)
			txt, err := c.read(cols, text{})
			got := fulgur.Call{Seq: 1, Rollout: "r"}
			if err == nil {
				err = c.decode(&got, cols, txt, nil)
			}
			if d := cmp.Diff(want, got); d != "" || err != nil {
				t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
			}
			front, err := c.readFront(cols, nil)
			if err != nil {
				t.Fatal(err)
			}
			if parts, err := sections(front); err != nil || string(parts[partResponse]) != x.response {
				t.Errorf("%s: %v, the front is another", name, err)
			}
		}
	}
}

func TestTurnsAreReadInBothForms(t *testing.T) {
	call := fulgur.ToolCall{ID: "c", Name: "calc", Arguments: `{"a": 1}`}
	for name, want := range map[string]turns{
		"nothing":  {},
		"no reply": {Messages: []fulgur.Message{{Role: "user", Content: "hi é\x00"}}},
		"all": {
			Messages: []fulgur.Message{{Role: "assistant", Reasoning: "hm", ToolCalls: []fulgur.ToolCall{call, call}}, {Role: "tool", ToolCallID: "c", Name: "calc", Content: "42"}},
			Tools:    []fulgur.Tool{{Name: "calc", Description: "d", Schema: json.RawMessage(`{"z":1}`), Raw: json.RawMessage(`{"b":1, "a":2}`)}, {Name: "bare"}},
			Reply:    &fulgur.Message{Role: "assistant", ToolCalls: []fulgur.ToolCall{call}},
		},
	} {
		b, _, _ := appendTurns(nil, &want)
		got, err := readTurns(b, want.Messages)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
		for i := 1; i < len(b); i++ {
			if _, err := readTurns(b[:i], nil); err == nil {
				t.Errorf("%s: cut to %d of %d bytes, and read", name, i, len(b))
			}
		}
		old, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err = readTurns(old, nil)
		if len(want.Tools) == 0 { // JSON keeps no spaces of a raw value
			if d := cmp.Diff(want, got); d != "" || err != nil {
				t.Errorf("%s, of an older record: %v (-want +got):\n%s", name, err, d)
			}
		} else if err != nil || len(got.Tools) != len(want.Tools) {
			t.Errorf("%s, of an older record: %v %+v", name, err, got)
		}
	}
}
