package sandbox

import (
	"errors"
	"net"
	"testing"
	"time"
)

func TestFewConnectionsAreAccepted(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Few(inner)
	accepted := make(chan net.Conn, mostConnections+1)
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	var one net.Conn
	for range mostConnections + 1 { // the last waits in the system's queue
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	for range mostConnections {
		one = <-accepted
		defer func() { _ = one.Close() }()
	}
	select {
	case <-accepted:
		t.Fatal("one more was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	_ = one.Close()
	_ = one.Close() // frees one place all the same
	<-accepted
	_ = l.Close() // while it waits for room
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept ended with %v", err)
	}
}
