package audit

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
)

// folder computes the texts of a program: what variables hold, concatenations,
// encodings. It reads expressions where it can and leaves the rest.
type folder struct {
	lang   string
	t      []token
	vars   map[string]string
	lists  map[string][]string
	budget int
}

// fold replaces every expression of the tokens that comes to a text by the text.
func fold(lang string, t []token) (out []token, vars map[string]string, lists map[string][]string) {
	f := &folder{lang: lang, t: t, vars: map[string]string{}, lists: map[string][]string{}, budget: maxSteps}
	for i := 0; i < len(t); {
		f.assign(i)
		if s, n, ok := f.expr(i); ok && f.foldable(i) {
			out = append(out, token{kind: 's', text: s, code: t[i].code})
			i += n
			continue
		}
		out = append(out, t[i])
		i++
	}
	return out, f.vars, f.lists
}

// foldable says whether an expression may begin here: names do so only where
// they are used, not where they are set, and the parentheses of a call stay.
func (f *folder) foldable(i int) bool {
	if f.is(i, "(") && (i > 0 && f.t[i-1].kind == 'n' || f.is(i-1, ")") || f.is(i-1, "]")) {
		return false
	}
	return f.t[i].kind != 'n' || !f.is(i+1, "=") || f.is(i+2, "=")
}

func (f *folder) is(i int, sign string) bool {
	return i >= 0 && i < len(f.t) && f.t[i].kind == 'o' && f.t[i].text == sign
}

// assign notes name = text and name = [texts].
func (f *folder) assign(i int) {
	if f.t[i].kind != 'n' {
		return
	}
	if name, ok := strings.CutSuffix(f.t[i].text, ".append"); ok && f.is(i+1, "(") {
		if s, _, ok := f.expr(i + 2); ok && len(f.lists[name]) < maxItems {
			f.lists[name] = append(f.lists[name], s)
		}
		return
	}
	add := f.is(i+1, "+") && f.is(i+2, "=")
	at := i + 2
	if add {
		at++
	} else if !f.is(i+1, "=") || f.is(i+2, "=") {
		return
	}
	if list, _, ok := f.list(at); ok {
		f.lists[f.t[i].text] = list
		return
	}
	s, _, ok := f.expr(at)
	if !ok {
		if at < len(f.t) && f.t[at].kind == '0' {
			f.vars["0"+f.t[i].text] = f.t[at].text // numbers, for sleep(n)
		}
		delete(f.vars, f.t[i].text)
		return
	}
	if add {
		s = f.vars[f.t[i].text] + s
	}
	if len(s) < maxText {
		f.vars[f.t[i].text] = s
	}
}

// list reads [a, b, …] of texts.
func (f *folder) list(i int) (items []string, n int, ok bool) {
	if i < len(f.t) && f.t[i].kind == 'n' {
		if l, ok := f.lists[f.t[i].text]; ok {
			return l, 1, true
		}
	}
	if !f.is(i, "[") && !f.is(i, "(") {
		return nil, 0, false
	}
	for j := i + 1; j < len(f.t); {
		if f.is(j, "]") || f.is(j, ")") {
			return items, j + 1 - i, true
		}
		if f.is(j, ",") || f.is(j, "\n") {
			j++
			continue
		}
		s, k, ok := f.expr(j)
		if !ok {
			if f.t[j].kind != '0' {
				return nil, 0, false
			}
			s, k = f.t[j].text, 1
		}
		items = append(items, s)
		j += k
	}
	return nil, 0, false
}

