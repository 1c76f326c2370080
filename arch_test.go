package fulgur_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/fulgur-rl/fulgur"

// A row of the layout: what a package may import of ours, and whether it is
// pure. Names are relative to internal/, but for "." (the root), cmd/… and
// examples/…. "*" allows everything.
type row struct {
	may  string
	pure bool
}

// layout is the house (ARCHITECTURE.md): a package without a row fails, a row
// without a package is one that is still to come.
var layout = map[string]row{
	".":      {"", true},
	"jinja":  {"", true},
	"config": {".", true},
	"reward": {".", true},
	"audit":  {".", true},

	"gateway":                           {". gateway/call gateway/dialect gateway/sampler gateway/route", false},
	"gateway/route":                     {"", true},
	"gateway/call":                      {".", true},
	"gateway/chatwire":                  {". gateway/call", true},
	"gateway/dialect":                   {". gateway/call", true},
	"gateway/dialect/sse":               {"", true},
	"gateway/dialect/openaichat":        {". gateway/call gateway/dialect gateway/dialect/sse gateway/chatwire", true},
	"gateway/dialect/openaicompletions": {". gateway/call gateway/dialect gateway/dialect/sse gateway/chatwire", true},
	"gateway/dialect/openairesponses":   {". gateway/call gateway/dialect gateway/dialect/sse gateway/chatwire", true},
	"gateway/dialect/anthropic":         {". gateway/call gateway/dialect gateway/dialect/sse gateway/chatwire", true},
	"gateway/render":                    {". jinja gateway/render/tokenizer gateway/render/parser", true},
	"gateway/render/tokenizer":          {"", true},
	"gateway/render/parser":             {".", true},
	"gateway/sampler":                   {". gateway/call", false},
	"gateway/sampler/chat":              {". gateway/call gateway/sampler gateway/dialect/sse gateway/chatwire", false},
	"gateway/sampler/tokens":            {". gateway/call gateway/sampler gateway/dialect/sse gateway/chatwire gateway/render engine", false},

	"controller":           {". controller/plan", false},
	"controller/plan":      {".", true},
	"controller/sandbox":   {".", false},
	"controller/grade":     {". controller/plan controller controller/sandbox", false},
	"controller/local":     {". controller/plan controller controller/sandbox controller/grade", false},
	"controller/container": {". controller/plan controller controller/sandbox controller/grade", false},
	"controller/kube":      {". controller/plan controller controller/sandbox controller/grade jinja", false},

	"trainer":           {". trainer/trace trainer/sample trainer/advantage trainer/loss trainer/schedule trainer/data trainer/stats trainer/metrics audit reward engine", false},
	"trainer/trace":     {".", true},
	"trainer/sample":    {". trainer/trace", true},
	"trainer/advantage": {"", true},
	"trainer/loss":      {"", true},
	"trainer/schedule":  {".", true},
	"trainer/sim":       {". trainer/schedule", true},
	"trainer/stats":     {"", true},
	"trainer/data":      {".", false},
	"trainer/metrics":   {".", false},

	"engine":                 {".", true},
	"engine/weights":         {".", false},
	"engine/embedded/kernel": {"", false},
	"engine/embedded":        {". engine engine/weights engine/embedded/kernel trainer/loss", false},
	"engine/wire":            {". engine", false},
	"engine/tinker":          {". engine engine/wire", false},
	"engine/serve":           {". engine engine/wire gateway/chatwire gateway/dialect/sse", false},

	"store":          {".", false},
	"store/sqlite":   {". store", false},
	"store/postgres": {". store", false},
	"api":            {".", false},
	"api/v1":         {". api", false},
	"api/v2":         {". api", false},
	"api/client":     {". api", false},
	"report":         {". api", false},
	"web":            {". api", false},
	"cli":            {"*", false},
	"cli/view":       {".", false},

	"cmd/fulgur":               {"cli", false},
	"examples/calc":            {"", false},
	"examples/calc/agent":      {"examples/calc/agent/loop", false},
	"examples/calc/agent/loop": {"", false},
}

// Free folders: no rule but their own.
var free = []string{"bench", "test", "tools", "examples"}

// suites are imported by tests only, and may import what their subject imports.
var suites = []string{
	"gateway/dialect/dialecttest", "gateway/sampler/samplertest", "controller/runnertest", "engine/enginetest",
	"store/storetest", "api/apitest", "goldentest",
}

var impure = []string{"os", "os/exec", "net", "net/http", "syscall", "database/sql", "math/rand", "math/rand/v2"}

var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// leaves says which package alone may import a third-party module. "cli" is
// allowed everywhere where wiring needs it only if it is named.
var leaves = map[string][]string{
	"modernc.org/sqlite":                      {"store/sqlite"},
	"github.com/ncruces/go-sqlite3":           {"store/sqlite"},
	"github.com/jackc/pgx":                    {"store/postgres"},
	"k8s.io/":                                 {"controller/kube"},
	"mvdan.cc/sh":                             {"audit"},
	"golang.org/x/text":                       {"gateway/render/tokenizer"},
	"google.golang.org/protobuf":              {"engine/wire", "trainer/metrics"},
	"github.com/parquet-go":                   {"trainer/data"},
	"github.com/klauspost/compress":           {"store"},
	"github.com/prometheus/client_golang":     {"gateway", "controller", "trainer/metrics", "cli"},
	"charm.land/":                             {"cli/view"},
	"github.com/goccy/go-yaml":                {"config"},
	"github.com/invopop/jsonschema":           {"config"},
	"github.com/danielgtaylor/huma":           {"api/v2"},
	"github.com/spf13/cobra":                  {"cli"},
	"github.com/openai/openai-go":             {},
	"github.com/anthropics/anthropic-sdk-go":  {},
	"github.com/google/go-cmp":                {},
	"github.com/rogpeppe/go-internal":         {},
	"go.uber.org/goleak":                      {},
	"github.com/mmcloughlin/avo":              {},
	"github.com/santhosh-tekuri/jsonschema/v": {},
}

