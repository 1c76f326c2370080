package grade

import (
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// kept is what a patch puts where.
type kept map[string]string

func (k kept) put(name string, text io.Reader) error {
	b, err := io.ReadAll(text)
	k[name] = string(b)
	return err
}

func TestTakePatch(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text), Mode: 0o644} }
	program := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text), Mode: 0o755} }
	pristine := fstest.MapFS{"calc.py": file("old"), "src/a.py": file("a"), "conftest.py": file("honest"), "calendar.py": file("own"), "lib/node_modules/jest/index.js": file("jest"), "run.sh": program("go")}
	for name, test := range map[string]struct {
		work    fstest.MapFS
		paths   []string
		files   []string
		refused string
		shams   int
	}{
		"a change and a new file":            {fstest.MapFS{"calc.py": file("new"), "src/b.py": file("b"), "src/a.py": file("a")}, nil, []string{"calc.py", "src/b.py"}, "", 0},
		"only what is allowed":               {fstest.MapFS{"calc.py": file("new"), "src/x/b.py": file("b"), "notes": file("n")}, []string{"src/**/*.py"}, []string{"src/x/b.py"}, "calc.py (not in reward.paths)\nnotes (not in reward.paths)", 0},
		"a folder allows what is below it":   {fstest.MapFS{"src/x/b.py": file("b"), "srcs/c.py": file("c")}, []string{"src/"}, []string{"src/x/b.py"}, "srcs/c.py (not in reward.paths)", 0},
		"files that decide how tests run":    {fstest.MapFS{"conftest.py": file("x"), "src/sitecustomize.py": file("x"), "a.pth": file("x"), "src/__pycache__/a.pyc": file("x")}, nil, nil, "a.pth (decides how tests run)\nconftest.py (decides how tests run)\nsrc/__pycache__ (decides how tests run)\nsrc/sitecustomize.py (decides how tests run)", 3},
		"what is left by running code":       {fstest.MapFS{"calc.py": file("new"), "a.pyc": file("x"), "pytest.pyc": file("x"), "t/__pycache__/a.pyc": file("x"), ".pytest_cache/README.md": file("x"), "node_modules/a.js": file("x")}, nil, []string{"calc.py"}, ".pytest_cache (decides how tests run)\na.pyc (decides how tests run)\nnode_modules (decides how tests run)\npytest.pyc (decides how tests run)\nt/__pycache__ (decides how tests run)", 1},
		"one of them that is named":          {fstest.MapFS{"conftest.py": file("x")}, []string{"conftest.py"}, []string{"conftest.py"}, "", 0},
		"one of them as it was":              {fstest.MapFS{"conftest.py": file("honest")}, nil, nil, "", 0},
		"what pytest reads by itself":        {fstest.MapFS{"pytest.toml": file("x"), ".pytest.toml": file("x"), "src/a.toml": file("x")}, []string{"src/b.py", "**"}, []string{"src/a.toml"}, ".pytest.toml (decides how tests run)\npytest.toml (decides how tests run)", 2},
		"what other runners read":            {fstest.MapFS{"GNUmakefile": file("x"), "ui/vite.config.ts": file("x"), "vendor/modules.txt": file("x"), "vendor/x.go": file("x"), "modules.txt": file("x"), ".cargo/config.toml": file("x")}, nil, []string{"modules.txt", "vendor/x.go"}, ".cargo (decides how tests run)\nGNUmakefile (decides how tests run)\nui/vite.config.ts (decides how tests run)\nvendor/modules.txt (decides how tests run)", 4},
		"a package that is installed":        {fstest.MapFS{"lib/node_modules/jest/index.js": file("x"), "web/node_modules/jest.js": file("x")}, nil, nil, "lib/node_modules/jest/index.js (decides how tests run)\nweb/node_modules (decides how tests run)", 1},
		"a folder of them that is named":     {fstest.MapFS{"lib/node_modules/jest/index.js": file("x")}, []string{"lib/node_modules"}, []string{"lib/node_modules/jest/index.js"}, "", 0},
		"a module in place of the runner's":  {fstest.MapFS{"pytest.py": file("x"), "pluggy/__init__.py": file("x"), "tempfile.py": file("x"), "pytest_cov.py": file("x")}, nil, nil, "pluggy/__init__.py (stands in for a module that tests are run with)\npytest.py (stands in for a module that tests are run with)\npytest_cov.py (stands in for a module that tests are run with)\ntempfile.py (stands in for a module that tests are run with)", 4},
		"one in place of what -m names":      {fstest.MapFS{"checks.py": file("x"), "src/checks.py": file("x")}, nil, []string{"src/checks.py"}, "checks.py (stands in for a module that tests are run with)", 1},
		"one that is named":                  {fstest.MapFS{"queue.py": file("x")}, []string{"queue.py"}, []string{"queue.py"}, "", 0},
		"the project's own, and no modules":  {fstest.MapFS{"calendar.py": file("x"), "src/queue.py": file("x"), "statistics.py": file("x"), "html/index.html": file("x"), "json/calc.py": file("x")}, nil, []string{"calendar.py", "html/index.html", "json/calc.py", "src/queue.py", "statistics.py"}, "", 0},
		"a program in place of the system's": {fstest.MapFS{"bin/sh": program("x"), "sh": file("no program"), "bin/mine": program("x")}, nil, []string{"bin/mine", "sh"}, "bin/sh (stands in for a program of the system)", 1},
		"one that this machine lacks":        {fstest.MapFS{"bin/python3.99": program("x"), "calc.py": file("new")}, nil, []string{"calc.py"}, "bin/python3.99 (stands in for a program of the system)", 1},
		"a link":                             {fstest.MapFS{"calc.py": &fstest.MapFile{Data: []byte("/etc/passwd"), Mode: os.ModeSymlink}}, nil, nil, "calc.py (no regular file)", 1},
	} {
		t.Run(name, func(t *testing.T) {
			put := kept{}
			p, err := takePatch(test.work, pristine, test.paths, modulesOf([]string{"sh", "-c", "exec /usr/bin/python3 -P -m checks.all -v"}), 1000, put.put)
			if err != nil {
				t.Fatal(err)
			}
			files := slices.Sorted(maps.Keys(put))
			if d := cmp.Diff(test.files, files); d != "" {
				t.Errorf("files (-want +got):\n%s", d)
			}
			if got := strings.Join(p.refused, "\n"); got != test.refused || p.shams != test.shams {
				t.Errorf("refused %q (%d), want %q (%d)", got, p.shams, test.refused, test.shams)
			}
		})
	}
	if _, err := takePatch(fstest.MapFS{"big": file(strings.Repeat("x", 2000))}, pristine, nil, nil, 1000, kept{}.put); err == nil {
		t.Error("more than the size was taken")
	}
}

