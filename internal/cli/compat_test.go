package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestAgentsReadTheirRollout: with compat v1-agents an attempt's credential
// reads its own rollout over v1, without what is withheld, and nothing else.
func TestAgentsReadTheirRollout(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		flags []string
		run   string // the run's config
		want  int
	}{
		"nobody said so":      {nil, `{}`, 403},
		"the server says so":  {[]string{"--compat", "v1-agents"}, `{}`, 200},
		"the run says so":     {nil, `{"compat":["v1-agents"]}`, 200},
		"the run says others": {nil, `{"compat":["v1"]}`, 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			server := start(t, dir, nil, append([]string{"serve", "--listen", "127.0.0.1:0", "--key", "K", "--store", "sqlite:" + filepath.Join(dir, "x.db")}, test.flags...)...)
			url := server.says("listening on ")
			call := func(method, path, key, body string, want int) string {
				t.Helper()
				status, answer := send(t, method, url+path, key, body)
				if status != want {
					t.Errorf("%s %s: status %d, want %d: %s", method, path, status, want, answer)
				}
				return answer
			}
			call("PUT", "/api/v2/runs/r", "K", `{"model":"m","config":`+test.run+`}`, 200)
			call("POST", "/api/v2/rollouts", "K", `[{"id":"a","run":"r","is_train":true,"input":{"q":1,"answer":"secret"},"withhold":["input.answer"]},
				{"id":"b","run":"r","is_train":true,"input":{}}]`, 201)
			var opened struct{ Credential string }
			if err := json.Unmarshal([]byte(call("POST", "/api/v2/rollouts/a/attempts", "K", "", 201)), &opened); err != nil {
				t.Fatal(err)
			}
			own := call("GET", "/api/rollouts/a", opened.Credential, "", test.want)
			if strings.Contains(own, "secret") || test.want == 200 && !strings.Contains(own, `"q":1`) {
				t.Errorf("an agent reads %s", own)
			}
			for _, path := range []string{"/api/rollouts/b", "/api/rollouts", "/api/rollouts/terminal", "/api/rollouts/a/events"} {
				call("GET", path, opened.Credential, "", 403)
			}
			call("DELETE", "/api/rollouts/a", opened.Credential, "", 403)
			call("PATCH", "/api/rollouts/a", opened.Credential, `{"status":"succeeded"}`, 403)
		})
	}
}
