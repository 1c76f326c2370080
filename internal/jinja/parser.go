package jinja

import (
	"math/big"
	"slices"
	"strconv"
)

// maxNesting bounds the depth of the syntax tree: expressions and statements.
const maxNesting = 250

// parser follows jinja2's recursive-descent parser.
type parser struct {
	toks    []token
	dialect Dialect
	pos     int
	depth   int
	soft    int // inside a branch: unknown filters are errors only when reached
	loops   int
	macros  []*macroDef // that enclose the current place
}

func (p *parser) cur() token { return p.toks[p.pos] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) look() token {
	if p.pos+1 < len(p.toks) {
		return p.toks[p.pos+1]
	}
	return p.toks[p.pos]
}

func (p *parser) isOp(op string) bool { t := p.cur(); return t.kind == tokOp && t.val == op }
func (p *parser) isName(n string) bool {
	t := p.cur()
	return t.kind == tokName && t.val == n
}

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) skipName(n string) bool {
	if p.isName(n) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) fail(format string, args ...any) { fail(p.cur().line, KindCompile, format, args...) }

func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "template text"
	case tokBlockBegin, tokVarBegin:
		return "begin of a tag"
	case tokBlockEnd, tokVarEnd:
		return "end of the tag"
	}
	return "'" + t.val + "'"
}

func (p *parser) expectOp(op string) token {
	if !p.isOp(op) {
		p.fail("expected '%s', got %s", op, p.cur().describe())
	}
	return p.next()
}

func (p *parser) expect(k tokKind, what string) token {
	if p.cur().kind != k {
		p.fail("expected %s, got %s", what, p.cur().describe())
	}
	return p.next()
}

func (p *parser) expectName(n string) {
	if !p.skipName(n) {
		p.fail("expected '%s', got %s", n, p.cur().describe())
	}
}

func (p *parser) enter() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("the template is nested too deeply")
	}
	return func() { p.depth-- }
}

func (p *parser) expression() expr { return p.condExpr() }

func (p *parser) condExpr() expr {
	defer p.enter()()
	e := p.orExpr()
	for p.skipName("if") {
		p.soft++
		test := p.orExpr()
		var els expr
		if p.skipName("else") {
			els = p.condExpr()
		}
		p.soft--
		e = &condExpr{test: test, then: e, els: els}
	}
	return e
}

func (p *parser) orExpr() expr {
	e := p.andExpr()
	for p.skipName("or") {
		e = &orExpr{e, p.andExpr()}
	}
	return e
}

func (p *parser) andExpr() expr {
	e := p.notExpr()
	for p.skipName("and") {
		e = &andExpr{e, p.notExpr()}
	}
	return e
}

func (p *parser) notExpr() expr {
	if p.isName("not") {
		defer p.enter()()
		line := p.next().line
		return &unaryExpr{'!', p.notExpr(), line}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	line := p.cur().line
	first := p.math1()
	var ops []string
	var rest []expr
	for {
		t := p.cur()
		switch {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.val):
			p.next()
			ops = append(ops, t.val)
		case t.kind == tokName && t.val == "in":
			p.next()
			ops = append(ops, "in")
		case t.kind == tokName && t.val == "not" && p.look().kind == tokName && p.look().val == "in":
			p.pos += 2
			ops = append(ops, "not in")
		default:
			if ops == nil {
				return first
			}
			return &compareExpr{first, ops, rest, line}
		}
		rest = append(rest, p.math1())
	}
}

// binary parses a left-associative chain of the given operators.
func (p *parser) binary(sub func() expr, ops ...string) expr {
	e := sub()
	for p.cur().kind == tokOp && slices.Contains(ops, p.cur().val) {
		t := p.next()
		e = &binExpr{t.val, e, sub(), t.line}
	}
	return e
}

func (p *parser) math1() expr { return p.binary(p.concat, "+", "-") }
func (p *parser) math2() expr { return p.binary(p.pow, "*", "/", "//", "%") }
func (p *parser) pow() expr {
	return p.binary(func() expr { return p.unary(true) }, "**")
}

