package audit

import (
	"bytes"
	"compress/gzip"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// output is what a command prints, where its input says it: the commands that
// text is hidden and unfolded with.
func (m *machine) output(args []string, in stream) stream {
	rest := args[1:]
	flag := func(names ...string) bool {
		return slices.ContainsFunc(rest, func(a string) bool { return contains(names, a) })
	}
	switch path.Base(args[0]) {
	case "true", ":", "cd", "export", "chmod", "mkdir", "touch", "shopt", "unset", "unalias", "umask":
		return known("")
	case "echo":
		return echo(rest)
	case "printf":
		return m.printf(rest)
	case "cat", "tac", "head", "tail", "tee", "sort", "uniq":
		return m.cat(rest, in)
	case "base64", "gbase64":
		return decoded(m.cat(rest, in), flag("-d", "-D", "--decode", "-di"), base64.StdEncoding.EncodeToString, func(s string) ([]byte, error) {
			return base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
		})
	case "base32":
		return decoded(m.cat(rest, in), flag("-d", "--decode"), base32.StdEncoding.EncodeToString, base32.StdEncoding.DecodeString)
	case "openssl":
		if flag("base64", "-base64", "-a") {
			return decoded(m.cat(operands(rest[1:], "-in"), in), flag("-d"), base64.StdEncoding.EncodeToString, base64.StdEncoding.DecodeString)
		}
	case "xxd":
		return decoded(m.cat(operands(rest, "-c", "-l", "-s"), in), flag("-r", "-rp", "-r -p"), hex.EncodeToString, hex.DecodeString)
	case "rev":
		s := m.cat(rest, in)
		lines := strings.Split(s.text, "\n")
		for i, l := range lines {
			lines[i] = reversed(l)
		}
		return stream{strings.Join(lines, "\n"), s.known}
	case "tr":
		return translate(rest, in)
	case "sed":
		if o := operands(rest); len(o) > 1 {
			in = m.cat(o[1:], in)
		}
		return sed(rest, in)
	case "cut":
		return cut(rest, in)
	case "awk", "gawk", "mawk":
		if g := awkPrint.FindStringSubmatch(strings.Join(rest, " ")); g != nil {
			return known(escapes(g[1]) + "\n")
		}
	case "gunzip", "zcat", "gzip":
		if path.Base(args[0]) != "gzip" || flag("-d", "-dc", "-cd", "--decompress") {
			return unzipped(m.cat(rest, in))
		}
	case "seq":
		return seq(operands(rest))
	case "basename":
		if o := operands(rest); len(o) > 0 {
			return known(path.Base(o[0]) + "\n")
		}
	case "dirname":
		if o := operands(rest); len(o) > 0 {
			return known(path.Dir(o[0]) + "\n")
		}
	case "pwd":
		return known(".\n")
	}
	return stream{}
}

func echo(args []string) stream {
	newline, read := "\n", false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.Trim(args[0][1:], "neE") == "" {
		if strings.Contains(args[0], "n") {
			newline = ""
		}
		read = read || strings.Contains(args[0], "e")
		args = args[1:]
	}
	s := strings.Join(args, " ")
	if read || strings.Contains(s, `\x`) { // sh's echo reads escapes unasked
		s = escapes(s)
	}
	return known(s + newline)
}

func (m *machine) printf(args []string) stream {
	to := ""
	if len(args) > 1 && args[0] == "-v" {
		to, args = args[1], args[2:]
	}
	if len(args) == 0 {
		return known("")
	}
	format, values := escapes(args[0]), args[1:]
	var b strings.Builder
	for {
		used := false
		for i := 0; i < len(format); i++ {
			if format[i] != '%' || i+1 == len(format) {
				b.WriteByte(format[i])
				continue
			}
			i++
			for i+1 < len(format) && strings.IndexByte("0123456789.-+ #", format[i]) >= 0 {
				i++
			}
			if format[i] == '%' {
				b.WriteByte('%')
				continue
			}
			v := ""
			if len(values) > 0 {
				v, values, used = values[0], values[1:], true
			}
			if format[i] == 'b' {
				v = escapes(v)
			}
			b.WriteString(v)
		}
		if len(values) == 0 || !used || b.Len() > maxText {
			break
		}
	}
	if to != "" {
		m.vars[to] = []string{b.String()}
		return known("")
	}
	return known(b.String())
}

// cat is the text of the files that are named, or the input.
func (m *machine) cat(args []string, in stream) stream {
	files := operands(args, "-n", "-c", "-w", "--lines", "--bytes", "-k")
	if len(files) == 0 || len(files) == 1 && files[0] == "-" {
		return in
	}
	out := known("")
	for _, f := range files {
		text, ok := m.content(f)
		out = stream{out.text + text, out.known && ok}
	}
	return out
}

func decoded(in stream, decode bool, enc func([]byte) string, dec func(string) ([]byte, error)) stream {
	if !in.known {
		return stream{}
	}
	if !decode {
		return known(enc([]byte(in.text)) + "\n")
	}
	b, err := dec(strings.Join(strings.Fields(in.text), ""))
	return stream{string(b), err == nil}
}

func unzipped(in stream) stream {
	r, err := gzip.NewReader(strings.NewReader(in.text))
	if !in.known || err != nil {
		return stream{}
	}
	b, err := io.ReadAll(io.LimitReader(r, maxText))
	return stream{string(b), err == nil}
}

func reversed(s string) string {
	r := []rune(s)
	slices.Reverse(r)
	return string(r)
}

// translate is tr with plain sets and ranges.
func translate(args []string, in stream) stream {
	o := operands(args)
	if !in.known || len(o) == 0 {
		return stream{}
	}
	from := set(o[0])
	if strings.HasPrefix(args[0], "-d") {
		return known(strings.Map(func(r rune) rune {
			if slices.Contains(from, r) {
				return -1
			}
			return r
		}, in.text))
	}
	if len(o) < 2 || strings.HasPrefix(args[0], "-") && len(args[0]) > 1 {
		return stream{}
	}
	to := set(o[1])
	if len(to) == 0 {
		return stream{}
	}
	return known(strings.Map(func(r rune) rune {
		if i := slices.Index(from, r); i >= 0 {
			return to[min(i, len(to)-1)]
		}
		return r
	}, in.text))
}

// set is a set of tr: characters and ranges.
func set(s string) []rune {
	r := []rune(escapes(s))
	var out []rune
	for i := 0; i < len(r); i++ {
		if i+2 < len(r) && r[i+1] == '-' && r[i] <= r[i+2] && r[i+2]-r[i] < 256 {
			for c := r[i]; c <= r[i+2]; c++ {
				out = append(out, c)
			}
			i += 2
			continue
		}
		out = append(out, r[i])
	}
	return out
}

// sed is sed with one substitution of plain text.
func sed(args []string, in stream) stream {
	o := operands(args)
	if !in.known || len(o) == 0 || len(o[0]) < 4 || o[0][0] != 's' {
		return stream{}
	}
	parts := strings.Split(o[0][2:], o[0][1:2])
	if len(parts) != 3 || strings.ContainsAny(parts[0], `.*[]^$\+`) || strings.ContainsAny(parts[1], `&\`) {
		return stream{}
	}
	n := 1
	if strings.Contains(parts[2], "g") {
		n = -1
	}
	lines := strings.Split(in.text, "\n")
	for i, l := range lines {
		lines[i] = strings.Replace(l, parts[0], parts[1], n)
	}
	return known(strings.Join(lines, "\n"))
}

// awkPrint is an awk program that prints one text.
var awkPrint = regexp.MustCompile(`^BEGIN *\{ *print *"((?:[^"\\]|\\.)*)"`)

// cut is cut -c with one range.
func cut(args []string, in stream) stream {
	g := cutRange.FindStringSubmatch(strings.Join(args, " "))
	if !in.known || g == nil {
		return stream{}
	}
	lines := strings.Split(in.text, "\n")
	for i, l := range lines {
		from, _ := strconv.Atoi(g[1])
		to, err := strconv.Atoi(g[2])
		if err != nil {
			to = len(l)
		}
		from, to = max(from-1, 0), min(to, len(l))
		if from > to {
			from = to
		}
		lines[i] = l[from:to]
	}
	return known(strings.Join(lines, "\n"))
}

// cutRange is -c2-, -c 1-5, --characters=3-.
var cutRange = regexp.MustCompile(`^(?:-[bc] ?|--(?:bytes|characters)[= ])(\d*)-(\d*)$`)

func seq(o []string) stream {
	from, by, to := 1, 1, 0
	var err error
	switch len(o) {
	case 1:
		to, err = strconv.Atoi(o[0])
	case 2:
		from, err = strconv.Atoi(o[0])
		if err == nil {
			to, err = strconv.Atoi(o[1])
		}
	default:
		return stream{}
	}
	if err != nil || to-from > 1<<16 {
		return stream{}
	}
	var b bytes.Buffer
	for i := from; i <= to; i += by {
		b.WriteString(strconv.Itoa(i) + "\n")
	}
	return known(b.String())
}
