package cli

import (
	_ "embed"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
)

// starter is the run file that init writes: short, and every line explained.
//
//go:embed starter.yaml
var starter []byte

func (a *app) initCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:     "init [FILE]",
		Short:   "write a run file for your own agent",
		GroupID: "start",
		Long: `Write a commented run file (default run.yaml) to start from. fulgur try shows
whether your agent can be trained; fulgur train --check shows every other key.`,
		Example: `  fulgur init
  fulgur init other.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := "run.yaml"
			if len(args) == 1 {
				path = args[0]
			}
			if _, err := os.Stat(path); err == nil && !force {
				return usageErr(fulgur.E(fulgur.KindConflict, "write "+path, "it is there already: name another file, or --force", nil))
			}
			if err := writeFile(path, starter, 0o644); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"file": path})
			}
			_, err := fmt.Fprintf(a.Stdout, "wrote %s. Next:\n  fulgur try -- YOUR AGENT          # does it speak to the gateway?\n  fulgur train %s --check     # what it would start\n  fulgur train %s\n", path, path, path)
			return err
		},
	}
	c.Flags().BoolVar(&force, "force", false, "write over a file that is there")
	return c
}
