package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
	"github.com/fulgur-rl/fulgur/internal/trainer"
)

// shownRollout is what `rollouts show --json` prints.
type shownRollout struct {
	Rollout  fulgur.Rollout       `json:"rollout"`
	Trained  *trainer.RolloutLine `json:"trained,omitempty"`
	Attempts []fulgur.Attempt     `json:"attempts"`
	Calls    []fulgur.Call        `json:"calls"`
	Events   []fulgur.Event       `json:"events"`
}

func (a *app) showRollout(c *cobra.Command, f recordFlags, id fulgur.RolloutID, attempt fulgur.AttemptID) (err error) {
	rec, err := a.openRecord(c, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	var s shownRollout
	if s.Rollout, err = rec.Rollout(c.Context(), id); err != nil {
		return err
	}
	if l, ok := rec.lines[id]; ok {
		s.Trained = &l
	}
	if s.Attempts, err = rec.Attempts(c.Context(), id); err != nil {
		return err
	}
	if attempt == "" {
		attempt = s.Rollout.LastAttempt
	} else if !slices.ContainsFunc(s.Attempts, func(at fulgur.Attempt) bool { return at.ID == attempt }) {
		return usageErr(fmt.Errorf("--attempt %s: rollout %s has %s", attempt, id, count(len(s.Attempts), "attempt")))
	}
	if s.Calls, err = rec.Calls(c.Context(), id, attempt); err != nil {
		return err
	}
	if s.Events, err = rec.Events(c.Context(), id, attempt); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(s)
	}
	a.printRollout(s, rec.table)
	return nil
}

func (a *app) printRollout(s shownRollout, table *plan.Table) {
	r := &s.Rollout
	fmt.Fprintf(a.Stdout, "rollout %s  %s  reward %s\n", r.ID, r.State, number(r.Reward))
	fmt.Fprintf(a.Stdout, "input   %s\n", r.Input)
	for i := range s.Attempts {
		at := &s.Attempts[i]
		end := ""
		if at.Outcome != nil {
			end = fmt.Sprintf("%s/%s  %s", at.Outcome.Class, at.Outcome.Reason, at.Outcome.Message)
		}
		fmt.Fprintf(a.Stdout, "attempt %s  %s  %s\n", at.ID, phaseText(at), end)
		a.printGraded(gradedOf(at.Outcome))
		switch {
		case at.Outcome == nil:
		case i < len(s.Attempts)-1 || !r.State.Terminal():
			fmt.Fprintln(a.Stdout, "  another attempt follows")
		case table != nil && r.IsTrain && at.Outcome.Class != fulgur.OutcomeOK:
			fmt.Fprintf(a.Stdout, "  no attempt follows; it %s\n", plan.Text(table.Follow(at.Outcome.Class, at.Outcome.Reason)))
		}
	}
	if l := s.Trained; l != nil {
		fmt.Fprintln(a.Stdout, becameOf(l))
		a.printLost(l)
	}
	a.printAudit(s.Trained)
	a.printCalls(s.Calls)
	for _, e := range s.Events {
		note := ""
		if e.Unused != "" {
			note = "  (unused: " + e.Unused + ")"
		}
		fmt.Fprintf(a.Stdout, "\nevent %s  %s%s\n", e.Type, e.Data, note)
	}
}

// becameOf says whether a rollout trained, as its run's rollouts.jsonl has it.
func becameOf(l *trainer.RolloutLine) string {
	switch {
	case l.Part != "train":
		return fmt.Sprintf("measured step %d (%s), %d sampled tokens; nothing of it trains  %s", l.Step, l.Part, l.Sampled, cmp.Or(l.Masked, l.Why))
	case l.Masked == trainer.MaskStopped:
		return fmt.Sprintf("untrained step %d made no policy: it stopped the run (%s), and nothing of it has trained  %s", l.Step, l.Masked, l.Why)
	case l.Masked != "":
		return strings.TrimRight(fmt.Sprintf("untrained step %d: masked (%s), so none of its %d sampled tokens trained  %s", l.Step, l.Masked, l.Sampled, l.Why), " ")
	}
	return fmt.Sprintf("trained step %d, advantage %+.3f, %d samples, %d of %d sampled tokens, weight %+.2g a token  %s",
		l.Step, l.Advantage, l.Samples, l.Trained, l.Sampled, l.Weight, l.Why)
}

// printCalls prints calls as a person reads them: what was new in the prompt,
// the reply, the counts, and whether it trains.
func (a *app) printCalls(calls []fulgur.Call) {
	for i := range calls {
		c := &calls[i]
		fmt.Fprintf(a.Stdout, "\ncall %d  %s  %s  %d prompt tokens, %d sampled, policy version %d, %s, %s  (%s)\n", c.Index, c.Dialect, cmp.Or(c.Model, "-"),
			len(c.PromptIDs), len(c.SampledIDs), c.Version(), cmp.Or(c.FinishReason, c.Error), c.Latency.Round(100_000), c.ID)
		var raw struct{ Prompt any }
		if len(c.Messages) == 0 && json.Unmarshal(c.Request, &raw) == nil && raw.Prompt != nil {
			fmt.Fprintf(a.Stdout, "  prompt    %s\n", quoted(fmt.Sprint(raw.Prompt)))
		}
		for _, m := range c.Messages[shown(calls[:i], c.Messages):] {
			fmt.Fprintf(a.Stdout, "  %-9s %s\n", m.Role, messageText(m))
		}
		if c.Reply != nil {
			fmt.Fprintf(a.Stdout, "  → %s\n", cmp.Or(messageText(*c.Reply), "(nothing)"))
		}
		if c.Trainable {
			fmt.Fprintln(a.Stdout, "  trains: its sampled tokens and their log probs are on record")
		} else {
			for _, why := range c.Untrainable {
				fmt.Fprintf(a.Stdout, "  does not train: %s%s\n", why, explained(c, why))
			}
		}
	}
}

// shown is how many of a call's messages an earlier call has shown already: the
// longest earlier prompt, with its reply, that the messages begin with. Only the
// latest calls are compared.
func shown(earlier []fulgur.Call, msgs []fulgur.Message) (n int) {
	for i := range earlier[max(0, len(earlier)-64):] {
		e := &earlier[max(0, len(earlier)-64)+i]
		known := e.Messages[:len(e.Messages):len(e.Messages)]
		if e.Reply != nil {
			known = append(known, *e.Reply)
		}
		if len(known) > n && len(known) <= len(msgs) && slices.EqualFunc(known, msgs[:len(known)], sameTurn) {
			n = len(known)
		}
	}
	return n
}

// sameTurn compares a message with how it was sent back, which may be without
// its reasoning.
func sameTurn(known, m fulgur.Message) bool {
	if m.Reasoning == "" {
		known.Reasoning = ""
	}
	return known.Same(m)
}

// quoted is a text as a JSON string, on one line and without control codes, but
// with <, > and & as they are: a <tool_call> shall be read.
func quoted(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string encodes, and a builder takes it
	return strings.TrimSuffix(b.String(), "\n")
}

func messageText(m fulgur.Message) string {
	parts := []string{}
	if m.Content != "" {
		parts = append(parts, quoted(m.Content))
	}
	for _, t := range m.ToolCalls {
		parts = append(parts, t.Name+"("+t.Arguments+")")
	}
	return strings.Join(parts, " ")
}
