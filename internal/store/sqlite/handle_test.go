package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

// CK-12: what an attempt is found by may change while its phase stays, as when the
// name of its Job was taken; what has ended keeps what it had.
func TestHandlesFollow_CK12(t *testing.T) {
	s := storetest.Open(t, sqlite.New(filepath.Join(t.TempDir(), "s.db"), sqlite.Options{}))
	make1(t, s, "r")
	if _, err := s.OpenAttempt(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	over := &fulgur.Outcome{Class: fulgur.OutcomeOK, Reason: "exit"}
	for _, step := range []struct {
		report fulgur.AttemptReport
		phase  fulgur.Phase
		handle string
	}{
		{fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Handle: "a"}, fulgur.PhaseStarting, "a"},
		{fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Handle: "b"}, fulgur.PhaseStarting, "b"},
		{fulgur.AttemptReport{Phase: fulgur.PhaseRunning}, fulgur.PhaseRunning, "b"},
		{fulgur.AttemptReport{Phase: fulgur.PhaseStarting, Handle: "late"}, fulgur.PhaseRunning, "b"},
		{fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Handle: "c", Outcome: over}, fulgur.PhaseEnded, "c"},
		{fulgur.AttemptReport{Phase: fulgur.PhaseEnded, Handle: "late", Outcome: over}, fulgur.PhaseEnded, "c"},
	} {
		if _, err := s.ReportAttempt(t.Context(), "r", "0", step.report); err != nil {
			t.Fatal(err)
		}
		all, err := s.Attempts(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		if a := all[0]; a.Phase != step.phase || a.Handle != step.handle {
			t.Errorf("after %+v: phase %s, handle %q; want %s, %q", step.report, a.Phase, a.Handle, step.phase, step.handle)
		}
	}
}
