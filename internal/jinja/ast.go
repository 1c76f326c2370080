package jinja

// node is a statement, expr an expression. Each expression knows its line for
// error messages.
type (
	node interface{ isNode() }
	expr interface{}
)

type (
	outputText struct {
		text *Str
		line int
	}
	outputExpr struct {
		e    expr
		line int
	}
	ifNode struct {
		tests  []expr
		bodies [][]node // one more than tests if there is an else
	}
	forNode struct {
		target    expr
		iter      expr
		filter    expr
		body      []node
		orElse    []node
		recursive bool
		line      int
	}
	setNode struct {
		target expr
		value  expr
		line   int
	}
	setBlock struct {
		target  expr
		filters *filterExpr // over a blockValue, or nil
		body    []node
		line    int
	}
	withNode struct {
		names  []expr
		values []expr
		body   []node
		line   int
	}
	macroNode struct{ *macroDef }
	callBlock struct {
		caller *macroDef
		call   *callExpr
		line   int
	}
	filterBlock struct {
		filter *filterExpr
		body   []node
		line   int
	}
	scopeNode struct{ body []node } // generation, block, autoescape
	loopCtl   struct{ brk bool }
	failNode  struct {
		msg  string
		line int
	}
)

// macroDef is a macro, or the body of a call block.
type macroDef struct {
	name     string
	params   []string
	defaults []expr // for the last len(defaults) params
	body     []node
	usesKw   bool // mentions kwargs: takes unknown keyword arguments
	usesVar  bool // mentions varargs
	usesCall bool // mentions caller
	line     int
}

func (outputText) isNode()   {}
func (outputExpr) isNode()   {}
func (*ifNode) isNode()      {}
func (*forNode) isNode()     {}
func (*setNode) isNode()     {}
func (*setBlock) isNode()    {}
func (*withNode) isNode()    {}
func (macroNode) isNode()    {}
func (*callBlock) isNode()   {}
func (*filterBlock) isNode() {}
func (*scopeNode) isNode()   {}
func (loopCtl) isNode()      {}
func (failNode) isNode()     {}

type (
	constExpr struct{ v Value }
	nameExpr  struct {
		name string
		line int
	}
	blockValue struct{} // the captured text that a filter block starts from
	attrExpr   struct {
		of   expr
		name string
		line int
	}
	indexExpr struct {
		of, idx expr
		line    int
	}
	sliceExpr struct{ lo, hi, step expr }
	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct {
		keys, vals []expr
		line       int
	}
	unaryExpr struct {
		op   byte // '-', '+', '!'
		e    expr
		line int
	}
	binExpr struct {
		op   string
		a, b expr
		line int
	}
	andExpr    struct{ a, b expr }
	orExpr     struct{ a, b expr }
	concatExpr struct {
		parts []expr
		line  int
	}
	compareExpr struct {
		first expr
		ops   []string
		rest  []expr
		line  int
	}
	condExpr struct{ test, then, els expr } // els may be nil
	callArgs struct {
		args   []expr
		names  []string
		kwargs []expr
		star   expr
		star2  expr
	}
	callExpr struct {
		fn expr
		callArgs
		line int
	}
	filterExpr struct {
		of   expr
		name string
		fn   filterFunc // nil: unknown, an error when it is reached
		callArgs
		line int
	}
	testExpr struct {
		of   expr
		name string
		fn   testFunc
		callArgs
		line int
	}
)
