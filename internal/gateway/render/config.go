package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// modelConfig is what the small JSON files of a model folder say.
type modelConfig struct {
	template     string
	templateFile string
	special      map[string]string // eos_token, bos_token, … → text
	eosIDs       []int32
}

func readConfig(fsys fs.FS) (*modelConfig, error) {
	c := &modelConfig{special: map[string]string{}}
	var tc map[string]json.RawMessage
	if err := readJSON(fsys, "tokenizer_config.json", &tc); err != nil {
		return nil, err
	}
	for k, v := range tc {
		if strings.HasSuffix(k, "_token") {
			if s, ok := tokenText(v); ok {
				c.special[k] = s
			}
		}
	}
	b, err := fs.ReadFile(fsys, "chat_template.jinja")
	switch {
	case err == nil:
		c.template, c.templateFile = string(b), "chat_template.jinja"
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("reading chat_template.jinja: %w", err)
	default:
		c.templateFile = "tokenizer_config.json's chat_template"
		if c.template, err = templateOf(tc["chat_template"]); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"generation_config.json", "config.json"} {
		var g struct {
			EOS json.RawMessage `json:"eos_token_id"`
		}
		if err := readJSON(fsys, name, &g); err != nil {
			return nil, err
		}
		ids, err := idList(g.EOS)
		if err != nil {
			return nil, fmt.Errorf("%s: eos_token_id must be a number or a list of numbers", name)
		}
		c.eosIDs = append(c.eosIDs, ids...)
	}
	return c, nil
}

// readJSON reads a file that need not be there.
func readJSON(fsys fs.FS, name string, into any) error {
	b, err := fs.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return fmt.Errorf("%s can't be read: %w", name, err)
	}
	return nil
}

// tokenText reads a special token: its text, or an object that has it.
func tokenText(b json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(b, &s) == nil {
		return s, s != ""
	}
	var o struct{ Content string }
	err := json.Unmarshal(b, &o)
	return o.Content, err == nil && o.Content != ""
}

// templateOf reads a chat_template: its text, or a list of named ones.
func templateOf(b json.RawMessage) (string, error) {
	var s string
	if len(b) == 0 || json.Unmarshal(b, &s) == nil {
		return s, nil
	}
	var named []struct{ Name, Template string }
	if json.Unmarshal(b, &named) != nil {
		return "", errors.New("tokenizer_config.json: chat_template is neither a text nor a list of named texts")
	}
	for _, want := range []string{"tool_use", "default"} {
		for _, n := range named {
			if n.Name == want {
				return n.Template, nil
			}
		}
	}
	return "", errors.New("tokenizer_config.json: chat_template has no entry named default")
}

func idList(b json.RawMessage) ([]int32, error) {
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