// Only what is graded counts towards the size, and what is refused or as it was is
// not even read.
func TestOnlyWhatIsGradedCounts(t *testing.T) {
	big := &fstest.MapFile{Data: make([]byte, 5000), Mode: 0o644}
	other := &fstest.MapFile{Data: []byte(strings.Repeat("x", 5000)), Mode: 0o644}
	pristine := fstest.MapFS{"model.bin": big, "data.bin": big}
	p, err := takePatch(fstest.MapFS{"model.bin": big, "data.bin": other, "lib.so": other, "notes": other, "src/a.py": {Data: []byte("a")}}, pristine, []string{"src/"}, nil, 10, kept{}.put)
	if err != nil || p.files != 1 || len(p.refused) != 3 {
		t.Errorf("%d, refused %q, %v", p.files, p.refused, err)
	}
}

func TestWhatIsLeftIsBounded(t *testing.T) {
	deep := strings.Repeat("d/", maxDepth+1) + "f"
	_, err := takePatch(fstest.MapFS{deep: {}}, emptyFS{}, nil, nil, 1000, kept{}.put)
	if Machine(err) || err == nil {
		t.Errorf("folders in one another: %v", err)
	}
}

func TestModulesThatPythonRuns(t *testing.T) {
	for command, want := range map[string]string{
		"python3 -m pytest -q":                          "pytest",
		"/usr/bin/python3.11 -P -X dev -W error -m a.b": "a",
		"python -mcommon":                               "common",
		"python -Im nose2":                              "nose2",
		"sh -c cd x && python3 -m a && pypy3 -m b":      "a b",
		"pytest -m slow":                                "",
		"python3 run.py -m slow":                        "",
		"go test -modfile=x ./...":                      "",
		"uv run python -m unittest discover":            "unittest",
	} {
		if got := strings.Join(modulesOf(strings.Split(command, " ")), " "); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}
