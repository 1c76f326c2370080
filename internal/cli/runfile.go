package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
)

// runFile is a run file as a command uses it: flag over variable over file over
// default.
type runFile struct {
	*config.File
	Dir      string // the run file's folder: what its relative paths are relative to
	Warnings []config.Warning
	places   config.Places
	buildEnv []string // further environment of agent.build
}

// runFileFlags are the flags of every command that takes a run file.
type runFileFlags struct {
	set  []string
	seed int64
	out  string
}

func (f *runFileFlags) register(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.set, "set", nil, "set a key of the run file, such as --set algorithm.group_size=4 (repeatable)")
	c.Flags().Int64Var(&f.seed, "seed", 0, "the run's seed (key seed)")
	c.Flags().StringVarP(&f.out, "out", "o", "", "folder below which the run's folder is made (key out)")
}

// load reads a run file with everything that overrides it.
func (a *app) loadRunFile(path string, flags runFileFlags, c *cobra.Command, extra ...config.Override) (*runFile, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, usageErr(fulgur.E(fulgur.KindNotFound, "read the run file", "`fulgur init` writes one", err))
	}
	return a.parseRunFile(src, path, flags, c, extra...)
}

func (a *app) parseRunFile(src []byte, path string, flags runFileFlags, c *cobra.Command, extra ...config.Override) (*runFile, error) {
	over := append(config.FromEnvironment(os.Environ()), extra...)
	sets, err := config.ParseOverrides("--set", flags.set)
	if err != nil {
		return nil, usageErr(err)
	}
	over = append(over, sets...)
	if c.Flags().Changed("seed") {
		over = append(over, config.Override{Path: "seed", Value: strconv.FormatInt(flags.seed, 10), Source: "--seed"})
	}
	if flags.out != "" {
		over = append(over, config.Override{Path: "out", Value: flags.out, Source: "--out"})
	}
	f, warnings, places, err := config.ParsePlaces(src, path, variants(), over...)
	if err != nil {
		return nil, usageErr(err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("finding the run file's folder: %w", err)
	}
	r := &runFile{File: f, Dir: dir, Warnings: warnings, places: places}
	r.Warnings = append(r.Warnings, testFileWarnings(r)...)
	return r, nil
}

// resolve makes a path of the run file absolute; "" stays.
func (r *runFile) resolve(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(r.Dir, p)
}

// keyName is a key of the run file that a message names.
var keyName = regexp.MustCompile(`\b(?:agent|runner|reward)(?:\.[A-Za-z_]+)+`)

// placed says before each part of err where in the run file the key stands that it
// names first, of those that were written; else the first of otherwise.
func (r *runFile) placed(err error, otherwise func(r *runFile, text string) []string) error {
	if err == nil {
		return nil
	}
	var out []error
	for _, e := range separate(err) {
		text := e.Error()
		for _, key := range append(keyName.FindAllString(text, -1), otherwise(r, text)...) {
			if at := r.places[key]; at != "" {
				e = &placedError{at, e}
				break
			}
		}
		out = append(out, e)
	}
	return errors.Join(out...)
}

// placedError is an error with its place in the run file.
type placedError struct {
	at  string
	err error
}

func (e *placedError) Error() string { return e.at + ": " + e.err.Error() }
func (e *placedError) Unwrap() error { return e.err }

// warn prints the run file's warnings.
func (a *app) warn(r *runFile) {
	for _, w := range r.Warnings {
		a.say("warning: %s", w)
	}
	if w := fewFiles(r.File, openFiles()); w != "" && r.Server == "" {
		a.say("warning: %s", w)
	}
}
