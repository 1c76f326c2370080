package trainer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/trainer/sample"
)

// SamplesFile is the file of a run's folder that says how samples were built from
// calls: a SamplesConfig. With it `fulgur samples build` builds the same ones.
const SamplesFile = "samples.json"

// SamplesConfig is what decides, beside the calls, which samples a rollout becomes.
type SamplesConfig struct {
	Level     sample.Level `json:"level"`
	MaxTokens int          `json:"max_tokens"` // 0: no limit
	OverLong  sample.Limit `json:"over_long"`
	Replay    bool         `json:"replay"`
}

// Options turns the configuration into those of sample.Build.
func (c SamplesConfig) Options() sample.Options {
	return sample.Options{Level: c.Level, MaxTokens: c.MaxTokens, OverLong: c.OverLong, Replay: c.Replay}
}

// samplesConfig is the run's own.
func (t *trainer) samplesConfig() SamplesConfig {
	s := t.o.Samples
	return SamplesConfig{Level: cmp.Or(s.Level, sample.Lineage), MaxTokens: t.maxTokens, OverLong: cmp.Or(s.OverLong, sample.Cut), Replay: s.Replay}
}

// Take notes in a training rollout's line what became of its calls.
func (l *RolloutLine) Take(b *sample.Built) {
	l.Sampled, l.Trained, l.Samples, l.Lost, l.Again = b.Sampled, b.Trained, len(b.Sequences), b.Lost, b.Again
	l.SamplesHash = b.Hash()
	l.Untrained, l.Breaks = nil, nil
	add := func(m *map[string]int, key string) {
		if *m == nil {
			*m = map[string]int{}
		}
		(*m)[key]++
	}
	for _, why := range b.Reasons {
		if why != "" {
			add(&l.Untrained, why)
		}
	}
	for _, x := range b.Forest.Breaks {
		add(&l.Breaks, string(x.Class))
	}
}

// Fragmentation says into how many samples rollouts fell, and why.
type Fragmentation struct {
	Rollouts   int            `json:"rollouts"` // that gave a sample
	None       int            `json:"none"`     // that gave none
	Single     int            `json:"single"`   // that stayed one sample
	Samples    int            `json:"samples"`
	Whole      float64        `json:"whole_share"` // of Rollouts: those that stayed one sample
	PerRollout float64        `json:"samples_per_rollout"`
	Most       int            `json:"most_samples"`
	Breaks     map[string]int `json:"breaks"`          // lineages that broke, by class
	Again      int            `json:"prefilled_again"` // prompt tokens that a prefix cache would have held
	Sampled    int            `json:"sampled"`         // tokens
}

// Fragments sums up training rollouts; lines of other parts are left out.
func Fragments(lines []RolloutLine) Fragmentation {
	f := Fragmentation{Breaks: map[string]int{}}
	for i := range lines {
		l := &lines[i]
		if l.Part != "train" {
			continue
		}
		f.Again += l.Again
		f.Sampled += l.Sampled
		for class, n := range l.Breaks {
			f.Breaks[class] += n
		}
		if l.Samples == 0 {
			f.None++
			continue
		}
		f.Rollouts++
		f.Samples += l.Samples
		f.Most = max(f.Most, l.Samples)
		if l.Samples == 1 {
			f.Single++
		}
	}
	if f.Rollouts > 0 {
		f.Whole, f.PerRollout = float64(f.Single)/float64(f.Rollouts), float64(f.Samples)/float64(f.Rollouts)
	}
	return f
}

// Spent is what was used up for one cause.
type Spent struct {
	Cause    string  `json:"cause"` // "trained", or why it trained nothing
	Rollouts int     `json:"rollouts"`
	Tokens   int     `json:"tokens"`  // sampled
	Seconds  float64 `json:"seconds"` // of agents, from creation to end
}

// The causes that are no reason of a call and no mask.
const (
	CauseTrained     = "trained"
	CauseNoAdvantage = "no_advantage" // its group's rewards are equal
	CauseNoCalls     = "no_calls"
)

