package weights

import (
	"encoding/json"
	"fmt"
	"io/fs"

	"github.com/fulgur-rl/fulgur"
)

// ConfigFile and ModelFile are the names in a model folder.
const (
	ConfigFile = "config.json"
	ModelFile  = "model.safetensors"
)

// Config is the shape of a decoder of the Llama family, as config.json says it.
// Biases and the norms of q and k are not in it: they are told by the tensors
// that are there.
type Config struct {
	ModelType    string // "llama", "qwen2", "qwen3"
	VocabSize    int
	HiddenSize   int
	Layers       int
	Heads        int
	KVHeads      int
	HeadDim      int
	Intermediate int // width of the feed-forward part
	MaxPositions int // longest sequence, tokens
	NormEps      float64
	RopeTheta    float64
	RopeScaling  *Llama3Scaling // nil: none
	Tied         bool           // the head is the embedding
	BOS          []int32
	EOS          []int32
}

// Llama3Scaling is RoPE's frequency scaling of Llama 3.1.
type Llama3Scaling struct {
	Factor           float64
	LowFreqFactor    float64
	HighFreqFactor   float64
	OriginalPosition int // original_max_position_embeddings
}

type ropeJSON struct {
	RopeType string   `json:"rope_type,omitempty"`
	Type     string   `json:"type,omitempty"`
	Theta    float64  `json:"rope_theta,omitempty"`
	Factor   *float64 `json:"factor,omitempty"`
	Low      *float64 `json:"low_freq_factor,omitempty"`
	High     *float64 `json:"high_freq_factor,omitempty"`
	Original *int     `json:"original_max_position_embeddings,omitempty"`
}

type configJSON struct {
	Architectures []string        `json:"architectures,omitempty"`
	ModelType     string          `json:"model_type"`
	VocabSize     int             `json:"vocab_size"`
	HiddenSize    int             `json:"hidden_size"`
	Layers        int             `json:"num_hidden_layers"`
	Heads         int             `json:"num_attention_heads"`
	KVHeads       int             `json:"num_key_value_heads,omitempty"`
	HeadDim       int             `json:"head_dim,omitempty"`
	Intermediate  int             `json:"intermediate_size"`
	NormEps       float64         `json:"rms_norm_eps"`
	RopeTheta     float64         `json:"rope_theta,omitempty"`
	RopeScaling   *ropeJSON       `json:"rope_scaling,omitempty"`
	RopeParams    *ropeJSON       `json:"rope_parameters,omitempty"`
	Tied          *bool           `json:"tie_word_embeddings,omitempty"`
	HiddenAct     string          `json:"hidden_act,omitempty"`
	MaxPositions  int             `json:"max_position_embeddings"`
	SlidingWindow bool            `json:"use_sliding_window,omitempty"`
	BOS           json.RawMessage `json:"bos_token_id,omitempty"`
	EOS           json.RawMessage `json:"eos_token_id,omitempty"`
	DType         string          `json:"torch_dtype,omitempty"`
}

var architectures = map[string]string{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

// ReadConfig reads config.json of a model folder.
func ReadConfig(fsys fs.FS) (Config, error) {
	b, err := fs.ReadFile(fsys, ConfigFile)
	if err != nil {
		return Config{}, fulgur.E(fulgur.KindNotFound, "reading "+ConfigFile, "the folder has no readable config.json: give a Hugging Face model folder", err)
	}
	return ParseConfig(b)
}

// ParseConfig reads the bytes of a config.json. An architecture or setting that
// this engine has not is KindUnsupported; a shape that makes no sense is
// KindInvalid.
func ParseConfig(b []byte) (Config, error) {
	const op = "reading " + ConfigFile
	var j configJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return Config{}, invalid(op, "it is not valid", err)
	}
	unsupported := func(format string, a ...any) (Config, error) {
		return Config{}, fulgur.E(fulgur.KindUnsupported, op, fmt.Sprintf(format, a...), nil)
	}
	if _, ok := architectures[j.ModelType]; !ok {
		return unsupported("model_type %q is not supported: llama, qwen2 and qwen3 are", j.ModelType)
	}
	if j.HiddenAct != "" && j.HiddenAct != "silu" {
		return unsupported("hidden_act %q is not supported: silu is", j.HiddenAct)
	}
	if j.SlidingWindow {
		return unsupported("use_sliding_window is not supported")
	}
	c := Config{ModelType: j.ModelType, VocabSize: j.VocabSize, HiddenSize: j.HiddenSize, Layers: j.Layers, Heads: j.Heads,
		KVHeads: j.KVHeads, HeadDim: j.HeadDim, Intermediate: j.Intermediate, MaxPositions: j.MaxPositions,
		NormEps: j.NormEps, RopeTheta: j.RopeTheta, Tied: j.Tied != nil && *j.Tied}
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.HiddenSize / c.Heads
	}
	for _, p := range []*ropeJSON{j.RopeScaling, j.RopeParams} {
		if err := c.setRope(p); err != nil {
			return Config{}, err
		}
	}
	if c.RopeTheta == 0 {
		c.RopeTheta = 10000
	}
	var err error
	if c.BOS, err = ids(j.BOS); err != nil {
		return Config{}, invalid(op, "bos_token_id is no number or list of numbers", err)
	}
	if c.EOS, err = ids(j.EOS); err != nil {
		return Config{}, invalid(op, "eos_token_id is no number or list of numbers", err)
	}
	return c, c.Check()
}

