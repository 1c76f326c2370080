package call

import (
	"io"
	"strings"
	"unsafe"
)

// ReadAll reads r to its end, into memory for n bytes if it has no more. That memory is
// not zeroed first: for bodies of a hundred kilobytes to zero it takes as long as to fill it.
func ReadAll(r io.Reader, n int) ([]byte, error) {
	b := Room(max(n+1, 512)) // the end is seen with one byte to spare
	for {
		k, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+k]
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return b, err
		}
		if len(b) == cap(b) {
			b = append(Room(2*cap(b)), b...)
		}
	}
}

// Room is memory for at least n bytes, whatever is in it.
func Room(n int) []byte {
	var b strings.Builder
	b.Grow(n)
	b.WriteByte(0)
	return unsafe.Slice(unsafe.StringData(b.String()), b.Cap())[:0]
}
