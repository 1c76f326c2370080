package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/audit"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// auditOptions are what the run file says to look for.
func auditOptions(a config.Audit) trainer.Audit {
	return trainer.Audit{Actions: a.Actions(), Options: audit.Options{TestFiles: a.TestFiles, EvaluationFiles: a.EvaluationFiles, Sleep: time.Duration(a.Sleep)}}
}

func (a *app) auditCommand() *cobra.Command {
	var f recordFlags
	var all bool
	c := &cobra.Command{
		Use: "audit [RUN]", Short: "look for shortcuts in recorded rollouts", GroupID: "look", Args: cobra.MaximumNArgs(1),
		Long: `Look for shortcuts in what the agents of a run did: the repository's later history
(git_history), things fetched (download, package_install), tests changed
(test_edit), the evaluation read (evaluation_read), rewards posted (reward_post),
checks slept past (check_sleep). It reads the record and changes nothing; the
run file's audit keys say what follows a finding in training (docs/audit.md has
precision and recall).`,
		Example: `  fulgur audit runs/demo
  fulgur audit runs/swe --json | jq -r .rollout | sort -u      # the rollouts concerned
  fulgur audit --server http://127.0.0.1:8080 --key KEY --run swe`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				if f.run != "" {
					return usageErr(errors.New("name the run once: as argument or with --run"))
				}
				f.run = args[0]
			}
			return a.audit(c, f, all)
		},
	}
	f.register(c)
	c.Flags().BoolVar(&all, "all", false, fmt.Sprintf("print traces below confidence %g too, which honest work leaves as well", audit.Sure))
	return c
}

// auditLine is what audit --json prints for each finding.
type auditLine struct {
	Rollout fulgur.RolloutID `json:"rollout"`
	Reward  *float64         `json:"reward,omitempty"`
	audit.Finding
}

func (a *app) audit(c *cobra.Command, f recordFlags, all bool) (err error) {
	rec, err := a.openRecord(c, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	options, err := a.auditOptionsOf(c, f)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	if !a.json {
		fmt.Fprintln(w, "ROLLOUT\tREWARD\tCALL\tDETECTOR\tSURE\tWHERE\tEVIDENCE")
	}
	looked, concerned, cut, count := 0, 0, 0, map[string]int{}
	q := fulgur.RolloutQuery{Run: rec.run, Limit: 500}
	for {
		page, err := rec.Rollouts(c.Context(), q)
		if err != nil {
			return err
		}
		for i := range page {
			r := &page[i]
			calls, err := rec.Calls(c.Context(), r.ID, r.LastAttempt)
			if err != nil {
				return err
			}
			looked++
			found := audit.Scan(calls, options)
			flagged := audit.Flagged(found)
			for _, d := range flagged {
				count[d]++
			}
			if len(flagged) > 0 {
				concerned++
			}
			if slices.ContainsFunc(found, func(f audit.Finding) bool { return f.Detector == audit.NotFollowed }) {
				cut++
			}
			for _, x := range found {
				if !all && x.Confidence < audit.Sure {
					continue
				}
				if a.json {
					if err := a.printJSON(auditLine{r.ID, r.Reward, x}); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.2f\t%s\t%s\n", r.ID, number(r.Reward), x.Call, x.Detector, x.Confidence, x.Where, printable(x.Evidence))
			}
		}
		if len(page) < q.Limit {
			break
		}
		q.After = page[len(page)-1].ID
	}
	if (concerned > 0 || all) && !a.json {
		if err := w.Flush(); err != nil {
			return err
		}
	}
	var parts []string
	for _, d := range audit.Names() {
		if count[d] > 0 {
			parts = append(parts, fmt.Sprintf("%s in %d", d, count[d]))
		}
	}
	a.say("%d of %d rollouts show a shortcut%s", concerned, looked, strings.TrimSuffix(": "+strings.Join(parts, ", "), ": "))
	if cut > 0 {
		a.say("%d of them could not be followed to the end: a call that is too long or too deep (--all names it) may hide one", cut)
	}
	return nil
}

// auditOptionsOf are the options in the run file of the run that is looked at;
// of a server's run they aren't known here.
func (a *app) auditOptionsOf(c *cobra.Command, f recordFlags) (audit.Options, error) {
	if f.server != "" {
		return audit.Options{}, nil
	}
	arg := f.run
	if arg == "" {
		var err error
		if arg, err = newestRun("runs"); err != nil {
			return audit.Options{}, err
		}
	}
	file, _, err := a.openRun(arg, c)
	if err != nil {
		return audit.Options{}, err
	}
	return auditOptions(file.Audit).Options, nil
}

// printable is a text without control codes: evidence is what a model wrote.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '·'
		}
		return r
	}, s)
}

// printAudit prints what the audit found in a rollout, and what followed.
func (a *app) printAudit(l *trainer.RolloutLine) {
	if l == nil {
		return
	}
	for _, f := range l.Audit {
		then := "a trace: nothing follows"
		if f.Confidence >= audit.Sure {
			then = l.Audited
		}
		fmt.Fprintf(a.Stdout, "audit   %s (%.2f, %s)  call %s, %s: %s\n", f.Detector, f.Confidence, then, f.Call, f.Where, printable(f.Evidence))
	}
}

// auditWarnings says for the report how many rollouts show which shortcut.
func auditWarnings(lines []trainer.RolloutLine) []string {
	count, example := map[string]int{}, map[string]fulgur.RolloutID{}
	for i := range lines {
		for _, d := range audit.Flagged(lines[i].Audit) {
			if count[d]++; count[d] == 1 {
				example[d] = lines[i].ID
			}
		}
	}
	var out []string
	for _, d := range audit.Names() {
		if count[d] > 0 {
			out = append(out, fmt.Sprintf("audit: %s in %d of %d rollouts, such as %s (fulgur rollouts show)", d, count[d], len(lines), example[d]))
		}
	}
	return out
}
