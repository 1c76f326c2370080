// Package tokenizer turns text into token ids and back, as Hugging Face's
// tokenizers library does for byte-level BPE models (GPT-2's kind: Qwen, Llama
// 3, SmolLM and Fulgur's own small models), from a tokenizer.json.
//
// What of tokenizer.json is supported; anything else is an error that names it:
//
//	model          BPE; merges as "a b" or ["a","b"]; ignore_merges; no dropout, no byte_fallback,
//	               no continuing_subword_prefix, no end_of_word_suffix
//	normalizer     null, NFC, or a Sequence of these: of text between added tokens, which are found before
//	pre_tokenizer  null, ByteLevel, Digits, Split, or a Sequence of these:
//	  ByteLevel    add_prefix_space false; use_regex true splits by GPT-2's pattern
//	  Digits       individual_digits true or false
//	  Split        behavior Isolated, invert false, pattern {"Regex": P} with P GPT2Pattern or one of
//	               DigitsPattern(0 … 9)
//	decoder        ByteLevel
//	added_tokens   special or not, lstrip, rstrip; not single_word; not normalized beside NFC
//	post_processor ignored: chat templates write their own first token
//
// A byte that has no token and no unk_token is dropped, as the original does.
package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"sync/atomic"
)

// maxID bounds token ids, and so the memory that a broken file can ask for.
const maxID = 2_000_000

// Added is a token that is cut out of the text before anything else.
type Added struct {
	ID      int32
	Text    string
	Special bool // skipped by decoders that skip special tokens
	lstrip  bool
	rstrip  bool
}

// Tokenizer is a loaded tokenizer.json. It is safe for concurrent use.
type Tokenizer struct {
	hash         string
	vocab        map[string]int32 // by the token's bytes, without added tokens
	texts        []string         // bytes of each id, "" for ids that are not there
	known        []bool
	added        []Added
	addedByByte  [256][]int // indices into added by first byte, longest first
	addedIDs     map[int32]bool
	special      map[int32]bool
	byteIDs      [256]int32
	unk          int32 // -1: bytes without a token are dropped
	merges       map[uint64]merge
	ignoreMerges bool
	nfc          bool // text is brought to NFC before it is split
	stages       []splitter
	seed         maphash.Seed
	cache        [cacheSize]atomic.Pointer[cacheEntry]
}

// merge is a rule: its rank (lower first), and the token it makes.
type merge struct{ rank, id int32 }

func pair(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// Hash returns the SHA-256 of the tokenizer.json's bytes, in hex. A checkpoint
// pins it: the same weights over other tokens are another model.
func (t *Tokenizer) Hash() string { return t.hash }

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// VocabSize returns the greatest id plus one.
func (t *Tokenizer) VocabSize() int { return len(t.texts) }

// Added returns the added tokens in the file's order.
func (t *Tokenizer) Added() []Added { return append([]Added(nil), t.added...) }

// ID returns the id of the token with exactly this text, added tokens first.
func (t *Tokenizer) ID(text string) (int32, bool) {
	for _, a := range t.added {
		if a.Text == text {
			return a.ID, true
		}
	}
	id, ok := t.vocab[text]
	return id, ok
}

// IsAdded and IsSpecial say what kind of token an id is.
func (t *Tokenizer) IsAdded(id int32) bool   { return t.addedIDs[id] }
func (t *Tokenizer) IsSpecial(id int32) bool { return t.special[id] }

// Check returns an error that names the first id which is no token.
func (t *Tokenizer) Check(ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= len(t.known) || !t.known[id] {
			return fmt.Errorf("token id %d at position %d is not in the vocabulary (0 to %d)", id, i, len(t.known)-1)
		}
	}
	return nil
}
