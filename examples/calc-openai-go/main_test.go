package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
)

func TestTheTwinHoldsTheSameConversation(t *testing.T) {
	replies := []string{
		`{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calc","arguments":"{\"expression\": \"3*4\"}"}}]}`,
		`{"role":"assistant","content":"<tool_call>{\"name\"</tool_call>"}`,
		`{"role":"assistant","content":"Answer: 12"}`,
	}
	var bodies []string
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"index":0,"message":`+replies[len(bodies)]+`,"finish_reason":"stop"}]}`)
		bodies = append(bodies, string(b))
	}))
	defer ts.Close()
	t.Setenv("OPENAI_BASE_URL", ts.URL+"/v1/")
	t.Setenv("OPENAI_API_KEY", "secret")
	answer, err := run(t.Context(), "How many pens?")
	if err != nil || answer != "Answer: 12" || len(bodies) != 3 {
		t.Fatalf("answer %q, error %v, %d calls", answer, err, len(bodies))
	}
	var got []string
	for _, m := range gjson.Get(bodies[2], "messages").Array() {
		got = append(got, m.Get("role").String()+": "+m.Get("content").String()+m.Get("tool_calls.0.function.arguments").String()+m.Get("tool_call_id").String())
	}
	want := []string{"system: " + system, "user: How many pens?", `assistant: {"expression": "3*4"}`, "tool: 12call_1",
		`assistant: <tool_call>{"name"</tool_call>`, "user: " + badCall}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if tool := gjson.Get(bodies[0], "tools.0.function"); tool.Get("name").String() != "calc" || tool.Get("description").String() != "one operation per call" {
		t.Errorf("tool %s", tool)
	}
}

func TestTheTwinsToolAnswersAsTheAgents(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"expression":"12 * 3"}`: "36", `{"expression":"12/3"}`: "4", `{"expression":"3--4"}`: "7", `{"expression":"7/2"}`: "error: not whole",
		`{"expression":"1+2+3"}`: "error: one operation", `{}`: badCall, `{`: badCall,
	} {
		if got := result("calc", arguments); got != want {
			t.Errorf("%s: %q, want %q", arguments, got, want)
		}
	}
	if got := result("python", "{}"); got != "error: no such tool" {
		t.Errorf("another tool: %q", got)
	}
}