func (c *Config) setRope(p *ropeJSON) error {
	if p == nil {
		return nil
	}
	if p.Theta != 0 {
		c.RopeTheta = p.Theta
	}
	kind := p.RopeType
	if kind == "" {
		kind = p.Type
	}
	switch kind {
	case "", "default":
		return nil
	case "llama3":
	default:
		return fulgur.E(fulgur.KindUnsupported, "reading "+ConfigFile, fmt.Sprintf("RoPE scaling %q is not supported: llama3 is", kind), nil)
	}
	if p.Factor == nil || p.Low == nil || p.High == nil || p.Original == nil {
		return invalid("reading "+ConfigFile, "llama3 RoPE scaling needs factor, low_freq_factor, high_freq_factor and original_max_position_embeddings", nil)
	}
	c.RopeScaling = &Llama3Scaling{*p.Factor, *p.Low, *p.High, *p.Original}
	return nil
}

func ids(b json.RawMessage) ([]int32, error) {
	if len(b) == 0 || string(b) == "null" {
		return nil, nil
	}
	var one int32
	if json.Unmarshal(b, &one) == nil {
		return []int32{one}, nil
	}
	var many []int32
	return many, json.Unmarshal(b, &many)
}

// Check reports a shape that cannot be.
func (c Config) Check() error {
	for _, f := range []struct {
		name string
		v    int
	}{{"vocab_size", c.VocabSize}, {"hidden_size", c.HiddenSize}, {"num_hidden_layers", c.Layers}, {"num_attention_heads", c.Heads},
		{"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim}, {"intermediate_size", c.Intermediate}, {"max_position_embeddings", c.MaxPositions}} {
		if f.v <= 0 || f.v > 1<<24 {
			return invalid("checking "+ConfigFile, fmt.Sprintf("%s is %d: it must be from 1 to %d", f.name, f.v, 1<<24), nil)
		}
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return invalid("checking "+ConfigFile, fmt.Sprintf("%d attention heads cannot share %d key-value heads evenly", c.Heads, c.KVHeads), nil)
	case c.HeadDim%2 != 0:
		return invalid("checking "+ConfigFile, fmt.Sprintf("head_dim is %d: RoPE needs an even one", c.HeadDim), nil)
	case !(c.NormEps > 0) || !(c.RopeTheta > 0):
		return invalid("checking "+ConfigFile, "rms_norm_eps and rope_theta must be positive", nil)
	}
	return nil
}

// JSON returns the config.json of c.
func (c Config) JSON() ([]byte, error) {
	j := configJSON{Architectures: []string{architectures[c.ModelType]}, ModelType: c.ModelType, VocabSize: c.VocabSize, HiddenSize: c.HiddenSize,
		Layers: c.Layers, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Intermediate: c.Intermediate, NormEps: c.NormEps,
		RopeTheta: c.RopeTheta, Tied: &c.Tied, HiddenAct: "silu", MaxPositions: c.MaxPositions, DType: "float32"}
	if s := c.RopeScaling; s != nil {
		j.RopeScaling = &ropeJSON{RopeType: "llama3", Factor: &s.Factor, Low: &s.LowFreqFactor, High: &s.HighFreqFactor, Original: &s.OriginalPosition}
	}
	j.BOS, j.EOS = idsJSON(c.BOS), idsJSON(c.EOS)
	b, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", ConfigFile, err)
	}
	return append(b, '\n'), nil
}

func idsJSON(v []int32) json.RawMessage {
	switch len(v) {
	case 0:
		return nil
	case 1:
		return json.RawMessage(fmt.Sprint(v[0]))
	}
	b, _ := json.Marshal(v) // integers always encode
	return b
}
