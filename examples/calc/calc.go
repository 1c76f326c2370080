// Package calc holds the calc example as files: the run file, the data, the
// warm-started model and the agent's source, for `fulgur demo` to unpack.
package calc

import "embed"

// Files are run.yaml, README.md, data/, model/ and agent/ as they lie in this folder.
//
//go:embed run.yaml README.md data model agent/main.go agent/loop/calc.go agent/loop/client.go agent/loop/loop.go agent/loop/main.go agent/loop/slow.go
var Files embed.FS