// expr reads an expression that comes to a text: its value and how many tokens it has.
func (f *folder) expr(i int) (string, int, bool) {
	if f.budget--; f.budget < 0 {
		return "", 0, false
	}
	s, n, ok := f.primary(i)
	if !ok {
		return "", 0, false
	}
	for {
		at := i + n
		switch {
		case f.is(at, "+") && !f.is(at+1, "=") || f.is(at, ".") && (f.lang == "perl" || f.lang == "php"):
			r, k, ok := f.primary(at + 1)
			if !ok || len(s)+len(r) > maxText {
				return s, n, true
			}
			s, n = s+r, n+1+k
		case f.is(at, "/") && f.lang == "python": // pathlib: Path("a") / "b"
			r, k, ok := f.primary(at + 1)
			if !ok {
				return s, n, true
			}
			s, n = s+"/"+r, n+1+k
		case at < len(f.t) && f.t[at].kind == 's' && f.t[at-1].kind == 's': // "a" "b"
			s, n = s+f.interpolated(f.t[at]), n+1
		case f.is(at, "*") && at+1 < len(f.t) && f.t[at+1].kind == '0':
			if k, err := strconv.Atoi(f.t[at+1].text); err == nil && k*len(s) < maxText {
				s = strings.Repeat(s, k)
			}
			n += 2
		case f.is(at, "%") && f.lang == "python":
			list, k, ok := f.list(at + 1)
			if one, k1, ok1 := f.expr(at + 1); !ok && ok1 {
				list, k, ok = []string{one}, k1, true
			}
			if !ok {
				return s, n, true
			}
			for _, x := range list {
				s = strings.Replace(s, "%s", x, 1)
			}
			n += 1 + k
		default:
			return s, n, true
		}
	}
}

// primary reads a text, a variable, a call that decodes, and methods behind it.
func (f *folder) primary(i int) (s string, n int, ok bool) {
	if i >= len(f.t) {
		return "", 0, false
	}
	t := f.t[i]
	switch {
	case t.kind == 's':
		s, n, ok = f.interpolated(t), 1, true
	case f.is(i, "("):
		if s, n, ok = f.expr(i + 1); !ok || !f.is(i+1+n, ")") {
			return "", 0, false
		}
		n += 2
	case t.kind == 'n':
		if s, n, ok = f.call(i); !ok {
			name, method := t.text, ""
			if at := strings.LastIndexByte(name, '.'); at > 0 {
				name, method = name[:at], name[at:]
			}
			if s, ok = f.vars[name]; !ok {
				return "", 0, false
			}
			n = 1
			if method != "" { // x.decode()
				if s, n, ok = f.method(s, method, i+1); !ok {
					return "", 0, false
				}
				n++
			}
		}
	default:
		return "", 0, false
	}
	for ok {
		at := i + n
		if f.is(at, ".") && at+1 < len(f.t) && f.t[at+1].kind == 'n' {
			r, k, good := f.method(s, "."+f.t[at+1].text, at+2)
			if !good {
				break
			}
			s, n = r, n+2+k
			continue
		}
		if f.is(at, "[") && f.is(at+1, ":") && f.is(at+2, ":") && f.is(at+3, "-") && f.is(at+5, "]") { // [::-1]
			s, n = reversed(s), n+6
			continue
		}
		break
	}
	return s, n, ok
}

// call reads functions that make texts; i is the function's name.
func (f *folder) call(i int) (string, int, bool) {
	name := f.t[i].text
	if !f.is(i+1, "(") {
		return "", 0, false
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch last {
	case "chr", "fromCharCode":
		var b strings.Builder
		for j := i + 2; j < len(f.t); j++ {
			if f.is(j, ")") {
				return b.String(), j + 1 - i, true
			}
			if f.t[j].kind == '0' {
				v, err := strconv.ParseInt(f.t[j].text, 0, 32)
				if err != nil {
					return "", 0, false
				}
				b.WriteRune(rune(v))
			} else if !f.is(j, ",") {
				return "", 0, false
			}
		}
		return "", 0, false
	case "bytes", "bytearray":
		if list, k, ok := f.list(i + 2); ok && f.is(i+2+k, ")") {
			var b strings.Builder
			for _, x := range list {
				v, err := strconv.ParseInt(x, 0, 16)
				if err != nil {
					return "", 0, false
				}
				b.WriteByte(byte(v))
			}
			return b.String(), k + 3, true
		}
	case "b64decode", "urlsafe_b64decode", "standard_b64decode", "fromhex", "unhexlify", "decode", "atob", "decode_base64", "from", "a2b_base64", "pack", "base64_decode", "decode64", "hex2bin", "str", "String", "Path", "dedent", "join":
		return f.decode(last, name, i)
	}
	return "", 0, false
}

// decode reads a call that turns one text into another.
func (f *folder) decode(last, name string, i int) (string, int, bool) {
	if last == "join" && strings.HasSuffix(name, "path.join") {
		list, n, ok := f.list(i + 1)
		return strings.Join(list, "/"), n + 1, ok && len(list) > 0
	}
	s, k, ok := f.expr(i + 2)
	if !ok {
		return "", 0, false
	}
	how, n := "", 2+k
	for j := i + n; ; j++ { // further arguments
		if j >= len(f.t) || f.t[j].kind == 'o' && (f.t[j].text == "(" || f.t[j].text == "\n") {
			return "", 0, false
		}
		n++
		if f.is(j, ")") {
			break
		}
		if f.t[j].kind == 's' {
			how = f.t[j].text
		}
	}
	switch {
	case last == "str" || last == "String" || last == "Path" || last == "dedent":
		return s, n, true
	case last == "fromhex" || last == "unhexlify" || last == "hex2bin" || how == "hex":
		b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
		return string(b), n, err == nil
	case how == "rot13" || how == "rot_13":
		return rot13(s), n, true
	case last == "from" && how != "base64" || last == "pack" || last == "decode" && how != "" && how != "base64" || last == "join":
		return "", 0, false
	}
	s = strings.TrimRight(strings.Join(strings.Fields(s), ""), "=")
	b, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		b, err = base64.RawURLEncoding.DecodeString(s)
	}
	return string(b), n, err == nil
}

