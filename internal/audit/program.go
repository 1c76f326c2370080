package audit

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// program looks at a program: what it runs, fetches, reads, writes and waits for.
// What it prints is returned where that is plain.
func (m *machine) program(lang, where, src string, in stream) (out stream) {
	out = stream{}
	m.from(where, func() {
		if len(src) > maxText {
			src = src[:maxText]
		}
		raw := lex(lang, src)
		t, vars, lists := fold(lang, raw)
		p := &programme{m: m, lang: lang, t: t, vars: vars, lists: lists, defined: map[string]bool{}}
		for i := range t {
			if m.spent(1) {
				return
			}
			p.look(i)
		}
		if p.printed != "" {
			out = known(p.printed)
		}
	})
	return out
}

// programme is a program at work.
type programme struct {
	m       *machine
	lang    string
	t       []token
	vars    map[string]string
	lists   map[string][]string
	printed string
	defined map[string]bool // functions of the program's own
	open    []template      // commands with a part that isn't known
}

func (p *programme) is(i int, sign string) bool {
	return i < len(p.t) && p.t[i].kind == 'o' && p.t[i].text == sign
}

// template is a command with a part that isn't known where it is written: in a
// function of the program's own it is what the function is called with.
type template struct {
	args []string
	list bool
}

// fill runs the templates with the arguments of a call of the program's own function.
func (p *programme) fill(args []string) {
	for _, x := range p.open {
		var words []string
		for _, a := range x.args {
			if strings.HasPrefix(a, "$") {
				words = append(words, args...)
				args = nil
			} else {
				words = append(words, a)
			}
		}
		if x.list {
			p.m.from("function", func() { p.m.run(words, stream{}) })
		} else if len(words) > 0 {
			p.m.from("function", func() { p.m.shell(words[0]) })
		}
	}
}

// arguments are the texts between the parentheses at i: those of the first
// level, with lists flattened, and names as "$name".
func (p *programme) arguments(i int) []string {
	if !p.is(i, "(") {
		if p.lang == "perl" || p.lang == "ruby" || p.lang == "php" { // system "…"
			if i < len(p.t) && p.t[i].kind == 's' {
				return []string{p.t[i].text}
			}
		}
		return nil
	}
	var out []string
	depth := 0
	for j := i; j < len(p.t) && j < i+200; j++ {
		switch t := p.t[j]; {
		case t.kind == 'o' && (t.text == "(" || t.text == "[" || t.text == "{"):
			depth++
		case t.kind == 'o' && (t.text == ")" || t.text == "]" || t.text == "}"):
			if depth--; depth == 0 {
				return out
			}
		case t.kind == 's':
			out = append(out, t.text)
		case t.kind == 'n' && (depth == 1 || p.is(j+1, ",") || p.is(j+1, "]")) && !p.is(j+1, "=") && !p.is(j+1, "("):
			if list, ok := p.lists[t.text]; ok {
				out = append(out, list...)
			} else {
				out = append(out, "$"+t.text)
			}
		}
	}
	return out
}

// list says whether the first argument at i is a list: words of a command.
func (p *programme) list(i int) bool {
	if !p.is(i, "(") {
		return false
	}
	if i+1 < len(p.t) && p.t[i+1].kind == 'n' {
		if _, ok := p.lists[p.t[i+1].text]; ok {
			return true
		}
	}
	return p.is(i+1, "[")
}

