//go:build unix

package kernel

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
)

// BenchmarkGemm reports GFLOP per CPU second of the products of a training step.
func BenchmarkGemm(b *testing.B) {
	for _, s := range Available() {
		for _, d := range [][3]int{{256, 768, 128}, {256, 128, 384}, {256, 256, 128}, {48, 128, 32}, {256, 32, 48}, {1, 256, 128}, {32, 256, 128}} {
			m, n, k := d[0], d[1], d[2]
			b.Run(fmt.Sprintf("%s/%dx%dx%d", s.Name(), m, n, k), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 2))
				x, w, c := random(r, m*k), s.Pack(nil, random(r, k*n), n, 1, k, n), make([]float32, m*n)
				start := cpuSeconds()
				for b.Loop() {
					s.Gemm(m, n, k, x, k, 1, w, k, c, n, false)
				}
				b.ReportMetric(2*float64(m)*float64(n)*float64(k)*float64(b.N)/(cpuSeconds()-start)/1e9, "GFLOP/cpu-s")
			})
		}
	}
}

func cpuSeconds() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return float64(r.Utime.Sec+r.Stime.Sec) + float64(r.Utime.Usec+r.Stime.Usec)/1e6
}
