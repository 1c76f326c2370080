package grade

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestTakePatch(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text), Mode: 0o644} }
	program := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text), Mode: 0o755} }
	pristine := fstest.MapFS{"calc.py": file("old"), "src/a.py": file("a"), "conftest.py": file("honest"), "run.sh": program("go")}
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
		"files that decide how tests run":    {fstest.MapFS{"conftest.py": file("x"), "src/sitecustomize.py": file("x"), "a.pth": file("x"), "src/__pycache__/a.pyc": file("x")}, nil, nil, "a.pth (decides how tests run)\nconftest.py (decides how tests run)\nsrc/__pycache__ (decides how tests run)\nsrc/sitecustomize.py (decides how tests run)", 4},
		"one of them that is named":          {fstest.MapFS{"conftest.py": file("x")}, []string{"conftest.py"}, []string{"conftest.py"}, "", 0},
		"one of them as it was":              {fstest.MapFS{"conftest.py": file("honest")}, nil, nil, "", 0},
		"a program in place of the system's": {fstest.MapFS{"bin/sh": program("x"), "sh": file("no program"), "bin/mine": program("x")}, nil, []string{"bin/mine", "sh"}, "bin/sh (stands in for a program of the system)", 1},
		"one that this machine lacks":        {fstest.MapFS{"bin/python3.99": program("x"), "calc.py": file("new")}, nil, []string{"calc.py"}, "bin/python3.99 (stands in for a program of the system)", 1},
		"a link":                             {fstest.MapFS{"calc.py": &fstest.MapFile{Data: []byte("/etc/passwd"), Mode: os.ModeSymlink}}, nil, nil, "calc.py (no regular file)", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := takePatch(test.work, pristine, test.paths, 1000)
			if err != nil {
				t.Fatal(err)
			}
			var files []string
			for _, f := range []string{"bin/mine", "calc.py", "conftest.py", "sh", "src/b.py", "src/x/b.py"} {
				if _, ok := p.files[f]; ok {
					files = append(files, f)
				}
			}
			if d := cmp.Diff(test.files, files); d != "" || len(files) != len(p.files) {
				t.Errorf("files (-want +got):\n%s%v", d, p.files)
			}
			if got := strings.Join(p.refused, "\n"); got != test.refused || p.shams != test.shams {
				t.Errorf("refused %q (%d), want %q (%d)", got, p.shams, test.refused, test.shams)
			}
		})
	}
	if _, err := takePatch(fstest.MapFS{"big": file(strings.Repeat("x", 2000))}, pristine, nil, 1000); err == nil {
		t.Error("more than the size was taken")
	}
}

// Only what is graded counts towards the size, and what is refused or as it was is
// not even read.
func TestOnlyWhatIsGradedCounts(t *testing.T) {
	big := &fstest.MapFile{Data: make([]byte, 5000), Mode: 0o644}
	other := &fstest.MapFile{Data: []byte(strings.Repeat("x", 5000)), Mode: 0o644}
	pristine := fstest.MapFS{"model.bin": big, "data.bin": big}
	p, err := takePatch(fstest.MapFS{"model.bin": big, "data.bin": other, "lib.so": other, "notes": other, "src/a.py": {Data: []byte("a")}}, pristine, []string{"src/"}, 10)
	if err != nil || len(p.files) != 1 || len(p.refused) != 3 {
		t.Errorf("%v, refused %q, %v", p.files, p.refused, err)
	}
}

func TestWhatIsLeftIsBounded(t *testing.T) {
	deep := strings.Repeat("d/", maxDepth+1) + "f"
	_, err := takePatch(fstest.MapFS{deep: {}}, emptyFS{}, nil, 1000)
	if machine(err) || err == nil {
		t.Errorf("folders in one another: %v", err)
	}
}
