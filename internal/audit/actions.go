package audit

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/fulgur-rl/fulgur"
)

// act looks at a tool call. Harnesses name their tools and arguments as they
// like; what a call does is told by which arguments it has.
func (m *machine) act(tc fulgur.ToolCall) {
	var args map[string]any
	if json.Unmarshal([]byte(tc.Arguments), &args) != nil { // free text, as of a custom tool
		m.from(tc.Name, func() { m.freeText(tc.Name, tc.Arguments) })
		return
	}
	m.from(tc.Name, func() { m.tool(strings.ToLower(tc.Name), args) })
}

// freeText is a tool's input that is no JSON: a patch, else commands.
func (m *machine) freeText(name, text string) {
	switch {
	case strings.Contains(text, "*** Begin Patch") || strings.Contains(text, "\n+++ "):
		m.patch(text)
	case strings.Contains(strings.ToLower(name), "python"):
		m.program("python", "python", text, stream{})
	default:
		m.shell(text)
	}
}

// text is the first of the arguments that is a text, or a list of words.
func text(args map[string]any, names ...string) (string, bool) {
	for _, n := range names {
		switch v := args[n].(type) {
		case string:
			return v, true
		case []any:
			words := make([]string, 0, len(v))
			for _, x := range v {
				s, ok := x.(string)
				if !ok {
					words = nil
					break
				}
				words = append(words, s)
			}
			if len(words) > 0 {
				return quoted(words), true
			}
		}
	}
	return "", false
}

func (m *machine) tool(name string, args map[string]any) {
	p, hasPath := text(args, "path", "file_path", "filePath", "filepath", "filename", "file", "target_file", "absolute_path", "notebook_path")
	content, hasContent := text(args, "content", "contents", "file_text", "fileText", "new_source")
	_, hasOld := text(args, "old_string", "oldText", "old_str", "oldString", "old", "search", "diff")
	fresh, hasNew := text(args, "new_string", "newText", "new_str", "newString", "insert_text", "replace")
	if d, ok := text(args, "workdir", "cwd", "directory", "working_directory"); ok && !strings.HasPrefix(d, "/") {
		old := m.cwd
		m.cwd = m.at(d)
		defer func() { m.cwd = old }()
	}
	if p2, ok := text(args, "patch", "patch_text", "patchText", "input"); ok && (strings.Contains(p2, "*** Begin Patch") || strings.Contains(p2, "+++ ")) {
		m.patch(p2)
		return
	}
	if !hasPath {
		if code, ok := text(args, "code", "script", "source"); ok {
			l := "python"
			if strings.Contains(name, "bash") || strings.Contains(name, "shell") {
				l = ""
			} else if strings.Contains(name, "js") || strings.Contains(name, "node") || strings.Contains(name, "javascript") {
				l = "node"
			}
			if l != "" {
				m.program(l, l, code, stream{})
				return
			}
		}
		if cmd, ok := text(args, "command", "cmd", "script", "code", "bash_command", "commands", "chars", "input"); ok {
			m.shell(cmd)
			return
		}
		if u, ok := text(args, "url", "uri"); ok {
			m.fetches(u, false, name+" "+u)
			return
		}
		if s, ok := text(args, "pattern", "glob"); ok {
			m.reads(s, true)
		}
		return
	}
	edits, _ := args["edits"].([]any)
	command, _ := args["command"].(string) // an editor's: view, create, str_replace
	switch {
	case command == "view":
		m.reads(p, false)
	case strings.Contains(name, "delete") || strings.Contains(name, "remove"):
		m.writes(p, removed, "")
	case hasOld || len(edits) > 0 || hasNew:
		m.writes(p, changed, m.edited(p, args, fresh))
	case hasContent || strings.Contains(name, "write") || command == "create":
		m.writes(p, created, content)
	case strings.Contains(name, "edit"):
		m.writes(p, changed, "")
	case strings.Contains(name, "list") || name == "ls" || name == "glob" || name == "find":
		m.reads(p, true)
	default:
		m.reads(p, false)
	}
}

// edited is a file's text after an edit, where it was known; else the new part,
// so that it is shown.
func (m *machine) edited(p string, args map[string]any, fresh string) string {
	was, ok := m.content(p)
	old, _ := text(args, "old_string", "oldText", "old_str", "oldString")
	if ok && old != "" {
		return strings.ReplaceAll(was, old, fresh)
	}
	return fresh
}

// patch looks at a patch in apply_patch's form or as a unified diff.
func (m *machine) patch(src string) {
	var p, how string
	var added strings.Builder
	flush := func() {
		if p != "" {
			m.writes(p, how, added.String())
		}
		p, how = "", ""
		added.Reset()
	}
	header := regexp.MustCompile(`^\*\*\* (Add|Update|Delete) File: (.+)$|^\*\*\* Move to: (.+)$|^\+\+\+ (?:b/)?(\S+)|^--- (?:a/)?(\S+)`)
	gone := ""
	for line := range strings.SplitSeq(src, "\n") {
		line = strings.TrimSuffix(line, "\r")
		g := header.FindStringSubmatch(line)
		switch {
		case g == nil:
			if strings.HasPrefix(line, "+") {
				added.WriteString(line[1:] + "\n")
			}
		case g[1] != "":
			flush()
			p, how = strings.TrimSpace(g[2]), map[string]string{"Add": created, "Update": changed, "Delete": removed}[g[1]]
		case g[3] != "":
			m.writes(g[3], created, "")
		case g[5] != "":
			flush()
			gone = g[5]
		case g[4] == "/dev/null":
			flush()
			p, how = gone, removed
		default:
			flush()
			p, how = g[4], changed
			if gone == "/dev/null" {
				how = created
			}
		}
	}
	flush()
}
