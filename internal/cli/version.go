package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildVersion is set by the linker in release builds.
var buildVersion string

// version returns the version of this binary: the linker's, else the module's,
// else the commit's.
func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Example: "  fulgur version --json", GroupID: "look", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			k := kernelName("")
			if a.json {
				return a.printJSON(map[string]string{"version": version(), "go": runtime.Version(),
					"platform": runtime.GOOS + "/" + runtime.GOARCH, "kernels": k})
			}
			_, err := fmt.Fprintf(a.Stdout, "fulgur %s (%s, %s/%s, kernels: %s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, k)
			return err
		},
	}
}
