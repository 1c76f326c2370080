package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
	"github.com/fulgur-rl/fulgur/internal/trainer/trace"
)

func (a *app) samplesShowCommand() *cobra.Command {
	var f recordFlags
	var model string
	c := &cobra.Command{
		Use: "show ROLLOUT", Short: "a rollout's samples: why each token trains or not, and where lineages broke", Args: cobra.ExactArgs(1),
		Long: `Show what a rollout's calls became: of each call whether it trains and why not, of
each sample its stretches of tokens with the reason why they train or not, and of each
place where a lineage broke its class, the first token that differs and the text on both
sides. --json prints every token with its reason.`,
		Example: `  fulgur samples show train-0-17-3-… --run runs/demo      # an id of fulgur rollouts list
  fulgur samples show train-0-17-3-… --json | jq '.samples[0].why'`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.showSamples(c, f, fulgur.RolloutID(args[0]), model)
		},
	}
	f.register(c)
	c.Flags().StringVar(&model, "model", "", "Hugging Face folder (or builtin:calc) whose tokenizer spells the tokens (default: the run's model)")
	return c
}

// shownSamples is what `samples show --json` prints.
type shownSamples struct {
	Rollout fulgur.RolloutID `json:"rollout"`
	Calls   []shownCall      `json:"calls"`
	Samples []shownSample    `json:"samples"`
	Breaks  []shownBreak     `json:"breaks"`
}

type shownCall struct {
	ID      fulgur.CallID `json:"id"`
	Parent  int           `json:"parent"` // index of the call it continues; -1: it starts a lineage
	Prompt  int           `json:"prompt_tokens"`
	Sampled int           `json:"sampled_tokens"`
	Why     string        `json:"why"` // "" if it trains
}

type shownSample struct {
	fulgur.Sample
	Why []string `json:"why"` // of each token
}

type shownBreak struct {
	Call     int         `json:"call"`
	Nearest  int         `json:"nearest"` // the call that it failed to continue; -1: none
	Class    trace.Class `json:"class"`
	Position int         `json:"position"` // of the first token that differs
	Expected int32       `json:"expected"` // -1: the history ends there
	Got      int32       `json:"got"`
	Again    int         `json:"prefilled_again"`
	Before   string      `json:"before"`
	Was      string      `json:"expected_text"`
	Is       string      `json:"got_text"`
}

// where says at which token a lineage broke.
func (x *shownBreak) where() string {
	switch {
	case x.Nearest == trace.NoParent:
		return "it shares no token with an earlier call"
	case x.Got < 0:
		return fmt.Sprintf("its prompt ends at token %d, where call %d has %d; %d tokens prefilled again", x.Position, x.Nearest, x.Expected, x.Again)
	}
	return fmt.Sprintf("token %d differs from call %d: expected %d, got %d; %d tokens prefilled again", x.Position, x.Nearest, x.Expected, x.Got, x.Again)
}

// sidesTokens is how many tokens a break shows on each side.
const sidesTokens = 24

func (a *app) showSamples(c *cobra.Command, f recordFlags, id fulgur.RolloutID, model string) (err error) {
	rec, err := a.openRecord(c, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	r, err := rec.Rollout(c.Context(), id)
	if err != nil {
		return err
	}
	calls, err := rec.Calls(c.Context(), id, r.LastAttempt)
	if err != nil {
		return err
	}
	files := rec.model
	if model != "" {
		if files, err = modelFiles(model, ""); err != nil {
			return err
		}
	}
	decode, err := decoder(files)
	if err != nil {
		return err
	}
	b := sample.Build(r.Group, calls, rec.samples.Options())
	s := describe(id, calls, &b, decode)
	if a.json {
		return a.printJSON(s)
	}
	a.printSamples(s, decode)
	return nil
}

// decoder returns what writes tokens as text; without a model's files, as numbers.
func decoder(files fs.FS) (func([]int32) string, error) {
	if files == nil {
		return func(ids []int32) string { return strings.Trim(fmt.Sprint(ids), "[]") }, nil
	}
	b, err := fs.ReadFile(files, "tokenizer.json")
	if err != nil {
		return nil, fulgur.E(fulgur.KindNotFound, "spell tokens", "the model has no tokenizer.json: name another with --model", err)
	}
	tok, err := tokenizer.Parse(b)
	if err != nil {
		return nil, err
	}
	return func(ids []int32) string {
		if tok.Check(ids) != nil {
			return strings.Trim(fmt.Sprint(ids), "[]")
		}
		return tok.Decode(ids)
	}, nil
}

func describe(id fulgur.RolloutID, calls []fulgur.Call, b *sample.Built, decode func([]int32) string) shownSamples {
	s := shownSamples{Rollout: id, Calls: []shownCall{}, Samples: []shownSample{}, Breaks: []shownBreak{}}
	for i := range calls {
		s.Calls = append(s.Calls, shownCall{calls[i].ID, b.Forest.Parent[i], len(calls[i].PromptIDs), len(calls[i].SampledIDs), b.Reasons[i]})
	}
	for i := range b.Sequences {
		s.Samples = append(s.Samples, shownSample{b.Sequences[i].Sample(), b.Sequences[i].Why()})
	}
	for _, x := range b.Forest.Breaks {
		t := x.Sides(calls, decode, sidesTokens)
		s.Breaks = append(s.Breaks, shownBreak{x.Call, x.Nearest, x.ByText(calls, decode), x.Position, x.Expected, x.Got, x.Again, t.Before, t.Expected, t.Got})
	}
	return s
}

func (a *app) printSamples(s shownSamples, decode func([]int32) string) {
	out := a.Stdout
	fmt.Fprintf(out, "rollout %s: %s, %s\n", s.Rollout, count(len(s.Calls), "call"), count(len(s.Samples), "sample"))
	for i, c := range s.Calls {
		from, why := "starts a lineage", "trains"
		if c.Parent >= 0 {
			from = fmt.Sprintf("continues call %d", c.Parent)
		}
		if c.Why != "" {
			why = "does not train: " + c.Why
		}
		fmt.Fprintf(out, "call %d  %d prompt tokens, %d sampled, %s, %s  (%s)\n", i, c.Prompt, c.Sampled, from, why, c.ID)
	}
	for i, x := range s.Samples {
		fmt.Fprintf(out, "\nsample %d: %d tokens\n", i, len(x.Tokens))
		for from := 0; from < len(x.Tokens); {
			to := from
			for to < len(x.Tokens) && x.Why[to] == x.Why[from] {
				to++
			}
			fmt.Fprintf(out, "  %6d  %-12s %s\n", to-from, x.Why[from], shortened(quoted(decode(x.Tokens[from:to]))))
			from = to
		}
	}
	for _, x := range s.Breaks {
		fmt.Fprintf(out, "\ncall %d starts a new lineage: %s; %s\n", x.Call, strings.ReplaceAll(string(x.Class), "_", " "), x.where())
		if x.Nearest == trace.NoParent {
			continue // there is no other side
		}
		fmt.Fprintf(out, "  before    %s\n  expected  %s\n  got       %s\n", shortened(quoted(x.Before)), shortened(quoted(x.Was)), shortened(quoted(x.Is)))
	}
}

// shortened keeps beginning and end of a long text.
func shortened(s string) string {
	r := []rune(s)
	if len(r) <= 160 {
		return s
	}
	return string(r[:100]) + " … " + string(r[len(r)-50:])
}
