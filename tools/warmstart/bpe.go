package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/fulgur-rl/fulgur/internal/gateway/render/tokenizer"
)

// The vocabulary: 256 bytes, the two-digit numbers, merges learned from the corpus,
// and the special tokens (last: Hugging Face numbers added tokens itself, from the
// end of the vocabulary on, whatever the file says). No token holds more than two digits, so that
// the model can copy and compare numbers; every id decodes to something.
const vocabSize = 576

// specials in the order of their ids. Those of tool calls are text that a reader
// of the answer needs, so they are not dropped when decoding.
var specials = []struct {
	text    string
	special bool
}{{"<|endoftext|>", true}, {"<|im_start|>", true}, {"<|im_end|>", true}, {"<tool_call>", false}, {"</tool_call>", false}}

// bpe is a byte-level byte-pair encoding: tokens by id, and merges by rank.
type bpe struct {
	tokens []string // bytes, not printable
	merges [][2]string
}

// trainBPE learns merges from words (with their counts) until the vocabulary is
// full. The result depends on nothing but the counts: ties go to the pair that is
// first in the alphabet.
func trainBPE(words map[string]int) (*bpe, error) {
	t := &bpe{}
	for i := range 256 {
		t.tokens = append(t.tokens, string([]byte{byte(i)}))
	}
	for n := 10; n < 100; n++ {
		s := strconv.Itoa(n)
		t.merge(s[:1], s[1:])
	}
	type word struct {
		parts []string
		count int
	}
	var all []word
	for w, count := range words {
		if digit(w[0]) {
			continue // numbers have their tokens
		}
		var parts []string
		for i := range len(w) {
			parts = append(parts, w[i:i+1])
		}
		all = append(all, word{parts, count})
	}
	for len(t.tokens) < vocabSize-len(specials) {
		pairs := map[[2]string]int{}
		for _, w := range all {
			for i := range len(w.parts) - 1 {
				pairs[[2]string{w.parts[i], w.parts[i+1]}] += w.count
			}
		}
		best, count := [2]string{}, 0
		for p, n := range pairs {
			if n > count || n == count && slices.Compare(p[:], best[:]) < 0 {
				best, count = p, n
			}
		}
		if count == 0 {
			return nil, fmt.Errorf("the corpus has words for %d tokens only, %d are wanted", len(t.tokens), vocabSize-len(specials))
		}
		t.merge(best[0], best[1])
		for i := range all {
			all[i].parts = join(all[i].parts, best)
		}
	}
	for _, s := range specials {
		t.tokens = append(t.tokens, s.text)
	}
	return t, nil
}

// special is the id of a special token.
func special(text string) int32 {
	for i, s := range specials {
		if s.text == text {
			return int32(vocabSize - len(specials) + i)
		}
	}
	panic("no special token " + text) // a typing error in this program
}

func (t *bpe) merge(a, b string) {
	t.tokens = append(t.tokens, a+b)
	t.merges = append(t.merges, [2]string{a, b})
}

func join(parts []string, pair [2]string) []string {
	out := parts[:0]
	for i := 0; i < len(parts); i++ {
		if i+1 < len(parts) && parts[i] == pair[0] && parts[i+1] == pair[1] {
			out = append(out, pair[0]+pair[1])
			i++
		} else {
			out = append(out, parts[i])
		}
	}
	return out
}

func digit(b byte) bool { return b >= '0' && b <= '9' }

// object is a JSON object, written with its keys in alphabetical order.
type object = map[string]any

// tokenizerJSON is tokenizer.json as Hugging Face's tokenizers reads it.
func (t *bpe) tokenizerJSON() ([]byte, error) {
	vocab, added := object{}, []object{}
	for id, token := range t.tokens {
		if k := id - (vocabSize - len(specials)); k >= 0 {
			added = append(added, object{"id": id, "content": token, "special": specials[k].special,
				"single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
			continue
		}
		vocab[tokenizer.ByteToken(token)] = id
	}
	merges := [][2]string{}
	for _, m := range t.merges {
		merges = append(merges, [2]string{tokenizer.ByteToken(m[0]), tokenizer.ByteToken(m[1])})
	}
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	b, err := json.MarshalIndent(object{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil, "post_processor": nil,
		"added_tokens": added,
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{
			{"type": "Split", "pattern": object{"Regex": tokenizer.DigitsPattern(2)}, "behavior": "Isolated", "invert": false}, byteLevel}},
		"decoder": byteLevel,
		"model": object{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges},
	}, "", " ")
	return append(b, '\n'), err
}
