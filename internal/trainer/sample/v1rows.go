package sample

import (
	"errors"
	"math"
	"slices"
)

// V1Options of V1Build.
type V1Options struct {
	Trajectory  bool    // merge consecutive calls; else level transition: a row a call
	MaxPrompt   int     // tokens; longer prompts are cut at their end and the row marked
	MaxResponse int     // tokens; longer responses are cut
	Fill        float64 // the reward of a rollout without one
}

// V1Row is a row of v1's training batch, without padding.
type V1Row struct {
	Rollout, DataID string
	Turn            int // index of its first call among the rollout's
	Prompt          []int32
	Response        []int32
	Mask            []bool    // of Response: sampled
	LogProbs        []float32 // of Response, 0 where not sampled; nil if the batch has none
	Drop            bool      // its prompt was cut: the trainer drops it
	Score           float32   // a bfloat16 value, on the last token of Response
}

// V1Break is where consecutive calls could not be merged.
type V1Break struct {
	Rollout                     string
	Turn                        int // of the call that started a new row
	Prompt, Response            int // its lengths, tokens
	PreviousTrace, CurrentTrace int // prompt + response of the call before, and of this one
}

// v1Breaks is how many breaks v1 keeps, and counts.
const v1Breaks = 100

// V1Batch is a training batch.
type V1Batch struct {
	Rows     []V1Row
	LogProbs bool // all rows have log probs; else none is given them
	Metrics  map[string]float64
	Breaks   []V1Break // at most 100
}

// ErrV1NoRows is v1's refusal of a batch without a token to train on.
var ErrV1NoRows = errors.New("no rollout gives a row to train on")

// ErrV1NoTrace is v1's refusal of a validation without a model call.
var ErrV1NoTrace = errors.New("no validation rollout has a model call")

// V1Build makes v1's rows of completed rollouts, in v1's order: by step and
// sample, then as they came. It changes no input (v1 appends to the log probs of
// a rollout's first call).
func V1Build(rollouts []V1Completed, o V1Options) (V1Batch, error) {
	b := v1Builder{o: o}
	sorted := slices.Clone(rollouts)
	slices.SortStableFunc(sorted, func(x, y V1Completed) int {
		if x.Step != y.Step {
			return x.Step - y.Step
		}
		return x.Index - y.Index
	})
	for i := range sorted {
		r := &sorted[i]
		reward := o.Fill
		if r.Reward != nil {
			reward = *r.Reward
			b.rewarded++
		}
		b.rewards = append(b.rewards, reward)
		if len(r.Calls) == 0 {
			continue
		}
		b.traced++
		for k := range r.Calls {
			b.lengths = append(b.lengths, float64(len(r.Calls[k].Response)))
		}
		if o.Trajectory {
			b.trajectory(r, reward)
			continue
		}
		for k, c := range r.Calls {
			b.emit(r, reward, v1Open{turn: k, prompt: c.Prompt, response: c.Response, logProbs: c.LogProbs})
		}
	}
	if len(b.Rows) == 0 {
		return V1Batch{}, ErrV1NoRows
	}
	b.LogProbs = !b.voided
	if b.voided {
		for i := range b.Rows {
			b.Rows[i].LogProbs = nil
		}
	}
	b.measure()
	return b.V1Batch, nil
}

type v1Builder struct {
	V1Batch
	o                  V1Options
	rewards, lengths   []float64
	rewarded, traced   int
	cut, empty, broken int
	voided             bool // some row has no log probs
}

// v1Open is a row that calls may still be merged into.
type v1Open struct {
	turn             int
	prompt, response []int32
	mask             []bool // nil: all sampled
	logProbs         []float64
}

func (b *v1Builder) trajectory(r *V1Completed, reward float64) {
	open := func(turn int, c *V1Call) v1Open {
		row := v1Open{turn: turn, prompt: c.Prompt, response: slices.Clone(c.Response), logProbs: slices.Clone(c.LogProbs)}
		row.mask = appendBools(nil, true, len(c.Response))
		return row
	}
	row := open(0, &r.Calls[0])
	rows := 1
	for k := 1; k < len(r.Calls); k++ {
		c, before := &r.Calls[k], &r.Calls[k-1]
		had := len(before.Prompt) + len(before.Response)
		if len(c.Prompt) < had || !slices.Equal(c.Prompt[:len(before.Prompt)], before.Prompt) || !slices.Equal(c.Prompt[len(before.Prompt):had], before.Response) {
			if len(b.Breaks) < v1Breaks {
				b.Breaks = append(b.Breaks, V1Break{Rollout: r.ID, Turn: k, Prompt: len(c.Prompt), Response: len(c.Response),
					PreviousTrace: had, CurrentTrace: len(c.Prompt) + len(c.Response)})
			}
			b.emit(r, reward, row)
			row = open(k, c)
			rows++
			continue
		}
		observed := c.Prompt[had:]
		row.response = append(append(row.response, observed...), c.Response...)
		row.mask = appendBools(appendBools(row.mask, false, len(observed)), true, len(c.Response))
		if row.logProbs == nil {
			continue
		}
		if c.LogProbs == nil || len(c.LogProbs) != len(c.Response) {
			row.logProbs = nil
			continue
		}
		row.logProbs = append(append(row.logProbs, make([]float64, len(observed))...), c.LogProbs...)
	}
	b.emit(r, reward, row)
	if rows > 1 {
		b.broken++
	}
}

func appendBools(s []bool, v bool, n int) []bool {
	for range n {
		s = append(s, v)
	}
	return s
}