func (p *parser) concat() expr {
	line := p.cur().line
	parts := []expr{p.math2()}
	for p.skipOp("~") {
		parts = append(parts, p.math2())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return &concatExpr{parts, line}
}

func (p *parser) unary(withFilter bool) expr {
	defer p.enter()()
	var e expr
	if t := p.cur(); p.skipOp("-") {
		e = &unaryExpr{'-', p.unary(false), t.line}
	} else if p.skipOp("+") {
		e = &unaryExpr{'+', p.unary(false), t.line}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilter {
		e = p.filterExpr(e)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.next()
		switch t.val {
		case "true", "True":
			return constExpr{true}
		case "false", "False":
			return constExpr{false}
		case "none", "None":
			return constExpr{nil}
		case "kwargs", "varargs", "caller":
			for _, m := range p.macros {
				m.usesKw = m.usesKw || t.val == "kwargs"
				m.usesVar = m.usesVar || t.val == "varargs"
				m.usesCall = m.usesCall || t.val == "caller"
			}
		}
		return &nameExpr{t.val, t.line}
	case tokString:
		p.next()
		s := t.val
		for p.cur().kind == tokString {
			s += p.next().val
		}
		return constExpr{text(s)}
	case tokInt:
		p.next()
		return constExpr{parseInt(t)}
	case tokFloat:
		p.next()
		f, err := strconv.ParseFloat(t.val, 64)
		if err != nil && f == 0 {
			fail(t.line, KindCompile, "bad number %s", t.val)
		}
		return constExpr{f}
	case tokOp:
		switch t.val {
		case "(":
			p.next()
			e := p.tuple(true, true)
			p.expectOp(")")
			return e
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	p.fail("unexpected %s", t.describe())
	return nil
}

func parseInt(t token) Value {
	base := 10
	if len(t.val) > 1 && t.val[0] == '0' {
		base = 0
	}
	if base == 0 && t.val[1] >= '0' && t.val[1] <= '9' {
		base = 10
	}
	if base == 10 && len(t.val) > 4300 {
		fail(t.line, KindCompile, "a number of more than 4300 digits")
	}
	n, ok := new(big.Int).SetString(t.val, base)
	if !ok {
		fail(t.line, KindCompile, "bad number %s", t.val)
	}
	return normInt(n)
}

// tuple parses expressions with commas between; a single one without a comma is
// itself. An empty tuple is allowed only in parentheses.
func (p *parser) tuple(cond, explicit bool) expr {
	line := p.cur().line
	var items []expr
	comma := false
	for {
		if len(items) > 0 {
			if !p.skipOp(",") {
				break
			}
			comma = true
		}
		if t := p.cur(); t.kind == tokVarEnd || t.kind == tokBlockEnd || p.isOp(")") || p.isName("in") || p.isName("recursive") {
			break
		}
		if cond {
			items = append(items, p.expression())
		} else {
			items = append(items, p.orExpr())
		}
	}
	if !comma {
		if len(items) > 0 {
			return items[0]
		}
		if !explicit {
			fail(line, KindCompile, "expected an expression, got %s", p.cur().describe())
		}
	}
	return &tupleExpr{items}
}

func (p *parser) list() expr {
	p.expectOp("[")
	l := &listExpr{}
	for !p.isOp("]") {
		if len(l.items) > 0 {
			p.expectOp(",")
		}
		if p.isOp("]") {
			break
		}
		l.items = append(l.items, p.expression())
	}
	p.expectOp("]")
	return l
}

func (p *parser) dict() expr {
	d := &dictExpr{line: p.cur().line}
	p.expectOp("{")
	for !p.isOp("}") {
		if len(d.keys) > 0 {
			p.expectOp(",")
		}
		if p.isOp("}") {
			break
		}
		d.keys = append(d.keys, p.expression())
		p.expectOp(":")
		d.vals = append(d.vals, p.expression())
	}
	p.expectOp("}")
	return d
}

func (p *parser) postfix(e expr) expr {
	for {
		switch {
		case p.isOp(".") || p.isOp("["):
			e = p.subscript(e)
		case p.isOp("("):
			line := p.cur().line
			e = &callExpr{e, p.callArgs(), line}
		default:
			return e
		}
	}
}

func (p *parser) filterExpr(e expr) expr {
	for {
		switch {
		case p.isOp("|"):
			p.next()
			e = p.filter(e)
		case p.isName("is"):
			e = p.test(e)
		case p.isOp("("):
			line := p.cur().line
			e = &callExpr{e, p.callArgs(), line}
		default:
			return e
		}
	}
}

func (p *parser) subscript(e expr) expr {
	t := p.next()
	if t.val == "." {
		a := p.next()
		switch a.kind {
		case tokName:
			return &attrExpr{e, a.val, t.line}
		case tokInt:
			return &indexExpr{e, constExpr{parseInt(a)}, t.line}
		}
		fail(a.line, KindCompile, "expected name or number")
	}
	var items []expr
	for !p.isOp("]") {
		if len(items) > 0 {
			p.expectOp(",")
		}
		items = append(items, p.subscribed())
	}
	p.expectOp("]")
	if len(items) == 1 {
		return &indexExpr{e, items[0], t.line}
	}
	return &indexExpr{e, &tupleExpr{items}, t.line}
}

func (p *parser) subscribed() expr {
	s := &sliceExpr{}
	if !p.isOp(":") {
		e := p.expression()
		if !p.isOp(":") {
			return e
		}
		s.lo = e
	}
	p.expectOp(":")
	atEnd := func() bool { return p.isOp(":") || p.isOp("]") || p.isOp(",") }
	if !atEnd() {
		s.hi = p.expression()
	}
	if p.skipOp(":") && !atEnd() {
		s.step = p.expression()
	}
	return s
}

func (p *parser) callArgs() callArgs {
	line := p.expectOp("(").line
	var a callArgs
	ensure := func(ok bool) {
		if !ok {
			fail(line, KindCompile, "invalid syntax for function call expression")
		}
	}
	for first := true; !p.isOp(")"); first = false {
		if !first {
			p.expectOp(",")
			if p.isOp(")") {
				break
			}
		}
		switch {
		case p.skipOp("*"):
			ensure(a.star == nil && a.star2 == nil)
			a.star = p.expression()
		case p.skipOp("**"):
			ensure(a.star2 == nil)
			a.star2 = p.expression()
		case p.cur().kind == tokName && p.look().kind == tokOp && p.look().val == "=":
			ensure(a.star2 == nil)
			a.names = append(a.names, p.next().val)
			p.next()
			a.kwargs = append(a.kwargs, p.expression())
		default:
			ensure(a.star == nil && a.star2 == nil && len(a.kwargs) == 0)
			a.args = append(a.args, p.expression())
		}
	}
	p.expectOp(")")
	return a
}

// filterNamed returns the dialect's filter, or jinja2's.
func (p *parser) filterNamed(name string) filterFunc {
	own := p.dialect.Filters[name]
	if own == nil {
		return filterNamed(name)
	}
	return func(in *interp, v Value, a args) Value {
		a.bind(in, name)
		s, err := own(in.printable(v))
		if err != nil {
			fail(in.line, KindType, "%s", err)
		}
		in.alloc(len(s.s))
		return s
	}
}

// filter parses a filter's name and arguments, behind the "|".
func (p *parser) filter(of expr) *filterExpr {
	t := p.expect(tokName, "a filter's name")
	name := t.val
	for p.skipOp(".") {
		name += "." + p.expect(tokName, "a name").val
	}
	f := &filterExpr{of: of, name: name, line: t.line, fn: p.filterNamed(name)}
	if f.fn == nil && p.soft == 0 {
		fail(t.line, KindCompile, "no filter named '%s'", name)
	}
	if p.isOp("(") {
		f.callArgs = p.callArgs()
	}
	return f
}

func (p *parser) test(of expr) expr {
	line := p.next().line
	negated := p.skipName("not")
	name := p.expect(tokName, "a test's name").val
	for p.skipOp(".") {
		name += "." + p.expect(tokName, "a name").val
	}
	t := &testExpr{of: of, name: name, line: line, fn: testNamed(name)}
	if t.fn == nil && p.soft == 0 {
		fail(line, KindCompile, "no test named '%s'", name)
	}
	c := p.cur()
	switch {
	case p.isOp("("):
		t.callArgs = p.callArgs()
	case p.isName("else") || p.isName("or") || p.isName("and"):
	case p.isName("is"):
		p.fail("You cannot chain multiple tests with is")
	case c.kind == tokName || c.kind == tokString || c.kind == tokInt || c.kind == tokFloat || p.isOp("[") || p.isOp("{"):
		t.args = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &unaryExpr{'!', t, line}
	}
	return t
}
