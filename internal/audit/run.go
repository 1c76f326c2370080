package audit

import (
	"path"
	"slices"
	"strings"
)

// wrapper follows commands that run other commands or texts. done: it was one,
// and nothing is left to look at.
func (m *machine) wrapper(args []string, in stream) (out stream, done bool) {
	name := path.Base(args[0])
	rest := args[1:]
	switch name {
	case "sudo", "doas", "nohup", "time", "nice", "command", "exec", "setsid", "stdbuf", "busybox", "ionice", "builtin", "unbuffer", "chronic", "caffeinate", "\\",
		"env", "timeout", "gtimeout":
		return m.prefix(name, rest, in), true
	case "watch":
		if rest = withoutFlags(rest, "-n", "--interval"); len(rest) > 0 {
			m.layer("watch", strings.Join(rest, " "), in)
		}
		return stream{}, true
	case "eval":
		return m.layer("eval", strings.Join(rest, " "), in), true
	case "set":
		if i := slices.Index(rest, "--"); i >= 0 {
			m.args = rest[i+1:]
		}
		return known(""), true
	case "trap":
		if len(rest) > 1 {
			m.layer("trap", rest[0], in)
		}
		return known(""), true
	case "su", "runuser", "script", "flock", "unshare", "chroot", "tmux", "screen", "vim", "vi", "nvim", "ex":
		return m.carrier(name, rest, in)
	case "make", "gmake":
		m.makes(rest, in)
		return stream{}, true
	case "alias":
		for _, a := range rest {
			if k, v, ok := strings.Cut(a, "="); ok {
				m.vars["alias "+k] = []string{v}
			}
		}
		return known(""), true
	case "xargs", "parallel":
		return m.xargs(rest, in), true
	case ".", "source":
		if len(rest) > 0 {
			m.reads(rest[0], false)
			if text, ok := m.content(rest[0]); ok {
				return m.layer(path.Base(rest[0]), text, in), true
			}
		}
		return stream{}, true
	case "sh", "bash", "zsh", "dash", "ksh", "ash":
		return m.interpreter(name, rest, in, m.isolated), true
	}
	if l := language(name); l != "" {
		return m.interpreter(name, rest, in, func(where, text string, _ []string, in stream) stream { return m.program(l, where, text, in) }), true
	}
	if strings.Contains(args[0], "/") { // a script by its path
		if text, ok := m.content(args[0]); ok {
			if l := shebang(text); l != "" {
				return m.program(l, path.Base(args[0]), text, in), true
			}
			return m.isolated(path.Base(args[0]), text, rest, in), true
		}
	}
	return stream{}, false
}

// prefix follows the command that stands behind one that only changes how it runs.
func (m *machine) prefix(name string, rest []string, in stream) stream {
	switch name {
	case "env":
		rest = withoutFlags(rest, "-u", "-C", "-S")
		for len(rest) > 0 && strings.Contains(rest[0], "=") {
			rest = rest[1:]
		}
	case "timeout", "gtimeout":
		if rest = withoutFlags(rest, "-s", "-k", "--signal", "--kill-after"); len(rest) < 2 {
			return stream{}
		}
		old := m.cap
		defer func() { m.cap = old }()
		if n, ok := number(rest[0]); ok && (old == 0 || n < old) {
			m.cap = n
		}
		rest = rest[1:]
	default:
		if rest = withoutFlags(rest, "-n", "-u", "-c", "-g", "-o", "-i", "-e"); len(rest) == 0 {
			return known("")
		}
	}
	return m.run(rest, in)
}

// layer follows a text in the same variables.
func (m *machine) layer(where, text string, in stream) (out stream) {
	m.from(where, func() { out = m.script(text, in) })
	return out
}

// isolated follows a script that has variables of its own; exported or not, those
// around it are visible, since what is hidden must not get through.
func (m *machine) isolated(where, text string, args []string, in stream) (out stream) {
	m.from(where, func() {
		vars, funcs, old, cwd := m.vars, m.funcs, m.args, m.cwd
		m.vars, m.funcs, m.args = copied(vars), copied(funcs), args
		out = m.script(text, in)
		m.vars, m.funcs, m.args, m.cwd = vars, funcs, old, cwd
	})
	return out
}

// carrier follows commands that carry another one: in a flag, or behind their own.
func (m *machine) carrier(name string, rest []string, in stream) (stream, bool) {
	found := false
	for i, a := range rest {
		text := ""
		switch {
		case (a == "-c" || a == "--command") && i+1 < len(rest):
			text = rest[i+1]
		case strings.HasPrefix(a, "+"):
			text = a[1:]
		}
		if strings.HasPrefix(name, "v") || name == "nvim" || name == "ex" { // :!command
			_, text, _ = strings.Cut(text, "!")
		}
		if text != "" {
			found = true
			m.layer(name, text, in)
		}
	}
	if !found && (name == "unshare" || name == "chroot" || name == "flock" || name == "tmux" || name == "screen") {
		if o := operands(rest, "-s", "-t", "-n"); len(o) > 1 {
			m.run(o[1:], in)
		}
	}
	return stream{}, found
}

