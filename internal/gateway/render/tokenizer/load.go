package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// component is any part of tokenizer.json that has a type.
type component struct {
	Type string `json:"type"`

	Pretokenizers    []json.RawMessage `json:"pretokenizers"`
	Normalizers      []json.RawMessage `json:"normalizers"`
	Decoders         []json.RawMessage `json:"decoders"`
	AddPrefixSpace   *bool             `json:"add_prefix_space"`
	UseRegex         *bool             `json:"use_regex"`
	IndividualDigits bool              `json:"individual_digits"`
	Behavior         string            `json:"behavior"`
	Invert           bool              `json:"invert"`
	Pattern          struct {
		Regex  *string
		String *string
	} `json:"pattern"`
}

type fileJSON struct {
	AddedTokens []struct {
		ID         int64  `json:"id"`
		Content    string `json:"content"`
		Special    bool   `json:"special"`
		SingleWord bool   `json:"single_word"`
		Normalized bool   `json:"normalized"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
	} `json:"added_tokens"`
	Normalizer   json.RawMessage `json:"normalizer"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Decoder      json.RawMessage `json:"decoder"`
	Model        struct {
		Type         string           `json:"type"`
		Dropout      *float64         `json:"dropout"`
		UnkToken     *string          `json:"unk_token"`
		Prefix       *string          `json:"continuing_subword_prefix"`
		Suffix       *string          `json:"end_of_word_suffix"`
		ByteFallback bool             `json:"byte_fallback"`
		IgnoreMerges bool             `json:"ignore_merges"`
		Vocab        map[string]int64 `json:"vocab"`
		Merges       json.RawMessage  `json:"merges"`
	} `json:"model"`
}

// Parse loads a tokenizer.json. Errors say which part of the file is broken or
// not supported.
func Parse(b []byte) (*Tokenizer, error) {
	var f fileJSON
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json is not what it should be: %w", err)
	}
	t := &Tokenizer{hash: hashOf(b), unk: -1, seed: maphash.MakeSeed(), ignoreMerges: f.Model.IgnoreMerges}
	if err := f.supported(); err != nil {
		return nil, err
	}
	var err error
	if t.nfc, err = parseNormalizer(f.Normalizer, 0); err != nil {
		return nil, err
	}
	if t.stages, err = parsePre(f.PreTokenizer, 0); err != nil {
		return nil, err
	}
	if err := t.loadVocab(&f); err != nil {
		return nil, err
	}
	if err := t.loadAdded(&f); err != nil {
		return nil, err
	}
	if u := f.Model.UnkToken; u != nil && *u != "" {
		if t.unk, err = t.mustID(*u); err != nil {
			return nil, err
		}
	}
	return t, t.loadMerges(f.Model.Merges, f.Model.Vocab)
}

func (t *Tokenizer) mustID(s string) (int32, error) {
	id, ok := t.ID(s)
	if !ok {
		return 0, fmt.Errorf("tokenizer.json: the unk_token %q is not in the vocabulary", s)
	}
	return id, nil
}

// supported refuses the models that this package does not implement.
func (f *fileJSON) supported() error {
	m := &f.Model
	notEmpty := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case m.Type != "BPE" && m.Type != "":
		return fmt.Errorf("tokenizer.json: model type %q is not supported, only byte-level BPE is", m.Type)
	case len(m.Vocab) == 0:
		return errors.New("tokenizer.json: model.vocab is missing or empty")
	case m.ByteFallback:
		return errors.New("tokenizer.json: byte_fallback (SentencePiece models) is not supported, only byte-level BPE is")
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("tokenizer.json: dropout is not supported: the same text must give the same tokens")
	case notEmpty(m.Prefix) || notEmpty(m.Suffix):
		return errors.New("tokenizer.json: continuing_subword_prefix and end_of_word_suffix are not supported")
	}
	c, err := parseComponent(f.Decoder)
	if err == nil && c != nil && c.Type == "Sequence" && len(c.Decoders) == 1 {
		c, err = parseComponent(c.Decoders[0])
	}
	if err != nil || c == nil || c.Type != "ByteLevel" {
		return fmt.Errorf("tokenizer.json: decoder %.80s is not supported (only ByteLevel is)", f.Decoder)
	}
	return nil
}

