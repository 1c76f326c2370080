package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/invopop/jsonschema"
)

// setter is a value that reads itself from a YAML node, because it has more
// than one way to be written.
type setter interface {
	setNode(d *decoder, n ast.Node, path string)
}

// Engine names what holds the policy.
type Engine string

func (e *Engine) setNode(d *decoder, n ast.Node, path string) {
	if m, ok := n.(*ast.MappingNode); ok { // engine: {tinker: {url: …}}: engines that have settings
		if len(m.Values) == 1 {
			d.fail(n, "%s: the engine %q is not in this version; offered: %s", path, m.Values[0].Key.String(), strings.Join(d.variants.offered(path, []string{"embedded"}), ", "))
			return
		}
	}
	d.scalar(n, path, "the name of an engine", func(s string) error { *e = Engine(s); return nil })
}

// Duration is a time.Duration that is written as "90s" or "2m".
type Duration time.Duration

func minutes(n int) time.Duration { return time.Duration(n) * time.Minute }

func (v *Duration) setNode(d *decoder, n ast.Node, path string) {
	d.scalar(n, path, "a time such as 90s or 2m", func(s string) error {
		t, err := time.ParseDuration(s)
		if err == nil && t < 0 {
			err = fmt.Errorf("negative")
		}
		*v = Duration(t)
		return err
	})
}

// String returns the shortest form: "2m", not "2m0s".
func (v Duration) String() string {
	s := time.Duration(v).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalJSON writes the duration as text.
func (v Duration) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// JSONSchema describes the duration.
func (Duration) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`}
}

// Slots is a number of agents that run at once; 0 stands for auto.
type Slots int

func (v *Slots) setNode(d *decoder, n ast.Node, path string) {
	d.scalar(n, path, "auto or a whole number from 1", func(s string) error {
		if s == "auto" {
			*v = 0
			return nil
		}
		i, err := strconv.Atoi(s)
		if err == nil && (i < 1 || i > 1<<20) {
			err = fmt.Errorf("out of range")
		}
		*v = Slots(i)
		return err
	})
}

// MarshalJSON writes auto or the number.
func (v Slots) MarshalJSON() ([]byte, error) {
	if v == 0 {
		return []byte(`"auto"`), nil
	}
	return json.Marshal(int(v))
}

// JSONSchema describes the two forms.
func (Slots) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "integer", Minimum: "1"}, {Const: "auto"}}}
}

// maxReward bounds a configured reward, so that statistics of a group stay finite.
const maxReward = 1e6

// Clip holds the two epsilons of a clipped ratio, low and high.
type Clip [2]float64

func (v *Clip) setNode(d *decoder, n ast.Node, path string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.scalar(n, path, "a number or two: [low, high]", func(s string) error {
			f, err := parseEpsilon(s)
			*v = Clip{f, f}
			return err
		})
		return
	}
	d.lowHigh(seq, path, (*[2]float64)(v))
}

// JSONSchema describes the two forms.
func (Clip) JSONSchema() *jsonschema.Schema {
	two := uint64(2)
	number := &jsonschema.Schema{Type: "number", Minimum: "0"}
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{number, {Type: "array", Items: number, MinItems: &two, MaxItems: &two}}}
}

// Band holds the lowest and the highest ratio that are allowed; zeros stand for none.
type Band [2]float64

func (v *Band) setNode(d *decoder, n ast.Node, path string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.scalar(n, path, "none or two numbers: [low, high]", func(s string) error {
			if s != "none" {
				return fmt.Errorf("not none")
			}
			*v = Band{}
			return nil
		})
		return
	}
	if d.lowHigh(seq, path, (*[2]float64)(v)) && (v[1] <= 0 || v[0] > v[1]) {
		d.fail(n, "%s: want low up to high, and high above 0, got [%g, %g]", path, v[0], v[1])
	}
}

// lowHigh reads [low, high] into v; false if there are not two.
func (d *decoder) lowHigh(seq *ast.SequenceNode, path string, v *[2]float64) bool {
	if len(seq.Values) != 2 {
		d.fail(seq, "%s: want two numbers [low, high], got %d", path, len(seq.Values))
		return false
	}
	for i, item := range seq.Values {
		d.scalar(d.resolve(item), fmt.Sprintf("%s[%d]", path, i), "a number from 0", func(s string) error {
			f, err := parseEpsilon(s)
			v[i] = f
			return err
		})
	}
	return true
}

// MarshalJSON writes none or the two numbers.
func (v Band) MarshalJSON() ([]byte, error) {
	if v == (Band{}) {
		return []byte(`"none"`), nil
	}
	return json.Marshal([2]float64(v))
}

// JSONSchema describes the two forms.
func (Band) JSONSchema() *jsonschema.Schema {
	two := uint64(2)
	number := &jsonschema.Schema{Type: "number", Minimum: "0"}
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Const: "none"}, {Type: "array", Items: number, MinItems: &two, MaxItems: &two}}}
}

func (v *LearningRate) setNode(d *decoder, n ast.Node, path string) {
	if m, ok := n.(*ast.MappingNode); ok {
		type plain LearningRate
		// What is left out of {start, end, over} is no default of a line that the
		// user did not write: end is start, and nothing is stretched over steps.
		p := plain{End: -1}
		d.mapping(m, valueOf(&p), path)
		if p.End < 0 {
			p.End = p.Start
		}
		*v = LearningRate(p)
		return
	}
	d.scalar(n, path, "a number or {start, end, over}", func(s string) error {
		f, err := parseEpsilon(s)
		*v = LearningRate{Start: f, End: f}
		return err
	})
}

// JSONSchemaExtend adds the plain number to the object.
func (LearningRate) JSONSchemaExtend(s *jsonschema.Schema) {
	object := *s
	*s = jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "number", Minimum: "0"}, &object}}
}

// parseFloat reads a finite number.
func parseFloat(s string) (float64, error) {
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err == nil && (f-f != 0) { // infinities and NaN
		err = fmt.Errorf("not finite")
	}
	return f, err
}

// parseEpsilon reads a finite number that is not negative.
func parseEpsilon(s string) (float64, error) {
	f, err := parseFloat(s)
	if err == nil && f < 0 {
		err = fmt.Errorf("negative")
	}
	return f, err
}