// method applies a method to a text; i is where its "(" is.
func (f *folder) method(s, name string, i int) (string, int, bool) {
	if !f.is(i, "(") {
		return "", 0, false
	}
	if f.is(i+1, ")") {
		switch name {
		case ".decode", ".encode", ".strip", ".toString", ".trim", ".chomp", ".format":
			return s, 2, true
		case ".lower", ".toLowerCase", ".downcase":
			return strings.ToLower(s), 2, true
		case ".reverse":
			return reversed(s), 2, true
		}
		return "", 0, false
	}
	switch name {
	case ".join":
		list, k, ok := f.characters(i + 1)
		if !ok {
			list, k, ok = f.list(i + 1)
		}
		if ok && f.is(i+1+k, ")") {
			return strings.Join(list, s), k + 2, true
		}
	case ".format", ".replace", ".replaceAll", ".decode", ".encode", ".toString", ".concat":
		list, n, ok := f.list(i)
		if !ok {
			return "", 0, false
		}
		switch {
		case name == ".format":
			for _, x := range list {
				s = strings.Replace(s, "{}", x, 1)
			}
		case name == ".concat":
			s += strings.Join(list, "")
		case len(list) == 2 && strings.HasPrefix(name, ".replace"):
			s = strings.ReplaceAll(s, list[0], list[1])
		}
		return s, n, true
	case ".split": // 'a b'.split() is a list, which is looked for elsewhere
	}
	return "", 0, false
}

// characters reads map(chr, [103, …]) and chr(c) for c in [103, …].
func (f *folder) characters(i int) (list []string, n int, ok bool) {
	word := func(at int, w string) bool { return at < len(f.t) && f.t[at].kind == 'n' && f.t[at].text == w }
	at, end := 0, 0
	switch {
	case word(i, "map") && f.is(i+1, "(") && word(i+2, "chr") && f.is(i+3, ","):
		at, end = i+4, 1
	case word(i, "chr") && f.is(i+1, "(") && f.is(i+3, ")") && word(i+4, "for") && word(i+6, "in"):
		at = i + 7
	default:
		return nil, 0, false
	}
	codes, k, ok := f.list(at)
	if !ok {
		return nil, 0, false
	}
	for _, c := range codes {
		v, err := strconv.ParseInt(c, 0, 32)
		if err != nil {
			return nil, 0, false
		}
		list = append(list, string(rune(v)))
	}
	return list, at - i + k + end, true
}

// interpolated fills the known variables of an f-string or template in.
func (f *folder) interpolated(t token) string {
	s := t.text
	if !t.f || !strings.ContainsAny(s, "{$#") {
		return s
	}
	for name, v := range f.vars {
		for _, form := range []string{"{" + name + "}", "${" + name + "}", "#{" + name + "}"} {
			if f.lang == "python" && form[0] != '{' || f.lang == "node" && form[0] != '$' {
				continue
			}
			s = strings.ReplaceAll(s, form, v)
		}
		if f.lang == "perl" || f.lang == "php" {
			s = strings.ReplaceAll(s, "$"+name, v)
		}
	}
	return s
}

func rot13(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return 'a' + (r-'a'+13)%26
		case r >= 'A' && r <= 'Z':
			return 'A' + (r-'A'+13)%26
		}
		return r
	}, s)
}
