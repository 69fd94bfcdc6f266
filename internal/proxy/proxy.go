// Package proxy is a TCP proxy that misbehaves on purpose, for tests of the
// network drivers: it counts round trips, delays, swallows and cuts.
//
// A request and its reply are one round trip, however many packets they take:
// the proxy counts the times that a client speaks after its server has spoken.
package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Direction says which way a chunk travels.
type Direction uint8

const (
	ToServer Direction = iota
	ToClient
)

// String returns the direction's name.
func (d Direction) String() string {
	if d == ToServer {
		return "to server"
	}
	return "to client"
}

// Verdict says what happens to a chunk.
type Verdict uint8

const (
	Forward         Verdict = iota // pass it on
	Drop                           // swallow it, and keep the connection open
	Kill                           // swallow it, and close both sides
	ForwardThenKill                // pass it on, then close both sides
)

// Rule decides about one chunk. It is called from the goroutine that moves the
// chunk, so it may block to hold the chunk back; calls for one direction of one
// connection never overlap. It must not keep chunk, which is what one read
// returned: it may hold part of a message, or several.
type Rule func(c *Conn, d Direction, chunk []byte) Verdict

// Conn is one proxied connection.
type Conn struct {
	ID int64 // 1 for the proxy's first connection, and so on

	client, server net.Conn
	answered       atomic.Bool // the last chunk went to the client
}

// Kill closes both sides at once.
func (c *Conn) Kill() {
	c.client.Close()
	c.server.Close()
}

// Proxy forwards connections to one target. Its methods are safe for concurrent use.
type Proxy struct {
	network, target string

	ln      net.Listener
	delay   atomic.Int64
	rule    atomic.Pointer[Rule]
	refuse  atomic.Bool
	trips   atomic.Int64
	bytes   [2]atomic.Int64
	running sync.WaitGroup

	mu     sync.Mutex
	conns  map[*Conn]struct{}
	lastID int64
	closed bool
}

// Listen starts a proxy on a free loopback port in front of target, a host:port
// or the path of a unix socket. Close stops it.
func Listen(target string) (*Proxy, error) {
	network := "tcp"
	if strings.HasPrefix(target, "/") {
		network = "unix"
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{network: network, target: target, ln: ln, conns: make(map[*Conn]struct{})}
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns the host:port on which the proxy listens.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Port returns the port on which the proxy listens.
func (p *Proxy) Port() int { return p.ln.Addr().(*net.TCPAddr).Port }

// SetDelay holds every later chunk back for d in each direction, so that a round
// trip takes 2d longer.
func (p *Proxy) SetDelay(d time.Duration) { p.delay.Store(int64(d)) }

// SetRule applies r to every later chunk; nil forwards all.
func (p *Proxy) SetRule(r Rule) {
	if r == nil {
		p.rule.Store(nil)
		return
	}
	p.rule.Store(&r)
}

// Refuse closes new connections as soon as they are made, until it is called with false.
func (p *Proxy) Refuse(refuse bool) { p.refuse.Store(refuse) }

// KillAll closes every open connection. New ones are accepted.
func (p *Proxy) KillAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Kill()
	}
}

// Trips returns the number of round trips begun so far, over all connections.
func (p *Proxy) Trips() int64 { return p.trips.Load() }

// Bytes returns the number of bytes read so far in one direction.
func (p *Proxy) Bytes(d Direction) int64 { return p.bytes[d].Load() }

// Conns returns the number of open connections.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Close stops listening, closes every connection, and waits for the proxy's
// goroutines to end. A Rule that blocks keeps it waiting.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.ln.Close()
	p.KillAll()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if p.refuse.Load() {
			client.Close()
			continue
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial(p.network, p.target)
	if err != nil {
		client.Close()
		return
	}
	c := &Conn{client: client, server: server}
	c.answered.Store(true)
	defer c.Kill()

	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.lastID++
	c.ID = p.lastID
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()

	var both sync.WaitGroup
	both.Go(func() { p.pump(c, ToServer) })
	both.Go(func() { p.pump(c, ToClient) })
	both.Wait()
}

type parcel struct {
	chunk []byte
	due   time.Time
}

// pump moves one direction of c. Reading and writing are apart, so that a delay
// adds latency without limiting throughput.
func (p *Proxy) pump(c *Conn, d Direction) {
	src, dst := c.client, c.server
	if d == ToClient {
		src, dst = c.server, c.client
	}
	parcels := make(chan parcel, 1024)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for q := range parcels {
			if wait := time.Until(q.due); wait > 0 {
				time.Sleep(wait)
			}
			if _, err := dst.Write(q.chunk); err != nil {
				c.Kill()
			}
		}
	}()
	p.read(c, d, src, parcels)
	close(parcels)
	<-written
	c.Kill()
}

func (p *Proxy) read(c *Conn, d Direction, src io.Reader, parcels chan<- parcel) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			p.count(c, d, n)
			verdict := Forward
			if r := p.rule.Load(); r != nil {
				verdict = (*r)(c, d, buf[:n])
			}
			switch verdict {
			case Kill:
				c.Kill()
				return
			case Forward, ForwardThenKill:
				due := time.Now().Add(time.Duration(p.delay.Load()))
				parcels <- parcel{chunk: append([]byte(nil), buf[:n]...), due: due}
				if verdict == ForwardThenKill {
					return
				}
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) count(c *Conn, d Direction, n int) {
	p.bytes[d].Add(int64(n))
	switch d {
	case ToServer:
		if c.answered.CompareAndSwap(true, false) {
			p.trips.Add(1)
		}
	case ToClient:
		c.answered.Store(true)
	}
}
