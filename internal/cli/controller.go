package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller"
)

// controllerFlags are the controller's flags.
type controllerFlags struct {
	wait                                         time.Duration // for the server to be there
	file                                         runFileFlags
	server, key, agentURL, logLevel, dir, listen string
	slots                                        int
}

// controllerCommand runs the agents of runs whose gateway is elsewhere.
func (a *app) controllerCommand() *cobra.Command {
	var f controllerFlags
	c := &cobra.Command{
		Use:     "controller [RUN.yaml...]",
		Short:   "run the agents of runs, against a server",
		GroupID: "parts",
		Long: `Run the agents of a run: the part of fulgur train that starts processes, for a
gateway that runs elsewhere (fulgur serve). Any number of controllers may be
started for a run; one leads, and another takes over when it dies. Agents that a
killed controller left behind are found and ended.

Several run files share this controller's slots fairly. Without one, all runs that
are on the server's record and have not ended are run, also those that come later;
their relative paths are then relative to --dir.`,
		Example: `  fulgur controller run.yaml --server http://127.0.0.1:8080 --key KEY
  fulgur controller a.yaml b.yaml --slots 64 --server http://127.0.0.1:8080 --key KEY
  fulgur controller --server http://127.0.0.1:8080 --key KEY --listen 127.0.0.1:9090   # all runs; /metrics`,
		RunE: func(c *cobra.Command, args []string) error { return a.control(c, args, f) },
	}
	fl := c.Flags()
	f.file.register(c)
	fl.StringVar(&f.server, "server", "", "URL of a running fulgur serve")
	fl.StringVar(&f.key, "key", "", "the server's key")
	fl.DurationVar(&f.wait, "wait", serverWait, "how long to wait for a server that is not there yet")
	fl.StringVar(&f.agentURL, "agent-url", "", "the server's URL as agents reach it (default: --server)")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.IntVar(&f.slots, "slots", 0, "agents of all runs together, at once (0: of one run, its own runner.slots; of several, the most that one of them has; without a run file, what this machine has room for)")
	fl.StringVar(&f.dir, "dir", ".", "without a run file: the folder that the runs' relative paths are in")
	fl.StringVar(&f.listen, "listen", "", "address of /metrics, /healthz and /readyz (empty: none)")
	return c
}

func (a *app) control(c *cobra.Command, args []string, f controllerFlags) (err error) {
	outliveReader()
	var files []*runFile
	for _, arg := range args {
		r, err := a.loadRunFile(arg, f.file, c)
		if err != nil {
			return err
		}
		a.warn(r)
		if f.server == "" {
			f.server = r.Server
		}
		files = append(files, r)
	}
	if f.server == "" {
		return usageErr(errors.New("name the server with --server"))
	}
	if f.slots < 0 {
		return usageErr(fmt.Errorf("--slots %d: want at least 1", f.slots))
	}
	if err := a.waitServer(c.Context(), f.server, f.key, f.wait); err != nil {
		return err
	}
	if f.agentURL == "" {
		f.agentURL = f.server
	}
	for _, r := range files {
		for _, w := range gatewayWarnings(r, f.agentURL) {
			a.say("warning: %s", w)
		}
	}
	// What runs, runs here: that it does is no news.
	cl, err := client.New(f.server, f.key, client.Options{States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Succeeded, fulgur.Failed}})
	if err != nil {
		return usageErr(err)
	}
	fl := newFleet(a, f, cl)
	if len(files) != 1 || f.slots > 0 {
		slots, most := poolSlots(f.slots, files, runtime.NumCPU(), machineMemory()), poolFiles(files, openFiles())
		if slots > most && f.slots > 0 {
			a.say("warning: --slots %d is more than the open files of this process are enough for: at most %d agents run at once (raise the limit: ulimit -n, LimitNOFILE= of systemd)", slots, most)
		}
		fl.pool = controller.NewPool(min(slots, most))
	}
	defer func() { err = errors.Join(err, fl.close()) }()
	if f.listen != "" {
		l, err := listen(f.listen, fl.routes(), fl.log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.close(context.WithoutCancel(c.Context()))) }()
		a.say("metrics at %s/metrics", l.url)
	}
	if len(files) > 0 {
		return fl.these(c.Context(), files)
	}
	return fl.all(c)
}

// poolSlots are the slots that several runs share; of runs that are not known yet, as
// many as this machine has room for (memory in bytes, 0: not known).
func poolSlots(asked int, files []*runFile, cores int, memory int64) int {
	if asked > 0 {
		return asked
	}
	most := 0
	for _, r := range files {
		most = max(most, limits(r.File).Slots)
	}
	if most == 0 {
		most = room(agentsPerCore*cores, agentMemory, memory)
	}
	return most
}

// poolFiles are the most slots of several runs for which so many open files are enough
// (slotsOf), whichever of them has the agents.
func poolFiles(files []*runFile, open int) int {
	most := slotsOf(config.Default(), open)
	for i, r := range files {
		if n := slotsOf(r.File, open); i == 0 || n < most {
			most = n
		}
	}
	return most
}

// routes are what is looked at from outside.
func (fl *fleet) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", &fl.health)
	mux.Handle("GET /readyz", &fl.health)
	mux.Handle("GET /metrics", promhttp.HandlerFor(fl.registry, promhttp.HandlerOpts{}))
	return mux
}
