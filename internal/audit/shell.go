package audit

import (
	"path"
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// stream is what flows through a pipe, where it is known.
type stream struct {
	text  string
	known bool
}

func known(s string) stream { return stream{s, len(s) <= maxText} }

// shell follows a script. Variables and functions are the script's own; what it
// prints is returned where that is known.
func (m *machine) shell(src string) stream {
	vars, funcs, args, cwd := m.vars, m.funcs, m.args, m.cwd
	m.vars, m.funcs = copied(vars), copied(funcs)
	out := m.script(src, stream{})
	m.vars, m.funcs, m.args, m.cwd = vars, funcs, args, cwd
	return out
}

func copied[V any](from map[string]V) map[string]V {
	out := make(map[string]V, len(from))
	for k, v := range from {
		out[k] = v
	}
	return out
}

// script follows a script in the variables that are there.
func (m *machine) script(src string, in stream) stream {
	if len(src) > maxText {
		src = src[:maxText]
	}
	f, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.RecoverErrors(8)).Parse(strings.NewReader(src), "")
	if err != nil && (f == nil || len(f.Stmts) == 0) {
		// No shell reads it whole: line by line, what can be read.
		for line := range strings.SplitSeq(src, "\n") {
			if g, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(line), ""); err == nil {
				m.stmts(g.Stmts, in)
			}
		}
		return stream{}
	}
	return m.stmts(f.Stmts, in)
}

func (m *machine) stmts(list []*syntax.Stmt, in stream) stream {
	out := known("")
	for _, s := range list {
		x := m.stmt(s, in)
		out = stream{out.text + x.text, out.known && x.known}
	}
	return out
}

// stmt follows one statement and its redirections.
func (m *machine) stmt(s *syntax.Stmt, in stream) stream {
	if m.spent(1) || s == nil {
		return stream{}
	}
	var outs []*syntax.Redirect
	for _, r := range s.Redirs {
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			if r.Hdoc != nil {
				in = known(m.word(r.Hdoc))
			}
		case syntax.WordHdoc:
			in = known(m.word(r.Word) + "\n")
		case syntax.RdrIn, syntax.RdrInOut:
			p := m.word(r.Word)
			m.reads(p, false)
			m.device(p)
			text, ok := m.content(p)
			in = stream{text, ok}
		case syntax.RdrOut, syntax.AppOut, syntax.RdrAll, syntax.AppAll, syntax.RdrClob:
			outs = append(outs, r)
		}
	}
	out := m.command(s.Cmd, in)
	for _, r := range outs {
		p := m.word(r.Word)
		m.device(p)
		if r.N != nil && r.N.Value == "2" {
			continue
		}
		text := out.text
		if !out.known {
			text = ""
		}
		how := created
		if r.Op == syntax.AppOut || r.Op == syntax.AppAll {
			old, _ := m.content(p)
			text = old + text
			if m.seen[path.Base(p)] {
				how = changed
			}
		}
		m.writes(p, how, text)
		out = known("")
	}
	return out
}

// device reports the network behind bash's /dev/tcp.
func (m *machine) device(p string) {
	for _, d := range []string{"/dev/tcp/", "/dev/udp/"} {
		if rest, ok := strings.CutPrefix(p, d); ok {
			m.fetches("tcp://"+strings.Replace(rest, "/", ":", 1), false, p)
		}
	}
}

func (m *machine) command(c syntax.Command, in stream) stream {
	switch c := c.(type) {
	case *syntax.CallExpr:
		return m.callExpr(c, in)
	case *syntax.BinaryCmd:
		left := m.stmt(c.X, in)
		if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
			return m.stmt(c.Y, left)
		}
		right := m.stmt(c.Y, in)
		return stream{left.text + right.text, left.known && right.known}
	case *syntax.Block:
		return m.stmts(c.Stmts, in)
	case *syntax.Subshell:
		vars, cwd := m.vars, m.cwd
		m.vars = copied(vars)
		out := m.stmts(c.Stmts, in)
		m.vars, m.cwd = vars, cwd
		return out
	case *syntax.IfClause:
		for x := c; x != nil; x = x.Else {
			m.stmts(x.Cond, in)
			m.stmts(x.Then, in)
		}
	case *syntax.WhileClause:
		m.while(c, in)
	case *syntax.ForClause:
		return m.loop(c, in)
	case *syntax.CaseClause:
		m.word(c.Word)
		for _, item := range c.Items {
			m.stmts(item.Stmts, in)
		}
	case *syntax.FuncDecl:
		names := c.Names // zsh declares several at once, or none: that one runs where it stands
		if c.Name != nil {
			names = []*syntax.Lit{c.Name}
		}
		call := func(args []string, in stream) stream {
			old := m.args
			m.args = args
			out := m.stmt(c.Body, in)
			m.args = old
			return out
		}
		if len(names) == 0 {
			return call(nil, in)
		}
		for _, n := range names {
			m.funcs[n.Value] = call
		}
		return known("")
	case *syntax.DeclClause:
		for _, a := range c.Args {
			m.assign(a)
		}
		return known("")
	case *syntax.TestClause:
		syntax.Walk(c, func(n syntax.Node) bool {
			w, ok := n.(*syntax.Word)
			if ok {
				m.word(w)
			}
			return !ok
		})
		return known("")
	case *syntax.TimeClause:
		return m.stmt(c.Stmt, in)
	case *syntax.CoprocClause:
		return m.stmt(c.Stmt, in)
	}
	return stream{}
}

