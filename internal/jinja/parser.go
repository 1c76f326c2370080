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
