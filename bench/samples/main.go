// Command samples measures how calls become samples, beside the reference's
// adapter on the same data in one run: see ../README.md.
//
//	bench/samples/run.sh [-rollouts 1000] [-calls 30] [-tokens 16384] [-breaks 0.08]
package main

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

// batch is how many rollouts are in memory at once: the reference makes padded
// tensors of them.
const batch = 50

type figures struct {
	rollouts, calls, samples int
	prompt, distinct         int           // tokens: of all prompts and answers; of all histories, shared ones once
	tokens, trained          int           // of the samples
	cpu, writing             time.Duration // all, and of it what it takes to write samples out token by token
	most, flat               float64       // bytes allocated per distinct token of the worst rollout: for its samples, and to write them out
}

func main() {
	log.SetFlags(0)
	rollouts := flag.Int("rollouts", 1000, "rollouts")
	calls := flag.Int("calls", 30, "calls of a rollout")
	tokens := flag.Int("tokens", 16384, "tokens that its history grows to")
	breaks := flag.Float64("breaks", 0.08, "share of calls before which the history was tokenised anew")
	shared := flag.Bool("shared", false, "prompts of a lineage share memory, as a decoder of deltas may give them")
	python := flag.String("reference", "", "Python with the reference's adapter; none: ours alone")
	script := flag.String("script", "", "reference.py")
	flag.Parse()
	dir, err := os.MkdirTemp("", "fulgur-samples-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	f := figures{}
	for k := 0; k*batch < *rollouts; k++ {
		data := draw(k, min(batch, *rollouts-k*batch), *calls, *tokens, *breaks, *shared)
		if err := f.measure(data); err != nil {
			log.Fatal(err)
		}
		if *python != "" {
			if err := write(filepath.Join(dir, fmt.Sprintf("%05d.bin", k)), data); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Printf("%d rollouts, %d calls, %d tokens in prompts and answers, %d distinct\n", f.rollouts, f.calls, f.prompt, f.distinct)
	fmt.Printf("ours       %8.3f s CPU  %d samples, %d tokens, %d trained; %.2f ns a token of the calls, %.1f ns a distinct one\n",
		f.cpu.Seconds(), f.samples, f.tokens, f.trained, float64(f.cpu.Nanoseconds())/float64(f.prompt), float64(f.cpu.Nanoseconds())/float64(f.distinct))
	fmt.Printf("           %8.3f s of it to write the samples out\n", f.writing.Seconds())
	fmt.Printf("           %8.2f bytes a distinct token of working memory for the worst rollout, its samples included (bar 16); %.1f more to write them all out\n", f.most, f.flat)
	if *python == "" {
		return
	}
	cmd := exec.Command(*python, *script, dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		log.Fatalf("the reference: %v", err)
	}
	var cpu float64
	var rows, sum, trained int
	if _, err := fmt.Sscan(strings.TrimSpace(string(out)), &cpu, &rows, &sum, &trained); err != nil {
		log.Fatalf("the reference said %q", out)
	}
	fmt.Printf("reference  %8.3f s CPU  %d samples, %d tokens, %d trained\n", cpu, rows, sum, trained)
	fmt.Printf("ratio      %8.0f times  (bar 50)\n", cpu/f.cpu.Seconds())
	if rows != f.samples || sum != f.tokens || trained != f.trained {
		log.Fatal("they did not do the same")
	}
}

// draw makes rollouts whose histories grow evenly. Before some calls the last
// answer comes back in other tokens: a lineage breaks.
func draw(seed, n, calls, tokens int, breaks float64, shared bool) [][]fulgur.Call {
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	out := make([][]fulgur.Call, n)
	for k := range out {
		h := make([]int32, 0, tokens+1)
		grow := func(m int) {
			for range m {
				h = append(h, int32(300+r.IntN(150000)))
			}
		}
		step := tokens / calls
		grow(step / 2)
		for i := range calls {
			if i > 0 && r.Float64() < breaks {
				h = append(make([]int32, 0, cap(h)), h...)
				h[len(h)-step/2-1] ^= 1
			}
			c := fulgur.Call{ID: fulgur.CallID(fmt.Sprintf("%d-%d-%d", seed, k, i)), Rollout: fulgur.RolloutID(fmt.Sprintf("%d-%d", seed, k)), Index: i, Trainable: true}
			if c.PromptIDs = h[:len(h):len(h)]; !shared {
				c.PromptIDs = append([]int32(nil), h...)
			}
			from := len(h)
			grow(step / 2)
			c.SampledIDs = append([]int32(nil), h[from:]...)
			c.LogProbs = make([]float32, len(c.SampledIDs))
			for j := range c.LogProbs {
				c.LogProbs[j] = -r.Float32()
			}
			out[k] = append(out[k], c)
			grow(step - step/2)
		}
	}
	return out
}

func (f *figures) measure(data [][]fulgur.Call) error {
	runtime.GC()
	before := cpuTime()
	var written []fulgur.Sample
	for _, calls := range data {
		b := sample.Build("g", calls, sample.Options{})
		start := cpuTime()
		written = b.Samples() // the reference writes its own out too
		f.writing += cpuTime() - start
		f.samples += len(b.Sequences)
		f.trained += b.Trained
		f.distinct += b.Forest.Distinct
		for i := range b.Sequences {
			f.tokens += b.Sequences[i].Len()
		}
	}
	f.cpu += cpuTime() - before
	runtime.KeepAlive(written)
	for _, calls := range data {
		f.rollouts++
		f.calls += len(calls)
		for i := range calls {
			f.prompt += len(calls[i].PromptIDs) + len(calls[i].SampledIDs)
		}
	}
	// Memory of one rollout: all that is allocated counts, as if nothing were freed.
	old := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(old)
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	b := sample.Build("g", data[0], sample.Options{})
	runtime.ReadMemStats(&is)
	f.most = max(f.most, float64(is.TotalAlloc-was.TotalAlloc)/float64(b.Forest.Distinct))
	// What the samples take when they are written out for an update.
	runtime.ReadMemStats(&was)
	flat := b.Samples()
	runtime.ReadMemStats(&is)
	runtime.KeepAlive(flat)
	f.flat = max(f.flat, float64(is.TotalAlloc-was.TotalAlloc)/float64(b.Forest.Distinct))
	return nil
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// write writes a batch as little-endian words of 4 bytes: rollouts, calls of each,
// and per call the lengths of prompt and answer, their ids, and the log probs.
func write(path string, data [][]fulgur.Call) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	var word [4]byte
	put := func(x uint32) {
		binary.LittleEndian.PutUint32(word[:], x)
		w.Write(word[:]) // Flush tells
	}
	put(uint32(len(data)))
	put(uint32(len(data[0])))
	for _, calls := range data {
		for i := range calls {
			c := &calls[i]
			put(uint32(len(c.PromptIDs)))
			put(uint32(len(c.SampledIDs)))
			for _, list := range [][]int32{c.PromptIDs, c.SampledIDs} {
				for _, id := range list {
					put(uint32(id))
				}
			}
			for _, x := range c.LogProbs {
				put(math.Float32bits(x))
			}
		}
	}
	return w.Flush()
}