// look looks at the call whose name is at i.
func (p *programme) look(i int) {
	t := p.t[i]
	if t.kind == 's' && t.code {
		p.m.shell(t.text)
		return
	}
	if t.kind != 'n' {
		return
	}
	name := t.text[strings.LastIndexByte(t.text, '.')+1:]
	if t.text == "def" && i+1 < len(p.t) {
		p.defined[p.t[i+1].text] = true
		return
	}
	if i > 0 && p.t[i-1].text == "def" {
		return
	}
	args := p.arguments(i + 1)
	if p.defined[t.text] {
		p.fill(args)
		return
	}
	first := ""
	if len(args) > 0 {
		first = args[0]
	}
	line := t.text + "(" + strings.Join(args, ", ") + ")"
	switch name {
	case "system", "popen", "run", "call", "check_output", "check_call", "Popen", "getoutput", "getstatusoutput", "execSync", "exec", "spawn", "spawnSync", "execFile", "execFileSync",
		"execv", "execvp", "execlp", "execl", "execve", "spawnlp", "shell_exec", "passthru", "qx", "create_subprocess_shell", "create_subprocess_exec", "eval", "compile", "Function":
		p.runs(i, t.text, name, args)
	case "getattr":
		p.reached(i+1, args)
	case "print", "write", "puts", "echo", "log":
		if len(args) == 1 && !strings.HasPrefix(first, "$") && (name != "write" || strings.HasSuffix(t.text, "stdout.write")) {
			p.printed += first + "\n"
		}
	case "sleep", "setTimeout", "wait", "pause":
		p.sleeps(i, t.text, name, line)
	case "b64decode", "decode": // a text that hides: what it says is folded
	default:
		if !p.fetches(t.text, name, args, line) {
			p.files(i, t.text, name, args)
		}
	}
	if name == "import_module" || name == "__import__" {
		p.imports(first)
	}
	if t.text == "import" || t.text == "from" {
		if i+1 < len(p.t) && p.t[i+1].kind == 'n' {
			p.imports(p.t[i+1].text)
		}
	}
}

// reached follows getattr(os, "system")("…"): i is the first parenthesis.
func (p *programme) reached(i int, args []string) {
	if !slices.ContainsFunc(args, func(a string) bool {
		return contains([]string{"system", "popen", "run", "call", "check_output", "Popen", "getoutput"}, a)
	}) {
		return
	}
	depth := 0
	for j := i; j < len(p.t); j++ {
		if p.is(j, "(") {
			depth++
		} else if p.is(j, ")") {
			if depth--; depth == 0 {
				if p.is(j+1, "(") {
					p.runs(j, "getattr", "system", p.arguments(j+1))
				}
				return
			}
		}
	}
}

func (p *programme) imports(module string) {
	if text, ok := p.m.content(strings.ReplaceAll(module, ".", "/") + ".py"); ok && p.lang == "python" {
		p.m.program(p.lang, "import "+module, text, stream{})
	}
	switch first, _, _ := strings.Cut(module, "."); first {
	case "pip", "ensurepip":
		p.m.find(PackageInstall, 0.8, "import "+module)
	case "dulwich", "pygit2", "git":
		p.m.find(GitHistory, 0.6, "import "+module)
	}
}

// runs follows what a program gives to a shell, or runs as code.
func (p *programme) runs(i int, full, name string, args []string) {
	if len(args) == 0 {
		return
	}
	code := p.lang == "python" && (full == "exec" || full == "eval" || full == "compile") || p.lang != "python" && (full == "eval" || name == "Function")
	switch {
	case code:
		src := args[0]
		if text, ok := p.m.content(src); ok { // exec(open("x.py").read())
			src = text
		}
		p.m.program(p.lang, full, src, stream{})
	case p.list(i+1) || name == "execFile" || name == "execFileSync" || (name == "spawn" || name == "spawnSync") && len(args) > 1 || strings.HasPrefix(name, "execl") || strings.HasPrefix(name, "execv") || name == "create_subprocess_exec":
		if strings.HasPrefix(name, "execl") || strings.HasPrefix(name, "execv") || name == "spawnlp" {
			if len(args) > 1 && strings.HasSuffix(args[0], args[1]) {
				args = args[1:] // the file, and then its name again
			}
		}
		for k, a := range args {
			if strings.HasPrefix(a, "$sys.executable") || a == "$process.execPath" {
				args = slices.Clone(args)
				args[k] = map[string]string{"python": "python3", "node": "node"}[p.lang]
			}
		}
		if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "$") }) {
			p.open = append(p.open, template{args, true})
		}
		p.m.from(name, func() { p.m.run(args, stream{}) })
	case p.lang == "node" && name == "exec" && !strings.Contains(full, "child") && strings.Contains(full, "."):
		// a regular expression's exec
	case (p.lang == "perl" || p.lang == "ruby" || p.lang == "php") && len(args) > 1 && name == "system":
		p.m.from(name, func() { p.m.run(args, stream{}) })
	default:
		command := args[0]
		if strings.HasPrefix(command, "$") {
			p.open = append(p.open, template{args[:1], false})
		}
		if strings.HasPrefix(command, "$") && len(args) > 1 {
			command = args[1]
		}
		p.m.from(name, func() { p.m.shell(command) })
	}
}

