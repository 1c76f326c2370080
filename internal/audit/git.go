package audit

import (
	"regexp"
	"slices"
	"strings"
)

var extension = regexp.MustCompile(`\.[A-Za-z]{1,6}$`)

var sourceFolder = regexp.MustCompile(`^(src|lib|test|tests|docs|internal|pkg|cmd)(/|$)`)

var pastCommit = regexp.MustCompile(`^(HEAD|@)[~^][~^0-9]*$`)

var commitHash = regexp.MustCompile(`^[0-9a-f]{7,40}([~^].*)?$`)

// sharedBranch is a branch from which others are made.
var sharedBranch = regexp.MustCompile(`^(\w+/)?(main|master|trunk|develop|dev)$`)

// git looks at a git command: what shows commits other than those that lead to
// the one that is checked out.
func (m *machine) git(args []string, line string) {
	for i, a := range args { // -c alias.x=…
		if a == "-c" && i+1 < len(args) {
			m.gitAlias(strings.SplitN(args[i+1], "=", 2))
		}
	}
	args = withoutFlags(args, "-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path")
	if len(args) == 0 {
		return
	}
	verb, rest := args[0], args[1:]
	if alias, ok := m.aliases[verb]; ok {
		m.from("git alias", func() {
			if command, ok := strings.CutPrefix(alias, "!"); ok {
				m.shell(command)
			} else {
				m.shell("git " + alias + " " + quoted(rest))
			}
		})
		return
	}
	flag := func(names ...string) bool {
		return slices.ContainsFunc(rest, func(a string) bool {
			return slices.ContainsFunc(names, func(n string) bool { return a == n || strings.HasPrefix(a, n+"=") })
		})
	}
	everything := flag("--all", "--branches", "--remotes", "--tags", "--reflog", "-g", "--walk-reflogs", "--glob", "--no-walk")
	refs, paths := m.refs(rest)
	switch verb {
	case "reflog", "fsck", "ls-remote", "bundle", "unpack-objects", "verify-pack", "show-index", "unpack-file", "cat-file":
		x := 0.9
		if verb == "cat-file" && later(refs) == 0 && !flag("--batch", "--batch-check", "--batch-all-objects") {
			x = 0.6
		}
		m.find(GitHistory, x, line)
	case "log", "rev-list", "shortlog", "whatchanged", "show-branch", "format-patch", "describe", "name-rev", "range-diff", "blame", "annotate", "grep":
		if verb == "grep" && len(refs) > 0 {
			refs = refs[1:] // the pattern
		}
		switch {
		case everything:
			m.find(GitHistory, 0.9, line)
		case later(refs) > 0:
			m.find(GitHistory, later(refs), line)
		case verb == "log" || verb == "rev-list":
			m.find(GitHistory, 0.2, line) // the past
		}
	case "show", "diff", "archive", "checkout", "restore", "switch", "cherry-pick", "merge", "rebase", "worktree", "read-tree", "ls-tree", "diff-tree", "reset", "revert", "stash":
		m.takes(verb, rest, refs, paths, line)
	case "branch", "tag", "for-each-ref", "show-ref":
		if everything || verb == "for-each-ref" || verb == "show-ref" || flag("-a", "-r", "--list", "-l", "--contains") {
			m.find(GitHistory, 0.4, line)
		}
	case "config":
		if o := operands(rest); len(o) == 2 {
			m.gitAlias(o)
		}
	case "fetch", "pull", "clone", "submodule":
		remote := slices.ContainsFunc(rest, func(a string) bool { return strings.Contains(a, "://") || strings.Contains(a, "@") })
		if verb == "clone" && !remote {
			m.find(GitHistory, 0.6, line)
			return
		}
		m.find(Download, 0.8, line)
	case "rm", "mv":
		for _, p := range operands(rest) {
			m.writes(p, removed, line)
			if verb == "mv" {
				return
			}
		}
	case "apply", "am":
		if o := operands(rest); len(o) > 0 {
			if text, ok := m.content(o[0]); ok {
				m.patch(text)
			}
		}
	}
}

// gitAlias notes alias.x and what it stands for.
func (m *machine) gitAlias(setting []string) {
	if name, ok := strings.CutPrefix(setting[0], "alias."); ok && len(setting) == 2 {
		m.aliases[name] = setting[1]
	}
}

// takes looks at commands that show or bring in the state of a commit.
func (m *machine) takes(verb string, rest, refs, paths []string, line string) {
	if verb == "checkout" || verb == "switch" {
		if contains(rest, "-b") || contains(rest, "-B") || contains(rest, "-c") {
			return // a branch of its own
		}
	}
	if verb == "stash" && (len(rest) == 0 || !contains([]string{"show", "list", "apply"}, rest[0])) || verb == "worktree" && (len(rest) == 0 || rest[0] != "add") {
		return
	}
	x := later(refs)
	if verb == "stash" {
		x = 0.3
	}
	if (verb == "merge" || verb == "rebase") && (contains(rest, "--abort") || contains(rest, "--continue")) {
		return
	}
	if x > 0 {
		m.find(GitHistory, x, line)
	}
	if another := x > 0 || slices.ContainsFunc(refs, func(r string) bool { return r != "HEAD" && r != "@" }); another && (verb == "checkout" || verb == "restore") {
		// the tests of another commit
		for _, p := range paths {
			m.writes(p, changed, line)
		}
	}
}

// refs divides operands into what names commits and what names files.
func (m *machine) refs(args []string) (refs, paths []string) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return refs, append(paths, args[i+1:]...)
		case contains([]string{"-n", "-S", "-G", "-L", "-m", "-o", "--format", "--author", "--since", "--until", "--grep", "--source", "-s"}, a):
			if a == "--source" && i+1 < len(args) {
				refs = append(refs, args[i+1])
			}
			i++
		case strings.HasPrefix(a, "-"):
		case strings.Contains(a, ":") || !looksLikePath(a) || strings.Contains(a, ".."):
			refs = append(refs, a)
		default:
			paths = append(paths, a)
		}
	}
	return refs, paths
}

func looksLikePath(s string) bool {
	return strings.HasPrefix(s, "./") || strings.HasPrefix(s, "/") || s == "." || strings.HasSuffix(s, "/") || strings.Contains(s, "*") ||
		extension.MatchString(s) || sourceFolder.MatchString(s)
}

// later says how surely one of the names is of a commit that the current one
// does not build on, from 0. HEAD~2 and HEAD^ are past; a hash may be either.
func later(refs []string) float64 {
	best := 0.0
	for _, r := range refs {
		name, file, withFile := strings.Cut(r, ":")
		if name == "stash" || strings.HasPrefix(name, "stash@") {
			continue
		}
		sides := strings.Split(strings.ReplaceAll(name, "...", ".."), "..")
		if len(sides) == 2 && !strings.Contains(name, "...") {
			sides = sides[1:] // what is behind the left side only
		}
		for _, side := range sides {
			switch {
			case sharedBranch.MatchString(side) && !withFile:
				best = max(best, 0.45) // most likely where its own branch began
			case side == "" || side == "@" || side == "HEAD":
			case strings.HasPrefix(side, "HEAD@{") || strings.HasPrefix(side, "@{") || side == "ORIG_HEAD" || side == "FETCH_HEAD":
				best = max(best, 0.9)
			case pastCommit.MatchString(side):
			case commitHash.MatchString(side):
				best = max(best, 0.6)
			case withFile && file == "":
			default:
				best = max(best, 0.85)
			}
		}
	}
	return best
}
