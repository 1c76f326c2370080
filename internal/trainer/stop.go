package trainer

// over says whether the run ends before its last step, or is at it.
func (t *trainer) over() bool { return t.finished || t.state.Reached || t.state.Stalled }

// stall counts validations that brought nothing better; from Stop.Patience on the
// run ends. best is what was best before this validation.
func (t *trainer) stall(best *Best, e *Evaluation) {
	if best == nil || e.Sampled.Rate > best.Score {
		t.state.Stale = 0
		return
	}
	t.state.Stale++
	if n := t.o.Stop.Patience; n > 0 && t.state.Stale >= n {
		t.state.Stalled = true
		t.warn(e.Step, "stalled", "%d validations in a row were no better than %.3f: the run ends (stop.patience)", t.state.Stale, best.Score)
	}
}
