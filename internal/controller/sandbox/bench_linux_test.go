package sandbox

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkStart is what a sandbox adds from the start of a program that only ends to
// its end (issue 6's bar: 30 ms), as best and median of b.N starts each way, taken
// in turns: a busy machine slows both.
func BenchmarkStart(b *testing.B) {
	dir, err := os.Getwd()
	if err != nil {
		b.Fatal(err)
	}
	for _, test := range []struct {
		name string
		l    Limits
	}{{"without limits on the tree", Limits{File: 1 << 30}}, {"with limits on the tree", Limits{File: 1 << 30, Memory: 1 << 30, Processes: 500}}} {
		b.Run(test.name, func(b *testing.B) {
			box := newBox(b, Options{View: View{Read: []string{dir}}, Upstream: "http://127.0.0.1:1", Limits: test.l})
			var plain, boxed []time.Duration
			var cpu time.Duration
			for b.Loop() {
				begin := time.Now()
				p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{Env: []string{}, Sys: &syscall.SysProcAttr{Setpgid: true}})
				if err == nil {
					_, err = p.Wait()
				}
				if err != nil {
					b.Fatal(err)
				}
				plain = append(plain, time.Since(begin))
				begin = time.Now()
				r := do(b, box, Command{Program: "/bin/true", Args: []string{"true"}}, Pass{})
				if r.state.ExitCode() != 0 {
					b.Fatal(r.out)
				}
				boxed = append(boxed, time.Since(begin))
				cpu += r.cell.CPU()
			}
			slices.Sort(plain)
			slices.Sort(boxed)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(ms(boxed[0]-plain[0]), "best-added-ms")
			b.ReportMetric(ms(boxed[len(boxed)/2]-plain[len(plain)/2]), "median-added-ms")
			b.ReportMetric(ms(plain[len(plain)/2]), "median-plain-ms")
			if cpu > 0 { // a control group counted
				b.ReportMetric(ms(cpu)/float64(b.N), "cpu-ms")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
