package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestASimulationsPageNeedsNothingElse(t *testing.T) {
	o := SimulatedSchedule{Name: `<script>alert(1)</script>`, SecondsPerStep: 12.5, SpeedUp: 2, Width: 1,
		Sample: []float64{.5, 1, .25}, Train: []float64{0, 0, .75}, Rollouts: []float64{8, 8, 4}}
	var out bytes.Buffer
	if err := WriteSimulation(&out, Simulation{Title: "t", Outcomes: []SimulatedSchedule{o}, Ideal: 9.5}); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, bad := range []string{"<script", "http-equiv", "src=", "href="} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"12.5", "2.00x", "9.50"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	d := xml.NewDecoder(bytes.NewReader(DeviceSVG(o, 3, 8)))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if DeviceSVG(SimulatedSchedule{}, math.Inf(1), 1) != nil {
		t.Error("a drawing of nothing")
	}
}

func TestColumnsKeepTheArea(t *testing.T) {
	bins := []float64{1, 0, .5, .25, 1, 1, 0}
	for _, n := range []int{1, 2, 3, 7} {
		sum := 0.0
		for _, c := range columns(bins, 2, 14, n) {
			sum += c * 14 / float64(n)
		}
		if math.Abs(sum-7.5) > 1e-9 {
			t.Errorf("%d columns have an area of %g, the bins 7.5", n, sum)
		}
	}
}
