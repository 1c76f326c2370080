package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/google/go-cmp/cmp"
)

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz \n"[r.IntN(28)]
	}
	return b
}

// changed makes the next text of a history: something is put in, taken out or
// changed at a few places, and something comes behind.
func changed(r *rand.Rand, b []byte) []byte {
	for range r.IntN(4) {
		at := r.IntN(len(b) + 1)
		cut := min(r.IntN(40), len(b)-at)
		b = bytes.Join([][]byte{b[:at], randomBytes(r, r.IntN(40)), b[at+cut:]}, nil)
	}
	return append(bytes.Clone(b), randomBytes(r, r.IntN(2000))...)
}

func TestADeltaGivesTheTextBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		base := randomBytes(r, r.IntN(8000))
		texts := [][]byte{base}
		var toFirst []piece
		for k := range 6 {
			last := texts[len(texts)-1]
			next := changed(r, last)
			ps := diff(nil, last, next, 0)
			if k == 0 {
				toFirst = ps
			} else {
				toFirst = compose(ps, toFirst)
			}
			for name, c := range map[string]struct {
				base []byte
				ps   []piece
			}{"the one before": {last, ps}, "the first": {base, toFirst}} {
				delta := appendOwn(appendPieces(nil, c.ps), c.ps, next)
				got, err := apply(c.base, delta)
				if err != nil || !bytes.Equal(got, next) {
					t.Fatalf("history %d, text %d against %s: %v, %d bytes of %d", i, k, name, err, len(got), len(next))
				}
				if over := len(delta) - len(next); over > 16 {
					t.Errorf("a delta is %d bytes longer than its text", over)
				}
			}
			texts = append(texts, next)
		}
	}
}

func FuzzApply(f *testing.F) {
	base := []byte("the base of a delta, of some length")
	f.Add(base, []byte{1, 9, 0})
	f.Add([]byte{}, []byte{1, 4, 1, 2})
	ps := diff(nil, base, append([]byte("x"), base...), 0)
	f.Add(base, appendOwn(appendPieces(nil, ps), ps, append([]byte("x"), base...)))
	f.Add(base, append(appendPieces(nil, []piece{{own, 3}, {selfAt, 3}, {selfAt + 1, 5}, {0, 2}}), "abc"...))
	f.Fuzz(func(t *testing.T, base, delta []byte) {
		if len(delta) > 64 {
			return // a piece of the text itself doubles it
		}
		if out, err := apply(base, delta); err == nil && len(out) > (len(delta)+max(len(base), 1))<<len(delta) {
			t.Errorf("%d bytes of %d and %d", len(out), len(delta), len(base))
		}
	})
}

// TestCallsOfOneAttemptAreToldAgainstEachOther plays three conversations of one
// attempt, interleaved, and reads each call back over its chain.
func TestCallsOfOneAttemptAreToldAgainstEachOther(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	ch := &chain{}
	type talk struct {
		messages []fulgur.Message
		ids      []int32
	}
	var talks [3]talk
	rows := map[fulgur.Seq]*callRow{}
	var calls []fulgur.Call
	stored, plain := 0, 0
	for i := range 250 {
		k := &talks[r.IntN(1+2*r.IntN(2))]
		k.messages = append(k.messages, fulgur.Message{Role: "user", Content: string(randomBytes(r, 200))})
		for range 50 {
			k.ids = append(k.ids, r.Int32N(150000))
		}
		body, err := json.Marshal(map[string]any{"messages": k.messages, "user": i})
		if err != nil {
			t.Fatal(err)
		}
		call := fulgur.Call{ID: "x", Rollout: "r", Seq: fulgur.Seq(i + 1), Request: body, Messages: k.messages, PromptIDs: k.ids,
			Response: json.RawMessage(fmt.Sprintf(`{"id":%d,"prompt_token_ids":[%s],"user":%d}`, r.Int64(), textIDs(nil, idBytes(k.ids)), i))}
		row := encodedWith(t, c, ch, &call, func(at fulgur.Seq) (text, error) { return readOver(c, rows, at) })
		if row.base >= row.seq {
			t.Fatalf("call %d is told against call %d", row.seq, row.base)
		}
		rows[call.Seq] = row
		calls = append(calls, call)
		stored += len(row.bodies) + len(row.promptIDs)
		plain += len(call.Request) + len(call.Response) + 4*len(call.PromptIDs)
	}
	if stored*8 > plain {
		t.Errorf("%d bytes are stored of %d", stored, plain)
	}
	for i := 0; i < len(calls); i += 2 {
		want := calls[i]
		over := 0
		for at := rows[want.Seq].base; at != 0; at = rows[at].base {
			over++
		}
		if over > levels*(fanout-1)+3 { // 3: new conversations start against another
			t.Errorf("call %d is read over %d", i, over)
		}
		txt, err := readOver(c, rows, want.Seq)
		if err != nil {
			t.Fatal(err)
		}
		got := fulgur.Call{ID: want.ID, Rollout: want.Rollout, Seq: want.Seq}
		if err := c.decode(&got, columnsOf(rows[want.Seq]), txt, nil); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("call %d (-want +got):\n%s", i, cmp.Diff(want, got))
		}
	}
}

