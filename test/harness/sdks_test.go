package harness

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// TestSDKs calls fulgur serve by the official Python SDKs, openai and anthropic
// (sdks.py), and looks at the record: all is there, and all of it trains.
func TestSDKs(t *testing.T) {
	needHarness(t, false)
	for _, c := range []struct {
		name  string
		kind  fulgur.EndpointKind
		parts string
	}{
		{"at a token sampler", fulgur.EndpointTokens, "chat chat_tools completions responses messages count_tokens models errors"},
		{"at a chat server", fulgur.EndpointChat, "chat chat_tools responses messages count_tokens models errors"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := startGateway(t)
			m := newModel(t, "add", []step{
				{text: "I add.", calls: []toolCall{{"add", `{"a":1,"b":2}`}, {"add", `{"a":3,"b":1}`}}},
				{text: "The sum is 7."},
			}, nil)
			g.use(t, m, c.kind)
			a := g.open(t, "sdks")
			out := runScript(t, "sdks", time.Minute, g.url, a.Credential, t.TempDir(), c.parts)
			for part := range strings.FieldsSeq(c.parts) {
				if !strings.Contains(out, "ok: "+part+"\n") {
					t.Errorf("%s did not pass", part)
				}
			}
			good := 0
			for _, r := range g.calls(t, "sdks") {
				if r.HTTPStatus >= 400 { // of the part "errors"
					if r.Trainable {
						t.Errorf("call %d: status %d, and trains", r.Index, r.HTTPStatus)
					}
					continue
				}
				if good++; !r.Trainable || r.Fate != fulgur.FateDelivered || len(r.SampledIDs) == 0 || len(r.LogProbs) != len(r.SampledIDs) {
					t.Errorf("call %d, %s, stream %t: %s, trainable %t %v, %d sampled", r.Index, r.Dialect, r.Stream, r.Fate, r.Trainable, r.Untrainable, len(r.SampledIDs))
				}
			}
			if n := len(m.taken()); good != n {
				t.Errorf("%d calls on record, the model answered %d", good, n)
			}
		})
	}
}

// cached is a file of an installation (run/lib.sh).
func cached(name ...string) string {
	dir := os.Getenv("HARNESS_CACHE")
	if dir == "" {
		dir = filepath.Join(cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache")), "fulgur", "harness")
	}
	return filepath.Join(append([]string{dir}, name...)...)
}

// TestTry runs an agent that asks once by each API under fulgur try: all that it
// asked would train.
func TestTry(t *testing.T) {
	needHarness(t, false)
	m := newModel(t, "add", []step{{text: "never"}}, nil)
	script, err := filepath.Abs("try_task.py")
	if err != nil {
		t.Fatal(err)
	}
	out := cli(t, t.TempDir(), "try", "--json", "--upstream", m.URL, "--upstream-model", modelName, "--", cached("sdks", "bin", "python"), "-B", script)
	var got struct {
		Calls     []fulgur.Call
		Samples   []json.RawMessage
		Trainable int `json:"trainable_tokens"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	var dialects []string
	sampled := 0
	for _, c := range got.Calls {
		dialects = append(dialects, c.Dialect)
		sampled += len(c.SampledIDs)
		if !c.Trainable || c.Reply == nil || c.Reply.Content != aside {
			t.Errorf("call %d, %s: %v, reply %v", c.Index, c.Dialect, c.Untrainable, c.Reply)
		}
	}
	if want := []string{"openai-chat", "openai-responses", "anthropic-messages", "anthropic-messages"}; !slices.Equal(dialects, want) {
		t.Errorf("the calls came by %v, want %v", dialects, want)
	}
	if got.Trainable != sampled || len(got.Samples) == 0 {
		t.Errorf("%d trainable tokens in %d samples, %d were sampled", got.Trainable, len(got.Samples), sampled)
	}
}
