package sample

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur/internal/goldentest"
)

type goldenIn struct {
	MaxPrompt   int              `json:"max_prompt_length"`
	MaxResponse int              `json:"max_response_length"`
	Pad         int32            `json:"pad_token_id"`
	Fill        goldentest.Float `json:"reward_fillna_value"`
	Rollouts    []V1Rollout      `json:"rollouts"`
}

type goldenRow struct {
	Rollout   string             `json:"rollout_id"`
	DataID    string             `json:"data_id"`
	Turn      *int               `json:"turn_index"`
	Prompt    []int32            `json:"prompt_ids"`
	Response  []int32            `json:"response_ids"`
	Mask      []int              `json:"response_mask"`
	LogProbs  []goldentest.Float `json:"rollout_log_probs"`
	Drop      bool               `json:"is_drop"`
	Score     goldentest.Float   `json:"score"`
	Positions []int              `json:"score_positions"`
}

type goldenBreak struct {
	Rollout       string `json:"rollout_id"`
	Turn          int    `json:"turn_index"`
	Prompt        int    `json:"prompt_length"`
	Response      int    `json:"response_length"`
	PreviousTrace int    `json:"previous_trace_length"`
	CurrentTrace  int    `json:"current_trace_length"`
}

type goldenLevel struct {
	Error   *struct{ Type, Message string } `json:"error"`
	Rows    []goldenRow                     `json:"rows"`
	Emitted bool                            `json:"log_probs_emitted"`
	Metrics map[string]goldentest.Float     `json:"metrics"`
	Breaks  []goldenBreak                   `json:"breaks"`
	Padded  *struct {
		Prompts   [][]int32            `json:"prompts"`
		Responses [][]int32            `json:"responses"`
		Attention [][]int              `json:"attention_mask"`
		Positions [][]int              `json:"position_ids"`
		Scores    [][]goldentest.Float `json:"token_level_scores"`
		Mask      [][]int              `json:"response_mask"`
		LogProbs  [][]goldentest.Float `json:"rollout_log_probs"`
	} `json:"padded"`
}

type goldenOut struct {
	Rollouts []struct {
		ID     string            `json:"rollout_id"`
		Reward *goldentest.Float `json:"final_reward"`
		Calls  []struct {
			Prompt   []int32             `json:"prompt_ids"`
			Response []int32             `json:"response_ids"`
			LogProbs *[]goldentest.Float `json:"log_probs"`
		} `json:"calls"`
	} `json:"rollouts"`
	Transition goldenLevel `json:"transition"`
	Trajectory goldenLevel `json:"trajectory"`
	Validation goldenLevel `json:"validation"`
}

