// Package redistest starts throwaway Redis servers for tests: one server, or a
// Cluster of three, on free loopback ports, with their files in a temporary
// directory. They end with the test, and with the test process.
//
// The redis-server program is taken from PATH or from IDEM_TEST_REDIS_BIN. Where
// there is none, the test is skipped, or fails when IDEM_REQUIRE_ALL is 1.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/internal/process"
)

// patience is how long a server may take to start, or a Cluster to agree.
const patience = 20 * time.Second

// Server is one redis-server. Its methods are for the goroutine of the test.
type Server struct {
	Addr string // host:port

	bin  string
	dir  string
	args []string
	proc *process.Process
}

// Start starts a server and waits until it answers. Args are added to its command
// line, as in "--appendonly", "yes"; without them it keeps nothing on disk.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t, args...)
	s.Restart(t)
	return s
}

// newServer chooses a port and a directory.
func newServer(t testing.TB, args ...string) *Server {
	t.Helper()
	bin := binary(t)
	s := &Server{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t))), bin: bin, dir: t.TempDir(), args: args}
	t.Cleanup(s.Kill)
	return s
}

// Addr returns the address in IDEM_TEST_REDIS_ADDR, or that of a new server
// without persistence. The database may hold other data: tests keep to a prefix of
// their own, and never flush it.
func Addr(t testing.TB) string {
	t.Helper()
	if addr := os.Getenv("IDEM_TEST_REDIS_ADDR"); addr != "" {
		return addr
	}
	return Start(t).Addr
}

// Restart starts the server again, with the same port, files and arguments. It
// kills it first when it is running.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	host, port, _ := net.SplitHostPort(s.Addr)
	args := append([]string{
		"--bind", host, "--port", port, "--dir", s.dir, "--logfile", filepath.Join(s.dir, "log"),
		"--save", "", "--daemonize", "no", "--loglevel", "warning",
	}, s.args...)
	p, err := process.Start(exec.Command(s.bin, args...), nil)
	if err != nil {
		t.Fatalf("redistest: start %s: %v", s.bin, err)
	}
	s.proc = p
	c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer c.Close()
	until(t, "the server to answer "+s.Addr, func(ctx context.Context) error {
		select {
		case <-p.Ended():
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			t.Fatalf("redistest: the server ended: %s", log)
		default:
		}
		return c.Ping(ctx).Err()
	})
}

// Kill ends the server as a crash would, with SIGKILL, and waits for its end.
func (s *Server) Kill() {
	if s.proc != nil {
		s.proc.Kill()
		s.proc = nil
	}
}

// Client returns a client of the server, closed at the end of the test. It
// observes the deadlines of contexts; change may set other options.
func (s *Server) Client(t testing.TB, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return Client(t, s.Addr, change...)
}

// Client returns a client of the server at addr; see [Server.Client].
func Client(t testing.TB, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: addr, ContextTimeoutEnabled: true}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

func binary(t testing.TB) string {
	t.Helper()
	name := os.Getenv("IDEM_TEST_REDIS_BIN")
	if name == "" {
		name = "redis-server"
	}
	bin, err := exec.LookPath(name)
	if err == nil {
		return bin
	}
	if os.Getenv("IDEM_REQUIRE_ALL") == "1" {
		t.Fatalf("redistest: %v, and IDEM_REQUIRE_ALL is 1", err)
	}
	t.Skipf("redis-server is not installed: %v", err)
	return ""
}

var ports struct {
	sync.Mutex
	given map[int]bool
}

// freePort returns a port that is free, with the one 10,000 above it, which a
// Cluster node listens on too. It returns no port twice.
func freePort(t testing.TB) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("redistest: %v", err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		// Below the ports that the system gives to outgoing connections.
		port = 12000 + port%20000
		l.Close()
		if !ports.given[port] && free(port) && free(port+10000) {
			if ports.given == nil {
				ports.given = make(map[int]bool)
			}
			ports.given[port] = true
			return port
		}
	}
	t.Fatal("redistest: no free port")
	return 0
}

func free(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// until calls f until it returns nil.
func until(t testing.TB, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("redistest: waited %v for %s: %v", patience, what, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