// parseNormalizer says whether text is brought to NFC before it is split.
func parseNormalizer(b json.RawMessage, depth int) (nfc bool, err error) {
	c, err := parseComponent(b)
	if c == nil {
		return false, nil
	}
	if err == nil && c.Type == "NFC" {
		return true, nil
	}
	if err != nil || c.Type != "Sequence" || depth > 4 {
		return false, fmt.Errorf("tokenizer.json: normalizer %.80s is not supported (only null, NFC, and a Sequence of these are)", b)
	}
	for _, n := range c.Normalizers {
		one, err := parseNormalizer(n, depth+1)
		if err != nil {
			return false, err
		}
		nfc = nfc || one
	}
	return nfc, nil
}

func parseComponent(b json.RawMessage) (*component, error) {
	if len(b) == 0 || string(b) == "null" {
		return nil, nil
	}
	var c component
	return &c, json.Unmarshal(b, &c)
}

// parsePre turns a pre_tokenizer into the stages that split text.
func parsePre(b json.RawMessage, depth int) ([]splitter, error) {
	c, err := parseComponent(b)
	if c == nil {
		return nil, nil
	}
	if err != nil || depth > 4 {
		return nil, fmt.Errorf("tokenizer.json: pre_tokenizer %.80s is broken", b)
	}
	switch c.Type {
	case "Sequence":
		var all []splitter
		for _, p := range c.Pretokenizers {
			s, err := parsePre(p, depth+1)
			if err != nil {
				return nil, err
			}
			all = append(all, s...)
		}
		return all, nil
	case "ByteLevel":
		if c.AddPrefixSpace != nil && *c.AddPrefixSpace {
			return nil, errors.New("tokenizer.json: pre_tokenizer ByteLevel with add_prefix_space is not supported")
		}
		if c.UseRegex != nil && !*c.UseRegex {
			return nil, nil
		}
		return []splitter{gpt2Splitter{}}, nil
	case "Digits":
		return []splitter{digitSplitter{c.IndividualDigits}}, nil
	case "Split":
		if c.Pattern.Regex == nil || c.Behavior != "Isolated" || c.Invert {
			return nil, fmt.Errorf("tokenizer.json: pre_tokenizer %.200s is not supported (only a Regex, Isolated, not inverted, is)", b)
		}
		s, err := NewSplitter(*c.Pattern.Regex)
		if err != nil {
			return nil, fmt.Errorf("tokenizer.json: pre_tokenizer Split: %w", err)
		}
		return []splitter{s}, nil
	}
	return nil, fmt.Errorf("tokenizer.json: pre_tokenizer type %q is not supported", c.Type)
}

func (t *Tokenizer) loadVocab(f *fileJSON) error {
	top := int64(-1)
	for tok, id := range f.Model.Vocab {
		if id < 0 || id > maxID {
			return fmt.Errorf("tokenizer.json: token %q has id %d, which is not in 0 to %d", tok, id, maxID)
		}
		top = max(top, id)
	}
	for _, a := range f.AddedTokens {
		if a.ID < 0 || a.ID > maxID {
			return fmt.Errorf("tokenizer.json: added token %q has id %d, which is not in 0 to %d", a.Content, a.ID, maxID)
		}
		top = max(top, a.ID)
	}
	t.texts = make([]string, top+1)
	t.known = make([]bool, top+1)
	t.vocab = make(map[string]int32, len(f.Model.Vocab))
	for i := range t.byteIDs {
		t.byteIDs[i] = -1
	}
	bytesOf := alphabet()
	for tok, id := range f.Model.Vocab {
		if t.known[id] {
			return fmt.Errorf("tokenizer.json: two tokens have the id %d, one of them is %q", id, tok)
		}
		text, isBytes := bytesOf.decode(tok)
		t.texts[id], t.known[id] = text, true
		if !isBytes {
			continue // a name in plain text: an added token's, or never matched
		}
		t.vocab[text] = int32(id)
		if len(text) == 1 {
			t.byteIDs[text[0]] = int32(id)
		}
	}
	return nil
}