// floats makes numbers comparable one by one, NaN and null included.
func floats[T ~float64 | ~float32](x []T) []string {
	out := make([]string, len(x))
	for i, v := range x {
		out[i] = fmt.Sprint(float64(v) + 0) // -0 and 0 are equal
	}
	return out
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestGoldenAdapter(t *testing.T) {
	for _, c := range goldentest.Cases[goldenIn, goldenOut](t, "adapter.json") {
		t.Run(c.Name, func(t *testing.T) {
			completed := make([]V1Completed, len(c.Input.Rollouts))
			for i, r := range c.Input.Rollouts {
				var err error
				if completed[i], err = V1Complete(r); err != nil {
					t.Fatal(err)
				}
			}
			checkCalls(t, c.Output, completed)
			o := V1Options{MaxPrompt: c.Input.MaxPrompt, MaxResponse: c.Input.MaxResponse, Fill: float64(c.Input.Fill)}
			checkLevel(t, c.Tolerance, c.Output.Transition, completed, o, c.Input.Pad)
			o.Trajectory = true
			checkLevel(t, c.Tolerance, c.Output.Trajectory, completed, o, c.Input.Pad)
			metrics, err := V1Validation(completed, o.Fill)
			if want := c.Output.Validation; (err != nil) != (want.Error != nil) {
				t.Errorf("validation: error %v, want %v", err, want.Error)
			} else {
				checkMetrics(t, c.Tolerance, want.Metrics, metrics)
			}
		})
	}
}

func checkCalls(t *testing.T, want goldenOut, got []V1Completed) {
	if len(want.Rollouts) != len(got) {
		t.Fatalf("%d rollouts, want %d", len(got), len(want.Rollouts))
	}
	for i, w := range want.Rollouts {
		g := got[i]
		if w.ID != g.ID || (w.Reward == nil) != (g.Reward == nil) || w.Reward != nil && float64(*w.Reward) != *g.Reward || len(w.Calls) != len(g.Calls) {
			t.Errorf("rollout %s: reward %v, %d calls", g.ID, g.Reward, len(g.Calls))
			continue
		}
		for k, wc := range w.Calls {
			gc := g.Calls[k]
			if !slices.Equal(wc.Prompt, gc.Prompt) || !slices.Equal(wc.Response, gc.Response) || (wc.LogProbs == nil) != (gc.LogProbs == nil) ||
				wc.LogProbs != nil && !slices.Equal(floats(*wc.LogProbs), floats(gc.LogProbs)) {
				t.Errorf("rollout %s, call %d: got %+v, want %+v", g.ID, k, gc, wc)
			}
		}
	}
}

func checkLevel(t *testing.T, tol goldentest.Bounds, want goldenLevel, in []V1Completed, o V1Options, pad int32) {
	t.Helper()
	for range 2 { // building twice gives the same
		b, err := V1Build(in, o)
		if (err != nil) != (want.Error != nil) {
			t.Errorf("error %v, want %+v", err, want.Error)
		}
		if err != nil {
			return
		}
		if b.LogProbs != want.Emitted || len(b.Rows) != len(want.Rows) {
			t.Errorf("%d rows, log probs %t; want %d, %t", len(b.Rows), b.LogProbs, len(want.Rows), want.Emitted)
			return
		}
		for i, w := range want.Rows {
			same(t, fmt.Sprint("row ", i), w, asGolden(b.Rows[i], o.Trajectory))
		}
		checkMetrics(t, tol, want.Metrics, b.Metrics)
		var breaks []goldenBreak
		for _, x := range b.Breaks {
			breaks = append(breaks, goldenBreak(x))
		}
		if !slices.Equal(breaks, want.Breaks) {
			t.Errorf("breaks %+v, want %+v", breaks, want.Breaks)
		}
		if w := want.Padded; w != nil {
			g := b.Padded(o, pad)
			same(t, "prompts", w.Prompts, g.Prompts)
			same(t, "responses", w.Responses, g.Responses)
			same(t, "attention", w.Attention, g.Attention)
			same(t, "positions", w.Positions, g.Positions)
			same(t, "mask", w.Mask, g.Mask)
			tol.Rows(t, "scores", wide(g.Scores), goldentest.Floats(w.Scores))
			if w.LogProbs != nil {
				tol.Rows(t, "log probs", wide(g.LogProbs), goldentest.Floats(w.LogProbs))
			}
		}
	}
}

func wide(x [][]float32) [][]float64 {
	out := make([][]float64, len(x))
	for i, row := range x {
		out[i] = make([]float64, len(row))
		for j, v := range row {
			out[i][j] = float64(v)
		}
	}
	return out
}

func asGolden(r V1Row, trajectory bool) goldenRow {
	g := goldenRow{Rollout: r.Rollout, DataID: r.DataID, Prompt: r.Prompt, Response: r.Response, Drop: r.Drop, Score: goldentest.Float(r.Score), Positions: []int{}}
	if g.Prompt == nil {
		g.Prompt = []int32{}
	}
	if !trajectory {
		g.Turn = &r.Turn
	}
	for _, m := range r.Mask {
		g.Mask = append(g.Mask, map[bool]int{true: 1}[m])
	}
	for _, x := range r.LogProbs {
		g.LogProbs = append(g.LogProbs, goldentest.Float(x))
	}
	if r.Score != 0 {
		g.Positions = append(g.Positions, len(r.Response)-1)
	}
	return g
}

func checkMetrics(t *testing.T, tol goldentest.Bounds, want map[string]goldentest.Float, got map[string]float64) {
	t.Helper()
	if tol.Metrics != nil {
		tol = *tol.Metrics
	}
	for k, w := range want {
		if g, ok := got[k]; !ok || !tol.Near(g, float64(w)) {
			t.Errorf("metric %s: got %v, want %v", k, g, w)
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("metric %s is not the reference's", k)
		}
	}
}
