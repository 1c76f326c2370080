package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	fl.IntVar(&f.slots, "slots", 0, "agents of all runs together, at once (0: of one run, its own runner.slots; of several, the most that one of them has)")
	fl.StringVar(&f.dir, "dir", ".", "without a run file: the folder that the runs' relative paths are in")
	fl.StringVar(&f.listen, "listen", "", "address of /metrics, /healthz and /readyz (empty: none)")
	return c
}

// fleet is what one `fulgur controller` runs.
type fleet struct {
	app      *app
	flags    controllerFlags
	store    *client.Client
	log      *slog.Logger
	pool     *controller.Pool
	registry *prometheus.Registry
	stops    map[fulgur.RunID]func() error
	skipped  map[fulgur.RunID]bool // runs that cannot be run here, which was told
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
	// What runs, runs here: that it does is no news.
	cl, err := client.New(f.server, f.key, client.Options{States: []fulgur.RolloutState{fulgur.Queuing, fulgur.Succeeded, fulgur.Failed}})
	if err != nil {
		return usageErr(err)
	}
	fl := &fleet{app: a, flags: f, store: cl, log: a.logger(f.logLevel), registry: prometheus.NewRegistry(), stops: map[fulgur.RunID]func() error{}, skipped: map[fulgur.RunID]bool{}}
	if len(files) != 1 || f.slots > 0 {
		fl.pool = controller.NewPool(poolSlots(f.slots, files))
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
	for _, r := range files {
		if err := fl.start(c.Context(), r); err != nil {
			return err
		}
	}
	if len(files) == 0 {
		return fl.all(c)
	}
	<-c.Context().Done()
	return nil
}

// poolSlots are the slots that several runs share.
func poolSlots(asked int, files []*runFile) int {
	if asked > 0 {
		return asked
	}
	most := 0
	for _, r := range files {
		most = max(most, limits(r.File).Slots)
	}
	if most == 0 {
		most = agentsPerCore * runtime.NumCPU()
	}
	return most
}

// start runs the agents of one run.
func (fl *fleet) start(ctx context.Context, r *runFile) error {
	id := fulgur.RunID(r.Run)
	if fl.stops[id] != nil {
		return usageErr(fmt.Errorf("two run files are of the run %s", id))
	}
	if err := checkRunner(ctx, r); err != nil {
		return err
	}
	dir, err := filepath.Abs(filepath.Join(r.Out, r.Run+"-agents"))
	if err != nil {
		return err
	}
	if err := makeDir(dir); err != nil {
		return err
	}
	if err := fl.app.buildAgent(ctx, r, runDir(dir), nil); err != nil {
		return err
	}
	stop, err := fl.app.startController(ctx, controllerJob{
		file: r, dir: runDir(dir), run: id, model: modelName(r.File), url: fl.flags.agentURL,
		store: fl.store, gate: fl.store, secret: fl.flags.key, log: fl.log, leave: true, pool: fl.pool, registry: fl.registry,
	})
	if err != nil {
		return err
	}
	fl.stops[id] = stop
	fl.app.say("running the agents of %s for %s; Ctrl-C ends them", r.Run, fl.flags.server)
	return nil
}

// runsEvery is how often the server is asked for runs.
const runsEvery = 3 * time.Second

// all runs the agents of all runs on record, until ctx ends.
func (fl *fleet) all(c *cobra.Command) error {
	ctx := c.Context()
	fl.app.say("running the agents of all runs of %s; Ctrl-C ends them", fl.flags.server)
	tick := time.NewTicker(runsEvery)
	defer tick.Stop()
	for {
		runs, err := fl.store.Runs(ctx)
		if err != nil && ctx.Err() == nil {
			fl.log.Warn("the server's runs could not be read; trying again", "err", err)
		}
		for _, run := range runs {
			switch {
			case run.EndedAt != nil && fl.stops[run.ID] != nil:
				if err := fl.stops[run.ID](); err != nil {
					fl.log.Warn("ending a run's agents", "run", run.ID, "err", err)
				}
				delete(fl.stops, run.ID)
				fl.app.say("run %s has ended", run.ID)
			case run.ID == fulgur.DefaultRun && len(run.Config) == 0: // what v1's trainers create their rollouts in
			case run.EndedAt == nil && fl.stops[run.ID] == nil && !fl.skipped[run.ID]:
				if err := fl.adopt(c, run); err != nil {
					fl.skipped[run.ID] = true
					fl.app.say("warning: the agents of run %s are not run here: %v", run.ID, err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// adopt starts a run that only the record knows.
func (fl *fleet) adopt(c *cobra.Command, run fulgur.Run) error {
	if len(run.Config) == 0 {
		return errors.New("its run file is not on record: a trainer of Agent Lightning v1 made it, or it was never started; name its run file")
	}
	f, _, err := config.Parse(run.Config, "the configuration of run "+string(run.ID), variants())
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(fl.flags.dir)
	if err != nil {
		return err
	}
	if c.Flags().Changed("out") {
		f.Out = fl.flags.file.out
	}
	f.Run = string(run.ID)
	r := &runFile{File: f, Dir: dir}
	return fl.start(c.Context(), r)
}

// close stops all controllers at once, with their agents.
func (fl *fleet) close() error {
	errs := make(chan error)
	for _, stop := range fl.stops {
		go func() { errs <- stop() }()
	}
	var err error
	for range fl.stops {
		err = errors.Join(err, <-errs)
	}
	return err
}

// routes are what is looked at from outside.
func (fl *fleet) routes() http.Handler {
	mux := http.NewServeMux()
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") }
	mux.HandleFunc("GET /healthz", ok)
	mux.HandleFunc("GET /readyz", ok)
	mux.Handle("GET /metrics", promhttp.HandlerFor(fl.registry, promhttp.HandlerOpts{}))
	return mux
}
