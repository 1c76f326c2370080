package openaichat

import (
	"bytes"
	"encoding/json"
	"sync"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/gateway/chatwire"
)

// toolList is what a request's list of tools says.
type toolList struct {
	tools   []fulgur.Tool // shared by requests: never changed
	relayed []string
	invalid *fulgur.Error // the first complaint
}

// toolLists remembers what lists of tools say, by their bytes. It is safe for
// concurrent use; nil remembers nothing.
type toolLists struct {
	mu    sync.Mutex
	known map[string]toolList
	bytes int
}

// maxToolBytes bounds the lists that are remembered: beyond it all are forgotten.
const maxToolBytes = 4 << 20

func (l *toolLists) read(raw json.RawMessage) toolList {
	if l == nil || len(raw) == 0 || len(raw) > maxToolBytes/16 {
		return readTools(raw)
	}
	l.mu.Lock()
	t, ok := l.known[string(raw)]
	l.mu.Unlock()
	if ok {
		return t
	}
	t = readTools(bytes.Clone(raw)) // not to hold the body that it came with
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes += len(raw); l.bytes > maxToolBytes {
		clear(l.known)
		l.bytes = len(raw)
	}
	l.known[string(raw)] = t
	return t
}

// readTools keeps the tools raw too: a chat template prints them whole, in the
// order of the harness's keys.
func readTools(raw json.RawMessage) (out toolList) {
	var list []json.RawMessage
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &list); err != nil {
			out.complain("tools: " + typeMessage(err))
			return out
		}
	}
	for _, r := range list {
		var t chatwire.Tool
		if err := json.Unmarshal(r, &t); err != nil {
			out.complain("tools: " + typeMessage(err))
			continue
		}
		if t.Type != "" && t.Type != "function" {
			out.relayed = append(out.relayed, "a tool of type "+t.Type)
			continue
		}
		if t.Function.Name == "" {
			out.complain("tools: a function has no name")
			continue
		}
		out.tools = append(out.tools, fulgur.Tool{Name: t.Function.Name, Description: t.Function.Description, Schema: t.Function.Parameters, Raw: r})
	}
	return out
}

func (t *toolList) complain(msg string) {
	if t.invalid == nil {
		t.invalid = invalid(msg)
	}
}
