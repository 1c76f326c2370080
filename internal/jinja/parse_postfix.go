package jinja

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
