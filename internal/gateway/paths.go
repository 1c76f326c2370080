package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/fulgur-rl/fulgur/internal/gateway/dialect"
)

// action is what a path asks for.
type action int

const (
	doNothing action = iota // no dialect answers the path
	doCall
	doCount
	doModels
)

// spot is what stands at a path.
type spot struct {
	do action
	// d answers; where do is doNothing it writes the error.
	d     dialect.Dialect
	count dialect.Counter // of doCount
	model string          // of doModels: the one asked for; "": the list
	v1    bool            // v1 answers it, or its 404
}

// paths are the paths of all dialects, and how they are recognised: by the whole
// path, or by what follows "v1/" in it, behind any prefix. A harness may set its
// base URL with or without /v1, and name another dialect's prefix.
type paths struct {
	first    dialect.Dialect
	tails    map[string]spot            // "chat/completions"
	prefixes map[string]dialect.Dialect // "anthropic": who writes errors there
	listers  []dialect.Lister
}

func newPaths(dialects []dialect.Dialect) *paths {
	p := &paths{tails: map[string]spot{}, prefixes: map[string]dialect.Dialect{}}
	add := func(path string, s spot) {
		prefix, _, _ := strings.Cut(path, "/")
		if p.prefixes[prefix] == nil {
			p.prefixes[prefix] = s.d
		}
		tail := tailOf(path)
		s.v1 = tail == "chat/completions" || tail == "completions"
		p.tails[tail] = s
	}
	if len(dialects) > 0 {
		p.first = dialects[0]
	}
	for _, d := range dialects {
		for _, path := range d.Paths() {
			add(path, spot{do: doCall, d: d})
		}
		if c, ok := d.(dialect.Counter); ok {
			for _, path := range c.CountPaths() {
				add(path, spot{do: doCount, d: d, count: c})
			}
		}
		if l, ok := d.(dialect.Lister); ok {
			p.listers = append(p.listers, l)
		}
	}
	return p
}

// tailOf is what of a dialect's path stands behind its prefix and version.
func tailOf(path string) string {
	if _, tail, ok := strings.Cut(path, "/v1/"); ok {
		return tail
	}
	_, tail, _ := strings.Cut(path, "/")
	return tail
}

// find says what stands at a path below /proxy/rollout/…/ or the root.
func (p *paths) find(sub string, header http.Header) spot {
	sub = strings.Trim(sub, "/")
	v1 := strings.HasPrefix(sub, "openai/v1/")
	for rest := sub; rest != ""; _, rest, _ = strings.Cut(rest, "/") {
		if s, ok := p.tails[rest]; ok {
			return s
		}
		if rest == "models" {
			return spot{do: doModels, d: p.voice(sub, header), v1: v1}
		}
		if id, ok := strings.CutPrefix(rest, "models/"); ok {
			return spot{do: doModels, d: p.voice(sub, header), model: id}
		}
	}
	return spot{d: p.voice(sub, header), v1: v1}
}

// voice finds the dialect of a request that no path decides: by its headers
// (Anthropic's SDKs name their version), else by its prefix.
func (p *paths) voice(sub string, header http.Header) dialect.Dialect {
	for _, l := range p.listers {
		if l.Lists(header.Get) {
			return l
		}
	}
	prefix, _, _ := strings.Cut(sub, "/")
	if d := p.prefixes[prefix]; d != nil {
		return d
	}
	return p.first
}

// Patterns are the paths that the gateway owns, as patterns of http.ServeMux.
func (g *Gateway) Patterns() []string {
	out := []string{"/proxy/rollout/", "/openai/", "/anthropic/", "/v1/", "/models", "/models/"}
	for tail := range g.paths.tails {
		out = append(out, "/"+tail)
	}
	for prefix := range g.paths.prefixes {
		if p := "/" + prefix + "/"; !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}