// while follows a loop once. One whose condition is always true goes on for
// ever, unless something in it ends it.
func (m *machine) while(c *syntax.WhileClause, in stream) {
	m.stmts(c.Cond, in)
	times := m.times
	var b strings.Builder
	_ = syntax.NewPrinter().Print(&b, c)
	cond, body, _ := strings.Cut(b.String(), "do")
	cond = strings.Join(strings.Fields(strings.TrimRight(cond, "; \n")), " ")
	if (cond == "while true" || cond == "while :" || cond == "until false" || cond == "while sleep") && !strings.Contains(body, "break") && !strings.Contains(body, "exit") {
		m.times *= 1000
	}
	if g := counted.FindStringSubmatch(cond); g != nil {
		if n, ok := number(g[1] + g[2]); ok {
			m.times *= max(1, n)
		}
	}
	m.stmts(c.Do, in)
	m.times = times
}

// counted is the condition of a loop with a counter.
var counted = regexp.MustCompile(`-l[te] "?(\d+)|<=? *(\d+)`)

// loop follows a for loop over the items that are known.
func (m *machine) loop(c *syntax.ForClause, in stream) stream {
	it, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		times := m.times
		m.times *= m.bound(c.Loop)
		m.stmts(c.Do, in)
		m.times = times
		return stream{}
	}
	items := m.words(it.Items)
	out := known("")
	if len(items) > maxItems { // the first ones stand for all
		times := m.times
		m.times *= float64(len(items))
		m.vars[it.Name.Value] = items[:1]
		m.stmts(c.Do, in)
		m.times = times
		return stream{}
	}
	// Waits add up over the turns, all else is looked at in each.
	times := m.times
	for i, item := range items {
		m.times = times
		if i == 0 {
			m.times = times * float64(len(items))
		}
		m.vars[it.Name.Value] = []string{item}
		x := m.stmts(c.Do, in)
		out = stream{out.text + x.text, out.known && x.known}
	}
	m.times = times
	return out
}

// bound is the number of turns of for ((i=0; i<N; i++)), 1 where it isn't plain.
func (m *machine) bound(l syntax.Loop) float64 {
	c, ok := l.(*syntax.CStyleLoop)
	if !ok || c.Cond == nil {
		return 1
	}
	if b, ok := c.Cond.(*syntax.BinaryArithm); ok {
		if w, ok := b.Y.(*syntax.Word); ok {
			if n, ok := number(m.word(w)); ok {
				return max(1, n)
			}
		}
	}
	return 1
}

func (m *machine) assign(a *syntax.Assign) {
	if a.Name == nil {
		return
	}
	switch {
	case a.Array != nil:
		var list []string
		for _, e := range a.Array.Elems {
			if e.Value != nil {
				list = append(list, m.words([]*syntax.Word{e.Value})...)
			}
		}
		m.vars[a.Name.Value] = list
	case a.Value != nil:
		v := m.word(a.Value)
		if a.Append {
			v = strings.Join(m.vars[a.Name.Value], " ") + v
		}
		m.vars[a.Name.Value] = []string{v}
	case !a.Naked:
		m.vars[a.Name.Value] = []string{""}
	}
}

// callExpr follows a simple command.
func (m *machine) callExpr(c *syntax.CallExpr, in stream) stream {
	if len(c.Args) == 0 {
		for _, a := range c.Assigns {
			m.assign(a)
		}
		return known("")
	}
	vars := m.vars
	if len(c.Assigns) > 0 { // for this command only
		m.vars = copied(vars)
		for _, a := range c.Assigns {
			m.assign(a)
		}
	}
	args := m.words(c.Args)
	m.vars = vars
	if len(args) == 0 {
		return stream{}
	}
	return m.run(args, in)
}

// run follows a command by its words.
func (m *machine) run(args []string, in stream) stream {
	if m.spent(1) || len(args) == 0 {
		return stream{}
	}
	if text, ok := m.vars["alias "+args[0]]; ok {
		var out stream
		m.from("alias", func() {
			delete(m.vars, "alias "+args[0])
			out = m.script(text[0]+" "+quoted(args[1:]), in)
			m.vars["alias "+args[0]] = text
		})
		return out
	}
	if f, ok := m.funcs[args[0]]; ok {
		var out stream
		m.from("function", func() { out = f(args[1:], in) })
		return out
	}
	if out, done := m.wrapper(args, in); done {
		return out
	}
	m.inspect(args, in)
	return m.output(args, in)
}

// quoted joins words so that a shell splits them as they were.
func quoted(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		if q, err := syntax.Quote(a, syntax.LangBash); err == nil {
			a = q
		}
		out[i] = a
	}
	return strings.Join(out, " ")
}