// Ledger says what the sampled tokens and the agents' seconds of training rollouts
// went to: trained, or lost to a cause. A rollout's seconds are shared out by its
// tokens. Trained stands first, the rest by tokens, most first. Whatever the
// causes, tokens and seconds add up to all that was spent. Further entries, of what
// no line tells of, are added to theirs.
func Ledger(lines []RolloutLine, more ...Spent) []Spent {
	by := map[string]*Spent{}
	put := func(x Spent) {
		s := by[x.Cause]
		if s == nil {
			s = &Spent{Cause: x.Cause}
			by[x.Cause] = s
		}
		s.Rollouts += x.Rollouts
		s.Tokens += x.Tokens
		s.Seconds += x.Seconds
	}
	add := func(cause string, tokens int, seconds float64) { put(Spent{cause, 1, tokens, seconds}) }
	for _, x := range more {
		put(x)
	}
	for i := range lines {
		l := &lines[i]
		if l.Part != "train" {
			continue
		}
		total := l.Trained
		for _, n := range l.Lost {
			total += n
		}
		cause := CauseTrained
		switch {
		case l.Masked != "":
			add("masked_"+l.Masked, total, l.Seconds)
			continue
		case total == 0:
			add(CauseNoCalls, 0, l.Seconds)
			continue
		case l.Weight == 0 && l.Advantage == 0:
			cause = CauseNoAdvantage
		}
		share := l.Seconds / float64(total)
		if l.Trained > 0 {
			add(cause, l.Trained, share*float64(l.Trained))
		}
		for why, n := range l.Lost {
			add("call_"+why, n, share*float64(n))
		}
	}
	out := make([]Spent, 0, len(by))
	for _, s := range by {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Spent) int {
		if (a.Cause == CauseTrained) != (b.Cause == CauseTrained) {
			return map[bool]int{true: -1, false: 1}[a.Cause == CauseTrained]
		}
		return cmp.Or(b.Tokens-a.Tokens, strings.Compare(a.Cause, b.Cause))
	})
	return out
}

// measureSamples adds fragmentation and ledger of a step's rollouts to its metrics.
func measureSamples(values map[string]float64, lines []RolloutLine) {
	f := Fragments(lines)
	values["samples/whole_share"], values["samples/per_rollout"] = f.Whole, f.PerRollout
	values["samples/prefilled_again"] = float64(f.Again)
	for class, n := range f.Breaks {
		values["samples/breaks_"+class] = float64(n)
	}
	for _, s := range Ledger(lines) {
		values["spent/tokens_"+s.Cause], values["time/spent_"+s.Cause] = float64(s.Tokens), s.Seconds
	}
}

// tableRows is how many rollouts an error shows one by one.
const tableRows = 8

// table shows, rollout by rollout, what became of the calls (case AD-10).
func table(rollouts []ended) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "rollout\tcalls\tused\tskipped\tended\tmasked")
	for i := range rollouts[:min(len(rollouts), tableRows)] {
		l := &rollouts[i].line
		skipped := 0
		for _, n := range l.Untrained {
			skipped += n
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\n", l.ID, l.Calls, l.Calls-skipped, cmp.Or(counts(l.Untrained), "-"),
			strings.TrimSuffix(string(cmp.Or(l.Class, fulgur.OutcomeOK))+"/"+l.Outcome, "/"), cmp.Or(l.Masked, "-"))
	}
	_ = w.Flush() // a builder takes all
	if more := len(rollouts) - tableRows; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return strings.TrimRight(b.String(), "\n")
}

// writeSamplesConfig keeps how samples are built in the run's folder.
func (t *trainer) writeSamplesConfig() error {
	raw, err := json.Marshal(t.samplesConfig())
	if err == nil {
		path := filepath.Join(t.o.Dir, SamplesFile)
		if err = os.WriteFile(path+".tmp", append(raw, '\n'), 0o644); err == nil {
			err = os.Rename(path+".tmp", path)
		}
	}
	if err != nil {
		return fulgur.E(fulgur.KindExhausted, "start training", "the run's folder can't be written: is there room, and may it be written to?", err)
	}
	return nil
}
