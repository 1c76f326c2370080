package v1_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// R3: routed experts stand at the call that covers the most, in the event view and
// in triplets, and in neither if the reader does not want them.
func TestRoutedExpertsStandAtTheLastCallOfATrajectory(t *testing.T) {
	s, srv := serve(t)
	if status, body, _ := do(t, "POST", srv.URL+"/api/rollouts", `[{"rollout_id":"r","input":1}]`, auth); status != 201 {
		t.Fatal(status, body)
	}
	for i, c := range []struct{ prompt, sampled, experts string }{
		{"[1]", "[2]", "[[0],[1]]"},
		{"[1,2,3]", "[4]", "[[5],[6]]"},  // goes on from the first
		{"[1,2,3]", "[9]", `"cm91dGVz"`}, // the same prompt again
		{"[1,2,3,9]", "[5]", ""},         // goes on, but has none
		{"[7]", "[8]", "[[7]]"},          // another conversation
		{"[7,8,1]", "[8]", "[[8]]"},      // goes on from it
		{"[7,8]", "[8]", "[[9]]"},        // is a part of the one before: neither covers the other
	} {
		call := fulgur.Call{ID: fulgur.CallID(fmt.Sprint(i)), Rollout: "r", Attempt: "0", Index: i, Mode: fulgur.ModeTrain, HTTPStatus: 200, Fate: fulgur.FateDelivered,
			RoutedExperts: json.RawMessage(c.experts), Response: json.RawMessage(`{"prompt_token_ids":` + c.prompt + `,"choices":[{"token_ids":` + c.sampled + `}]}`)}
		if err := s.AppendCall(t.Context(), &call); err != nil {
			t.Fatal(err)
		}
	}
	type row struct {
		Data map[string]json.RawMessage
	}
	read := func(query string) (out []string) {
		t.Helper()
		status, body, _ := do(t, "GET", srv.URL+"/api/rollouts/r/events"+query, "", auth)
		var list []row
		if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 {
			t.Fatal(status, err)
		}
		for _, r := range list {
			v, ok := r.Data["routed_experts"]
			if !ok {
				v = json.RawMessage("-")
			}
			out = append(out, string(v))
		}
		return out
	}
	for query, want := range map[string]string{
		"":                              "[- - \"cm91dGVz\" null - [[8]] [[9]]]",
		"?include_routed_experts=false": "[- - - - - - -]",
		"?format=triplet":               "[- \"cm91dGVz\" - - [[8]] [[9]]]",
		"?event_type=model_request":     "[- - \"cm91dGVz\" null - [[8]] [[9]]]",
		"?format=triplet&include_routed_experts=0": "[- - - - - -]",
	} {
		if got := fmt.Sprint(read(query)); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// A call of a dialect that v1 does not know shows its tokens where v1's trainer
// looks for them.
func TestCallsOfOtherDialectsHaveTokens(t *testing.T) {
	s, srv := serve(t)
	if status, body, _ := do(t, "POST", srv.URL+"/api/rollouts", `[{"rollout_id":"r","input":1}]`, auth); status != 201 {
		t.Fatal(status, body)
	}
	for i, response := range []string{`{"type":"message","content":[]}`, `{"choices":[{"index":0,"message":{"content":"hi"},"logprobs":null,"finish_reason":"stop"}]}`} {
		call := fulgur.Call{ID: fulgur.CallID(fmt.Sprint(i)), Rollout: "r", Attempt: "0", Index: i, Mode: fulgur.ModeTrain, HTTPStatus: 200, Fate: fulgur.FateDelivered, FinishReason: "stop",
			PromptIDs: []int32{1, int32(i)}, SampledIDs: []int32{2, 3}, LogProbs: []float32{-0.5, -0.25}, Response: json.RawMessage(response)}
		if err := s.AppendCall(t.Context(), &call); err != nil {
			t.Fatal(err)
		}
	}
	status, body, _ := do(t, "GET", srv.URL+"/api/rollouts/r/events?format=triplet", "", auth)
	var list []struct {
		Data struct {
			Prompt   []int     `json:"prompt_token_ids"`
			Response []int     `json:"response_token_ids"`
			LogProbs []float64 `json:"response_log_probs"`
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 || len(list) != 2 {
		t.Fatal(status, err, body)
	}
	for i, e := range list {
		if got, want := fmt.Sprint(e.Data), fmt.Sprintf("{[1 %d] [2 3] [-0.5 -0.25]}", i); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
