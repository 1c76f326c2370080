package jinja

import "slices"

func (p *parser) parseTemplate() []node {
	body := p.statements()
	if p.cur().kind != tokEOF {
		p.fail("unexpected %s", p.cur().describe())
	}
	return body
}

// statements parses up to the end, or up to a tag with one of the names; the
// current token is then that name.
func (p *parser) statements(end ...string) []node {
	defer p.enter()()
	body := []node{}
	for {
		t := p.cur()
		switch t.kind {
		case tokEOF:
			if len(end) > 0 {
				p.fail("unexpected end of template, looking for '%s'", end[len(end)-1])
			}
			return body
		case tokData:
			p.next()
			body = append(body, outputText{text(t.val), t.line})
		case tokVarBegin:
			p.next()
			body = append(body, outputExpr{p.tuple(true, false), t.line})
			p.expect(tokVarEnd, "end of the tag")
		case tokBlockBegin:
			p.next()
			if c := p.cur(); c.kind == tokName && slices.Contains(end, c.val) {
				return body
			}
			if n := p.statement(); n != nil {
				body = append(body, n...)
			}
			p.expect(tokBlockEnd, "end of the tag")
		default:
			p.fail("unexpected %s", t.describe())
		}
	}
}

// body parses the end of the opening tag and the statements up to one of the
// end tags, and takes the name of that.
func (p *parser) body(end ...string) ([]node, string) {
	p.skipOp(":")
	p.expect(tokBlockEnd, "end of the tag")
	b := p.statements(end...)
	return b, p.next().val
}

func one(n node) []node { return []node{n} }

func (p *parser) statement() []node {
	t := p.expect(tokName, "a tag's name")
	switch t.val {
	case "if":
		return one(p.ifStmt())
	case "for":
		return one(p.forStmt(t.line))
	case "set":
		return one(p.setStmt(t.line))
	case "with":
		return one(p.withStmt(t.line))
	case "macro":
		name := p.expect(tokName, "the macro's name").val
		return one(macroNode{p.macroDef(name, t.line, "endmacro", true)})
	case "call":
		return one(p.callStmt(t.line))
	case "filter":
		f := p.filter(blockValue{})
		for p.skipOp("|") {
			f = p.filter(f)
		}
		body, _ := p.body("endfilter")
		return one(&filterBlock{f, body, t.line})
	case "print":
		var out []node
		for p.cur().kind != tokBlockEnd {
			if len(out) > 0 {
				p.expectOp(",")
			}
			out = append(out, outputExpr{p.expression(), t.line})
		}
		return out
	case "generation":
		body, _ := p.body("endgeneration")
		return one(&scopeNode{body})
	case "block":
		return one(p.blockStmt())
	case "autoescape":
		if p.expression() != (constExpr{false}) {
			fail(t.line, KindCompile, "autoescape is not supported")
		}
		body, _ := p.body("endautoescape")
		return one(&scopeNode{body})
	case "break", "continue":
		if p.loops == 0 {
			fail(t.line, KindCompile, "'%s' outside loop", t.val)
		}
		return one(loopCtl{t.val == "break"})
	case "include", "extends", "import", "from":
		for p.cur().kind != tokBlockEnd && p.cur().kind != tokEOF {
			p.next()
		}
		return one(failNode{"no loader for this environment specified: a chat template cannot " + t.val + " others", t.line})
	}
	fail(t.line, KindCompile, "Encountered unknown tag '%s'.", t.val)
	return nil
}

func (p *parser) blockStmt() node {
	name := p.expect(tokName, "the block's name").val
	p.skipName("scoped")
	p.skipName("required")
	body, _ := p.body("endblock")
	p.skipName(name)
	return &scopeNode{body}
}

func (p *parser) ifStmt() node {
	n := &ifNode{}
	p.soft++
	defer func() { p.soft-- }()
	for {
		n.tests = append(n.tests, p.tuple(false, false))
		body, end := p.body("elif", "else", "endif")
		n.bodies = append(n.bodies, body)
		switch end {
		case "elif":
			continue
		case "else":
			body, _ = p.body("endif")
			n.bodies = append(n.bodies, body)
		}
		return n
	}
}

