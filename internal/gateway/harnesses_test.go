package gateway_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway"
	"github.com/fulgur-rl/fulgur/internal/gateway/dialect/openairesponses"
)

// What the harnesses of today need of a gateway, each where it is tested:
//
//	1 TestPauseIsInvisible, TestRefusing · 2 TestDefaultsThatHarnessesStand · 3 TestRetryInEachDialect
//	4 TestSignsOfLife, TestAFailureAfterSignsOfLife · 5 TestEngineFails, TestHeldTooLong, dialecttest
//	6, 7 TestRetryIsJoined, TestSameContent · 8 TestRetryIsJoined, TestWhatIsNoRetry · 9 TestAClientThatLeavesAtTheTerminalEvent
//	10 TestABrokenCallIsGoneOnFrom · 11 TestSameContent, render's TestExtendCalc · 12 TestTokensAreReusedOverTurns
//	13 render's TestThinkingTemplates, TestSameTokensOverChatAndMessages · 14 TestAuxiliaryRules (by header)
//	15 TestWhatIsNoRetry, TestNoCrossing · 16, 23 TestPathsOfHarnesses, TestUnknownPaths, TestModelsInBothShapes, TestCountTokens
//	17, 18 TestClaudeCode, TestCodexRequest, openairesponses' TestTools and TestGoldenStreams · 19 TestContextFull
//	20, 21 dialecttest, samplertest (usage, length) · 22 TestEndedAttempt, TestEndedAttemptInItsDialect, TestContextFull
//
// All of it with the harnesses themselves: test/harness.

// A call that was held has its headers before a failure: the answer breaks, and
// never ends as if it were whole, streamed or not.
func TestAFailureAfterSignsOfLife(t *testing.T) {
	h, _ := chatHouse(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
	}, fastBeat)
	for _, body := range []string{hi, hiStream} {
		h.pause(t, fulgur.PauseRequest{Owner: "x"})
		got := make(chan reply, 1)
		go func() { got <- h.chat(t, agentKey, body) }()
		eventually(t, "it is held", func() bool { return h.held(t) == 1 })
		time.Sleep(200 * time.Millisecond) // signs of life go out
		h.resume(t)
		r := <-got
		if r.status != 200 || r.err == nil || strings.Contains(r.body, "[DONE]") || body == hiStream && !strings.Contains(r.body, `"error"`) {
			t.Errorf("%d %v %q", r.status, r.err, r.body)
		}
	}
}

// Codex closes its connection when it has read the terminal event: the call is
// delivered, and the same again is another.
func TestAClientThatLeavesAtTheTerminalEvent(t *testing.T) {
	h := newHouse(t, patient, func(o *gateway.Options, _ *book) { o.Dialects = append(o.Dialects, openairesponses.Dialect{}) })
	const body = `{"model":"policy","input":"hi","stream":true}`
	for n := range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/openai/v1/responses", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+agentKey)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(resp.Body); lines.Scan() && !strings.HasPrefix(lines.Text(), "event: response.completed"); {
		}
		cancel()
		resp.Body.Close()
		eventually(t, "it is on record", func() bool { return len(h.all()) == n+1 })
		if c := h.last(t); c.Fate != fulgur.FateDelivered || !c.Trainable || c.Joined != 0 || h.gen.Calls() != n+1 {
			t.Errorf("%s, %v, joined %d, %d generations", c.Fate, c.Untrainable, c.Joined, h.gen.Calls())
		}
	}
}

// A client may have used what it got of a call that broke in the middle. A request
// that goes on from that is a call of its own, while the broken one waits for a retry.
func TestABrokenCallIsGoneOnFrom(t *testing.T) {
	h := newHouse(t, patient)
	h.slow(30)
	leave := h.leaver(t, hiStream)
	leave()
	h.orphaned(t)
	const next = `{"model":"policy","stream":true,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"xxx"},{"role":"user","content":"and?"}]}`
	if got := h.chat(t, agentKey, next); !text(got) || h.gen.Calls() != 2 {
		t.Errorf("%d %s, %d generations", got.status, got.body, h.gen.Calls())
	}
	if c := h.all()[0]; len(c.Messages) != 3 || c.Joined != 0 || !c.Trainable {
		t.Errorf("record: %d messages, joined %d, %v", len(c.Messages), c.Joined, c.Untrainable)
	}
	if got := h.chat(t, agentKey, hiStream); !text(got) || h.gen.Calls() != 2 {
		t.Errorf("the retry: %d %s, %d generations", got.status, got.body, h.gen.Calls())
	}
}
