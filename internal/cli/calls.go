package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
)

func (a *app) callsCommand() *cobra.Command {
	var f recordFlags
	parent := &cobra.Command{Use: "calls", Short: "look at one model call: show", GroupID: "look",
		Example: "  fulgur calls show mx2h6kf32sk9wc5iz9gk2 --run runs/demo      # an id of fulgur rollouts show"}
	f.register(parent)
	var model string
	show := &cobra.Command{
		Use: "show CALL", Short: "a call's text, tokens and log probs, and why it trains or not", Args: cobra.ExactArgs(1),
		Long: `Show one model call: who answered it, with what parameters, its messages, its
sampled tokens with their log probs and policy versions, and why it trains or not.
The id is one that fulgur rollouts show prints. With --json the whole record is
printed, the bodies of request and response included.`,
		Example: `  fulgur calls show mx2h6kf32sk9wc5iz9gk2 --run runs/demo
  fulgur calls show mx2h6kf32sk9wc5iz9gk2 --server http://127.0.0.1:8080 --key KEY --model DIR
  fulgur calls show mx2h6kf32sk9wc5iz9gk2 --json | jq .request`,
		RunE: func(c *cobra.Command, args []string) error { return a.showCall(c, f, fulgur.CallID(args[0]), model) },
	}
	show.Flags().StringVar(&model, "model", "", "Hugging Face folder (or builtin:calc) whose tokenizer spells the tokens (default: the run's model)")
	parent.AddCommand(show)
	return parent
}

func (a *app) showCall(c *cobra.Command, f recordFlags, id fulgur.CallID, model string) (err error) {
	rec, err := a.openRecord(c, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	call, err := rec.Call(c.Context(), id)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(call)
	}
	files := rec.model
	if model != "" {
		if files, err = modelFiles(model, ""); err != nil {
			return err
		}
	}
	spell, err := speller(files)
	if err != nil {
		return err
	}
	return a.printCall(&call, spell)
}

// speller returns what writes a token's text; without a model's files, nothing
// can.
func speller(files fs.FS) (func(id int32) string, error) {
	if files == nil {
		return func(int32) string { return "" }, nil
	}
	b, err := fs.ReadFile(files, "tokenizer.json")
	if err != nil {
		return nil, fulgur.E(fulgur.KindNotFound, "spell tokens", "the model has no tokenizer.json: name another with --model", err)
	}
	tok, err := tokenizer.Parse(b)
	if err != nil {
		return nil, err
	}
	return func(id int32) string {
		if tok.Check([]int32{id}) != nil {
			return "(not of this model)"
		}
		return quoted(tok.Decode([]int32{id}))
	}, nil
}

func (a *app) printCall(c *fulgur.Call, spell func(int32) string) error {
	out := a.Stdout
	how := "whole"
	if c.Stream {
		how = "streamed"
	}
	fmt.Fprintf(out, "call     %s  %s, %s, %s\n", c.ID, c.Dialect, how, c.Mode)
	fmt.Fprintf(out, "rollout  %s  attempt %s, call %d\n", c.Rollout, c.Attempt, c.Index)
	fmt.Fprintf(out, "model    %s, answered by %s at %s (%s), policy version %d\n", cmp.Or(c.Model, "(none named)"), c.Endpoint.Model, c.Endpoint.URL, c.Endpoint.Kind, c.Version())
	fmt.Fprintf(out, "sampled  %s\n", samplingText(c.Sampling))
	fmt.Fprintf(out, "answer   status %d, %s, %s; asked %s, took %s%s\n", c.HTTPStatus, cmp.Or(c.FinishReason, "unfinished"), c.Fate,
		c.StartedAt.Format(time.RFC3339), c.Latency.Round(100*time.Microsecond), retriesText(c.Retries))
	if c.Error != "" {
		fmt.Fprintf(out, "error    %s\n", c.Error)
	}
	usage := ""
	if u := c.Usage; u != nil {
		usage = fmt.Sprintf("; usage %d + %d, %d cached", u.PromptTokens, u.CompletionTokens, u.CachedTokens)
	}
	fmt.Fprintf(out, "tokens   %d of the prompt, %d sampled, %d log probs%s\n", len(c.PromptIDs), len(c.SampledIDs), len(c.LogProbs), usage)
	if c.Trainable {
		fmt.Fprintln(out, "trains   its sampled tokens and their log probs are on record")
	} else {
		for _, why := range c.Untrainable {
			fmt.Fprintf(out, "does not train: %s%s\n", why, explained(c, why))
		}
	}
	fmt.Fprintln(out)
	for _, m := range c.Messages {
		fmt.Fprintf(out, "  %-9s %s\n", m.Role, messageText(m))
	}
	if c.Reply != nil {
		fmt.Fprintf(out, "  → %s\n", messageText(*c.Reply))
	}
	return a.printTokens(c, spell)
}

