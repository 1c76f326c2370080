package grade

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree is what is in a folder: names with their text, or where they lead.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if d.Type()&fs.ModeSymlink != 0 {
			to, err := os.Readlink(path)
			out[name] = "-> " + to
			return err
		}
		text, err := os.ReadFile(path)
		if st, _ := d.Info(); st.Mode()&0o100 != 0 {
			name += "*"
		}
		out[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"a.py": "a", "src/b.py": "b", ".git/HEAD": "ref", "src/__pycache__/b.pyc": "x"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "run.sh"), []byte("go"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "/etc/passwd", "src/up": "../a.py"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A workspace comes with its files alone; that there was something else is seen. A copy
// comes with its links, but for those that lead out of it.
func TestArchive(t *testing.T) {
	from := folder(t)
	for name, test := range map[string]struct {
		size int64
		want map[string]string
	}{
		"a workspace": {1000, map[string]string{"a.py": "a", "src/b.py": "b", "run.sh*": "go", "link": "-> " + RefusedLink, "src/up": "-> " + RefusedLink, "pipe": "-> " + RefusedLink}},
		"a copy":      {0, map[string]string{"a.py": "a", "src/b.py": "b", "run.sh*": "go", ".git/HEAD": "ref", "src/__pycache__/b.pyc": "x", "src/up": "-> ../a.py"}},
	} {
		t.Run(name, func(t *testing.T) {
			var one, two bytes.Buffer
			for _, w := range []*bytes.Buffer{&one, &two} {
				if err := Pack(w, from, test.size); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(one.Bytes(), two.Bytes()) {
				t.Error("of the same files other bytes")
			}
			to := t.TempDir()
			if err := Unpack(&one, to, test.size); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(test.want, tree(t, to)); d != "" {
				t.Error(d)
			}
			if _, err := os.Stat(filepath.Join(to, ".git")); err != nil {
				t.Error(err)
			}
		})
	}
	deep := t.TempDir()
	if err := os.MkdirAll(filepath.Join(deep, strings.Repeat("d/", maxFolders+2)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Pack(&bytes.Buffer{}, deep, 1000); err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("deeper than it may be: %v", err)
	}
	if err := Pack(&bytes.Buffer{}, from, 3); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("more than the size: %v", err)
	}
}

func TestUnpackWritesNothingElsewhere(t *testing.T) {
	for name, test := range map[string][]tar.Header{
		"up":                    {{Name: "../x", Typeflag: tar.TypeReg}},
		"up, later":             {{Name: "a/../../x", Typeflag: tar.TypeReg}},
		"absolute":              {{Name: "/x", Typeflag: tar.TypeReg}},
		"a device":              {{Name: "x", Typeflag: tar.TypeChar}},
		"a hard link":           {{Name: "x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		"through a link":        {{Name: "d", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "d/x", Typeflag: tar.TypeReg}},
		"a file twice":          {{Name: "x", Typeflag: tar.TypeReg}, {Name: "x", Typeflag: tar.TypeReg}},
		"a file over a link":    {{Name: "x", Typeflag: tar.TypeSymlink, Linkname: "/tmp/x"}, {Name: "x", Typeflag: tar.TypeReg}},
		"more than it may have": {{Name: "x", Typeflag: tar.TypeReg, Size: 2000}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			w := tar.NewWriter(z)
			for i := range test {
				if err := w.WriteHeader(&test[i]); err != nil {
					t.Fatal(err)
				}
				_, _ = w.Write(make([]byte, test[i].Size))
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			outer := t.TempDir()
			dir := filepath.Join(outer, "in")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := Unpack(&b, dir, 1000); err == nil {
				t.Error("it was unpacked")
			}
			if left, _ := os.ReadDir(outer); len(left) != 1 {
				t.Errorf("beside the folder: %v", left)
			}
		})
	}
}
