//go:build !linux

package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Box makes sandboxes; on this system it makes none.
type Box struct{}

// Command is what a cell runs.
type Command struct {
	Program     string
	Args        []string
	Dir         string
	Env         []string
	Files       [3]*os.File
	Read, Write []string
}

// Cell is one sandbox.
type Cell struct {
	Name string
	Argv []string
	Attr *os.ProcAttr
}

// New says that there is no sandbox on this system.
func New(Options) (*Box, error) {
	return nil, fulgur.E(fulgur.KindUnsupported, "set up the sandbox", "it is made of Linux's namespaces: run the agents on Linux, or in containers", nil)
}

// Streams are a program's.
type Streams struct {
	In       []byte
	Out, Err io.Writer
}

// Run is not there.
func (b *Box) Run(context.Context, Command, Pass, Streams) (*os.ProcessState, error) {
	return nil, errors.ErrUnsupported
}

// Inner does nothing here.
func Inner([]string) {}

func (b *Box) Note() string                { return "" }
func (b *Box) Home() string                { return "" }
func (b *Box) Close()                      {}
func (b *Box) Cell(Command) (*Cell, error) { return nil, nil }
func (c *Cell) Attributes(*syscall.SysProcAttr) func(fork func() error) error {
	return func(fork func() error) error { return fork() }
}
func (c *Cell) Begin()                                      {}
func (c *Cell) Abandon()                                    {}
func (c *Cell) Let(Pass)                                    {}
func (c *Cell) End(time.Duration)                           {}
func (c *Cell) CPU() time.Duration                          { return 0 }
func (c *Cell) Problem(string) (string, bool)               { return "", false }
func (c *Cell) Limit(syscall.Signal, string) (string, bool) { return "", false }
func (b *Box) Env(vars map[string]string, _ []string) (map[string]string, Pass) {
	return vars, Pass{}
}

// Scene is what probes try to reach.
type Scene struct {
	Dir     string
	Hide    []string
	Gateway string
}

// Finding is what a probe came to.
type Finding struct {
	Name    string `json:"name"`
	Guard   Guard  `json:"guard"`
	Escaped bool   `json:"escaped"`
	Skipped bool   `json:"skipped,omitempty"`
	Detail  string `json:"detail"`
}

func NewScene(string) (*Scene, error) {
	_, err := New(Options{})
	return nil, err
}
func (s *Scene) Close() {}
func (s *Scene) Probe(context.Context, *Box, ...string) ([]Finding, error) {
	return nil, errors.ErrUnsupported
}
func (s *Scene) Limits(context.Context, *Box) ([]Finding, error) { return nil, errors.ErrUnsupported }
func Scarce() Limits                                             { return Limits{} }
func (b *Box) Prove(context.Context, map[string]string) error    { return errors.ErrUnsupported }