// TestTextsThatMoveAreToldByBytes: something is put in or taken out in the middle of
// long parts of a request, as harnesses do with instructions and tools, so that what
// blocks tell is dropped for what bytes tell.
func TestTextsThatMoveAreToldByBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	ch := &chain{}
	rows := map[fulgur.Seq]*callRow{}
	moved := func(b []byte) []byte { // with a hole of another size
		at := len(b)/4 + r.IntN(len(b)/2)
		return bytes.Join([][]byte{b[:at], randomBytes(r, 1+r.IntN(200)), b[min(len(b), at+r.IntN(100)):]}, nil)
	}
	front, said, tools := randomBytes(r, 12_000), randomBytes(r, 12_000), randomBytes(r, 12_000)
	for i := range 60 {
		switch r.IntN(4) {
		case 0:
			front = moved(front)
		case 1:
			said = moved(said)
		case 2:
			tools = moved(tools)
		default:
			front, said, tools = moved(front), moved(said), moved(tools)
		}
		quote := func(b []byte) string { q, _ := json.Marshal(string(b)); return string(q) }
		want := fulgur.Call{ID: "x", Rollout: "r", Seq: fulgur.Seq(i + 1), PromptIDs: []int32{1, 2, 3},
			Request:  json.RawMessage(`{"instructions":` + quote(front) + `,"messages":[{"role":"user","content":` + quote(said) + `}],"tools":` + quote(tools) + `}`),
			Sent:     json.RawMessage(`{"tools":` + quote(tools) + `,"messages":` + quote(said) + `,"n":` + fmt.Sprint(i) + `}`),
			Response: json.RawMessage(`{"id":` + fmt.Sprint(r.Int64()) + `,"text":` + quote(randomBytes(r, 50)) + `}`),
			Messages: []fulgur.Message{{Role: "system", Content: string(front)}, {Role: "user", Content: string(said)}}}
		rows[want.Seq] = encodedWith(t, c, ch, &want, func(at fulgur.Seq) (text, error) { return readOver(c, rows, at) })
		txt, err := readOver(c, rows, want.Seq)
		if err != nil {
			t.Fatal(err)
		}
		got := fulgur.Call{ID: want.ID, Rollout: want.Rollout, Seq: want.Seq}
		if err := c.decode(&got, columnsOf(rows[want.Seq]), txt, nil); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("call %d (-want +got):\n%s", i, d)
		}
	}
}

func TestChainsLetGo(t *testing.T) {
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	all := newChains(100_000)
	for i := range 100 {
		ch := all.of(chainKey{num: int64(i % 50), attempt: "0"})
		d := c.draft(&fulgur.Call{Request: bytes.Repeat([]byte("x"), 100_000)})
		told := ch.tell(&d, nil)
		told.next.recorded(fulgur.Seq(i + 1))
		all.keep(ch, told.next, told.old)
	}
	if all.bytes > all.limit || len(all.byKey) < 8 || len(all.byKey) > 20 {
		t.Errorf("%d bytes in %d chains", all.bytes, len(all.byKey))
	}
	for k := range all.byKey {
		all.drop(k)
	}
	all.drop(chainKey{num: 1 << 40})
	if all.bytes != 0 || len(all.byKey) != 0 {
		t.Errorf("%d bytes in %d chains", all.bytes, len(all.byKey))
	}
}

// readOver reads a row over those that it is told against.
func readOver(c *codec, rows map[fulgur.Seq]*callRow, at fulgur.Seq) (txt text, err error) {
	row := rows[at]
	if row.base != 0 {
		if txt, err = readOver(c, rows, row.base); err != nil {
			return txt, err
		}
	}
	return c.read(columnsOf(row), txt)
}