// makes follows the recipes of a makefile that the rollout wrote.
func (m *machine) makes(rest []string, in stream) {
	name := "Makefile"
	for i, a := range rest {
		if (a == "-f" || a == "--file") && i+1 < len(rest) {
			name = rest[i+1]
		}
	}
	text, ok := m.content(name)
	if !ok {
		return
	}
	for line := range strings.Lines(text) {
		if recipe, ok := strings.CutPrefix(line, "\t"); ok {
			m.isolated(name, strings.ReplaceAll(strings.TrimLeft(recipe, "@-"), "$$", "$"), nil, in)
		}
	}
}

type follow func(where, text string, args []string, in stream) stream

// interpreter finds what an interpreter runs: the text of -c or -e, a file that
// was written before, or its standard input.
func (m *machine) interpreter(name string, args []string, in stream, run follow) stream {
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "-" || a == "-s" || a == "/dev/stdin" {
			break
		}
		if a == "-m" && i+1 < len(args) { // python -m pip
			if text, ok := m.content(strings.ReplaceAll(args[i+1], ".", "/") + ".py"); ok {
				return run("-m "+args[i+1], text, args[i+2:], in)
			}
			m.inspect(append([]string{path.Base(args[i+1])}, args[i+2:]...), in)
			return stream{}
		}
		code := strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.HasSuffix(a, "c") && language(name) != "node" ||
			a == "-e" || a == "-E" || a == "-p" && language(name) == "node" || a == "--eval" || a == "-r" && name == "php" ||
			strings.HasPrefix(name, "perl") && strings.HasPrefix(a, "-") && strings.HasSuffix(a, "e") // perl -pi -e, -ne
		if code && i+1 < len(args) {
			var rest []string
			if len(args) > i+2 {
				m.vars["0"] = args[i+2 : i+3]
				rest = args[i+3:]
			}
			if strings.HasPrefix(name, "perl") {
				m.perlInPlace(args[:i+1], args[i+2:], args[i+1])
			}
			return run(name+" "+a, args[i+1], rest, in)
		}
		if strings.HasPrefix(a, "-") {
			if a == "-o" || a == "-O" || a == "-W" || a == "-X" {
				i++
			}
			continue
		}
		if text, ok := m.content(a); ok {
			return run(path.Base(a), text, args[i+1:], in)
		}
		m.reads(a, false)
		if a == "setup.py" && contains(args, "install") {
			m.find(PackageInstall, 0.3, strings.Join(args, " "))
		}
		return stream{}
	}
	if in.known && strings.TrimSpace(in.text) != "" {
		return run(name+" <", in.text, nil, stream{})
	}
	return stream{}
}

// perlInPlace reports the files that perl -i changes.
func (m *machine) perlInPlace(flags, files []string, code string) {
	for _, f := range flags {
		if strings.HasPrefix(f, "-") && strings.Contains(f, "i") {
			for _, p := range files {
				m.writes(p, changed, code)
			}
			return
		}
	}
}

// xargs follows the command with what is known of its input as arguments.
func (m *machine) xargs(args []string, in stream) stream {
	replace := ""
	for i, a := range args {
		if a == "-I" && i+1 < len(args) {
			replace = args[i+1]
		} else if strings.HasPrefix(a, "-I") && len(a) > 2 {
			replace = a[2:]
		}
	}
	args = withoutFlags(args, "-I", "-n", "-P", "-d", "-a", "-L", "-s", "-j")
	if len(args) == 0 {
		args = []string{"echo"}
	}
	items := []string{"$…"}
	if in.known {
		items = strings.Fields(in.text)
	}
	if replace == "" {
		return m.run(append(append([]string{}, args...), items...), stream{})
	}
	for i, item := range items {
		if i == maxItems {
			break
		}
		x := make([]string, len(args))
		for j, a := range args {
			x[j] = strings.ReplaceAll(a, replace, item)
		}
		m.run(x, stream{})
	}
	return stream{}
}

// withoutFlags drops flags at the front; those that are named take a value.
func withoutFlags(args []string, valued ...string) []string {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-" {
		if args[0] == "--" {
			return args[1:]
		}
		n := 1
		if contains(valued, args[0]) {
			n = 2
		}
		args = args[min(n, len(args)):]
	}
	return args
}

// operands are the arguments that are no flags; those that are named take a value.
func operands(args []string, valued ...string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--":
			return append(out, args[i+1:]...)
		case contains(valued, a):
			i++
		case strings.HasPrefix(a, "-") && len(a) > 1:
		default:
			out = append(out, a)
		}
	}
	return out
}

// language says which language an interpreter speaks; "": none that is read.
func language(name string) string {
	for _, l := range []string{"python", "pypy", "node", "perl", "ruby", "php", "deno", "bun"} {
		if rest, ok := strings.CutPrefix(name, l); ok && strings.Trim(rest, "0123456789.") == "" {
			switch l {
			case "pypy":
				return "python"
			case "deno", "bun":
				return ""
			}
			return l
		}
	}
	if name == "nodejs" {
		return "node"
	}
	return ""
}

// shebang says which language a script's first line names; "" for a shell.
func shebang(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(line, "#!") {
		return ""
	}
	words := strings.Fields(line[2:])
	if len(words) > 1 && path.Base(words[0]) == "env" {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	return language(path.Base(words[0]))
}
