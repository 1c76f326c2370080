package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// The model: a Llama with one key-value head and a tied head, which makes
// copying a token the easy thing to learn.
const (
	width         = 96
	layers        = 3
	heads         = 3
	headDim       = 32
	inner         = 256
	contextLength = 512
	ropeTheta     = 10000
	normEps       = 1e-6
)

// names of the special tokens' roles.
const (
	endOfText = "<|endoftext|>"
	turnEnd   = "<|im_end|>"
)

// template renders conversations: what the policy says is what it was trained on,
// byte for byte, also after a round trip through the chat API.
//
//go:embed chat_template.jinja
var template []byte

// modelFiles are the files beside the weights, by name.
func modelFiles(t *bpe) (map[string][]byte, error) {
	end, eos := special(endOfText), special(turnEnd)
	tokenizer, err := t.tokenizerJSON()
	if err != nil {
		return nil, fmt.Errorf("writing the tokenizer: %w", err)
	}
	files := map[string][]byte{"tokenizer.json": tokenizer, "chat_template.jinja": template}
	for name, content := range map[string]object{
		"config.json": {
			"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "dtype": "float32", "torch_dtype": "float32",
			"vocab_size": vocabSize, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
			"num_key_value_heads": 1, "head_dim": headDim, "intermediate_size": inner, "hidden_act": "silu",
			"max_position_embeddings": contextLength, "rms_norm_eps": normEps, "rope_theta": ropeTheta, "rope_scaling": nil,
			"attention_bias": false, "mlp_bias": false, "attention_dropout": 0.0, "tie_word_embeddings": true,
			"initializer_range": 0.08, "use_cache": true, "bos_token_id": nil, "eos_token_id": eos, "pad_token_id": end,
		},
		"generation_config.json": {"eos_token_id": []int32{eos, end}, "pad_token_id": end, "do_sample": true, "temperature": 1.0},
		"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": contextLength, "bos_token": nil,
			"eos_token": turnEnd, "pad_token": endOfText, "unk_token": nil, "add_bos_token": false, "add_prefix_space": false, "clean_up_tokenization_spaces": false},
	} {
		b, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("writing %s: %w", name, err)
		}
		files[name] = append(b, '\n')
	}
	return files, nil
}

// writeFiles writes files into dir, which is made.
func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the model's folder: %w", err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return fmt.Errorf("writing the model: %w", err)
		}
	}
	return nil
}
