package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCalcDoesOneOperation(t *testing.T) {
	for expression, want := range map[string]string{
		"3+4": "7", "3-14": "-11", "12*3": "36", "12/3": "4", " 12 * 3 ": "36", "-4*5": "-20", "4--5": "9", "4/-2": "-2",
		"7/2": "error: not whole", "7/0": "error: not whole",
		"": "error: one operation", "7": "error: one operation", "-7": "error: one operation", "1+2+3": "error: one operation",
		"a+1": "error: one operation", "1+": "error: one operation", "1++2": "error: one operation", "1234567*2": "error: one operation",
		"1.5*2": "error: one operation",
	} {
		if got := Calc(expression); got != want {
			t.Errorf("Calc(%q) = %q, want %q", expression, got, want)
		}
	}
}

func call(id, name, arguments string) Message {
	return Message{Role: "assistant", ToolCalls: []ToolCall{{ID: id, Type: "function", Function: Function{Name: name, Arguments: arguments}}}}
}

func TestNext(t *testing.T) {
	tool := func(id, content string) []Message { return []Message{{Role: "tool", Content: content, ToolCallID: id}} }
	for name, c := range map[string]struct {
		in   Message
		want []Message
	}{
		"a call's result goes back under its id":      {call("a", "calc", `{"expression": "3*4"}`), tool("a", "12")},
		"an error goes back too":                      {call("a", "calc", `{"expression": "3*4+1"}`), tool("a", "error: one operation")},
		"arguments that are no JSON":                  {call("a", "calc", `{"expression": 3*4}`), tool("a", BadCall)},
		"arguments without an expression":             {call("a", "calc", `{}`), tool("a", BadCall)},
		"a tool that was not offered":                 {call("a", "python", `{}`), tool("a", "error: no such tool")},
		"a text that should have been a call":         {Message{Content: `<tool_call>{"name": calc}</tool_call>`}, []Message{{Role: "user", Content: BadCall}}},
		"a text with a stray end is final":            {Message{Content: `Answer: 12</tool_call>`}, nil},
		"a text is final":                             {Message{Content: "Answer: 12"}, nil},
		"an empty message is final":                   {Message{}, nil},
		"a text beside a call does not make it final": {Message{Content: "Answer: 1", ToolCalls: call("a", "calc", `{"expression":"1+1"}`).ToolCalls}, tool("a", "2")},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, Next(c.in)); d != "" {
				t.Error(d)
			}
		})
	}
}

