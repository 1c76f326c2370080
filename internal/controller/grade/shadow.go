package grade

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// decides are names of files and folders that decide how tests run, or what runs in
// their place, whatever the work is: an interpreter, a build tool or a test runner reads
// them by itself.
var decides = slices.Concat(
	strings.Fields("conftest.py sitecustomize.py usercustomize.py *.pth *.pyc *.egg-link __pycache__ .pytest_cache pytest.ini .pytest.ini pytest.toml .pytest.toml tox.ini setup.cfg pyproject.toml .coveragerc"),
	strings.Fields("package.json node_modules __mocks__ .npmrc .babelrc* babel.config.* tsconfig*.json jest.config.* vite.config.* vitest.config.* vitest.workspace.* .mocharc* playwright.config.* bunfig.toml deno.json*"),
	strings.Fields("go.mod go.sum go.work vendor/modules.txt Cargo.toml Cargo.lock build.rs .cargo"),
	strings.Fields("Makefile makefile GNUmakefile CMakeLists.txt pom.xml .mvn *.gradle *.gradle.kts gradle.properties Rakefile Gemfile* .rspec phpunit.xml* composer.json"),
	strings.Fields(".git .gitattributes .bashrc .profile .bash_profile .envrc LD_PRELOAD* *.so *.dylib"),
)

// runnersModules are what Python's test runners (pytest with its common plugins, unittest,
// doctest, coverage) import by themselves, before and while they run a test. `python -m`
// puts the folder in which it starts before all others, so a module of such a name at the
// top of the copy runs in the place of the true one. What the interpreter itself has in it (os,
// sys, io) cannot be replaced so, and other modules of the standard library only matter
// to the work that imports them: a calc with a statistics.py is one.
var runnersModules = strings.Fields(`
pytest _pytest py pluggy iniconfig packaging exceptiongroup tomli colorama pygments attr attrs typing_extensions xdist execnet coverage hypothesis nose nose2 tox
__future__ _bisect _blake2 _bootlocale _bz2 _colorize _compat_pickle _compression _csv _datetime _decimal _elementtree _hashlib _heapq _json _lzma _opcode
_opcode_metadata _pickle _posixsubprocess _queue _random _socket _sqlite3 _ssl _struct _typing _uuid _weakrefset argparse array ast asyncio base64 bdb binascii
bisect bz2 calendar cmd code codeop collections concurrent configparser contextlib contextvars copy copyreg csv dataclasses datetime decimal difflib dis doctest email
encodings enum fcntl fnmatch functools getpass gettext glob grp hashlib heapq html importlib inspect ipaddress json keyword linecache locale logging lzma math
multiprocessing numbers opcode operator pathlib pdb pickle pkgutil platform pprint pyexpat queue quopri random re readline reprlib rlcompleter runpy select
selectors shlex shutil signal socket sqlite3 sre_compile sre_constants sre_parse ssl string struct subprocess sysconfig tempfile termios textwrap threading
token tokenize tomllib traceback types typing unicodedata unittest urllib uuid warnings weakref xml zipfile zlib`)

// decided says whether a path is of a file that decides how tests run, or below such a
// folder. What paths name without a wildcard is not.
func decided(name string, paths []string) bool {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		if slices.Contains(paths, strings.Join(parts[:i+1], "/")) {
			continue
		}
		two := path.Join(parts[max(0, i-1) : i+1]...)
		for _, pattern := range decides {
			if ok, _ := path.Match(pattern, part); ok || pattern == two {
				return true
			}
		}
	}
	return false
}

// shadows says whether a file is, at the top of the copy, a Python module in the place of
// one that tests are run with: one of runnersModules, or one of modules.
func shadows(pristine fs.FS, name string, modules []string) bool {
	module, isFile := strings.CutSuffix(name, ".py")
	if !isFile || strings.Contains(module, "/") {
		var isPackage bool
		if module, isPackage = strings.CutSuffix(name, "/__init__.py"); !isPackage || strings.Contains(module, "/") {
			return false // a folder without that file comes after all modules of its name
		}
	}
	if !slices.Contains(runnersModules, module) && !slices.Contains(modules, module) && !strings.HasPrefix(module, "pytest_") {
		return false
	}
	return !has(pristine, module+".py") && !has(pristine, module+"/__init__.py") // the project's own
}

// leftover says whether what decides how tests run is what running code or installing
// packages leaves by itself: it is refused, but no trick.
func leftover(pristine fs.FS, name string, modules []string, dir bool) bool {
	if dir {
		return slices.Contains([]string{"__pycache__", ".pytest_cache", "node_modules"}, path.Base(name))
	}
	source, compiled := strings.CutSuffix(name, ".pyc")
	return compiled && !has(pristine, name) && !shadows(pristine, source+".py", modules)
}

var moduleArgument = regexp.MustCompile(`(?:^|[\s/])(?:python|pypy)[\d.]*(?:\s+-[XW]\s+\S+|\s+-\S+)*?\s+-\w*?m\s*([A-Za-z_]\w*)`)

// modulesOf are the modules that a command has Python run (-m), also within a shell's line.
func modulesOf(command []string) []string {
	var out []string
	for _, m := range moduleArgument.FindAllStringSubmatch(strings.Join(command, " "), -1) {
		out = append(out, m[1])
	}
	return out
}
