package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
)

// isSampleFile tells a file of samples from a run's folder.
func isSampleFile(arg string) bool {
	kind := strings.ToLower(filepath.Ext(arg))
	st, err := os.Stat(arg)
	return (kind == ".jsonl" || kind == ".parquet") && (err != nil || !st.IsDir())
}

func (a *app) samplesExportCommand() *cobra.Command {
	var f sampleFlags
	var to, format string
	var least float64
	c := &cobra.Command{
		Use: "export RUN --to FILE", Short: "write a run's samples, or its conversations for supervised training, to a file", Args: cobra.ExactArgs(1),
		Long: `Write the samples of a run's training rollouts to a file: JSONL (one object a sample)
or Parquet, by the file's end. A sample has rollout, group, step, reward, advantage,
weight, tokens, mask, log_probs, versions, calls and routed_experts (docs/samples.md).

--format messages writes conversations in place of tokens, one a line, as trainers for
supervised fine-tuning read them: {"messages": […], "tools": […]}, a line a sample, with
the turns as the harness saw them. --min-reward keeps only what went well.`,
		Example: `  fulgur samples export runs/demo --to samples.parquet
  fulgur samples export runs/demo --to sft.jsonl --format messages --min-reward 1`,
		RunE: func(c *cobra.Command, args []string) error {
			var min *float64
			if c.Flags().Changed("min-reward") {
				min = &least
			}
			return a.exportSamples(c, args[0], f, to, format, min)
		},
	}
	f.register(c)
	c.Flags().StringVar(&to, "to", "", "the file: .jsonl or .parquet; must not be there")
	c.Flags().StringVar(&format, "format", "samples", "samples, or messages for supervised fine-tuning (.jsonl)")
	c.Flags().Float64Var(&least, "min-reward", 0, "only rollouts with at least this reward")
	_ = c.MarkFlagRequired("to") // the flag is there
	return c
}

