package data

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// parquetMagic begins and ends a Parquet file.
const parquetMagic = "PAR1"

// columns reads a Parquet file: a row's line is its number, from 1. Lists and
// structs become JSON's; times are RFC 3339, dates 2006-01-02, decimals text, as is what is no
// UTF-8 (base64).
func columns(raw []byte, add adder) (problem string) {
	defer func() { // the library panics on some broken files
		if x := recover(); x != nil {
			problem = fmt.Sprintf("the Parquet file is broken: %v", x)
		}
	}()
	f, err := parquet.OpenFile(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		return "this is no whole Parquet file: " + err.Error()
	}
	r := parquet.NewGenericReader[any](f)
	defer r.Close()
	schema := f.Schema()
	rows := make([]any, 256)
	line := 0
	for {
		n, err := r.Read(rows)
		for _, row := range rows[:n] {
			line++
			v, err := plainJSON(schema, row)
			if err != nil {
				return fmt.Sprintf("row %d: %v", line, err)
			}
			b, err := json.Marshal(v)
			if err != nil {
				return fmt.Sprintf("row %d: %v", line, err)
			}
			add(line, b)
		}
		clear(rows)
		switch {
		case errors.Is(err, io.EOF):
			return ""
		case err != nil:
			return fmt.Sprintf("behind row %d the file can't be read: %v", line, err)
		case n == 0:
			return fmt.Sprintf("behind row %d the file ends early", line)
		}
	}
}

// plainJSON turns a value of a column into what JSON has.
func plainJSON(node parquet.Node, v any) (any, error) {
	if v == nil {
		return nil, nil
	}
	if inner, ok := listElement(node); ok {
		return plainList(inner, v)
	}
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, x := range v {
			child := childOf(node, name)
			p, err := plainJSON(child, x)
			if err != nil {
				return nil, fmt.Errorf("field %q: %w", name, err)
			}
			out[name] = p
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			p, err := plainJSON(node, x)
			if err != nil {
				return nil, err
			}
			out[i] = p
		}
		return out, nil
	}
	return other(node, v)
}

// other turns what the library gives typed (the values of MAP columns, say) into
// plain values, or into a scalar.
func other(node parquet.Node, v any) (any, error) {
	if _, ok := v.(fmt.Stringer); ok {
		return scalar(node, v)
	}
	switch r := reflect.ValueOf(v); {
	case r.Kind() == reflect.Pointer && r.IsNil():
		return nil, nil
	case r.Kind() == reflect.Pointer:
		return plainJSON(node, r.Elem().Interface())
	case r.Kind() == reflect.Map && r.Type().Key().Kind() == reflect.String:
		m := make(map[string]any, r.Len())
		for _, k := range r.MapKeys() {
			m[k.String()] = r.MapIndex(k).Interface()
		}
		return plainJSON(node, m)
	case r.Kind() == reflect.Slice && r.Type().Elem().Kind() != reflect.Uint8:
		list := make([]any, r.Len())
		for i := range list {
			list[i] = r.Index(i).Interface()
		}
		return plainJSON(node, list)
	}
	return scalar(node, v)
}

// listElement says what a column of the logical type LIST holds.
func listElement(n parquet.Node) (parquet.Node, bool) {
	if n == nil || n.Leaf() {
		return nil, false
	}
	if t := n.Type().LogicalType(); t == nil || len(n.Fields()) != 1 {
		return nil, false
	} else if _, ok := t.Value.(*format.ListType); !ok {
		return nil, false
	}
	return n.Fields()[0], true
}

// plainList unwraps {list: [{element: x}]}.
func plainList(repeated parquet.Node, v any) (any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		list, ok := v.([]any)
		if !ok {
			return nil, fmt.Errorf("a list of an unknown form (%T)", v)
		}
		m = map[string]any{"list": list}
	}
	out := []any{}
	for _, items := range m {
		list, _ := items.([]any)
		for _, item := range list {
			element := repeated
			if !repeated.Leaf() && len(repeated.Fields()) == 1 {
				field := repeated.Fields()[0]
				element = field
				// The library takes this layer off for most files, not for all.
				if w, ok := item.(map[string]any); ok {
					if x, has := w[field.Name()]; has && len(w) == 1 {
						item = x
					}
				}
			}
			p, err := plainJSON(element, item)
			if err != nil {
				return nil, err
			}
			out = append(out, p)
		}
	}
	return out, nil
}

func childOf(n parquet.Node, name string) parquet.Node {
	if n == nil || n.Leaf() {
		return nil
	}
	for _, f := range n.Fields() {
		if f.Name() == name {
			return f
		}
	}
	return nil
}

// scalar turns a value of a leaf into JSON's, by its logical type.
func scalar(n parquet.Node, v any) (any, error) {
	var logical format.LogicalTypeValue
	if n != nil && n.Leaf() {
		if t := n.Type().LogicalType(); t != nil {
			logical = t.Value
		}
	}
	switch x := v.(type) {
	case []byte:
		return text(x, logical), nil
	case string:
		return text([]byte(x), logical), nil
	case float64:
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, fmt.Errorf("%g is no JSON number", x)
		}
		return x, nil
	case float32:
		return scalar(nil, float64(x))
	case int32:
		return whole(int64(x), logical), nil
	case int64:
		return whole(x, logical), nil
	case time.Time:
		return x.UTC().Format(time.RFC3339Nano), nil
	case bool, int, uint32, uint64, int8, int16, uint8, uint16:
		return x, nil
	case *big.Float:
		if l, ok := logical.(*format.DecimalType); ok {
			return x.Text('f', int(l.Scale)), nil
		}
		return x.Text('g', -1), nil
	case fmt.Stringer:
		return x.String(), nil
	}
	return nil, fmt.Errorf("values of type %T can't be read", v)
}

// whole is a number as its logical type means it.
func whole(x int64, logical format.LogicalTypeValue) any {
	switch l := logical.(type) {
	case *format.DateType:
		return time.Unix(0, 0).UTC().AddDate(0, 0, int(x)).Format(time.DateOnly)
	case *format.DecimalType:
		return decimal(big.NewInt(x), int(l.Scale))
	case *format.IntType:
		if !l.IsSigned && l.BitWidth == 64 {
			return uint64(x)
		}
		if !l.IsSigned {
			return uint32(x)
		}
	case *format.TimeType:
		return time.Unix(0, 0).UTC().Add(time.Duration(x) * l.Unit.Value.Duration()).Format("15:04:05.999999999")
	case *format.TimestampType:
		at := time.Unix(0, x)
		switch l.Unit.Value.(type) {
		case *format.MilliSeconds:
			at = time.UnixMilli(x)
		case *format.MicroSeconds:
			at = time.UnixMicro(x)
		}
		return at.UTC().Format(time.RFC3339Nano)
	}
	return x
}

// text is a byte array as its logical type means it.
func text(b []byte, logical format.LogicalTypeValue) any {
	if l, ok := logical.(*format.DecimalType); ok && len(b) > 0 {
		x := new(big.Int).SetBytes(b)
		if b[0] >= 0x80 { // two's complement
			x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		return decimal(x, int(l.Scale))
	}
	if utf8.Valid(b) {
		return string(b)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// decimal writes an unscaled number as text, so that no digit is lost.
func decimal(x *big.Int, scale int) string {
	return new(big.Rat).SetFrac(x, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)).FloatString(scale)
}
