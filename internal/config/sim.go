package config

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/fulgur-rl/fulgur"
)

// SimFile is what `fulgur sim FILE` reads: a workload, a device, and the keys of
// the run file that a schedule is made of. Times are in seconds where they are
// numbers.
type SimFile struct {
	Seed     int64       `json:"seed" jsonschema:"minimum=0"`               // of the first simulation
	Seeds    int         `json:"seeds" jsonschema:"minimum=1,maximum=1000"` // simulations, which are averaged
	Steps    int         `json:"steps" jsonschema:"minimum=1,maximum=100000"`
	Workload SimWorkload `json:"workload"`
	Device   SimDevice   `json:"device"`
	Pause    SimPause    `json:"pause"`

	Algorithm SimAlgorithm `json:"algorithm"`
	Schedule  Schedule     `json:"schedule"`
	OffPolicy OffPolicy    `json:"off_policy"`
	Runner    SimRunner    `json:"runner"`
}

// SimWorkload says what rollouts are like.
type SimWorkload struct {
	Preset    string       `json:"preset"` // where what is not written comes from
	Run       string       `json:"run"`    // or a run's folder: its recorded rollouts
	Rows      int          `json:"rows" jsonschema:"minimum=1,maximum=100000000"`
	Calls     SimLogNormal `json:"calls"`  // of a rollout
	Tokens    SimLogNormal `json:"tokens"` // of a call
	Tools     SimLogNormal `json:"tools"`  // seconds before each call
	SlowTail  float64      `json:"slow_tail" jsonschema:"minimum=0"`
	RowShare  float64      `json:"row_share" jsonschema:"minimum=0,maximum=1"`
	LongCalls SimLongCalls `json:"long_calls"`
	Limit     Duration     `json:"limit"` // of a rollout; 0s: none
}

// SimLogNormal is a log-normal distribution.
type SimLogNormal struct {
	Median float64 `json:"median" jsonschema:"minimum=0,maximum=1e9"`
	Sigma  float64 `json:"sigma" jsonschema:"minimum=0,maximum=5"` // at 5, one draw in a hundred is 100,000 times the median
}

// SimLongCalls are calls that sample many times as many tokens.
type SimLongCalls struct {
	Share float64 `json:"share" jsonschema:"minimum=0,maximum=1"`
	Times float64 `json:"times" jsonschema:"minimum=0"`
}

// SimDevice is what samples and trains.
type SimDevice struct {
	TokensPerSecond float64  `json:"tokens_per_second" jsonschema:"minimum=0"` // with many calls in flight
	Half            float64  `json:"half" jsonschema:"minimum=0"`              // calls in flight at which it samples half of that
	Prefill         float64  `json:"prefill" jsonschema:"minimum=0"`           // tokens a second of a context that is read again
	Update          Duration `json:"update"`
	SamplingShare   float64  `json:"sampling_share" jsonschema:"minimum=0,maximum=0.99"` // of it, where the schedule is disaggregated
}

// SimPause is how calls are held during an update, beside schedule.drain.
type SimPause struct {
	Unbounded bool     `json:"unbounded"` // calls in flight may take as long as they do, not schedule.drain
	Then      string   `json:"then" jsonschema:"enum=resume,enum=freeze,enum=restart"`
	Retry     Duration `json:"retry"` // above 0: calls are refused and come again within it
}

// SimAlgorithm is the part of the run file's algorithm that schedules look at.
type SimAlgorithm struct {
	GroupSize     int `json:"group_size" jsonschema:"minimum=1,maximum=4096"`
	GroupsPerStep int `json:"groups_per_step" jsonschema:"minimum=1,maximum=65536"`
}

// SimRunner is the part of the run file's runner that schedules look at.
type SimRunner struct {
	Slots Slots `json:"slots" jsonschema:"minimum=1"`
}

// ParseSim reads a file of `fulgur sim`, then the overrides. What is not written
// comes from base, which gets the preset or run that the file names (both "" where
// it names none). An error is KindInvalid and lists everything that is wrong.
func ParseSim(src []byte, name string, base func(preset, run string) (SimFile, error), overrides ...Override) (SimFile, error) {
	if len(src) > maxBytes {
		return SimFile{}, fulgur.E(fulgur.KindTooLarge, "read "+name, fmt.Sprintf("a file of fulgur sim has at most %d bytes, this one has %d", maxBytes, len(src)), nil)
	}
	if !utf8.Valid(src) {
		return SimFile{}, fulgur.E(fulgur.KindInvalid, "read "+name, "not UTF-8 text: save the file as UTF-8", nil)
	}
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	read := func(f *SimFile) *decoder {
		d := &decoder{source: name, set: map[string]place{}}
		d.document(src, valueOf(f), "", nil)
		for _, o := range overrides {
			d.override(valueOf(f), o)
		}
		return d
	}
	var first SimFile
	if problems := read(&first).problems; len(problems) > 0 {
		return SimFile{}, problemsErr(problems)
	}
	f, err := base(first.Workload.Preset, first.Workload.Run)
	if err != nil {
		return SimFile{}, err
	}
	return f, problemsErr(read(&f).problems)
}

// problemsErr lists problems, one a line; nil for none.
func problemsErr(problems []problem) error {
	if len(problems) == 0 {
		return nil
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = p.String() + ": " + p.text
	}
	return fulgur.E(fulgur.KindInvalid, "", strings.Join(lines, "\n"), nil)
}
