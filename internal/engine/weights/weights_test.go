package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
)

func file(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func TestRoundTrip(t *testing.T) {
	in := []Tensor{
		{"b", []int{2, 3}, []float32{1, 2, 3, -4, float32(math.Inf(1)), 0}},
		{"a \"quoted\"", []int{1}, []float32{7}},
		{"empty", []int{0, 4}, []float32{}},
		{"scalar", []int{}, []float32{2.5}},
	}
	var one, two bytes.Buffer
	meta := map[string]string{"step": "12", "format": "pt"}
	for _, w := range []*bytes.Buffer{&one, &two} {
		if err := Encode(w, in, meta); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Fatal("the same tensors gave different bytes")
	}
	got, m, err := Decode(one.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	want := Tensors{}
	for _, x := range in {
		want[x.Name] = x
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	if d := cmp.Diff(meta, m); d != "" {
		t.Fatal(d)
	}
	if err := Encode(&one, []Tensor{{"x", []int{3}, []float32{1}}}, nil); err == nil {
		t.Fatal("a tensor with too few elements was written")
	}
}

func TestHalfPrecision(t *testing.T) {
	got, _, err := Decode(file(`{"h":{"dtype":"F16","shape":[6],"data_offsets":[0,12]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]}}`,
		0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00, 0xff, 0x7b, 0x00, 0x7c, 0x00, 0x80, 0x80, 0x3f, 0x49, 0xc0))
	if err != nil {
		t.Fatal(err)
	}
	want := []float32{1, -2, 1.0 / (1 << 24), 65504, float32(math.Inf(1)), 0}
	if d := cmp.Diff(want, got["h"].Data); d != "" {
		t.Error(d)
	}
	if !math.Signbit(float64(got["h"].Data[5])) {
		t.Error("minus zero lost its sign")
	}
	if d := cmp.Diff([]float32{1, -3.140625}, got["b"].Data); d != "" {
		t.Error(d)
	}
}

func TestBadFiles(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		says string
		kind fulgur.Kind
	}{
		"empty":                {nil, "truncated", fulgur.KindInvalid},
		"header longer":        {file(`{"a":1}`)[:12], "truncated", fulgur.KindInvalid},
		"header huge":          {[]byte{255, 255, 255, 255, 255, 255, 255, 255, 1}, "header claims", fulgur.KindInvalid},
		"header is no JSON":    {file("hello"), "no JSON", fulgur.KindInvalid},
		"entry is a number":    {file(`{"a":1}`), `"a"`, fulgur.KindInvalid},
		"unknown type":         {file(`{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}`, 1), `"I8"`, fulgur.KindUnsupported},
		"offsets behind end":   {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 1, 2, 3, 4), `"a" lies at bytes 0 to 8`, fulgur.KindInvalid},
		"offsets negative":     {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}`, 1, 2, 3, 4), `"a"`, fulgur.KindInvalid},
		"offsets backwards":    {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, 1, 2, 3, 4), `"a"`, fulgur.KindInvalid},
		"shape and size":       {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 1, 2, 3, 4), "needs 8 bytes", fulgur.KindInvalid},
		"shape that overflows": {file(`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`), `"a"`, fulgur.KindInvalid},
		"negative shape":       {file(`{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}`, 1, 2, 3, 4), `"a"`, fulgur.KindInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Decode(c.b)
			if fulgur.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v", err)
			}
		})
	}
	if _, _, err := ReadFile(fstest.MapFS{}, ModelFile); fulgur.KindOf(err) != fulgur.KindNotFound {
		t.Errorf("no file: %v", err)
	}
}

func TestTake(t *testing.T) {
	x := Tensors{"w": {"w", []int{2, 2}, make([]float32, 4)}}
	if _, err := x.Take("w", 4); !strings.Contains(err.Error(), `"w" has shape [2 2]`) {
		t.Error(err)
	}
	if _, err := x.Take("v", 4); !strings.Contains(err.Error(), `"v" is missing`) {
		t.Error(err)
	}
}

const llama = `{"model_type":"llama","vocab_size":97,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":64,
 "rms_norm_eps":1e-5,"max_position_embeddings":256`

func TestConfig(t *testing.T) {
	base := Config{ModelType: "llama", VocabSize: 97, HiddenSize: 32, Layers: 2, Heads: 4, KVHeads: 4, HeadDim: 8, Intermediate: 64,
		MaxPositions: 256, NormEps: 1e-5, RopeTheta: 1e4}
	with := func(f func(c *Config)) Config { c := base; f(&c); return c }
	for name, c := range map[string]struct {
		json string
		want Config
	}{
		"defaults":           {llama + `}`, base},
		"end tokens":         {llama + `,"bos_token_id":1,"eos_token_id":[2,3]}`, with(func(c *Config) { c.BOS, c.EOS = []int32{1}, []int32{2, 3} })},
		"tied, grouped":      {llama + `,"tie_word_embeddings":true,"num_key_value_heads":2,"head_dim":16}`, with(func(c *Config) { c.Tied, c.KVHeads, c.HeadDim = true, 2, 16 })},
		"no scaling":         {llama + `,"rope_scaling":null,"eos_token_id":null}`, base},
		"newer rope section": {llama + `,"rope_parameters":{"rope_type":"default","rope_theta":500000}}`, with(func(c *Config) { c.RopeTheta = 5e5 })},
		"llama3 scaling": {llama + `,"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":32}}`,
			with(func(c *Config) { c.RopeScaling = &Llama3Scaling{8, 1, 4, 32} })},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseConfig([]byte(c.json))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Fatal(d)
			}
			b, err := got.JSON()
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseConfig(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(got, again); d != "" {
				t.Fatalf("written and read: %s", d)
			}
		})
	}
}

func TestBadConfigs(t *testing.T) {
	for name, c := range map[string]struct {
		json string
		kind fulgur.Kind
	}{
		"no JSON":              {`{`, fulgur.KindInvalid},
		"unknown architecture": {`{"model_type":"mamba"}`, fulgur.KindUnsupported},
		"other activation":     {llama + `,"hidden_act":"gelu"}`, fulgur.KindUnsupported},
		"other scaling":        {llama + `,"rope_scaling":{"type":"yarn","factor":4}}`, fulgur.KindUnsupported},
		"half a scaling":       {llama + `,"rope_scaling":{"rope_type":"llama3","factor":8}}`, fulgur.KindInvalid},
		"sliding window":       {llama + `,"use_sliding_window":true}`, fulgur.KindUnsupported},
		"uneven groups":        {llama + `,"num_key_value_heads":3}`, fulgur.KindInvalid},
		"odd head":             {llama + `,"head_dim":7}`, fulgur.KindInvalid},
		"no layers":            {strings.Replace(llama, `"num_hidden_layers":2`, `"num_hidden_layers":0`, 1) + `}`, fulgur.KindInvalid},
		"end token a word":     {llama + `,"eos_token_id":"stop"}`, fulgur.KindInvalid},
	} {
		if _, err := ParseConfig([]byte(c.json)); fulgur.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWriteFolder(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "deep", "x")
	broken := errors.New("broken")
	err := WriteFolder(dir, func(tmp string) error {
		if err := os.WriteFile(filepath.Join(tmp, "f"), []byte("half"), 0o644); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 0 {
		t.Fatalf("a failed write left %v, %v", left, err)
	}
	write := func(tmp string) error { return os.WriteFile(filepath.Join(tmp, "f"), []byte("whole"), 0o644) }
	if err := WriteFolder(dir, write); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(b) != "whole" {
		t.Fatalf("%q %v", b, err)
	}
	if err := WriteFolder(dir, write); fulgur.KindOf(err) != fulgur.KindConflict {
		t.Fatal(err)
	}
}

// What Decode takes is written and read back the same; what it does not is an
// error, never a panic or a huge allocation.
func FuzzDecode(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"k":"v"}}`, 0, 0, 128, 63))
	f.Add(file(`{"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}`, 1, 2, 3, 4))
	f.Add(file(`{"a":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}`, 1, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, meta, err := Decode(b)
		if err != nil {
			return
		}
		var list []Tensor
		for _, v := range x {
			list = append(list, v)
		}
		var out bytes.Buffer
		if err := Encode(&out, list, meta); err != nil {
			t.Fatal(err)
		}
		y, _, err := Decode(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if len(x) != len(y) {
			t.Fatalf("%d tensors became %d", len(x), len(y))
		}
	})
}