type file struct {
	path string
	pkg  string // name as in layout
	test bool
	ast  *ast.File
}

// pkgName turns a folder into a name of the layout.
func pkgName(dir string) string { return strings.TrimPrefix(filepath.ToSlash(dir), "internal/") }

func goFiles(t *testing.T) []file {
	t.Helper()
	var out []file
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if b := d.Name(); p != "." && (b == "testdata" || b == "node_modules" || b == "runs" || strings.HasPrefix(b, ".")) {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && p != "." {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, file{filepath.ToSlash(p), pkgName(filepath.Dir(p)), strings.HasSuffix(p, "_test.go"), f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func isFree(pkg string) bool {
	if _, ok := layout[pkg]; ok {
		return false
	}
	return slices.Contains(free, strings.SplitN(pkg, "/", 2)[0])
}

// ours returns the layout name of an import of this module.
func ours(imp string) (string, bool) {
	if imp == module {
		return ".", true
	}
	rest, ok := strings.CutPrefix(imp, module+"/")
	return strings.TrimPrefix(rest, "internal/"), ok
}

func imports(f file) []string {
	var out []string
	for _, i := range f.ast.Imports {
		s, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			out = append(out, s)
		}
	}
	return out
}

func TestLayout(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || isFree(f.pkg) {
			continue
		}
		suite := slices.Contains(suites, f.pkg)
		r, known := layout[f.pkg]
		if !known && !suite {
			t.Errorf("%s: package %s has no row in arch_test.go: a new package states its place when it is born", f.path, f.pkg)
			continue
		}
		for _, imp := range imports(f) {
			if r.pure && slices.Contains(impure, imp) {
				t.Errorf("%s: the pure package %s imports %s", f.path, f.pkg, imp)
			}
			dep, is := ours(imp)
			if !is {
				continue
			}
			if slices.Contains(suites, dep) && !suite {
				t.Errorf("%s: production code imports the test suite %s", f.path, dep)
			}
			if !suite && r.may != "*" && !slices.Contains(strings.Fields(r.may), dep) {
				t.Errorf("%s: %s may not import %s", f.path, f.pkg, dep)
			}
			if strings.HasPrefix(dep, "examples/") && f.pkg != "cli" && !strings.HasPrefix(f.pkg, "examples/") {
				t.Errorf("%s: only cli imports examples", f.path)
			}
		}
		if r.pure {
			checkClock(t, f)
		}
	}
}

// checkClock finds uses of the clock in a pure package.
func checkClock(t *testing.T, f file) {
	t.Helper()
	ast.Inspect(f.ast, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, s.Sel.Name) {
			t.Errorf("%s: the pure package %s uses time.%s", f.path, f.pkg, s.Sel.Name)
		}
		return true
	})
}

// Variants of one contract do not know each other, not even in tests.
func TestSiblingsDoNotImportEachOther(t *testing.T) {
	contracts := []string{"gateway/dialect", "gateway/sampler", "controller", "engine", "store"}
	helpers := []string{"gateway/dialect/sse", "engine/weights", "engine/wire", "engine/embedded/kernel", "controller/plan", "controller/sandbox", "controller/grade"}
	for _, f := range goFiles(t) {
		parent := path.Dir(f.pkg)
		if !slices.Contains(contracts, parent) || slices.Contains(suites, f.pkg) {
			continue
		}
		for _, imp := range imports(f) {
			dep, is := ours(imp)
			if is && dep != f.pkg && path.Dir(dep) == parent && !slices.Contains(suites, dep) && !slices.Contains(helpers, dep) {
				t.Errorf("%s: the variant %s imports its sibling %s", f.path, f.pkg, dep)
			}
		}
	}
}

func TestThirdPartiesStayInTheirLeaf(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || isFree(f.pkg) || slices.Contains(suites, f.pkg) {
			continue
		}
		for _, imp := range imports(f) {
			for prefix, may := range leaves {
				if strings.HasPrefix(imp, prefix) && !slices.Contains(may, f.pkg) {
					t.Errorf("%s: %s may be imported by %v only", f.path, imp, may)
				}
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	docs := map[string]int{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		if _, ok := docs[f.pkg]; !ok {
			docs[f.pkg] = 0
		}
		if f.ast.Doc != nil && strings.TrimSpace(f.ast.Doc.Text()) != "" {
			docs[f.pkg]++
		}
	}
	bad := []string{"common", "helper", "helpers", "misc", "shared", "types", "lib", "base", "models"}
	for pkg, n := range docs {
		if n != 1 {
			t.Errorf("%s: %d package comments, want 1", pkg, n)
		}
		if slices.Contains(bad, path.Base(pkg)) || strings.Contains(path.Base(pkg), "util") {
			t.Errorf("%s: a package's name says what it provides", pkg)
		}
	}
}

// Nothing runs at import.
func TestNoInit(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || isFree(f.pkg) {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: has an init function", f.path)
			}
		}
	}
}

func TestModuleFile(t *testing.T) {
	b, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "\nreplace") {
		t.Error("go.mod has a replace directive: `go install` of a released version would not work")
	}
	if !strings.Contains(string(b), "\ngo 1.26.0\n") {
		t.Error("go.mod's go line is not 1.26.0: it says which Go a fresh machine needs")
	}
}
