package controller

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
)

// LogBuffer keeps the beginning and the end of an output, at most cap bytes.
type LogBuffer struct {
	mu   sync.Mutex
	half int
	head []byte
	tail []byte // ring of half bytes once it is full
	at   int    // where the ring is written next
	lost int64  // bytes that fell out between head and tail
}

// NewLogBuffer returns an empty one that keeps at most limit bytes.
func NewLogBuffer(limit int) *LogBuffer { return &LogBuffer{half: max(limit/2, 1)} }

// Write never fails and never blocks for long.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(p)
	if room := b.half - len(b.head); room > 0 {
		k := min(room, len(p))
		b.head = append(b.head, p[:k]...)
		p = p[k:]
	}
	if over := len(p) - b.half; over > 0 {
		b.lost += int64(over)
		p = p[over:]
	}
	if room := b.half - len(b.tail); room > 0 {
		k := min(room, len(p))
		b.tail = append(b.tail, p[:k]...)
		p = p[k:]
	}
	b.lost += int64(len(p))
	for len(p) > 0 {
		k := copy(b.tail[b.at:], p)
		b.at = (b.at + k) % b.half
		p = p[k:]
	}
	return n, nil
}

// Reset empties the buffer.
func (b *LogBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.head, b.tail, b.at, b.lost = b.head[:0], b.tail[:0], 0, 0
}

// Bytes returns what was kept, with a line that says what was not.
func (b *LogBuffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := bytes.Clone(b.head)
	if b.lost > 0 {
		out = fmt.Appendf(out, "\n… %d bytes left out …\n", b.lost)
	}
	out = append(out, b.tail[b.at:]...)
	return append(out, b.tail[:b.at]...)
}

const (
	tailLines = 20
	tailBytes = 2 << 10
)

// LastLines returns the last lines of a log, as valid text without its final
// line feeds.
func LastLines(log []byte) string {
	log = bytes.TrimRight(log, "\n\r ")
	if len(log) > tailBytes {
		log = log[len(log)-tailBytes:]
	}
	for i, n := len(log)-1, 0; i >= 0; i-- {
		if log[i] != '\n' {
			continue
		}
		if n++; n == tailLines {
			log = log[i+1:]
			break
		}
	}
	return strings.ToValidUTF8(string(log), "�")
}

// Redact blots secrets out of a log.
func Redact(log []byte, secrets []string) []byte {
	for _, s := range secrets {
		if s != "" {
			log = bytes.ReplaceAll(log, []byte(s), []byte("[credential]"))
		}
	}
	return log
}
