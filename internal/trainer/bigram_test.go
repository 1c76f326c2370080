package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/trainer/loss"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
)

// bigram is a whole engine around the smallest policy there is: a table of
// logits, one row per previous token. It makes the loop's tests fast; the
// embedded engine has a test of its own.
type bigram struct {
	vocab int
	ready chan struct{} // closed at the first publish
	mu    sync.Mutex    // the published table and its version
	table []float64     // published
	ver   fulgur.PolicyVersion

	Weights, M, V, grad []float64
	Steps               int64
	frozen              []float64
	forwards            int
	failLoss            bool    // the next loss is NaN
	replays             bool    // says that it takes experts again
	with, without       int     // data of ForwardBackward with experts, and without
	skew                float64 // added to the log probs that are sampled: those of other weights
}

func newBigram(vocab int) *bigram {
	n := vocab * vocab
	return &bigram{vocab: vocab, ready: make(chan struct{}), Weights: make([]float64, n), M: make([]float64, n), V: make([]float64, n), grad: make([]float64, n)}
}

func logSoftmax(row []float64) []float64 {
	top, sum := slices.Max(row), 0.0
	for _, x := range row {
		sum += math.Exp(x - top)
	}
	out := make([]float64, len(row))
	for i, x := range row {
		out[i] = x - top - math.Log(sum)
	}
	return out
}

func (b *bigram) row(table []float64, token int32) []float64 {
	return table[int(token)*b.vocab : (int(token)+1)*b.vocab]
}

func (b *bigram) Info(context.Context) (engine.Info, error) {
	return engine.Info{Name: "bigram", VocabSize: b.vocab, ContextLength: 64, Temperature1: true, Replay: b.replays,
		Losses: []string{engine.CrossEntropy, engine.ImportanceSampling, engine.PPO, engine.CISPO}}, nil
}

func (b *bigram) Forward(_ context.Context, data []engine.Datum) ([][]float32, error) {
	b.forwards++
	return b.logProbs(b.Weights, data), nil
}

func (b *bigram) logProbs(table []float64, data []engine.Datum) [][]float32 {
	out := make([][]float32, len(data))
	for i, d := range data {
		for j, token := range d.Tokens {
			out[i] = append(out[i], float32(logSoftmax(b.row(table, token))[d.Targets[j]]))
		}
	}
	return out
}

func (b *bigram) Freeze(context.Context) error {
	b.frozen = slices.Clone(b.Weights)
	return nil
}

func (b *bigram) ForwardFrozen(_ context.Context, data []engine.Datum) ([][]float32, error) {
	return b.logProbs(b.frozen, data), nil
}

func (b *bigram) ForwardBackward(_ context.Context, data []engine.Datum, l engine.Loss) (engine.Result, error) {
	for _, d := range data {
		if d.Experts == nil {
			b.without++
			continue
		}
		b.with++
		for i, row := range d.Experts {
			if d.Mask[i] != 0 && !slices.Equal(row, []uint16{uint16(d.Tokens[i])}) {
				return engine.Result{}, fmt.Errorf("position %d has experts %v, its input is %d", i, row, d.Tokens[i])
			}
		}
	}
	var r engine.Result
	for _, d := range data {
		logps := make([]float32, len(d.Tokens))
		for j, token := range d.Tokens {
			if d.Mask[j] == 0 {
				continue
			}
			lp := logSoftmax(b.row(b.Weights, token))
			x := lp[d.Targets[j]]
			logps[j] = float32(x)
			old := 0.0
			if l.Name != engine.CrossEntropy {
				old = float64(d.OldLogProbs[j])
				r.KL += old - x
			}
			term, err := loss.PerToken(l.Name, x, old, float64(d.Advantages[j]), loss.Clip{Low: l.ClipLow, High: l.ClipHigh})
			if err != nil {
				return r, err
			}
			r.Loss += term.Loss
			r.Tokens++
			if term.Clipped {
				r.Clipped++
			}
			for k, y := range lp {
				g := math.Exp(y)
				if int32(k) == d.Targets[j] {
					g--
				}
				b.grad[int(token)*b.vocab+k] -= term.Grad * g
			}
		}
		r.LogProbs = append(r.LogProbs, logps)
	}
	if b.failLoss {
		r.Loss = math.NaN()
	}
	return r, nil
}

func (b *bigram) OptimStep(_ context.Context, p engine.AdamW) (engine.Step, error) {
	b.Steps++
	norm := 0.0
	for i, g := range b.grad {
		norm += g * g
		b.M[i] = p.Beta1*b.M[i] + (1-p.Beta1)*g
		b.V[i] = p.Beta2*b.V[i] + (1-p.Beta2)*g*g
		m := b.M[i] / (1 - math.Pow(p.Beta1, float64(b.Steps)))
		v := b.V[i] / (1 - math.Pow(p.Beta2, float64(b.Steps)))
		b.Weights[i] -= p.LearningRate * m / (math.Sqrt(v) + p.Eps)
		b.grad[i] = 0
	}
	return engine.Step{GradNorm: math.Sqrt(norm), Step: b.Steps}, nil
}

func (b *bigram) Publish(_ context.Context, v fulgur.PolicyVersion) ([]fulgur.Endpoint, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.table == nil {
		close(b.ready)
	}
	b.table, b.ver = slices.Clone(b.Weights), v
	return []fulgur.Endpoint{{Kind: fulgur.EndpointTokens, URL: "inproc:", Version: v}}, nil
}

func (b *bigram) Save(_ context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	raw, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bigram.json"), raw, 0o644)
}

func (b *bigram) Load(_ context.Context, dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "bigram.json"))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, b)
}

func (b *bigram) Generate(ctx context.Context, req engine.GenerateRequest, _ func(engine.Token) error) (engine.Generation, error) {
	select {
	case <-b.ready:
	case <-ctx.Done():
		return engine.Generation{}, ctx.Err()
	}
	b.mu.Lock()
	table, version := b.table, b.ver
	b.mu.Unlock()
	var g engine.Generation
	last, seed := req.Prompt[len(req.Prompt)-1], req.Seed
	for range req.MaxTokens {
		lp := logSoftmax(b.row(table, last))
		pick := 0
		if req.Temperature == 0 {
			for k := range lp {
				if lp[k] > lp[pick] {
					pick = k
				}
			}
		} else {
			seed = schedule.Mix(seed, 1)
			u := float64(seed>>11) / (1 << 53)
			for u -= math.Exp(lp[pick]); u > 0 && pick < b.vocab-1; u -= math.Exp(lp[pick]) {
				pick++
			}
		}
		last = int32(pick)
		g.Tokens = append(g.Tokens, engine.Token{ID: last, LogProb: float32(lp[pick] + b.skew), Version: version})
	}
	g.FinishReason = "length"
	return g, nil
}

var _ engine.Freezer = (*bigram)(nil)
var _ engine.Generator = (*bigram)(nil)
