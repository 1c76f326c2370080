package controller

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// DefaultWorkspace is how many bytes a workspace may hold where nobody says.
const DefaultWorkspace = int64(10) << 30

const (
	diskEvery = time.Second     // how often it is looked whether the disk is short
	diskShare = 100             // folders are measured for one part in so many of the time
	diskAgain = 5 * time.Second // how often all are measured while the disk is short
	reserve   = int64(1) << 30  // bytes; of a smaller disk a twentieth
	entrySize = int64(4) << 10  // what a file or a folder counts at least
	unlockTo  = 100             // how deep folders that are locked are unlocked to be measured
)

// Disk bounds what agents' folders hold. It measures one after the other, for about one
// per cent of the time, and all of them while the disk is short. Its methods are safe for
// concurrent use; those of a nil one do nothing.
type Disk struct {
	dir   string
	limit int64
	end   func(plan.Key)
	free  func(dir string) (free, all int64)

	quit chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	held   map[plan.Key]*holding
	runs   bool
	closed bool
}

// holding is what an attempt has on the disk.
type holding struct {
	dir   string
	more  func() int64 // bytes that are in no folder; nil: none are known
	bytes int64
	seen  time.Time
	why   string // it was ended: why
}

// NewDisk makes a disk, which is that of dir, for folders of so many bytes at most; end
// ends who has more.
func NewDisk(dir string, limit int64, end func(plan.Key)) *Disk {
	return &Disk{dir: dir, limit: limit, end: end, free: freeOf, quit: make(chan struct{}), held: map[plan.Key]*holding{}}
}

// Room is an error, and NoRoom says so of it, while the disk is so short that nothing
// is to be started.
func (d *Disk) Room() error {
	if d == nil {
		return nil
	}
	if free, least := d.look(); free < least {
		return fulgur.E(fulgur.KindExhausted, "", fmt.Sprintf("the disk of %s has %s left, and nothing is started below %s: make room", d.dir, mib(free), mib(least)), syscall.ENOSPC)
	}
	return nil
}

// look returns the bytes that are free, and those that are to be.
func (d *Disk) look() (free, least int64) {
	free, all := d.free(d.dir)
	return free, min(reserve, all/20)
}

// freeOf returns the bytes of a folder's disk; where that is not known: none, of none.
func freeOf(dir string) (free, all int64) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, 0
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize) //nolint:unconvert // it differs between systems
}

func mib(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// Watch watches an attempt's folder until Leave.
func (d *Disk) Watch(key plan.Key, dir string, more func() int64) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[key] = &holding{dir: dir, more: more, seen: time.Now()}
	if !d.runs && !d.closed {
		d.runs = true
		d.wg.Go(d.run)
	}
}

// Close ends the watch of all; it is called when nothing is started any more.
func (d *Disk) Close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	was := d.closed
	d.closed = true
	d.mu.Unlock()
	if !was {
		close(d.quit)
	}
	d.wg.Wait()
}

// Leave ends the watch of an attempt whose processes are gone. over says that it had more
// than it may; filled, that it has the most of a disk that is full: what has failed
// since may be its own doing.
func (d *Disk) Leave(key plan.Key) (over, filled string) {
	if d == nil {
		return "", ""
	}
	d.mu.Lock()
	h := d.held[key]
	delete(d.held, key)
	d.mu.Unlock()
	if h == nil || h.why != "" {
		if h != nil {
			over = h.why
		}
		return over, ""
	}
	bytes := usage(h.dir, d.limit)
	if bytes > d.limit {
		return d.words(), ""
	}
	free, least := d.look()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, other := range d.held {
		if other.bytes > bytes {
			return "", ""
		}
	}
	return "", filling(bytes, free, least)
}

func (d *Disk) words() string {
	return fmt.Sprintf("the agent's workspace had more than %s (runner.limits.workspace)", mib(d.limit))
}

// filling says that who has this has made a disk short; "": it has not.
func filling(bytes, free, least int64) string {
	if free >= least || bytes < least/2 {
		return ""
	}
	return fmt.Sprintf("the agent's workspace had %s (each file counts at least 4 KiB), more than any other's, when the disk had %s left", mib(bytes), mib(free))
}

// run measures until there is nothing to.
func (d *Disk) run() {
	var all time.Time
	for {
		key, h, n := d.next()
		if n == 0 {
			return
		}
		began := time.Now()
		d.measure(key, h, false)
		pause := max(diskShare*time.Since(began), diskEvery/time.Duration(n))
		for ; pause > 0; pause -= diskEvery {
			t := time.NewTimer(min(pause, diskEvery))
			select {
			case <-t.C:
			case <-d.quit:
				t.Stop()
				return
			}
			if free, least := d.look(); free < least && time.Since(all) > diskAgain {
				d.relieve(free, least)
				all = time.Now()
			}
		}
	}
}

// next returns who was measured longest ago, and of how many; without any, run is over.
func (d *Disk) next() (key plan.Key, h *holding, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, x := range d.held {
		if h == nil || x.seen.Before(h.seen) {
			key, h = k, x
		}
	}
	d.runs = h != nil
	return key, h, len(d.held)
}

// measure looks at what one has, and ends it where that is too much. open counts what is
// in no folder, too.
func (d *Disk) measure(key plan.Key, h *holding, open bool) {
	bytes := usage(h.dir, d.limit)
	if open && h.more != nil {
		bytes += h.more()
	}
	d.mu.Lock()
	h.bytes, h.seen = bytes, time.Now()
	d.mu.Unlock()
	if bytes > d.limit {
		d.stop(key, h, d.words()+", and it was ended")
	}
}

// relieve ends who has the most, where that is what the disk is short of.
func (d *Disk) relieve(free, least int64) {
	d.mu.Lock()
	all := map[plan.Key]*holding{}
	for k, h := range d.held {
		all[k] = h
	}
	d.mu.Unlock()
	var key plan.Key
	var most *holding
	for k, h := range all {
		d.measure(k, h, true)
		if h.why == "" && (most == nil || h.bytes > most.bytes) {
			key, most = k, h
		}
	}
	if most == nil {
		return
	}
	if why := filling(most.bytes, free, least); why != "" {
		d.stop(key, most, why)
	}
}

func (d *Disk) stop(key plan.Key, h *holding, why string) {
	d.mu.Lock()
	live := d.held[key] == h && h.why == ""
	if live {
		h.why = why
	}
	d.mu.Unlock()
	if live {
		d.end(key)
	}
}
