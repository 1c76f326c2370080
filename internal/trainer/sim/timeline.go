package sim

// Timeline is what the device did, in bins of one width that start at 0.
type Timeline struct {
	Width    float64   `json:"width"`    // seconds
	Sampling []float64 `json:"sampling"` // share of the whole device
	Training []float64 `json:"training"`
	Running  []float64 `json:"running"` // rollouts
	bins     int
}

// add counts a stretch of time in which nothing changed.
func (t *Timeline) add(from, to, sampling, training, running float64) {
	for to > t.Width*float64(t.bins) {
		t.halve()
	}
	for from < to {
		i := int(from / t.Width)
		if t.Width*float64(i+1) <= from { // the division rounded down
			i++
		}
		i = min(i, t.bins-1)
		for len(t.Sampling) <= i {
			t.Sampling, t.Training, t.Running = append(t.Sampling, 0), append(t.Training, 0), append(t.Running, 0)
		}
		end := min(to, t.Width*float64(i+1))
		if i == t.bins-1 {
			end = to
		}
		share := (end - from) / t.Width
		t.Sampling[i] += sampling * share
		t.Training[i] += training * share
		t.Running[i] += running * share
		from = end
	}
}

// halve doubles the width: a run of any length has the same number of bins.
func (t *Timeline) halve() {
	t.Width *= 2
	for _, s := range []*[]float64{&t.Sampling, &t.Training, &t.Running} {
		old := *s
		half := make([]float64, (len(old)+1)/2)
		for i, x := range old {
			half[i/2] += x / 2
		}
		*s = half
	}
}
