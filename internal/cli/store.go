package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
)

// storeFlags say which store is meant.
type storeFlags struct{ store, run string }

func (a *app) storeCommand() *cobra.Command {
	var f storeFlags
	parent := &cobra.Command{
		Use: "store", Short: "look after the record: back it up, check it, give space back", GroupID: "parts",
		Long: `Look after the store, where every call and reward is on record.

backup and check work while a server or a run has the store open. vacuum needs it
for itself; a server that runs drops old records by itself with
fulgur serve --keep-records.`,
		Example: "  fulgur store backup calls-monday.db --store sqlite:fulgur.db\n  fulgur store check --run runs/calc\n  fulgur store vacuum --drop-older 720h",
	}
	parent.PersistentFlags().StringVar(&f.store, "store", "", "the store: sqlite:PATH, or postgres://… (default sqlite:fulgur.db)")
	parent.PersistentFlags().StringVar(&f.run, "run", "", "a run's folder, or its name below runs/, in place of --store")
	backup := &cobra.Command{
		Use: "backup FILE", Short: "copy the store to a new file, also while it is written to", Args: cobra.ExactArgs(1),
		Long: `Copy the store, as it is at one moment, to a new file that is a store itself: open it
with --store sqlite:FILE. It holds the keys of model endpoints, and only its owner may read it.`,
		Example: "  fulgur store backup calls-monday.db --store sqlite:fulgur.db",
		RunE:    func(c *cobra.Command, args []string) error { return a.storeBackup(c.Context(), f, args[0]) },
	}
	check := &cobra.Command{
		Use: "check", Short: "read everything back, and say what is wrong", Args: cobra.NoArgs,
		Long: `Read all that is on record, also while it is written to: whether the file is whole,
every call comes back, token ids fit log probs, and the tables agree. Exit code 1
if anything is wrong.`,
		Example: "  fulgur store check --run runs/calc\n  fulgur store check --store sqlite:fulgur.db --json | jq .problems",
		RunE:    func(c *cobra.Command, _ []string) error { return a.storeCheck(c.Context(), f) },
	}
	var drop string
	var older time.Duration
	vacuum := &cobra.Command{
		Use: "vacuum", Short: "drop old records if asked, and give free space back to the disk", Args: cobra.NoArgs,
		Long: `Give the space of what was deleted back to the disk. With --drop-run or
--drop-older, first delete the calls, events and artifacts of rollouts that have ended:
rollouts stay, with their rewards. What is dropped is gone for good.`,
		Example: `  fulgur store vacuum --store sqlite:fulgur.db
  fulgur store vacuum --drop-older 720h                   # of rollouts that ended 30 days ago, or more
  fulgur store vacuum --drop-run old --drop-older 0s      # all of run "old"`,
		RunE: func(c *cobra.Command, _ []string) error {
			if older < 0 {
				return usageErr(fmt.Errorf("--drop-older %s: want a time that is not negative", older))
			}
			return a.storeVacuum(c.Context(), f, fulgur.RunID(drop), older, drop != "" || c.Flags().Changed("drop-older"))
		},
	}
	vacuum.Flags().StringVar(&drop, "drop-run", "", "delete the records of this run's rollouts that have ended")
	vacuum.Flags().DurationVar(&older, "drop-older", 0, "delete records of rollouts that ended longer ago than this, of all runs or of --drop-run's")
	parent.AddCommand(backup, check, vacuum)
	return parent
}

// url is where the store is.
func (f storeFlags) url() (string, error) {
	if f.run == "" {
		return cmp.Or(f.store, "sqlite:fulgur.db"), nil
	}
	if f.store != "" {
		return "", usageErr(errors.New("--store and --run each name a store: give one of them"))
	}
	dir, err := openRunDir(f.run)
	if err != nil {
		return "", err
	}
	return "sqlite:" + dir.store(), nil
}

// keeper returns the database that f names.
func (f storeFlags) keeper() (store.Keeper, error) {
	url, err := f.url()
	if err != nil {
		return nil, err
	}
	d, err := storeDriver(url, false)
	if err != nil {
		return nil, err
	}
	k, ok := d.(store.Keeper)
	if !ok {
		return nil, fulgur.E(fulgur.KindUnsupported, "look after the store", d.Name()+" has no such commands", nil)
	}
	return k, nil
}

func (a *app) storeBackup(ctx context.Context, f storeFlags, path string) error {
	k, err := f.keeper()
	if err != nil {
		return err
	}
	if err := store.Backup(ctx, k, path); err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return fulgur.E(fulgur.KindInternal, "back up the store", "the copy was written and is gone", err)
	}
	if a.json {
		return a.printJSON(map[string]any{"file": path, "bytes": st.Size()})
	}
	a.say("%s: %s", path, megabytes(st.Size()))
	return nil
}

func (a *app) storeCheck(ctx context.Context, f storeFlags) error {
	k, err := f.keeper()
	if err != nil {
		return err
	}
	r, err := store.Check(ctx, k)
	if err != nil {
		return err
	}
	switch {
	case a.json:
		if err := a.printJSON(r); err != nil {
			return err
		}
	default:
		fmt.Fprintf(a.Stdout, "schema %d: %d rollouts, %d calls, %d events read\n", r.Schema, r.Rollouts, r.Calls, r.Events)
		for _, p := range r.Problems {
			fmt.Fprintln(a.Stdout, "wrong: "+p)
		}
	}
	if r.OK() {
		return nil
	}
	return fulgur.E(fulgur.KindInvalid, "check the store",
		fmt.Sprintf("%d things are wrong: restore a backup, or leave out what is named", len(r.Problems)+r.More), nil)
}

func (a *app) storeVacuum(ctx context.Context, f storeFlags, run fulgur.RunID, older time.Duration, drop bool) (err error) {
	url, err := f.url()
	if err != nil {
		return err
	}
	path, isFile := strings.CutPrefix(url, "sqlite:")
	var before int64
	if isFile {
		st, err := os.Stat(path)
		if err != nil {
			return notFound("vacuum the store", "there is no store at "+path+": name it with --store sqlite:PATH or --run")
		}
		before = st.Size()
	}
	s, err := openStore(ctx, url, "", false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	dropped := 0
	if drop {
		if dropped, err = s.DropRecords(ctx, run, time.Now().Add(-older)); err != nil {
			return err
		}
	}
	if err := s.Vacuum(ctx); err != nil {
		return err
	}
	after := before
	if st, err := os.Stat(path); isFile && err == nil {
		after = st.Size()
	}
	if a.json {
		return a.printJSON(map[string]any{"dropped": dropped, "bytes_before": before, "bytes": after})
	}
	if drop {
		a.say("dropped the records of %d rollouts", dropped)
	}
	if isFile {
		a.say("%s: %s before, %s now", path, megabytes(before), megabytes(after))
	}
	return nil
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// dropEvery is how often a server drops old records.
const dropEvery = 10 * time.Minute

// keepRecords drops the records of rollouts that ended longer ago than keep, until ctx ends.
func keepRecords(ctx context.Context, s *store.Store, keep time.Duration, log *slog.Logger) {
	tick := time.NewTicker(max(time.Second, min(dropEvery, keep)))
	defer tick.Stop()
	for {
		n, err := s.DropRecords(ctx, "", time.Now().Add(-keep))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Error("old records could not be dropped", "err", err)
		case n > 0:
			log.Info("dropped old records", "rollouts", n, "older_than", keep)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