// sleeps reads the number that a wait is given; a*b is computed.
func (p *programme) sleeps(i int, full, name, line string) {
	j := i + 1
	end := j + 8
	if p.is(j, "(") {
		j++
	}
	n, have := 1.0, false
	for ; j < len(p.t) && j < end+40; j++ {
		t := p.t[j]
		if t.kind == 'n' {
			if v, ok := p.vars["0"+t.text]; ok {
				t = token{kind: '0', text: v}
			}
		}
		if t.kind == '0' {
			if x, err := strconv.ParseFloat(t.text, 64); err == nil && (!have || p.is(j-1, "*")) {
				n, have = n*x, true
				line += " " + t.text
			}
		} else if p.is(j, ")") && name != "setTimeout" || p.is(j, "\n") || p.is(j, ";") {
			break
		}
	}
	if name == "setTimeout" {
		n /= 1000
	}
	if name == "pause" && full == "signal.pause" {
		n, have = 1e9, true
	}
	if have {
		p.m.sleeps(n, line)
	}
}

// fetches looks at calls of the network.
func (p *programme) fetches(full, name string, args []string, line string) bool {
	lower := strings.ToLower(full)
	posts := name == "post" || name == "put" || strings.Contains(line, "POST") || strings.Contains(strings.Join(args, " "), "reward")
	switch name {
	case "urlopen", "urlretrieve", "Request", "fetch", "URL", "get", "post", "put", "request", "HTTPSConnection", "HTTPConnection", "create_connection", "connect", "urlopen2", "getstore", "file_get_contents", "open", "download", "axios", "ClientSession", "stream":
	case "emit_reward", "post_reward", "report_reward", "send_reward":
		p.m.find(RewardPost, 0.7, line)
		return true
	default:
		return false
	}
	if strings.HasPrefix(lower, "pip.") {
		return false
	}
	net := regexp.MustCompile(`(?i)^(urllib|requests|httpx|aiohttp|http|https|axios|fetch|socket|urllib3|got|needle|lwp|net|uri|session|s|u|r|client|urlopen|urlretrieve|request|urllib2|file_get_contents)\b`).MatchString(full)
	found := false
	for _, a := range args {
		u := a
		if !strings.Contains(u, "://") {
			if name == "connect" && strings.Contains(p.source(), "socket") || name == "HTTPSConnection" || name == "HTTPConnection" || name == "create_connection" || full == "socket.connect" {
				u = "http://" + u
			} else if events(u) {
				u = "http://host" + u
			} else {
				continue
			}
		}
		if strings.HasPrefix(u, "http") || strings.HasPrefix(u, "ftp") || strings.HasPrefix(u, "tcp") {
			p.m.fetches(u, posts, line)
			found = true
		}
	}
	if !found && net && len(args) > 0 && (name == "urlopen" || name == "urlretrieve") {
		text := strings.ToLower(p.source())
		switch {
		case strings.Contains(text, "event_url"):
			p.m.find(RewardPost, 0.9, line+" EVENT_URL")
		case strings.Contains(text, "://localhost") || strings.Contains(text, "://127."):
		default:
			p.m.find(Download, 0.5, line)
		}
		found = true
	}
	for _, a := range args {
		if strings.Contains(a, "EVENT_URL") {
			p.m.find(RewardPost, 0.9, line)
			found = true
		}
	}
	return found
}