// emit cuts a row to the limits and appends it, unless nothing of it trains.
func (b *v1Builder) emit(r *V1Completed, reward float64, row v1Open) {
	drop := len(row.prompt) > b.o.MaxPrompt
	if drop {
		row.prompt = row.prompt[:b.o.MaxPrompt]
	}
	if limit := b.o.MaxResponse; len(row.response) > limit {
		row.response = row.response[:limit]
		row.mask = row.mask[:min(limit, len(row.mask))]
		row.logProbs = row.logProbs[:min(limit, len(row.logProbs))]
		b.cut++
	}
	if row.mask == nil {
		row.mask = appendBools(nil, true, len(row.response))
	}
	if !slices.Contains(row.mask, true) {
		b.empty++
		return
	}
	out := V1Row{Rollout: r.ID, DataID: r.DataID, Turn: row.turn, Prompt: row.prompt, Response: row.response, Mask: row.mask, Drop: drop, Score: bfloat16(reward)}
	if row.logProbs == nil || len(row.logProbs) != len(row.response) {
		b.voided = true
	} else {
		out.LogProbs = make([]float32, len(row.logProbs))
		for i, x := range row.logProbs {
			out.LogProbs[i] = float32(x)
		}
	}
	b.Rows = append(b.Rows, out)
}

func (b *v1Builder) measure() {
	b.Metrics = map[string]float64{
		"training/reward": mean(b.rewards), "training/n_sample": float64(len(b.Rows)), "training/n_rollouts": float64(len(b.rewards)),
		"training/n_rollouts_w_trace": float64(b.traced), "training/n_rollouts_w_reward": float64(b.rewarded),
		"training/n_truncated_sample": float64(b.cut), "training/n_skipped_empty_rows": float64(b.empty), "training/n_turns": float64(len(b.lengths)),
		"response_length/training/avg_by_turn": mean(b.lengths), "response_length/training/max_by_turn": slices.Max(b.lengths),
		"response_length/training/min_by_turn": slices.Min(b.lengths),
	}
	if b.o.Trajectory {
		b.Metrics["training/n_unmerged_rollouts"] = float64(b.broken)
		b.Metrics["training/n_trace_merge_mismatch_rows"] = float64(len(b.Breaks))
	}
}

// V1Validation makes v1's validation metrics.
func V1Validation(rollouts []V1Completed, fill float64) (map[string]float64, error) {
	var rewards, perTurn, total, turns []float64
	rewarded := 0
	for i := range rollouts {
		r := &rollouts[i]
		reward := fill
		if r.Reward != nil {
			reward = *r.Reward
			rewarded++
		}
		rewards = append(rewards, reward)
		if len(r.Calls) == 0 {
			continue
		}
		sum := 0
		for k := range r.Calls {
			sum += len(r.Calls[k].Response)
		}
		total = append(total, float64(sum))
		perTurn = append(perTurn, float64(sum)/float64(len(r.Calls)))
		turns = append(turns, float64(len(r.Calls)))
	}
	if len(turns) == 0 {
		return nil, ErrV1NoTrace
	}
	return map[string]float64{
		"val/reward": mean(rewards), "val/n_rollouts": float64(len(rewards)), "val/n_rollouts_w_trace": float64(len(turns)),
		"val/n_rollouts_w_reward": float64(rewarded), "val/mean_response_length_per_turn": mean(perTurn),
		"val/mean_total_response_length_per_rollout": mean(total), "val/turn_count": mean(turns),
	}, nil
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// bfloat16 rounds to the nearest bfloat16, ties to even, by way of float32 as
// torch does.
func bfloat16(x float64) float32 {
	f := float32(x)
	if math.IsNaN(float64(f)) {
		return f
	}
	bits := math.Float32bits(f)
	bits += 0x7fff + bits>>16&1
	return math.Float32frombits(bits &^ 0xffff)
}

// V1Padded are a batch's tensors as v1's trainer gets them: [rows][tokens], prompts
// padded on the left, responses on the right. Attention, Positions: prompt and
// response.
type V1Padded struct {
	Prompts, Responses   [][]int32
	Attention, Positions [][]int
	Scores               [][]float32 // of the response
	Mask                 [][]int     // of the response; level trajectory only
	LogProbs             [][]float32 // of the response; nil if the batch has none
}

// Padded pads the rows.
func (b *V1Batch) Padded(o V1Options, pad int32) V1Padded {
	var p V1Padded
	for i := range b.Rows {
		r := &b.Rows[i]
		left, n := o.MaxPrompt-len(r.Prompt), len(r.Response)
		prompt, response := make([]int32, o.MaxPrompt), make([]int32, o.MaxResponse)
		attention, positions := make([]int, o.MaxPrompt+o.MaxResponse), make([]int, o.MaxPrompt+o.MaxResponse)
		for j := range left {
			prompt[j] = pad
		}
		copy(prompt[left:], r.Prompt)
		for j := copy(response, r.Response); j < len(response); j++ {
			response[j] = pad
		}
		seen := 0
		for j := range attention {
			if j >= left && j < o.MaxPrompt+n {
				attention[j] = 1
				seen++
			}
			positions[j] = max(seen-1, 0)
		}
		scores := make([]float32, o.MaxResponse)
		scores[n-1] = r.Score
		p.Prompts, p.Responses = append(p.Prompts, prompt), append(p.Responses, response)
		p.Attention, p.Positions, p.Scores = append(p.Attention, attention), append(p.Positions, positions), append(p.Scores, scores)
		if o.Trajectory {
			mask := make([]int, o.MaxResponse)
			for j, m := range r.Mask {
				if m {
					mask[j] = 1
				}
			}
			p.Mask = append(p.Mask, mask)
		}
		if b.LogProbs {
			p.LogProbs = append(p.LogProbs, append(slices.Clone(r.LogProbs), make([]float32, o.MaxResponse-n)...))
		}
	}
	return p
}
