package schedule

import "testing"

func TestTheMeanStalenessSetsTheGroupsInTheSystem(t *testing.T) {
	for name, c := range map[string]struct {
		groups, maximum int
		mean            float64
		want            int
	}{
		"four versions":                            {32, 16, 4, 160},
		"none is synchronous":                      {32, 16, 0, 32},
		"a fraction is rounded down":               {16, 16, .3, 20},
		"a fraction without binary form":           {10, 16, .3, 13},
		"the maximum bounds the mean":              {8, 2, 4, 24},
		"a negative mean starts what a step needs": {8, 16, -1, 8},
	} {
		a := NewAdmission(c.groups, c.mean, c.maximum)
		if a.Target() != c.want || a.Most() != c.want {
			t.Errorf("%s: target %d, most %d, want %d", name, a.Target(), a.Most(), c.want)
		}
	}
}

// The law that Admission rests on: whatever order groups complete in, filling up
// behind each version to (1 + mean)·B gives exactly the mean.
func TestStalenessIsTheGroupsInTheSystemOverTheStepLessOne(t *testing.T) {
	const b, steps = 8, 4000
	for _, mean := range []float64{0, .5, 1, 4} {
		a := NewAdmission(b, mean, 16)
		var system []int // start version of each group in it
		sum, n := 0, 0
		for v := range steps {
			for len(system) < a.Target() {
				system = append(system, v)
			}
			order := Shuffle(len(system), Mix(7, uint64(v)))
			taken := map[int]bool{}
			for _, i := range order[:b] {
				taken[i] = true
				sum, n = sum+v-system[i], n+1
			}
			var left []int
			for i, g := range system {
				if !taken[i] {
					left = append(left, g)
				}
			}
			system = left
		}
		if got := float64(sum) / float64(n); got > mean+1e-9 || got < mean-.02 {
			t.Errorf("mean %g: staleness %g", mean, got)
		}
	}
}

func TestGroupsThatWaitForTrainingAreGivenBack(t *testing.T) {
	a := NewAdmission(8, 4, 16)
	for range 40 {
		a.Take(20) // 12 more than a step needs, always
	}
	if a.Target() != 8 {
		t.Errorf("target %d with twelve groups too many at every step, want 8", a.Target())
	}
	for range 40 {
		a.Take(3) // training waits
	}
	if a.Target() != a.Most() {
		t.Errorf("target %d when training waits for groups, want %d", a.Target(), a.Most())
	}
	b := NewAdmission(8, 4, 16)
	for i := range 40 {
		b.Take(8 + 12*(i%2)) // enough at times
	}
	if b.Target() != b.Most() {
		t.Errorf("target %d where groups wait at every second step only, want %d", b.Target(), b.Most())
	}
}
