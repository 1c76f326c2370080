package local

import (
	"bufio"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// scan reads standard output line by line until its end or the process's.
func (p *pipes) scan() {
	defer close(p.lines)
	s := bufio.NewScanner(p.out)
	s.Buffer(make([]byte, 0, 4<<10), maxLine)
	give := func(line string) bool {
		select {
		case p.lines <- line:
			return true
		case <-p.quit:
			return false
		}
	}
	for s.Scan() {
		if !give(s.Text()) {
			return
		}
	}
	if s.Err() == bufio.ErrTooLong {
		give(fmt.Sprintf("(a line of more than %d bytes)", maxLine))
	}
}

// send writes a line without waiting for the worker to read it.
func (p *pipes) send(line []byte) {
	sent := make(chan struct{})
	p.sent = sent
	go func() { // ends when it is read, or the pipe is closed
		defer close(sent)
		_, _ = p.in.Write(line)
	}()
}

// taken says whether all that was sent has been read.
func (p *pipes) taken() bool {
	select {
	case <-p.sent:
	default:
		return false
	}
	left := 0
	conn, err := p.queue.SyscallConn()
	if err != nil {
		return true
	}
	err = conn.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), bytesWaiting) })
	return err != nil || left == 0
}

// dead says whether the process has ended or is being ended.
func (p *pipes) dead() bool {
	select {
	case <-p.child.gone:
		p.finish()
		return true
	default:
		return false
	}
}

// stray says whether the process printed something while it had no rollout.
func (p *pipes) stray() bool {
	select {
	case <-p.lines:
		return true
	default:
		return false
	}
}

// last returns what the process printed before it ended, if anything.
func (p *pipes) last() (line string, ok bool) {
	t := time.NewTimer(pipeGrace)
	defer t.Stop()
	select {
	case line, ok = <-p.lines:
		return line, ok
	case <-t.C:
		return "", false
	}
}

// answer reads a worker's answer; a worker that gave another line is ended, for
// nobody knows where in the protocol it is.
func (p *pipes) answer(line string, id fulgur.RolloutID) plan.Exit {
	var a struct {
		V       int              `json:"v"`
		Rollout fulgur.RolloutID `json:"rollout_id"`
		OK      *bool            `json:"ok"`
		Error   *string          `json:"error"`
	}
	if err := json.Unmarshal([]byte(line), &a); err != nil || a.V != 1 || a.Rollout != id || a.OK == nil {
		p.kill()
		if len(line) > 200 {
			line = line[:200] + "…"
		}
		return plan.Exit{Code: -1, Failure: plan.ReasonProtocol, Message: fmt.Sprintf("the worker printed a line that is no answer to this rollout (standard output is the protocol's alone; logs belong on standard error): %q", line)}
	}
	if *a.OK {
		return plan.Exit{}
	}
	msg := "the worker says that the rollout failed"
	if a.Error != nil && *a.Error != "" {
		msg = "the agent failed: " + *a.Error
	}
	return plan.Exit{Code: -1, Failure: plan.ReasonError, Message: msg}
}

// kill ends the process without grace and waits for that.
func (p *pipes) kill() {
	p.child.stop(0)
	<-p.child.gone
	p.finish()
}

// leave lets an idle process go: the end of input means exit.
func (p *pipes) leave(grace time.Duration) {
	_ = p.in.Close()
	if !closedWithin(p.child.gone, grace) {
		p.child.stop(grace)
		<-p.child.gone
	}
	p.finish()
}

// finish closes our ends once the process has ended, after what it wrote last
// was read.
func (p *pipes) finish() {
	p.once.Do(func() {
		if !closedWithin(p.read, pipeGrace) {
			p.child.sweep()
			if !closedWithin(p.read, pipeLimit) {
				_ = p.err.SetReadDeadline(time.Now())
				<-p.read
			}
		}
		close(p.quit)
		_ = p.out.SetReadDeadline(time.Now().Add(pipeGrace))
		_ = p.in.Close()
		_ = p.queue.Close()
		<-p.sent
		_ = p.err.Close()
		go func() { // its end of lines comes when the scanner has seen it
			for range p.lines {
			}
			_ = p.out.Close()
		}()
	})
}
