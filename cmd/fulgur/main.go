// Command fulgur trains LLM agents with reinforcement learning through the
// harness they are deployed with. See `fulgur --help`.
package main

import (
	"os"

	"github.com/fulgur-rl/fulgur/internal/cli"
)

func main() {
	os.Exit(cli.Main(cli.Process{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
	}))
}