// server answers call n with replies[n]; a reply that begins with a digit is a status.
type server struct {
	replies []string
	header  http.Header
	bodies  []string
	auth    []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	n := min(len(s.bodies), len(s.replies)-1)
	s.bodies, s.auth = append(s.bodies, string(b)), append(s.auth, r.Header.Get("Authorization"))
	for k, v := range s.header {
		w.Header()[k] = v
	}
	switch reply := s.replies[n]; reply {
	case "410":
		w.WriteHeader(http.StatusGone)
	case "429":
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"index":0,"message":`+reply+`,"finish_reason":"stop"}]}`)
	}
}

const (
	toolReply  = `{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"calc","arguments":"{\"expression\": \"3*4\"}"}}],"odd":1}`
	finalReply = `{"role":"assistant","content":"Answer: 12"}`
)

func run(t *testing.T, s *server, stdin string, args []string, env map[string]string) (code int, stdout, stderr string) {
	t.Helper()
	ts := httptest.NewServer(s)
	defer ts.Close()
	all := map[string]string{"OPENAI_BASE_URL": ts.URL + "/v1/", "OPENAI_API_KEY": "secret", "QUESTION": "How many pens?"}
	for k, v := range env {
		all[k] = v
	}
	var out, errs bytes.Buffer
	code = Main(t.Context(), args, func(k string) string { return all[k] }, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

func TestAConversationEndsWithThePrintedAnswer(t *testing.T) {
	s := &server{replies: []string{toolReply, finalReply}}
	code, out, errs := run(t, s, "", nil, nil)
	if code != 0 || out != "Answer: 12\n" || errs != "" {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	start := `{"model":"calc","max_tokens":48,"tools":` + Tools + `,"messages":[{"role":"system","content":"` + System + `"},{"role":"user","content":"How many pens?"}`
	want := []string{start + `]}`, start + `,` + toolReply + `,{"role":"tool","content":"12","tool_call_id":"call_1"}]}`}
	if d := cmp.Diff(want, s.bodies); d != "" {
		t.Error("the assistant's message must go back as it came:", d)
	}
	if s.auth[1] != "Bearer secret" {
		t.Errorf("authorization %q", s.auth[1])
	}
	if !json.Valid([]byte(s.bodies[1])) {
		t.Error("the request is not JSON")
	}
}

func TestTheAgentStops(t *testing.T) {
	for name, c := range map[string]struct {
		server server
		env    map[string]string
		code   int
		calls  int
		out    string
		err    string
	}{
		"after its last call, with what was said":        {server: server{replies: []string{toolReply}}, env: map[string]string{"CALC_MAX_CALLS": "3"}, calls: 3, out: "\n"},
		"when the attempt has ended":                     {server: server{replies: []string{toolReply, "410"}}, code: 1, calls: 2, err: "answered 410"},
		"after waiting as the server asked":              {server: server{replies: []string{"429", "429", finalReply}, header: http.Header{"Retry-After": {"0"}}}, calls: 3, out: "Answer: 12\n"},
		"when the server stays busy":                     {server: server{replies: []string{"429"}, header: http.Header{"Retry-After": {"0"}}}, code: 1, calls: 5, err: "answered 429"},
		"at once when the server says not to come again": {server: server{replies: []string{"429"}, header: http.Header{"X-Should-Retry": {"false"}}}, code: 1, calls: 1, err: "answered 429"},
		"when the answer is no completion":               {server: server{replies: []string{`null`}}, code: 1, calls: 1, err: "not a chat completion"},
		"without a question":                             {env: map[string]string{"QUESTION": ""}, code: 1, err: "QUESTION is not set"},
		"without a server":                               {env: map[string]string{"OPENAI_BASE_URL": ""}, code: 1, err: "OPENAI_BASE_URL is not set"},
		"when nobody listens":                            {env: map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, code: 1, err: "can't be reached"},
		"when a limit is no number":                      {env: map[string]string{"CALC_MAX_TOKENS": "many"}, code: 1, err: "CALC_MAX_TOKENS"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := run(t, &c.server, "", nil, c.env)
			if code != c.code || out != c.out || !strings.Contains(errs, c.err) || len(c.server.bodies) != c.calls {
				t.Errorf("exit code %d, stdout %q, stderr %q, %d calls", code, out, errs, len(c.server.bodies))
			}
		})
	}
}

func TestAWorkerTakesRolloutsOneByOne(t *testing.T) {
	s := &server{replies: []string{toolReply, finalReply, "410", finalReply}}
	in := `{"v":1,"rollout_id":"a","attempt_id":"0","input":{"question":"x"},"env":{"QUESTION":"first?"},"dir":"d","deadline":32472144000.5}
{"v":1,"rollout_id":"b","env":{"QUESTION":"second?"},"deadline":null}
{"v":1,"rollout_id":"c","env":{"OPENAI_API_KEY":"other"}}
`
	code, out, errs := run(t, s, in, []string{"-worker"}, nil)
	lines := strings.Split(out, "\n")
	if code != 0 || len(lines) != 4 || lines[0] != `{"v":1,"rollout_id":"a","ok":true,"error":null}` || lines[2] != `{"v":1,"rollout_id":"c","ok":true,"error":null}` ||
		!strings.HasPrefix(lines[1], `{"v":1,"rollout_id":"b","ok":false,"error":"the model at `) {
		t.Fatalf("exit code %d, stdout %s, stderr %s", code, out, errs)
	}
	if !strings.Contains(s.bodies[0], "first?") || !strings.Contains(s.bodies[2], "second?") || !strings.Contains(s.bodies[3], "How many pens?") || s.auth[3] != "Bearer other" {
		t.Errorf("a rollout's variables do not reach it: %q %q", s.bodies, s.auth)
	}
}

func TestAWorkerKeepsItsRolloutsDeadline(t *testing.T) {
	block := make(chan struct{})
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-block }))
	defer ts.Close()
	defer close(block)
	line, _ := json.Marshal(map[string]any{"v": 1, "rollout_id": "a", "deadline": float64(time.Now().Add(50*time.Millisecond).UnixMilli()) / 1000,
		"env": map[string]string{"QUESTION": "q", "OPENAI_BASE_URL": ts.URL}})
	var out, errs bytes.Buffer
	code := Main(context.Background(), []string{"-worker"}, func(string) string { return "" }, bytes.NewReader(append(line, '\n')), &out, &errs)
	if code != 0 || !strings.Contains(out.String(), `"ok":false`) || !strings.Contains(errs.String(), "deadline") {
		t.Errorf("exit code %d, stdout %s, stderr %s", code, out.String(), errs.String())
	}
}

func TestAWorkerRefusesALineThatIsNoRollout(t *testing.T) {
	for _, in := range []string{"hello\n", `{"v":2,"rollout_id":"a"}` + "\n"} {
		if code, _, errs := run(t, &server{}, in, []string{"-worker"}, nil); code != 1 || !strings.Contains(errs, "reading a rollout") {
			t.Errorf("%q: exit code %d, stderr %s", in, code, errs)
		}
	}
	if code, _, errs := run(t, &server{}, "", []string{"-x"}, nil); code != 1 || !strings.Contains(errs, "unknown arguments") {
		t.Errorf("exit code %d, stderr %s", code, errs)
	}
}
