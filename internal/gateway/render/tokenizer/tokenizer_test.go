package tokenizer

import (
	"compress/gzip"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur/internal/goldentest"
)

func smolBytes(t testing.TB) []byte {
	t.Helper()
	f, err := os.Open(goldentest.Path(t, "render", "smollm2-tokenizer.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func smol(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Parse(smolBytes(t))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

type goldenSmol struct {
	Encode []struct {
		ID, Text    string
		IDs         []int32
		PlainIDs    []int32 `json:"plain_ids"`
		Decoded     *string
		DecodedSkip *string `json:"decoded_skip"`
	}
	Decode []struct {
		ID       string
		IDs      []int32
		Text     string
		TextSkip *string `json:"text_skip"`
		Stream   []string
	}
	Chat []struct {
		ID       string
		Rendered string
		IDs      []int32
	}
}

func TestGoldenSmolLM2Tokens(t *testing.T) {
	var g goldenSmol
	goldentest.Load(t, &g, "render", "smollm2.json")
	if len(g.Encode) == 0 || len(g.Decode) == 0 {
		t.Fatal("no cases")
	}
	tok := smol(t)
	for _, c := range g.Encode {
		t.Run("encode/"+c.ID, func(t *testing.T) {
			ids := tok.Encode(nil, c.Text)
			if !slices.Equal(ids, c.IDs) {
				t.Errorf("ids\n got %v\nwant %v", ids, c.IDs)
			}
			if again := tok.Encode(nil, c.Text); !slices.Equal(again, ids) {
				t.Errorf("from the cache %v, at first %v", again, ids)
			}
			plain := c.PlainIDs
			if plain == nil {
				plain = c.IDs
			}
			if got := tok.EncodePlain(nil, c.Text); !slices.Equal(got, plain) {
				t.Errorf("plain ids\n got %v\nwant %v", got, plain)
			}
			decoded := c.Text
			if c.Decoded != nil {
				decoded = *c.Decoded
			}
			if got := tok.Decode(c.IDs); got != decoded {
				t.Errorf("decoded %q, want %q", got, decoded)
			}
			if c.DecodedSkip != nil && tok.DecodeText(c.IDs) != *c.DecodedSkip {
				t.Errorf("decoded without specials %q, want %q", tok.DecodeText(c.IDs), *c.DecodedSkip)
			}
		})
	}
	for _, c := range g.Decode {
		t.Run("decode/"+c.ID, func(t *testing.T) {
			if got := tok.Decode(c.IDs); got != c.Text {
				t.Errorf("text %q, want %q", got, c.Text)
			}
			if c.TextSkip != nil && tok.DecodeText(c.IDs) != *c.TextSkip {
				t.Errorf("text without specials %q, want %q", tok.DecodeText(c.IDs), *c.TextSkip)
			}
			s := tok.NewStream()
			all := ""
			for i, id := range c.IDs {
				got := s.Feed(id)
				all += got
				if c.Stream != nil && got != c.Stream[i] {
					t.Errorf("stream of id %d: %q, want %q", i, got, c.Stream[i])
				}
			}
			if all += s.Flush(); all != c.Text {
				t.Errorf("whole stream %q, want %q", all, c.Text)
			}
		})
	}
	chats := 0
	for _, c := range g.Chat {
		if c.IDs == nil {
			continue
		}
		chats++
		if got := tok.Encode(nil, c.Rendered); !slices.Equal(got, c.IDs) {
			t.Errorf("chat %s: %v, want %v", c.ID, got, c.IDs)
		}
	}
	t.Logf("smollm2.json: %d encode, %d decode, %d chat texts", len(g.Encode), len(g.Decode), chats)
}

func TestLongWordsMergeAsShortOnes(t *testing.T) {
	tok := smol(t)
	for _, w := range []string{"a", "ab", "abc", "the", "internationalization", "Ġ", "é", "日本"} {
		long := strings.Repeat(w, 1+shortWord/len(w)/2)
		ids := make([]int32, 0, len(long))
		for i := range len(long) {
			ids = tok.appendByte(ids, long[i])
		}
		if len(ids) > shortWord {
			t.Fatalf("%d symbols are too many for this test", len(ids))
		}
		viaHeap := ids[:tok.mergeLong(ids)]
		if short := tok.merge(nil, long); !slices.Equal(short, viaHeap) {
			t.Errorf("%q: %v by the list, %v by the heap", long, short, viaHeap)
		}
	}
}

func TestDataNeverBecomesAControlToken(t *testing.T) {
	tok := smol(t)
	text := "<|im_start|>user\n<|im_end|><|im_end|>"
	end, _ := tok.ID("<|im_end|>")
	from := strings.Index(text, "\n") + 1
	for name, data := range map[string][]Span{
		"the data is a token":              {{from, from + 10}},
		"the data is a token's beginning":  {{from, from + 3}},
		"the data is a token's end":        {{from + 5, from + 10}},
		"the data is a token's middle":     {{from + 3, from + 4}},
		"two pieces of data make the word": {{from, from + 5}, {from + 5, from + 10}},
	} {
		ids := tok.EncodeSpans(nil, text, data)
		if n := count(ids, end); n != 1 {
			t.Errorf("%s: %d end tokens in %v, want the template's own", name, n, ids)
		}
		if got := tok.Decode(ids); got != text {
			t.Errorf("%s: decoded %q", name, got)
		}
	}
}

func count(ids []int32, id int32) (n int) {
	for _, x := range ids {
		if x == id {
			n++
		}
	}
	return n
}

func TestDigitsPattern(t *testing.T) {
	s, err := NewSplitter(DigitsPattern(2))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		`{"name":"calc","arguments":{"expression":"12*345"}}`: {`{"`, "name", `":"`, "calc", `","`, "arguments", `":{"`, "expression", `":"`, "12", "*", "34", "5", `"}}`},
		"Mia has 12 pens.\nThen":                              {"Mia", " has", " ", "12", " pens", ".\n", "Then"},
		"it's IT'S x  y \n\n z":                               {"it", "'s", " IT", "'S", " x", " ", " y", " \n\n", " z"},
		"a\u00a0b, (c)!\r\n":                                  {"a", "\u00a0b", ",", " (", "c", ")!\r\n"},
	} {
		var got []string
		s.Words(text, func(w string) { got = append(got, w) })
		if !slices.Equal(got, want) {
			t.Errorf("%q\n got %q\nwant %q", text, got, want)
		}
	}
	if _, err := NewSplitter(`\w+`); err == nil {
		t.Error("an unknown pattern was taken")
	}
}

func TestBrokenFilesAreNamed(t *testing.T) {
	for want, file := range map[string]string{
		"not what it should be":  `{"model": 3}`,
		`model type "Unigram"`:   `{"model":{"type":"Unigram","vocab":{"a":0}}}`,
		"missing or empty":       `{"model":{"type":"BPE","vocab":{}}}`,
		"byte_fallback":          `{"model":{"type":"BPE","vocab":{"a":0},"byte_fallback":true}}`,
		"has id -1":              `{"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":-1}}}`,
		"has id 2000001":         `{"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":2000001}}}`,
		"two tokens have the id": `{"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":1,"b":1}}}`,
		"has a token that":       `{"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}`,
		"is not two tokens":      `{"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["ab"]}}`,
		"normalizer":             `{"normalizer":{"type":"NFKC"},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0}}}`,
		"decoder":                `{"decoder":{"type":"Metaspace"},"model":{"type":"BPE","vocab":{"a":0}}}`,
		"is not known":           `{"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"x+"}},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0}}}`,
		"add_prefix_space":       `{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0}}}`,
	} {
		if _, err := Parse([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", file, err, want)
		}
	}
}

func TestCheckNamesTheFirstBadID(t *testing.T) {
	tok := smol(t)
	if err := tok.Check([]int32{0, 49151}); err != nil {
		t.Error(err)
	}
	for _, ids := range [][]int32{{0, -1}, {49152}} {
		if err := tok.Check(ids); err == nil {
			t.Errorf("%v passed", ids)
		}
	}
}

// FuzzParse: a file is refused with an error, or it makes a tokenizer that
// encodes and decodes without a panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"added_tokens":[{"id":2,"content":"<e>","special":true}],"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"ByteLevel","add_prefix_space":false}]},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":3},"merges":[["a","b"]]}}`), "abab <e> 12")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		tok, err := Parse(file)
		if err != nil {
			return
		}
		ids := tok.Encode(nil, text)
		if err := tok.Check(ids); err != nil {
			t.Fatal(err)
		}
		whole, s := tok.Decode(ids), tok.NewStream()
		var b strings.Builder
		for _, id := range ids {
			b.WriteString(s.Feed(id))
		}
		b.WriteString(s.Flush())
		if b.String() != whole {
			t.Fatalf("streamed %q, whole %q", b.String(), whole)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	tok := smol(b)
	text := strings.Repeat("Mia has 12 pens. Tom gives 7 pens to Mia. How many pens?\n", 20)
	n := len(tok.Encode(nil, text))
	var ids []int32
	b.ReportAllocs()
	for b.Loop() {
		ids = tok.Encode(ids[:0], text)
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtok/s")
}

func BenchmarkParse(b *testing.B) {
	file := smolBytes(b)
	for b.Loop() {
		if _, err := Parse(file); err != nil {
			b.Fatal(err)
		}
	}
}

// A file with the normalizer NFC (Qwen's): text is composed before it is split,
// added tokens are found before that, and bytes that are no UTF-8 stay.
func TestNFC(t *testing.T) {
	file := string(smolBytes(t))
	if !strings.Contains(file, `"normalizer":null`) {
		t.Fatal("the file has a normalizer of its own")
	}
	plain := smol(t)
	for _, normalizer := range []string{`{"type":"NFC"}`, `{"type":"Sequence","normalizers":[{"type":"NFC"}]}`} {
		tok, err := Parse([]byte(strings.Replace(file, `"normalizer":null`, `"normalizer":`+normalizer, 1)))
		if err != nil {
			t.Fatal(err)
		}
		for text, composed := range map[string]string{
			"cafe\u0301 nai\u0308ve":                       "caf\u00e9 na\u00efve",
			"\u1112\u1161\u11ab":                           "\ud55c",                             // Hangul
			"q\u0307\u0323":                                "q\u0323\u0307",                      // marks in canonical order
			"\u212b \u2126 \u212a":                         "\u00c5 \u03a9 K",                    // singletons
			"\ufb01 \u00b2":                                "\ufb01 \u00b2",                      // compatibility is no NFC
			"\u0958":                                       "\u0915\u093c",                       // excluded from composition
			"a\xffe\u0301\xc3":                             "a\xff\u00e9\xc3",                    // no UTF-8
			"<|im_start|>e\u0301<|im_end|>\u0338":          "<|im_start|>\u00e9<|im_end|>\u0338", // nothing joins a control token
			"plain ASCII, " + strings.Repeat("x", 5000):    "plain ASCII, " + strings.Repeat("x", 5000),
			strings.Repeat("e\u0301", 3000) + "<|im_end|>": strings.Repeat("\u00e9", 3000) + "<|im_end|>",
		} {
			if got, want := tok.Encode(nil, text), plain.Encode(nil, composed); !slices.Equal(got, want) {
				t.Errorf("%.40q: got %v, want %v", text, got, want)
			}
			if got, want := tok.EncodePlain(nil, text), plain.EncodePlain(nil, composed); !slices.Equal(got, want) && !strings.Contains(text, "|>\u0338") {
				t.Errorf("%.40q as plain text: got %v, want %v", text, got, want)
			}
		}
	}
	added := `{"normalizer":{"type":"NFC"},"added_tokens":[{"id":1,"content":"<e>","normalized":true}],"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0}}}`
	if _, err := Parse([]byte(added)); err == nil || !strings.Contains(err.Error(), `"<e>"`) {
		t.Errorf("an added token that is found in normalized text: %v", err)
	}
}
