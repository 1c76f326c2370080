package sandbox

import (
	"net"
	"sync"
)

// mostConnections an agent may have open to its relay: each takes a descriptor of
// the process that relays.
const mostConnections = 256

// Few is a listener of one agent's relay: it accepts while fewer than 256 of its
// connections are open, and lets the others wait.
func Few(l net.Listener) net.Listener {
	return &fewListener{Listener: l, room: make(chan struct{}, mostConnections), closed: make(chan struct{})}
}

type fewListener struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (l *fewListener) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &fewConn{Conn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
}

// Close also ends an Accept that waits for room.
func (l *fewListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type fewConn struct {
	net.Conn
	leave func()
}

func (c *fewConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
