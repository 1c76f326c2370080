package kernel

import "golang.org/x/sys/cpu"

func detect() level {
	x := cpu.X86
	switch {
	case x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512VL && x.HasFMA:
		return avx512
	case x.HasAVX2 && x.HasFMA:
		return avx2
	}
	return portable
}
