package proxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem/internal/proxy"
)

// echo answers every line with itself, and records what arrived.
type echo struct {
	addr string

	mu    sync.Mutex
	lines []string
}

func (e *echo) received() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.lines...)
}

func startEcho(t *testing.T, network, addr string) *echo {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{addr: ln.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					e.mu.Lock()
					e.lines = append(e.lines, line)
					e.mu.Unlock()
					io.WriteString(c, line)
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); running.Wait() })
	return e
}

func startProxy(t *testing.T, target string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// client sends lines and reads replies, with a deadline that no passing test reaches.
type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *proxy.Proxy) client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return client{c, bufio.NewReader(c)}
}

func (c client) say(line string) (string, error) {
	if _, err := io.WriteString(c, line); err != nil {
		return "", err
	}
	return c.r.ReadString('\n')
}

func TestForwardAndCount(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			addr := "127.0.0.1:0"
			if network == "unix" {
				addr = filepath.Join(t.TempDir(), "s")
			}
			p := startProxy(t, startEcho(t, network, addr).addr)
			a, b := dial(t, p), dial(t, p)
			for i := range 5 {
				for _, c := range []client{a, b} {
					if got, err := c.say("hello\n"); err != nil || got != "hello\n" {
						t.Fatalf("round %d: got %q, %v", i, got, err)
					}
				}
			}
			// A pipelined pair of requests is one trip.
			if _, err := a.say("x\ny\n"); err != nil {
				t.Fatal(err)
			}
			if got, want := p.Trips(), int64(11); got != want {
				t.Errorf("Trips() = %d, want %d", got, want)
			}
			if got, want := p.Bytes(proxy.ToServer), int64(10*6+4); got != want {
				t.Errorf("Bytes(ToServer) = %d, want %d", got, want)
			}
			if got := p.Conns(); got != 2 {
				t.Errorf("Conns() = %d, want 2", got)
			}
		})
	}
}

func TestVerdicts(t *testing.T) {
	tests := []struct {
		name      string
		direction proxy.Direction
		verdict   proxy.Verdict
		reply     bool // the client sees the reply
		arrives   bool // the server sees the request
		open      bool // the connection lives on
	}{
		{"drop request", proxy.ToServer, proxy.Drop, false, false, true},
		{"drop reply", proxy.ToClient, proxy.Drop, false, true, true},
		{"kill before request", proxy.ToServer, proxy.Kill, false, false, false},
		{"kill before reply", proxy.ToClient, proxy.Kill, false, true, false},
		{"kill after reply", proxy.ToClient, proxy.ForwardThenKill, true, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := startEcho(t, "tcp", "127.0.0.1:0")
			p := startProxy(t, e.addr)
			c := dial(t, p)
			var once sync.Once
			judged := make(chan struct{})
			p.SetRule(func(_ *proxy.Conn, d proxy.Direction, _ []byte) proxy.Verdict {
				v := proxy.Forward
				if d == tt.direction {
					once.Do(func() { v = tt.verdict; close(judged) })
				}
				return v
			})
			io.WriteString(c, "first\n")
			<-judged
			if tt.reply {
				if got, err := c.r.ReadString('\n'); err != nil || got != "first\n" {
					t.Fatalf("reply = %q, %v", got, err)
				}
			}
			got, err := c.say("second\n")
			if tt.open != (err == nil) {
				t.Fatalf("after the verdict: %q, %v; want open %v", got, err, tt.open)
			}
			if err != nil && errors.Is(err, net.ErrClosed) {
				t.Fatal("the client closed its own side")
			}
			if tt.open && got != "second\n" {
				t.Errorf("reply = %q, want the second only", got)
			}
			var arrived bool
			for _, line := range e.received() {
				arrived = arrived || line == "first\n"
			}
			if arrived != tt.arrives {
				t.Errorf("request arrived: %v, want %v", arrived, tt.arrives)
			}
		})
	}
}

func TestDelay(t *testing.T) {
	p := startProxy(t, startEcho(t, "tcp", "127.0.0.1:0").addr)
	c := dial(t, p)
	p.SetDelay(30 * time.Millisecond)
	start := time.Now()
	if _, err := c.say("slow\n"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 60*time.Millisecond {
		t.Errorf("a round trip took %v, want at least twice the delay", took)
	}
}

func TestKillAllAndRefuse(t *testing.T) {
	p := startProxy(t, startEcho(t, "tcp", "127.0.0.1:0").addr)
	c := dial(t, p)
	if _, err := c.say("hello\n"); err != nil {
		t.Fatal(err)
	}
	p.Refuse(true)
	p.KillAll()
	if _, err := c.r.ReadString('\n'); err == nil {
		t.Error("the connection survived KillAll")
	}
	if _, err := dial(t, p).say("hello\n"); err == nil {
		t.Error("a connection was accepted while refusing")
	}
	p.Refuse(false)
	if _, err := dial(t, p).say("hello\n"); err != nil {
		t.Errorf("after Refuse(false): %v", err)
	}
}

func TestCloseEndsConnections(t *testing.T) {
	p := startProxy(t, startEcho(t, "tcp", "127.0.0.1:0").addr)
	c := dial(t, p)
	if _, err := c.say("hello\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.say("hello\n"); err == nil {
		t.Error("the connection survived Close")
	}
	if got := p.Conns(); got != 0 {
		t.Errorf("Conns() = %d after Close", got)
	}
}

func TestTargetDown(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	p := startProxy(t, addr)
	if _, err := dial(t, p).say("hello\n"); err == nil {
		t.Error("got an answer from nobody")
	}
}