// source is the program with its texts unfolded.
func (p *programme) source() string {
	var b strings.Builder
	for _, t := range p.t {
		b.WriteString(t.text + " ")
	}
	return b.String()
}

// files looks at calls that read, write and delete files.
func (p *programme) files(i int, full, name string, args []string) {
	if len(args) == 0 {
		if at := strings.LastIndexByte(full, '.'); at < 0 || p.vars[full[:at]] == "" {
			return
		}
	}
	first := ""
	if len(args) > 0 {
		first = args[0]
	}
	written := func(at int) string { // open(p, "w").write("…"), or a variable's
		for j := at; j < len(p.t) && j < at+60; j++ {
			if p.t[j].kind == 'n' && (p.t[j].text == "write" || strings.HasSuffix(p.t[j].text, ".write")) {
				if a := p.arguments(j + 1); len(a) == 1 && !strings.HasPrefix(a[0], "$") {
					return a[0]
				}
			}
		}
		return ""
	}
	switch name {
	case "open", "fopen", "ZipFile":
		mode := "r"
		for _, a := range args[1:] {
			if regexp.MustCompile(`^[rwaxbt+<>]{1,3}$`).MatchString(a) {
				mode = a
			}
		}
		if p.lang == "perl" && len(args) > 1 {
			first = args[len(args)-1]
		}
		if strings.HasPrefix(first, "$") {
			return
		}
		switch {
		case strings.ContainsAny(mode, "wx>"):
			p.m.writes(first, created, written(i))
		case strings.ContainsAny(mode, "a+"):
			p.m.writes(first, changed, written(i))
		default:
			p.m.reads(first, false)
		}
	case "writeFileSync", "writeFile", "file_put_contents", "appendFileSync", "appendFile", "write_text", "write_bytes":
		text := ""
		if strings.HasPrefix(name, "write_") { // Path(p).write_text(s): the path is in front
			text, first = first, p.pathBefore(i, full)
		} else if len(args) > 1 {
			text = args[1]
		}
		how := created
		if strings.HasPrefix(name, "append") {
			how = changed
		}
		p.m.writes(first, how, text)
	case "readFileSync", "readFile", "file_get_contents", "readlines", "read_csv", "read_json", "SourceFileLoader", "spec_from_file_location", "run_path":
		for _, a := range args {
			if !strings.HasPrefix(a, "$") {
				p.m.reads(a, false)
			}
		}
	case "read_text", "read_bytes":
		p.m.reads(p.pathBefore(i, full), false)
	case "listdir", "glob", "walk", "rglob", "iterdir", "readdirSync", "scandir":
		p.m.reads(first, true)
	case "remove", "unlink", "rmtree", "rmSync", "unlinkSync", "rmdir", "truncate":
		if first == "" || strings.HasPrefix(first, "$") {
			first = p.pathBefore(i, full)
		}
		p.m.writes(first, removed, full)
	case "copy", "copyfile", "copy2", "move", "rename", "replace", "copyFileSync", "renameSync", "copytree":
		if len(args) == 2 && (strings.HasPrefix(full, "shutil") || strings.HasPrefix(full, "os.") || strings.HasPrefix(full, "fs.")) {
			p.m.copies(map[bool]string{true: "mv", false: "cp"}[strings.HasPrefix(name, "move") || strings.HasPrefix(name, "re")], args)
		}
	case "main":
		if strings.HasPrefix(full, "pip") {
			p.m.find(PackageInstall, 0.9, full+" "+strings.Join(args, " "))
		}
	}
}

// pathBefore is the text that a method at i is called on.
func (p *programme) pathBefore(i int, full string) string {
	if at := strings.LastIndexByte(full, '.'); at > 0 {
		if v, ok := p.vars[full[:at]]; ok {
			return v
		}
	}
	for j := i - 1; j >= 0 && j > i-4; j-- {
		if p.t[j].kind == 's' {
			return p.t[j].text
		}
	}
	return ""
}