func (p *parser) forStmt(line int) node {
	n := &forNode{line: line, target: p.assignTarget(false)}
	p.expectName("in")
	n.iter = p.tuple(false, false)
	if p.skipName("if") {
		n.filter = p.expression()
	}
	n.recursive = p.skipName("recursive")
	p.loops++
	body, end := p.body("endfor", "else")
	p.loops--
	n.body = body
	if end == "else" {
		n.orElse, _ = p.body("endfor")
	}
	return n
}

func (p *parser) setStmt(line int) node {
	target := p.assignTarget(true)
	if p.skipOp("=") {
		return &setNode{target, p.tuple(true, false), line}
	}
	n := &setBlock{target: target, line: line}
	for p.skipOp("|") {
		if n.filters == nil {
			n.filters = p.filter(blockValue{})
		} else {
			n.filters = p.filter(n.filters)
		}
	}
	n.body, _ = p.body("endset")
	return n
}

func (p *parser) withStmt(line int) node {
	n := &withNode{line: line}
	for p.cur().kind == tokName {
		n.names = append(n.names, p.assignTarget(false))
		p.expectOp("=")
		n.values = append(n.values, p.expression())
		if !p.skipOp(",") {
			break
		}
	}
	n.body, _ = p.body("endwith")
	return n
}

func (p *parser) callStmt(line int) node {
	n := &callBlock{line: line}
	def := &macroDef{name: "caller", line: line}
	if p.isOp("(") {
		p.signature(def)
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		fail(line, KindCompile, "expected call")
	}
	n.call, n.caller = call, def
	p.macroBody(def, "endcall")
	return n
}

func (p *parser) macroDef(name string, line int, end string, signature bool) *macroDef {
	def := &macroDef{name: name, line: line}
	if signature {
		p.signature(def)
	}
	p.macroBody(def, end)
	return def
}

func (p *parser) macroBody(def *macroDef, end string) {
	loops := p.loops
	p.loops = 0
	p.macros = append(p.macros, def)
	def.body, _ = p.body(end)
	p.macros = p.macros[:len(p.macros)-1]
	p.loops = loops
}

func (p *parser) signature(def *macroDef) {
	p.expectOp("(")
	for first := true; !p.isOp(")"); first = false {
		if !first {
			p.expectOp(",")
		}
		t := p.expect(tokName, "a parameter's name")
		reservedName(t)
		def.params = append(def.params, t.val)
		if p.skipOp("=") {
			def.defaults = append(def.defaults, p.expression())
		} else if len(def.defaults) > 0 {
			fail(t.line, KindCompile, "non-default argument follows default argument")
		}
	}
	p.expectOp(")")
}

func reservedName(t token) {
	switch t.val {
	case "true", "false", "none", "True", "False", "None":
		fail(t.line, KindCompile, "can't assign to '%s'", t.val)
	}
}

// assignTarget parses what can stand left of "=" or "in": a name, names with
// commas (nested in parentheses), and, for set, an attribute of a namespace.
func (p *parser) assignTarget(namespace bool) expr {
	defer p.enter()()
	line := p.cur().line
	var items []expr
	comma := false
	for {
		if len(items) > 0 {
			if !p.skipOp(",") {
				break
			}
			comma = true
			if p.isOp("=") || p.isName("in") || p.isOp(")") || p.cur().kind == tokBlockEnd {
				break
			}
		}
		if p.skipOp("(") {
			items = append(items, p.assignTarget(namespace))
			p.expectOp(")")
			continue
		}
		t := p.expect(tokName, "a name to assign to")
		reservedName(t)
		if namespace && p.skipOp(".") {
			items = append(items, &attrExpr{&nameExpr{t.val, line}, p.expect(tokName, "a name").val, line})
			continue
		}
		items = append(items, &nameExpr{t.val, t.line})
	}
	if len(items) == 1 && !comma {
		return items[0]
	}
	return &tupleExpr{items}
}
