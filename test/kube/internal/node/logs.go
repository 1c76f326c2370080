package node

import (
	"bytes"
	"context"
	"io"
	"os"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node/api"
)

// logs returns what a request asks of a log: its last lines, its first bytes,
// and what is still to come.
func logs(ctx context.Context, f *os.File, o api.ContainerLogOpts, finished <-chan struct{}) (io.ReadCloser, error) {
	if o.Tail > 0 {
		at, err := tail(f, o.Tail)
		if err != nil {
			return nil, err
		}
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return nil, err
		}
	}
	var r io.Reader = f
	if o.Follow {
		r = &follower{ctx: ctx, f: f, finished: finished}
	}
	if o.LimitBytes > 0 {
		r = io.LimitReader(r, int64(o.LimitBytes))
	}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}

// tail returns where the last n lines begin.
func tail(f *os.File, n int) (int64, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	end := size
	for end > 0 {
		part := buf[:min(end, int64(len(buf)))]
		at := end - int64(len(part))
		if _, err := f.ReadAt(part, at); err != nil {
			return 0, err
		}
		for i := len(part); ; {
			if i = bytes.LastIndexByte(part[:i], '\n'); i < 0 {
				break
			}
			if at+int64(i) == size-1 {
				continue // the last line's own end
			}
			if n--; n == 0 {
				return at + int64(i) + 1, nil
			}
		}
		end = at
	}
	return 0, nil
}

// follower reads a growing file until the pod has finished.
type follower struct {
	ctx      context.Context
	f        *os.File
	finished <-chan struct{}
}

func (r *follower) Read(b []byte) (int, error) {
	for {
		over := false
		select {
		case <-r.finished:
			over = true
		default:
		}
		n, err := r.f.Read(b)
		if n > 0 || err != io.EOF || over {
			return n, err
		}
		select {
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		case <-r.finished:
		case <-time.After(50 * time.Millisecond):
		}
	}
}
