package chat

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/call"
)

func agentAnswer() []byte {
	var b strings.Builder
	b.WriteString(`{"id":"c","object":"chat.completion","created":1,"model":"m","prompt_token_ids":[`)
	for i := range 16400 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, 1000+i*7%100000)
	}
	b.WriteString(`],"choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("word ", 500) + `"},"finish_reason":"stop","token_ids":[`)
	for i := range 500 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, i*7)
	}
	b.WriteString(`],"logprobs":{"content":[`)
	for i := range 500 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"token":"word","logprob":-%d.123456,"bytes":[119,111,114,100],"top_logprobs":[]}`, i%4)
	}
	b.WriteString(`]}}],"usage":{"prompt_tokens":16400,"completion_tokens":500,"total_tokens":16900}}`)
	return []byte(b.String())
}

func BenchmarkAnswer(b *testing.B) {
	raw := agentAnswer()
	x := &exchange{o: &call.Order{Request: &call.Request{}, Endpoint: fulgur.Endpoint{}}, res: &call.Result{}, wire: Wire}
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		x.answer(200, "application/json", raw)
	}
	if len(x.res.SampledIDs) != 500 || len(x.res.LogProbs) != 500 || len(x.res.PromptIDs) != 16400 {
		b.Fatal(len(x.res.SampledIDs), len(x.res.PromptIDs))
	}
}
