package embedded

import (
	"fmt"
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/engine"
)

// lossNames are those of engine.Loss that this engine takes.
var lossNames = [...]string{engine.CrossEntropy, engine.ImportanceSampling, engine.PPO, engine.CISPO}

// checkLoss reports a loss that is not known or has impossible bounds.
func checkLoss(l engine.Loss) error {
	if !slices.Contains(lossNames[:], l.Name) {
		return fulgur.E(fulgur.KindUnsupported, "forward-backward", fmt.Sprintf("loss %q is not one of %v", l.Name, lossNames), nil)
	}
	if !(l.ClipLow >= 0 && l.ClipHigh >= 0) || math.IsInf(l.ClipHigh, 0) {
		return fulgur.E(fulgur.KindInvalid, "forward-backward", fmt.Sprintf("clip bounds %g and %g: epsilons are 0 or more", l.ClipLow, l.ClipHigh), nil)
	}
	return nil
}

// lossTerm is one position's part of the loss.
type lossTerm struct {
	loss    float64
	coeff   float64 // -dloss/dlogp
	clipped bool    // the clip took the gradient away
}

// termOf computes one position's loss from the current log prob, the old one and
// the advantage; engine.Loss has the formulas.
func termOf(l engine.Loss, lp, old, adv float64) lossTerm {
	switch {
	case adv == 0:
		return lossTerm{}
	case l.Name == engine.CrossEntropy:
		return lossTerm{loss: -adv * lp, coeff: adv}
	}
	q := math.Exp(lp - old)
	clip := min(max(q, 1-l.ClipLow), 1+l.ClipHigh)
	switch l.Name {
	case engine.ImportanceSampling:
		return lossTerm{loss: -q * adv, coeff: q * adv}
	case engine.CISPO:
		return lossTerm{loss: -clip * adv * lp, coeff: clip * adv}
	}
	if q*adv <= clip*adv {
		return lossTerm{loss: -q * adv, coeff: q * adv}
	}
	return lossTerm{loss: -clip * adv, clipped: true}
}

// job is what a worker is to do with a chunk of sequences.
type job struct {
	data []engine.Datum
	loss engine.Loss
	all  bool        // log probs of every position, whatever the mask
	out  [][]float32 // per datum: log probs of its targets
	part []partial   // per datum
}

// partial is one datum's part of engine.Result.
type partial struct {
	loss, kl, entropy float64
	tokens, clipped   int
}

// length returns how many rows of a datum are needed: up to the last position
// that counts.
func (j *job) length(i int) int {
	d := &j.data[i]
	n := len(d.Targets)
	for !j.all && n > 0 && d.Mask[n-1] == 0 {
		n--
	}
	return n
}

// flat says that no position of the datum has a gradient.
func (j *job) flat(i int) bool {
	d := &j.data[i]
	for t, m := range d.Mask {
		if m != 0 && d.Advantages[t] != 0 {
			return false
		}
	}
	return true
}

// target is a row of the chunk whose log prob is wanted.
type target struct{ row, datum, pos int }

// run computes a chunk: log probs and metrics into the job, and, unless g is
// nil, the gradient added to g.
func (w *worker) run(j *job, chunk []int, g []float32) {
	var ids []int32
	var segs []segment
	var targets []target
	long := 0
	for _, i := range chunk {
		n := j.length(i)
		if n == 0 {
			continue
		}
		long = max(long, n)
		segs = append(segs, segment{len(ids), n})
		for t := range n {
			if j.all || j.data[i].Mask[t] != 0 {
				targets = append(targets, target{len(ids) + t, i, t})
			}
		}
		ids = append(ids, j.data[i].Tokens[:n]...)
	}
	if len(ids) == 0 {
		return
	}
	w.reserve(len(ids), long)
	w.forward(ids, segs)
	if g != nil {
		clear(w.dxn[:len(ids)*w.m.HiddenSize])
	}
	block := w.headRows()
	for part := range slices.Chunk(targets, block) {
		w.head(j, part, g)
	}
	if g != nil {
		w.backward(ids, segs, g)
	}
}

// headRows is how many rows go through the head together: as many as keep the
// logits in a core's cache.
func (w *worker) headRows() int {
	rows := w.m.k.Rows()
	return max(2*rows, (1<<17)/w.m.VocabSize/rows*rows)
}

// head computes the logits of some targets only, their losses, and the gradient
// of the head and of the hidden state.
func (w *worker) head(j *job, targets []target, g []float32) {
	m, k := w.m, w.m.k
	n, d, v := len(targets), m.HiddenSize, m.VocabSize
	if len(w.logits) == 0 {
		w.logits, w.xh, w.prob = make([]float32, w.headRows()*v), make([]float32, w.headRows()*d), make([]float32, v)
	}
	for i, t := range targets {
		copy(w.xh[i*d:][:d], w.xnf[t.row*d:][:d])
	}
	k.Gemm(n, v, d, w.xh, d, 1, m.headPack.fwd, d, w.logits, v, false)
	for i, t := range targets {
		w.lossRow(j, t, w.logits[i*v:][:v], g != nil)
	}
	if g == nil {
		return
	}
	w.matrixGrad(g, m.head, w.logits, w.xh, n)
	k.Gemm(n, d, v, w.logits, v, 1, m.headPack.back, v, w.xh, d, false)
	for i, t := range targets {
		copy(w.dxn[t.row*d:][:d], w.xh[i*d:][:d])
	}
}

// lossRow records one position and, with grad, replaces its logits by the
// loss's gradient.
func (w *worker) lossRow(j *job, t target, row []float32, grad bool) {
	k, dat := w.m.k, &j.data[t.datum]
	y := dat.Targets[t.pos]
	top, ly := k.Max(row), row[y]
	sum := k.Exp(w.prob, row, 1, top)
	lse := float64(top) + math.Log(float64(sum))
	lp := float64(ly) - lse
	j.out[t.datum][t.pos] = float32(lp)
	if j.all {
		return
	}
	p := &j.part[t.datum]
	old, adv := 0.0, float64(dat.Advantages[t.pos])
	if j.loss.Name != engine.CrossEntropy {
		old = float64(dat.OldLogProbs[t.pos])
		p.kl += old - lp
	}
	term := termOf(j.loss, lp, old, adv)
	p.loss += term.loss
	p.tokens++
	p.entropy += lse - float64(k.Dot(w.prob, row))/float64(sum)
	if term.clipped {
		p.clipped++
	}
	if grad {
		k.Scale(row, w.prob, float32(term.coeff/float64(sum)))
		row[y] -= float32(term.coeff)
	}
}