func (t *Tokenizer) loadAdded(f *fileJSON) error {
	t.addedIDs, t.special = map[int32]bool{}, map[int32]bool{}
	for _, a := range f.AddedTokens {
		if a.Content == "" {
			return fmt.Errorf("tokenizer.json: the added token with id %d is empty", a.ID)
		}
		if a.SingleWord {
			return fmt.Errorf("tokenizer.json: single_word of the added token %q is not supported", a.Content)
		}
		if a.Normalized && t.nfc {
			return fmt.Errorf("tokenizer.json: normalized of the added token %q is not supported beside a normalizer", a.Content)
		}
		id := int32(a.ID)
		if t.addedIDs[id] {
			return fmt.Errorf("tokenizer.json: two added tokens have the id %d", id)
		}
		t.addedIDs[id], t.special[id] = true, a.Special
		delete(t.vocab, a.Content) // words never become added tokens
		t.texts[id], t.known[id] = a.Content, true
		c := a.Content[0]
		t.addedByByte[c] = append(t.addedByByte[c], len(t.added))
		t.added = append(t.added, Added{ID: id, Text: a.Content, Special: a.Special, lstrip: a.LStrip, rstrip: a.RStrip})
	}
	for _, list := range t.addedByByte {
		slices.SortStableFunc(list, func(i, j int) int { return cmp.Compare(len(t.added[j].Text), len(t.added[i].Text)) })
	}
	return nil
}

func (t *Tokenizer) loadMerges(raw json.RawMessage, vocab map[string]int64) error {
	var pairs [][2]string
	if len(raw) > 0 && json.Unmarshal(raw, &pairs) != nil {
		var lines []string
		if err := json.Unmarshal(raw, &lines); err != nil {
			return errors.New("tokenizer.json: model.merges is neither a list of strings nor of pairs")
		}
		pairs = make([][2]string, len(lines))
		for i, l := range lines {
			a, b, ok := strings.Cut(l, " ")
			if !ok || strings.Contains(b, " ") {
				return fmt.Errorf("tokenizer.json: merge %d, %q, is not two tokens with a space between", i, l)
			}
			pairs[i] = [2]string{a, b}
		}
	}
	t.merges = make(map[uint64]merge, len(pairs))
	for i, p := range pairs {
		a, okA := vocab[p[0]]
		b, okB := vocab[p[1]]
		c, okC := vocab[p[0]+p[1]]
		if !okA || !okB || !okC {
			return fmt.Errorf("tokenizer.json: merge %d, %q + %q, has a token that is not in the vocabulary", i, p[0], p[1])
		}
		if t.special[int32(c)] {
			continue // only the token's whole text makes a control token
		}
		t.merges[pair(int32(a), int32(b))] = merge{int32(i), int32(c)}
	}
	return nil
}

// byteAlphabet is GPT-2's mapping of bytes to printable characters.
type byteAlphabet map[rune]byte

func alphabet() byteAlphabet {
	m := byteAlphabet{}
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if r >= '!' && r <= '~' || r >= 0xA1 && r <= 0xAC || r >= 0xAE {
			m[r] = byte(b)
		} else {
			m[next] = byte(b)
			next++
		}
	}
	return m
}

// decode returns the bytes that a token of the vocabulary stands for; a token
// that is not written in the alphabet stands for itself.
func (m byteAlphabet) decode(tok string) (string, bool) {
	b := make([]byte, 0, len(tok))
	for _, r := range tok {
		c, ok := m[r]
		if !ok {
			return tok, false
		}
		b = append(b, c)
	}
	return string(b), true
}

// ByteToken returns how tokenizer.json writes a token of the given bytes.
func ByteToken(text string) string {
	var to [256]rune
	for r, b := range alphabet() {
		to[b] = r
	}
	out := make([]rune, len(text))
	for i := range len(text) {
		out[i] = to[text[i]]
	}
	return string(out)
}
