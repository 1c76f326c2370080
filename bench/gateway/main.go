// Gateway measures fulgur serve as a recording proxy beside what else there is: the
// reference gateway (agentlightning from PyPI), nginx and a Go reverse proxy that
// records nothing. It starts each of them, plays the model server that they call and
// the agents that call them, and prints a line per figure with its bar. It sends only
// to loopback, needs Linux (reads /proc), and is started by run.sh.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// bench is one run of the measurements.
type bench struct {
	fulgur, reference, nginx string // programs; "" leaves what is measured with it out
	full                     bool
	alone                    bool   // only fulgur: to look into one figure
	dir                      string // of the servers' files; removed at the end
	levels                   string // of part calls: "small:16,agent:256"
	streamCount              int    // of part streams; 0: as many as a Go proxy holds
	profiles                 string // folder for CPU profiles of fulgur serve; "": none
	mock                     *mock
	report                   report
	running                  []*server
}

func main() {
	log.SetFlags(0)
	if len(os.Args) == 4 && os.Args[1] == "proxy" { // what startProxy starts
		log.Fatal(serveProxy(os.Args[2], os.Args[3]))
	}
	var b bench
	flag.StringVar(&b.fulgur, "fulgur", "", "the program fulgur")
	flag.StringVar(&b.reference, "reference", "", "the program agl-server")
	flag.StringVar(&b.nginx, "nginx", "", "the program nginx")
	flag.BoolVar(&b.full, "full", false, "more calls, more repetitions, longer holds and streams")
	flag.StringVar(&b.profiles, "profiles", "", "folder for CPU profiles of fulgur serve, one for each part")
	flag.BoolVar(&b.alone, "alone", false, "measure fulgur serve alone, to profile it")
	flag.StringVar(&b.levels, "levels", "small:16,small:256,small:1000,agent:16,agent:256,agent:1000", "sizes and callers of part calls")
	flag.IntVar(&b.streamCount, "streams", 0, "number of streams of part streams; 0: the most at which a plain Go proxy keeps its p99 under 15 ms")
	parts := flag.String("parts", "calls,histories,streams,rollouts,holds", "which parts to run")
	flag.Parse()
	if err := b.run(strings.Split(*parts, ",")); err != nil {
		log.Fatal(err)
	}
}

func (b *bench) run(parts []string) (err error) {
	if b.dir, err = os.MkdirTemp("", "fulgur-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	defer b.stopAll()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		b.stopAll()
		os.RemoveAll(b.dir)
		os.Exit(130)
	}()
	if b.mock, err = startMock(); err != nil {
		return err
	}
	all := map[string]func() error{"calls": b.calls, "histories": b.histories, "streams": b.streams, "rollouts": b.rollouts, "holds": b.holds}
	for _, p := range parts {
		f, ok := all[p]
		if !ok {
			return fmt.Errorf("part %q: want calls, histories, streams, rollouts or holds", p)
		}
		began, load := time.Now(), loadAverage()
		b.report.title(p)
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w\n%s", p, err, b.logs())
		}
		b.stopAll()
		fmt.Printf("(%.0f s; load average before: %s)\n", time.Since(began).Seconds(), load)
	}
	b.report.close()
	return nil
}

// pick is the first for the quick form, the second for the full one.
func pick[T any](b *bench, quick, full T) T {
	if b.full {
		return full
	}
	return quick
}

// logs are the last words of the servers, for the message of a failure.
func (b *bench) logs() string {
	files, _ := filepath.Glob(filepath.Join(b.dir, "*.log"))
	var sb strings.Builder
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&sb, "%s: %s\n", filepath.Base(f), text[max(0, len(text)-800):])
	}
	return sb.String()
}
