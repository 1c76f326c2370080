package sample

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// MissingExperts is the reason of calls whose routed experts don't cover their
// tokens, where they are replayed.
const MissingExperts = "missing_routed_experts"

// routes are the experts that a call's forward passes chose: row i belongs to the
// pass whose input was token from+i of the call's history.
type routes struct {
	from int
	rows [][]uint16 // of each pass: layer by layer, the chosen experts
}

// row returns what was chosen in the pass that sampled, or would have sampled,
// token i of the history; nil if that is not on record.
func (r *routes) row(i int) []uint16 {
	if r == nil || i-1 < r.from || i-1-r.from >= len(r.rows) {
		return nil
	}
	return r.rows[i-1-r.from]
}

// readRoutes reads a call's routed experts as upstreams give them: a list of rows,
// nested as they like, or a base64 text of a NumPy file [passes][layers][top k].
// There must be a row for each pass (prompt and sampled ids, but for the last one,
// which was no input any more), or for each that sampled.
func readRoutes(c *fulgur.Call) (*routes, error) {
	raw := bytes.TrimSpace(c.RoutedExperts)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, fmt.Errorf("there are none")
	}
	var rows [][]uint16
	var err error
	if raw[0] == '"' {
		rows, err = readNumPy(raw)
	} else {
		rows, err = readRows(raw)
	}
	if err != nil {
		return nil, err
	}
	switch passes := len(c.PromptIDs) + len(c.SampledIDs) - 1; {
	case len(rows) >= passes:
		return &routes{0, rows[:min(len(rows), passes+1)]}, nil
	case len(rows) == len(c.SampledIDs):
		return &routes{len(c.PromptIDs) - 1, rows}, nil
	default:
		return nil, fmt.Errorf("%d rows for %d passes", len(rows), passes)
	}
}

func readRows(raw []byte) ([][]uint16, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	rows := make([][]uint16, len(list))
	for i, row := range list {
		for _, f := range strings.FieldsFunc(string(row), func(r rune) bool { return r < '0' || r > '9' }) {
			x, err := strconv.ParseUint(f, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("row %d: %w", i, err)
			}
			rows[i] = append(rows[i], uint16(x))
		}
		if len(rows[i]) == 0 || len(rows[i]) != len(rows[0]) {
			return nil, fmt.Errorf("row %d has %d experts, the first has %d", i, len(rows[i]), len(rows[0]))
		}
	}
	return rows, nil
}

// readNumPy reads an array of unsigned or small signed integers in a base64 text
// (format: NEP 1).
func readNumPy(raw []byte) ([][]uint16, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	if len(b) < 10 || string(b[:6]) != "\x93NUMPY" {
		return nil, fmt.Errorf("no NumPy file")
	}
	at, n := 10, int(binary.LittleEndian.Uint16(b[8:]))
	if b[6] >= 2 && len(b) >= 12 {
		at, n = 12, int(binary.LittleEndian.Uint32(b[8:]))
	}
	if n < 0 || at+n > len(b) {
		return nil, fmt.Errorf("the NumPy file is cut off")
	}
	kind, shape, err := numPyHeader(string(b[at : at+n]))
	if err != nil {
		return nil, err
	}
	width, big := int(kind[2]-'0'), kind[0] == '>'
	wide := 1
	for _, k := range shape[1:] {
		wide *= k
	}
	body := b[at+n:]
	if wide <= 0 || shape[0] < 0 || shape[0] > len(body) || len(body) != shape[0]*wide*width {
		return nil, fmt.Errorf("the NumPy file has %d bytes for shape %v of %s", len(body), shape, kind)
	}
	rows, all := make([][]uint16, shape[0]), make([]uint16, shape[0]*wide)
	for i := range all {
		e := body[i*width : (i+1)*width]
		x := uint64(0)
		for k := range e {
			if j := width - 1 - k; big {
				x = x<<8 | uint64(e[k])
			} else {
				x = x<<8 | uint64(e[j])
			}
		}
		if x > 0xffff {
			return nil, fmt.Errorf("%d is no expert", x)
		}
		all[i] = uint16(x)
	}
	for i := range rows {
		rows[i] = all[i*wide : (i+1)*wide]
	}
	return rows, nil
}

// numPyHeader reads the header of an array of integers in C order.
func numPyHeader(h string) (kind string, shape []int, err error) {
	descr := regexp.MustCompile(`'descr': *'([<>|][ui][1248])'`).FindStringSubmatch(h)
	dims := regexp.MustCompile(`'shape': *\(([0-9, ]+)\)`).FindStringSubmatch(h)
	if descr == nil || dims == nil || !strings.Contains(h, "'fortran_order': False") {
		return "", nil, fmt.Errorf("the NumPy file holds no array of integers in C order: %s", strings.TrimSpace(h))
	}
	product := 1
	for _, f := range strings.FieldsFunc(dims[1], func(r rune) bool { return r == ',' || r == ' ' }) {
		x, err := strconv.Atoi(f)
		if product *= max(x, 1); err != nil || product > 1<<40 {
			return "", nil, fmt.Errorf("the NumPy file has shape %s", dims[1])
		}
		shape = append(shape, x)
	}
	if len(shape) == 0 {
		return "", nil, fmt.Errorf("the NumPy file has no shape")
	}
	return descr[1], shape, nil
}