// printTokens prints a line for each sampled token.
func (a *app) printTokens(c *fulgur.Call, spell func(int32) string) error {
	if len(c.SampledIDs) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nTOKEN\tID\tLOG PROB\tVERSION\tTEXT")
	version, spans := c.Version(), c.Spans
	for i, id := range c.SampledIDs {
		for len(spans) > 0 && spans[0].Start <= i {
			version, spans = spans[0].Version, spans[1:]
		}
		p := "-"
		if i < len(c.LogProbs) {
			p = fmt.Sprintf("%.4f", c.LogProbs[i])
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%s\n", i, id, p, version, spell(id))
	}
	return w.Flush()
}

func samplingText(s fulgur.Sampling) string {
	parts := []string{fmt.Sprintf("temperature %g", s.Temperature)}
	if s.TopP > 0 && s.TopP < 1 {
		parts = append(parts, fmt.Sprintf("top_p %g", s.TopP))
	}
	if s.TopK > 0 {
		parts = append(parts, fmt.Sprintf("top_k %d", s.TopK))
	}
	if s.MaxTokens > 0 {
		parts = append(parts, fmt.Sprintf("at most %d tokens", s.MaxTokens))
	}
	if len(s.Stop) > 0 {
		parts = append(parts, fmt.Sprintf("stop %q", s.Stop))
	}
	if s.Seed != 0 {
		parts = append(parts, fmt.Sprintf("seed %d", s.Seed))
	}
	return strings.Join(parts, ", ")
}

func retriesText(n int) string {
	if n == 0 {
		return ""
	}
	return ", after " + strings.Replace(count(n, "retry"), "retrys", "retries", 1)
}

// explained says what a reason means, and what to do about it, for the usual ones.
func explained(c *fulgur.Call, reason string) string {
	switch reason {
	case fulgur.UntrainableMode:
		return "  (a call of a validation rollout, or of mode val)"
	case fulgur.UntrainableNoIDs:
		return "  (the model server gave no token ids: vLLM does when asked, and Fulgur asks)"
	case fulgur.UntrainableCount:
		return "  (the server's token ids and its usage disagree)"
	case fulgur.UntrainableLogProbs:
		return "  (log probs are missing, not finite, or not one for each token)"
	case fulgur.UntrainableAborted:
		return "  (cut off before its end; what was sampled is kept)"
	case fulgur.UntrainableError:
		return "  (the call failed)"
	case fulgur.UntrainableContext:
		return "  (the conversation does not fit the model's context any more, or asks for more tokens than are left)"
	case fulgur.UntrainableSampling:
		return "  (the agent's sampling parameters are not those that the run trains on: " + samplingText(c.Sampling) + "; sampling.enforce)"
	case fulgur.UntrainableAuxiliary:
		return "  (not the agent's own conversation, by rule " + cmp.Or(c.Auxiliary, "?") + "; the run file's auxiliary rules decide)"
	case fulgur.UntrainableIDs:
		return "  (token ids that the model's vocabulary does not have: the server samples another model than --model-dir names, or pads)"
	case fulgur.UntrainableFrozen:
		return "  (another model than the policy answered)"
	}
	return ""
}
