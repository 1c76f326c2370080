// Package weights reads and writes model folders in Hugging Face's layout:
// safetensors files and config.json.
package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"

	"github.com/fulgur-rl/fulgur"
)

// Tensor is a named array in row-major order.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

// Elements returns the product of the shape; 1 for a scalar.
func Elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Tensors are the tensors of one file by name.
type Tensors map[string]Tensor

// Take returns the data of the named tensor, which must have the given shape.
func (t Tensors) Take(name string, shape ...int) ([]float32, error) {
	x, ok := t[name]
	if !ok {
		return nil, invalid("reading weights", fmt.Sprintf("tensor %q is missing: the file does not belong to this config.json, or is one shard of several", name), nil)
	}
	if !slices.Equal(x.Shape, shape) {
		return nil, invalid("reading weights", fmt.Sprintf("tensor %q has shape %v, config.json asks for %v", name, x.Shape, shape), nil)
	}
	return x.Data, nil
}

func invalid(op, msg string, err error) error { return fulgur.E(fulgur.KindInvalid, op, msg, err) }

// maxHeader is the longest header that safetensors' own reader takes, in bytes.
const maxHeader = 100_000_000

type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// ReadFile reads a safetensors file: see Decode.
func ReadFile(fsys fs.FS, name string) (Tensors, map[string]string, error) {
	b, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, nil, fulgur.E(fulgur.KindNotFound, "reading "+name, "the file cannot be read", err)
	}
	t, meta, err := Decode(b)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return t, meta, nil
}

// Decode reads the bytes of a safetensors file. F32, F16 and BF16 tensors become
// float32; a tensor of another type is an error. The second result is the file's
// own metadata. The format is described at
// https://huggingface.co/docs/safetensors.
func Decode(b []byte) (Tensors, map[string]string, error) {
	const op = "reading safetensors"
	if len(b) < 8 {
		return nil, nil, invalid(op, fmt.Sprintf("the file has %d bytes, too short for a header: it is truncated", len(b)), nil)
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxHeader || n > uint64(len(b)-8) {
		return nil, nil, invalid(op, fmt.Sprintf("the header claims %d bytes, the file has %d: it is truncated or no safetensors file", n, len(b)-8), nil)
	}
	header, data := b[8:8+n], b[8+n:]
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(header, &raw); err != nil {
		return nil, nil, invalid(op, "the header is no JSON object: this is no safetensors file", err)
	}
	tensors, meta := Tensors{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		if name == "__metadata__" {
			if err := json.Unmarshal(raw[name], &meta); err != nil {
				return nil, nil, invalid(op, "__metadata__ is not an object of strings", err)
			}
			continue
		}
		var e entry
		if err := json.Unmarshal(raw[name], &e); err != nil {
			return nil, nil, invalid(op, fmt.Sprintf("the header's entry of tensor %q is malformed", name), err)
		}
		t, err := decodeTensor(name, e, data)
		if err != nil {
			return nil, nil, err
		}
		tensors[name] = t
	}
	return tensors, meta, nil
}

func decodeTensor(name string, e entry, data []byte) (Tensor, error) {
	const op = "reading safetensors"
	size, ok := map[string]int64{"F32": 4, "F16": 2, "BF16": 2}[e.DType]
	if !ok {
		return Tensor{}, fulgur.E(fulgur.KindUnsupported, op, fmt.Sprintf("tensor %q has type %q; F32, F16 and BF16 can be read: convert the file", name, e.DType), nil)
	}
	start, end := e.Offsets[0], e.Offsets[1]
	if start < 0 || end < start || end > int64(len(data)) {
		return Tensor{}, invalid(op, fmt.Sprintf("tensor %q lies at bytes %d to %d, the file has %d: it is truncated", name, start, end, len(data)), nil)
	}
	t := Tensor{Name: name, Shape: make([]int, len(e.Shape))}
	count := int64(1)
	if slices.Contains(e.Shape, 0) {
		count = 0 // before the others are multiplied: none of them is too large then
	}
	for i, d := range e.Shape {
		if d < 0 || (d > 0 && count > int64(len(data))/d) {
			return Tensor{}, invalid(op, fmt.Sprintf("tensor %q has shape %v, more than the file holds", name, e.Shape), nil)
		}
		count *= d
		t.Shape[i] = int(d)
	}
	if count*size != end-start {
		return Tensor{}, invalid(op, fmt.Sprintf("tensor %q of shape %v and type %s needs %d bytes, its offsets span %d", name, e.Shape, e.DType, count*size, end-start), nil)
	}
	t.Data = make([]float32, count)
	convert(t.Data, data[start:end], e.DType)
	return t, nil
}

func convert(dst []float32, b []byte, dtype string) {
	switch dtype {
	case "F32":
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case "BF16":
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16)
		}
	default:
		for i := range dst {
			dst[i] = half(binary.LittleEndian.Uint16(b[2*i:]))
		}
	}
}

// half converts an IEEE 754 half-precision number.
func half(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		v := float32(frac) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(v))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// Encode writes tensors as one safetensors file of type F32, in the given order:
// the same tensors give the same bytes.
func Encode(w io.Writer, tensors []Tensor, meta map[string]string) error {
	var h bytes.Buffer
	h.WriteByte('{')
	if len(meta) > 0 {
		m, err := json.Marshal(meta) // keys are sorted
		if err != nil {
			return fmt.Errorf("encoding metadata: %w", err)
		}
		fmt.Fprintf(&h, `"__metadata__":%s`, m)
	}
	var off int64
	for _, t := range tensors {
		if Elements(t.Shape) != len(t.Data) {
			return fmt.Errorf("tensor %q of shape %v has %d elements", t.Name, t.Shape, len(t.Data))
		}
		if h.Len() > 1 {
			h.WriteByte(',')
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return fmt.Errorf("encoding the name %q: %w", t.Name, err)
		}
		e := entry{DType: "F32", Shape: make([]int64, len(t.Shape)), Offsets: [2]int64{off, off + 4*int64(len(t.Data))}}
		for i, d := range t.Shape {
			e.Shape[i] = int64(d)
		}
		off = e.Offsets[1]
		j, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encoding the entry of %q: %w", t.Name, err)
		}
		fmt.Fprintf(&h, "%s:%s", name, j)
	}
	h.WriteByte('}')
	for h.Len()%8 != 0 {
		h.WriteByte(' ')
	}
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(h.Len()))
	if _, err := w.Write(size[:]); err != nil {
		return fmt.Errorf("writing the header: %w", err)
	}
	if _, err := w.Write(h.Bytes()); err != nil {
		return fmt.Errorf("writing the header: %w", err)
	}
	return encodeData(w, tensors)
}

func encodeData(w io.Writer, tensors []Tensor) error {
	buf := make([]byte, 0, 1<<16)
	for _, t := range tensors {
		for part := range slices.Chunk(t.Data, 1<<14) {
			buf = buf[:0]
			for _, v := range part {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
			}
			if _, err := w.Write(buf); err != nil {
				return fmt.Errorf("writing tensor %q: %w", t.Name, err)
			}
		}
	}
	return nil
}
