package sse

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parse(t testing.TB, chunks ...string) []Event {
	t.Helper()
	var p Parser
	var out []Event
	for _, c := range chunks {
		if err := p.Feed([]byte(c), func(e Event) error {
			out = append(out, e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestParser(t *testing.T) {
	for is, c := range map[string]struct {
		in   string
		want []Event
	}{
		"one event":                       {"data: a\n\n", []Event{{Data: []byte("a")}}},
		"no space":                        {"data:a\n\n", []Event{{Data: []byte("a")}}},
		"one space only is taken":         {"data:  a\n\n", []Event{{Data: []byte(" a")}}},
		"CRLF":                            {"event: x\r\ndata: a\r\n\r\n", []Event{{"x", []byte("a")}}},
		"CR":                              {"data: a\r\rdata: b\r\r", []Event{{Data: []byte("a")}, {Data: []byte("b")}}},
		"several lines":                   {"data: a\ndata: b\ndata\n\n", []Event{{Data: []byte("a\nb\n")}}},
		"comments and other fields":       {": ping\nid: 1\nretry: 5\nfoo\ndata: a\n\n: x\n\n", []Event{{Data: []byte("a")}}},
		"a name without data is no event": {"event: x\n\ndata: a\n\n", []Event{{Data: []byte("a")}}},
		"a byte order mark":               {"\xef\xbb\xbfdata: a\n\n", []Event{{Data: []byte("a")}}},
		"an end without its empty line":   {"data: a\n\ndata: b\n", []Event{{Data: []byte("a")}}},
		"GW-07 multi-byte characters":     {"data: {\"x\":\"北京😀\"}\n\n", []Event{{Data: []byte(`{"x":"北京😀"}`)}}},
	} {
		t.Run(is, func(t *testing.T) {
			if diff := cmp.Diff(c.want, parse(t, c.in)); diff != "" {
				t.Errorf("whole:\n%s", diff)
			}
			if diff := cmp.Diff(c.want, parse(t, strings.Split(c.in, "")...)); diff != "" {
				t.Errorf("by character:\n%s", diff)
			}
			bytewise := make([]string, len(c.in))
			for i := range len(c.in) {
				bytewise[i] = c.in[i : i+1]
			}
			if diff := cmp.Diff(c.want, parse(t, bytewise...)); diff != "" {
				t.Errorf("by byte:\n%s", diff)
			}
		})
	}
}

func TestParserHasALimit(t *testing.T) {
	p := Parser{Limit: 10}
	if err := p.Feed([]byte("data: 0123456789"), nil); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long line: %v", err)
	}
	p = Parser{Limit: 20}
	if err := p.Feed([]byte(strings.Repeat("data: 0\n", 5)), nil); !errors.Is(err, ErrTooLong) {
		t.Errorf("many lines: %v", err)
	}
}

func TestEmitEndsTheFeed(t *testing.T) {
	stop := errors.New("stop")
	var p Parser
	if err := p.Feed([]byte("data: a\n\ndata: b\n\n"), func(Event) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// What is written is read back, whatever way it is cut; and no input breaks the
// parser or reads otherwise in pieces than whole.
func FuzzSSE(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\n"), "x", uint8(1))
	f.Add([]byte("event: e\ndata: 北\n\n: c\rdata\r\r"), "a\nb", uint8(3))
	f.Fuzz(func(t *testing.T, raw []byte, data string, step uint8) {
		n := int(step)%7 + 1
		read := func(in []byte, step int) []Event {
			var p Parser
			var out []Event
			for len(in) > 0 {
				k := min(step, len(in))
				if err := p.Feed(in[:k], func(e Event) error {
					out = append(out, e)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				in = in[k:]
			}
			return out
		}
		if diff := cmp.Diff(read(raw, len(raw)+1), read(raw, n)); diff != "" {
			t.Errorf("in pieces of %d (-whole +pieces):\n%s", n, diff)
		}
		got := read(Append(nil, "name", []byte(data)), n)
		want := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(data)
		if len(got) != 1 || got[0].Name != "name" || !bytes.Equal(got[0].Data, []byte(want)) {
			t.Errorf("wrote %q, read %q", data, got)
		}
	})
}
