// Agent answers short stories about a count with the help of a calculator and a
// model behind an OpenAI-compatible server. See package loop.
package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/fulgur-rl/fulgur/examples/calc/agent/loop"
)

func main() {
	// The process lives for a few calls: collecting garbage and waking threads
	// would be most of its work.
	worker := len(os.Args) > 1 && os.Args[1] == "-worker"
	if !worker {
		debug.SetGCPercent(-1)
	}
	runtime.GOMAXPROCS(1)
	os.Exit(loop.Main(context.Background(), os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}
