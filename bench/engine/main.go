// Command engine measures the embedded engine: training and decoding tokens per
// CPU second, on the fixed model that PyTorch is measured on too (pytorch.py) and on
// the model of examples/calc.
//
//	go run ./bench/engine [-kernels avx2] [-steps 8] [-only fixed/train] [-profile FILE]
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/embedded"
	"github.com/fulgur-rl/fulgur/internal/engine/weights"
)

// load is a model with what it is measured on.
type load struct {
	name   string
	config weights.Config
	batch  int // sequences of a step
	length int // tokens each
	masked int // trained of them
}

var loads = []load{
	{"fixed", weights.Config{ModelType: "llama", VocabSize: 512, HiddenSize: 128, Layers: 4, Heads: 4, KVHeads: 2, HeadDim: 32, Intermediate: 384,
		MaxPositions: 257, NormEps: 1e-5, RopeTheta: 1e4}, 32, 256, 256},
	{"calc", weights.Config{ModelType: "llama", VocabSize: 576, HiddenSize: 96, Layers: 3, Heads: 3, KVHeads: 1, HeadDim: 32, Intermediate: 256,
		MaxPositions: 257, NormEps: 1e-6, RopeTheta: 1e4, Tied: true}, 64, 122, 48},
}

func main() {
	kernels := flag.String("kernels", "", "kernel set; empty: the best of this CPU")
	steps := flag.Int("steps", 8, "training steps, and decoding rounds, of which the best counts")
	only := flag.String("only", "", "measure only what has this prefix, such as fixed/train")
	profile := flag.String("profile", "", "write a CPU profile to this file")
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		check(err)
		check(pprof.StartCPUProfile(f))
		defer pprof.StopCPUProfile()
	}
	for _, l := range loads {
		for _, threads := range []int{1, 2} {
			if threads > runtime.NumCPU() {
				continue
			}
			runtime.GOMAXPROCS(threads)
			e, err := embedded.New(l.config, 1, embedded.Options{Threads: threads, Kernels: *kernels})
			check(err)
			info, err := e.Info(context.Background())
			check(err)
			measure := func(what string, f func() int) {
				name := fmt.Sprintf("%s/%s/%dT", l.name, what, threads)
				if strings.HasPrefix(name, *only) {
					report(name, info.Kernels, *steps, f)
				}
			}
			measure("train", func() int { return l.train(e) })
			measure("decode-b1", func() int { return l.decode(e, 1) })
			measure("decode-b32", func() int { return l.decode(e, 32) })
			check(e.Close())
		}
	}
}

// report runs f, which returns tokens, several times and prints the best.
func report(name, kernels string, n int, f func() int) {
	f()
	wall, cpu := math.Inf(1), math.Inf(1)
	tokens := 0
	for range n {
		w, c := time.Now(), cpuSeconds()
		tokens = f()
		wall, cpu = min(wall, time.Since(w).Seconds()), min(cpu, cpuSeconds()-c)
	}
	fmt.Printf("%-22s %-9s %9.0f tok/cpu-s %9.0f tok/s wall\n", name, kernels, float64(tokens)/cpu, float64(tokens)/wall)
}

func cpuSeconds() float64 {
	var r syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	s := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return s(r.Utime) + s(r.Stime)
}

// train makes one step: forward, backward, clip, AdamW.
func (l load) train(e *embedded.Engine) int {
	ctx, r := context.Background(), rand.New(rand.NewPCG(1, 2))
	var data []engine.Datum
	for range l.batch {
		d := engine.Datum{}
		a := float32(r.NormFloat64()) / float32(l.batch*l.length)
		for t := range l.length {
			d.Tokens = append(d.Tokens, int32(r.IntN(l.config.VocabSize)))
			d.Targets = append(d.Targets, int32(r.IntN(l.config.VocabSize)))
			d.Advantages = append(d.Advantages, a)
			d.OldLogProbs = append(d.OldLogProbs, float32(-math.Log(float64(l.config.VocabSize))))
			m := float32(0)
			if t >= l.length-l.masked {
				m = 1
			}
			d.Mask = append(d.Mask, m)
		}
		data = append(data, d)
	}
	_, err := e.ForwardBackward(ctx, data, engine.Loss{Name: engine.PPO, ClipLow: .2, ClipHigh: .2})
	check(err)
	_, err = e.OptimStep(ctx, engine.AdamW{LearningRate: 1e-3, Beta1: .9, Beta2: .95, Eps: 1e-8, ClipNorm: 1})
	check(err)
	return l.batch * l.length
}

// decode samples sequences of 256 tokens, so many at once.
func (l load) decode(e *embedded.Engine, batch int) int {
	const tokens = 256
	var wg sync.WaitGroup
	for i := range batch {
		wg.Go(func() {
			g, err := e.Generate(context.Background(), engine.GenerateRequest{Prompt: []int32{int32(i)}, MaxTokens: tokens, Temperature: 1, Seed: uint64(i)}, nil)
			check(err)
			if len(g.Tokens) != tokens {
				panic(fmt.Sprintf("%d tokens sampled", len(g.Tokens)))
			}
		})
	}
	wg.Wait()
	return batch * tokens
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/engine:", err)
		os.Exit(1)
	}
}
