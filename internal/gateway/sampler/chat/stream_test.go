package chat

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/gateway/call"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/sse"
)

// Whatever a server streams, in whatever pieces: nothing panics, what is put on
// record is JSON, and pieces say what the record says.
func FuzzStream(f *testing.F) {
	// Short ones: Go's fuzzer spends its time on making long ones shorter.
	f.Add([]byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"prompt_token_ids\":[1,2]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"北\"},\"logprobs\":{\"content\":[{\"logprob\":-1}]},\"finish_reason\":\"stop\",\"token_ids\":[3]}]}\n\ndata: [DONE]\n\n"), uint8(7))
	f.Add([]byte("data: {\"choices\":[{\"text\":\"a\",\"logprobs\":{\"token_logprobs\":[NaN]},\"stop_reason\":\"a\"}]}\r\n\r\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n"), uint8(3))
	f.Add([]byte("data: {\"error\":{\"message\":\"x\"}}\n\n: ping\n\n"), uint8(0))
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":-1},{\"index\":1023,\"id\":\"x\"},{\"index\":5000}]},\"routed_experts\":null,\"token_ids\":[1]}]}\n\n"), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, cut uint8) {
		for _, wire := range []string{Wire, WireText, ""} {
			res := &call.Result{}
			o := &call.Order{Request: &call.Request{LogProbs: true}}
			text, ids := "", 0
			tee := &tee{acc: newAccumulator(res, o), res: res, wire: wire, emit: func(d call.Delta) error {
				if wire != "" && (!json.Valid(d.Raw) || bytes.Contains(d.Raw, []byte("NaN"))) && !bytes.Contains(stream, []byte(`"NaN`)) {
					t.Errorf("%q is passed on", d.Raw)
				}
				text += d.Text
				ids += len(d.Tokens)
				return nil
			}}
			var parser sse.Parser
			for rest, n := stream, int(cut)+1; len(rest) > 0; rest = rest[min(n, len(rest)):] {
				if parser.Feed(rest[:min(n, len(rest))], tee.event) != nil {
					break
				}
			}
			tee.acc.end()
			if wire != "" && !json.Valid(tee.whole()) {
				t.Errorf("on record: %s", tee.whole())
			}
			if wire == "" && (ids != len(res.SampledIDs) || res.Reply != nil && text != res.Reply.Content) {
				t.Errorf("%d ids and %q shown, %d and %+v on record", ids, text, len(res.SampledIDs), res.Reply)
			}
		}
	})
}

// What a server sends behind [DONE] is neither shown nor on record, however it arrives.
func TestBehindTheEnd(t *testing.T) {
	const end = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\",\"token_ids\":[1]}]}\n\ndata: [DONE]\n\n"
	for _, behind := range []string{"data: {\"choices\":[{\"delta\":{\"content\":\"more\"},\"token_ids\":[2]}]}\n\n", "data: {\"error\":\"late\"}\n\n", "data: no JSON\n\n"} {
		res, shown := &call.Result{}, 0
		tee := &tee{acc: newAccumulator(res, &call.Order{Request: &call.Request{}}), res: res, wire: Wire, emit: func(call.Delta) error { shown++; return nil }}
		var parser sse.Parser
		err := parser.Feed([]byte(end+behind), tee.event)
		tee.acc.end()
		if err != nil || shown != 1 || res.Reply.Content != "a" || len(res.SampledIDs) != 1 {
			t.Errorf("%q: %v, %d pieces shown, %+v and %v on record", behind, err, shown, res.Reply, res.SampledIDs)
		}
	}
}