func (a *app) exportSamples(c *cobra.Command, arg string, f sampleFlags, to, format string, least *float64) (err error) {
	if format != "samples" && format != "messages" {
		return usageErr(fmt.Errorf("--format %s: want samples or messages", format))
	}
	if format == "messages" && strings.ToLower(filepath.Ext(to)) != ".jsonl" {
		return usageErr(fmt.Errorf("--to %s: conversations are written as .jsonl", to))
	}
	run, err := a.openSampleRun(c, arg, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	config, _, err := f.apply(c, run.config)
	if err != nil {
		return err
	}
	var put func(*builtRollout) (int, error)
	var done func() error
	if format == "messages" {
		put, done, err = messageWriter(to)
	} else {
		put, done, err = sampleWriter(to)
	}
	if err != nil {
		return err
	}
	written, left := 0, 0
	err = run.each(c.Context(), config.Options(), func(b *builtRollout) error {
		if least != nil && (b.line.Reward == nil || *b.line.Reward < *least) {
			left++
			return nil
		}
		n, err := put(b)
		written += n
		return err
	})
	if err = errors.Join(err, done()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	if a.json {
		return a.printJSON(map[string]any{"file": to, "format": format, "written": written, "rollouts": len(run.lines) - left, "left_out": left})
	}
	_, err = fmt.Fprintf(a.Stdout, "%s: %d %s of %s; %d rollouts left out\n", to, written, format, count(len(run.lines)-left, "rollout"), left)
	return err
}

func sampleWriter(to string) (func(*builtRollout) (int, error), func() error, error) {
	w, err := data.CreateSamples(to)
	if err != nil {
		return nil, nil, err
	}
	return func(b *builtRollout) (int, error) { return len(b.built.Sequences), writeSamples(w, b) }, w.Close, nil
}

// conversation is a line for supervised fine-tuning, in the form that OpenAI's API
// and most trainers read.
type conversation struct {
	Messages []turn           `json:"messages"`
	Tools    []toolDefinition `json:"tools,omitempty"`
	Rollout  fulgur.RolloutID `json:"rollout"`
	Reward   *float64         `json:"reward"`
}

type turn struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	Reasoning  string     `json:"reasoning_content,omitempty"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
	Name       string     `json:"name,omitempty"`
}

type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function calledFuncts `json:"function"`
}

type calledFuncts struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type toolDefinition struct {
	Type     string   `json:"type"`
	Function toolSpec `json:"function"`
}

type toolSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// messageWriter writes the conversation of each sample: the messages of its last
// call, and what that one answered.
func messageWriter(to string) (func(*builtRollout) (int, error), func() error, error) {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, nil, fulgur.E(fulgur.KindConflict, "write conversations", to+" is there already, or can't be written: choose another name", err)
	}
	buf := bufio.NewWriter(f)
	e := json.NewEncoder(buf)
	e.SetEscapeHTML(false)
	put := func(b *builtRollout) (int, error) {
		n := 0
		for _, s := range b.built.Sequences {
			last := s.Turns[len(s.Turns)-1].Call
			i := slices.IndexFunc(b.calls, func(c fulgur.Call) bool { return c.ID == last })
			if i < 0 || len(b.calls[i].Messages) == 0 || b.calls[i].Reply == nil {
				continue // a call of text completions has no messages
			}
			if err := e.Encode(talk(&b.calls[i], b.line.Reward)); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	return put, func() error { return errors.Join(buf.Flush(), f.Close()) }, nil
}

func talk(c *fulgur.Call, reward *float64) conversation {
	out := conversation{Rollout: c.Rollout, Reward: reward}
	for _, m := range append(c.Messages[:len(c.Messages):len(c.Messages)], *c.Reply) {
		t := turn{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID, Name: m.Name}
		for _, k := range m.ToolCalls {
			t.ToolCalls = append(t.ToolCalls, toolCall{ID: k.ID, Type: "function", Function: calledFuncts{k.Name, k.Arguments}})
		}
		out.Messages = append(out.Messages, t)
	}
	for _, t := range c.Tools {
		out.Tools = append(out.Tools, toolDefinition{"function", toolSpec{t.Name, t.Description, t.Schema}})
	}
	return out
}

func (a *app) samplesImportCommand() *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "import FILE [--to FILE]", Short: "check a file of samples that another program wrote, and take it over", Args: cobra.ExactArgs(1),
		Long: `Read a file of samples (.jsonl or .parquet) whoever wrote it: tokens, mask and
log_probs are needed, of one length each; versions, rewards and ids may be missing. Each
sample is checked, and the first broken one is named. With --to they are written anew in
Fulgur's form, so that fulgur samples diff can compare them with a run's.`,
		Example: `  fulgur samples import theirs.parquet
  fulgur samples import theirs.parquet --to ours.jsonl
  fulgur samples diff ours.jsonl runs/demo`,
		RunE: func(c *cobra.Command, args []string) error { return a.importSamples(args[0], to) },
	}
	c.Flags().StringVar(&to, "to", "", "write them to this file (.jsonl or .parquet); must not be there")
	return c
}

func (a *app) importSamples(from, to string) error {
	var w *data.SampleWriter
	var err error
	if to != "" {
		if w, err = data.CreateSamples(to); err != nil {
			return err
		}
	}
	n, tokens, trained := 0, 0, 0
	rollouts := map[fulgur.RolloutID]bool{}
	err = data.ReadSamples(from, func(s data.LabelledSample) error {
		sum := sumSamples([]fulgur.Sample{s.Sample})
		n, tokens, trained = n+1, tokens+sum.Tokens, trained+sum.Trained
		rollouts[s.Rollout] = true
		if w == nil {
			return nil
		}
		return w.Write(s)
	})
	if w != nil {
		if err = errors.Join(err, w.Close()); err != nil {
			err = errors.Join(err, os.Remove(to))
		}
	}
	if err != nil {
		return err
	}
	if n == 0 {
		return fulgur.E(fulgur.KindInvalid, "read samples "+from, "the file has no samples", nil)
	}
	if a.json {
		return a.printJSON(map[string]any{"file": from, "samples": n, "rollouts": len(rollouts), "tokens": tokens, "trained": trained, "written": to})
	}
	_, err = fmt.Fprintf(a.Stdout, "%s from %s: %d tokens, %d of them trained; all whole\n", count(n, "sample"), count(len(rollouts), "rollout"), tokens, trained)
	return err
}
