// Package sse reads and writes server-sent events (WHATWG HTML, 9.2) the way
// model servers use them.
package sse

import (
	"bytes"
	"errors"
)

// Event is one event. Name is "" where the stream gave none.
type Event struct {
	Name string
	Data []byte
}

// ErrTooLong is returned for an event above the reader's limit.
var ErrTooLong = errors.New("server-sent event is too long")

// Parser splits a byte stream into events. Chunks may be cut anywhere, also
// inside a character or between the two bytes of a line end: bytes are joined
// before anything is read from them. Lines end in LF, CRLF or CR.
type Parser struct {
	Limit int // most bytes of one event; 0: 64 MiB

	line  []byte // an unfinished line
	name  string
	data  []byte
	size  int
	has   bool // a data field was seen
	skip  bool // the last line ended in CR: a LF that follows belongs to it
	start bool // something was read: a byte order mark is looked for only before
}

// Feed reads a chunk and calls emit for each event that is complete. The data
// is emit's to keep.
func (p *Parser) Feed(chunk []byte, emit func(Event) error) error {
	limit := p.Limit
	if limit == 0 {
		limit = 64 << 20
	}
	for len(chunk) > 0 {
		if p.skip {
			p.skip = false
			if chunk[0] == '\n' {
				chunk = chunk[1:]
				continue
			}
		}
		i := lineEnd(chunk)
		if i < 0 {
			p.line = append(p.line, chunk...)
			if len(p.line)+p.size > limit {
				return ErrTooLong
			}
			return nil
		}
		line := chunk[:i]
		if len(p.line) > 0 {
			p.line = append(p.line, line...)
			line = p.line
		}
		p.skip = chunk[i] == '\r'
		chunk = chunk[i+1:]
		if p.size += len(line); p.size > limit {
			return ErrTooLong
		}
		err := p.take(line, emit)
		p.line = p.line[:0]
		if err != nil {
			return err
		}
	}
	return nil
}

// lineEnd is where the first CR or LF is, -1 if there is none.
func lineEnd(b []byte) int {
	n := bytes.IndexByte(b, '\n')
	if n >= 0 {
		b = b[:n]
	}
	if r := bytes.IndexByte(b, '\r'); r >= 0 {
		return r
	}
	return n
}

// take reads one whole line.
func (p *Parser) take(line []byte, emit func(Event) error) error {
	if !p.start {
		p.start = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		ev := Event{Name: p.name, Data: p.data}
		send := p.has
		p.name, p.data, p.size, p.has = "", nil, 0, false
		if !send {
			return nil
		}
		return emit(ev)
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "data":
		if p.has {
			p.data = append(p.data, '\n')
		}
		p.data = append(p.data, value...)
		p.has = true
	case "event":
		p.name = string(value)
	}
	return nil
}

// Append appends one event. Data with line ends becomes several data lines.
func Append(dst []byte, name string, data []byte) []byte {
	if name != "" {
		dst = append(dst, "event: "...)
		dst = append(dst, name...)
		dst = append(dst, '\n')
	}
	for {
		i := lineEnd(data)
		dst = append(dst, "data: "...)
		if i < 0 {
			dst = append(dst, data...)
			return append(dst, '\n', '\n')
		}
		dst = append(dst, data[:i]...)
		dst = append(dst, '\n')
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
}
