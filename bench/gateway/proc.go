package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// usage is what a process and its descendants have used.
type usage struct {
	cpu float64 // seconds, user + system, in steps of 10 ms
	rss float64 // MiB now
}

// measure reads the usage of a process and its descendants from /proc.
func measure(pid int) usage {
	var u usage
	parents := map[int]int{}
	fields := map[int][]string{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, s := range stats {
		b, err := os.ReadFile(s)
		if err != nil {
			continue // it ended
		}
		text := string(b)
		p, _ := strconv.Atoi(strings.Split(s, "/")[2])
		f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		fields[p] = f
		parents[p], _ = strconv.Atoi(f[1])
	}
	number := func(s string) float64 { x, _ := strconv.ParseFloat(s, 64); return x }
	for p, f := range fields {
		for q := p; q > 1; q = parents[q] {
			if q != pid {
				continue
			}
			u.cpu += (number(f[11]) + number(f[12])) / 100
			if p == pid { // children that ended
				u.cpu += (number(f[13]) + number(f[14])) / 100
			}
			u.rss += number(f[21]) * float64(os.Getpagesize()) / (1 << 20)
			break
		}
	}
	return u
}

// peakRSS is the most memory that a process had, in MiB.
func peakRSS(pid int) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kib / 1024
		}
	}
	return 0
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

// sizeOf is the sum of a file and those whose names go on from its (a write-ahead log), in bytes.
func sizeOf(path string) int64 {
	files, _ := filepath.Glob(path + "*")
	var n int64
	for _, f := range files {
		if i, err := os.Stat(f); err == nil {
			n += i.Size()
		}
	}
	return n
}
