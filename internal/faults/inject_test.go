//go:build linux

package faults

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

// fault is a kind of fault; a tally counts them.
type fault string

const (
	killWorker fault = "worker killed"
	stopWorker fault = "worker stopped past its lease"
	killServer fault = "server killed and restarted"
	endSession fault = "session ended by the server"
	cutRequest fault = "connection cut before a request"
	cutReply   fault = "connection cut before a reply"
	cutAfter   fault = "connection cut after a reply"
	swallow    fault = "connection turned into a black hole"
	readOnly   fault = "server read-only for a while"
	memoryFull fault = "memory of the server full for a while"
	diskFull   fault = "disk full for a while"
	jumpClock  fault = "clock of a worker jumped"
)

type tally struct {
	sync.Mutex
	n     map[fault]int
	verbs map[fault]map[string]int // of the cuts
}

// cut counts what was done to the request for a verb.
func (c *tally) cut(f fault, verb string) {
	c.add(f)
	c.Lock()
	defer c.Unlock()
	if c.verbs == nil {
		c.verbs = make(map[fault]map[string]int)
	}
	if c.verbs[f] == nil {
		c.verbs[f] = make(map[string]int)
	}
	c.verbs[f][verb]++
}

func (c *tally) add(f fault) {
	c.Lock()
	defer c.Unlock()
	if c.n == nil {
		c.n = make(map[fault]int)
	}
	c.n[f]++
}

// total returns how many faults there were.
func (c *tally) total() (n int) { return c.cuts() + c.others() }

// cuts returns how many of them were the proxy's.
func (c *tally) cuts() int { return c.sum(cutRequest, cutReply, cutAfter, swallow) }

// others returns how many were not.
func (c *tally) others() int {
	return c.sum(killWorker, stopWorker, killServer, endSession, readOnly, memoryFull, diskFull, jumpClock)
}

func (c *tally) sum(kinds ...fault) (n int) {
	c.Lock()
	defer c.Unlock()
	for _, f := range kinds {
		n += c.n[f]
	}
	return n
}

// server is the store as the one who breaks it has it.
type server interface {
	dsn() string         // for the workers: through the proxy, where there is one
	direct() string      // for the judge
	proxy() *proxy.Proxy // nil for a file
	crash(t *testing.T)
	endSession() (bool, error)
	// spoil takes the store's ability to write for d; "" when it cannot.
	spoil(d time.Duration, rnd *rand.Rand) (fault, error)
	clean() error
}

// file is the store of an embedded driver. It has no process of its own to break.
type file struct {
	path string
	disk smallDisk
}

func (f file) dsn() string             { return f.path }
func (f file) direct() string          { return f.path }
func (file) proxy() *proxy.Proxy       { return nil }
func (file) crash(*testing.T)          {}
func (file) endSession() (bool, error) { return false, nil }
func (file) clean() error              { return nil }

func (f file) spoil(d time.Duration, _ *rand.Rand) (fault, error) {
	if !f.disk.mounted {
		return "", nil
	}
	empty, err := f.disk.fill()
	if err != nil {
		return "", err
	}
	time.Sleep(d)
	return diskFull, empty()
}

type postgresServer struct {
	*pgServer
	p *proxy.Proxy
}

func (s postgresServer) dsn() string               { return s.pgServer.dsn(s.p.Port()) }
func (s postgresServer) direct() string            { return s.pgServer.dsn(s.port) }
func (s postgresServer) proxy() *proxy.Proxy       { return s.p }
func (s postgresServer) endSession() (bool, error) { return s.terminate() }
func (s postgresServer) crash(t *testing.T) {
	s.kill()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// spoil makes every transaction read-only that does not ask for another mode, as a
// failover or an operator can.
func (s postgresServer) spoil(d time.Duration, _ *rand.Rand) (fault, error) {
	if err := s.settings("ALTER SYSTEM SET default_transaction_read_only = on"); err != nil {
		return "", err
	}
	time.Sleep(d)
	return readOnly, s.settings("ALTER SYSTEM RESET default_transaction_read_only")
}

type redisServer struct {
	*redistest.Server
	p      *proxy.Proxy
	client *goredis.Client
}

func (s redisServer) dsn() string         { return s.p.Addr() }
func (s redisServer) direct() string      { return s.Addr }
func (s redisServer) proxy() *proxy.Proxy { return s.p }
func (s redisServer) crash(t *testing.T)  { s.Restart(t) }
func (s redisServer) clean() error        { return nil }

func (s redisServer) spoil(d time.Duration, rnd *rand.Rand) (fault, error) {
	if rnd.IntN(2) == 0 {
		return memoryFull, s.during(d, []any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"})
	}
	return readOnly, s.during(d, []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"})
}

func (s redisServer) during(d time.Duration, begin, end []any) error {
	within(time.Second, func() error { return s.client.Ping(ctx()).Err() }) // connections that the last crash has broken
	if err := s.client.Do(ctx(), begin...).Err(); err != nil {
		return err
	}
	time.Sleep(d)
	return s.client.Do(ctx(), end...).Err()
}

func (s redisServer) endSession() (bool, error) {
	list, err := s.client.ClientList(ctx()).Result()
	if err != nil {
		return false, nil // a connection that the last crash has broken
	}
	own, err := s.client.ClientID(ctx()).Result()
	if err != nil {
		return false, nil
	}
	for line := range strings.Lines(list) {
		var id int64
		if _, err := fmt.Sscanf(line, "id=%d ", &id); err == nil && id != own && !strings.Contains(line, "cmd=client") {
			n, err := s.client.ClientKillByFilter(ctx(), "ID", fmt.Sprint(id)).Result()
			return n > 0, err
		}
	}
	return false, nil
}

// cuts is a proxy rule that breaks connections by chance, until it has done so often
// enough.
type cuts struct {
	requests
	mu    sync.Mutex
	rnd   *rand.Rand
	left  int
	tally *tally
	holes map[hole]bool
}

// hole is a direction of a connection in which everything is swallowed.
type hole struct {
	conn int64
	d    proxy.Direction
}

// The chance of a request, or of its reply, to be cut off: greater for the rare ones.
var chances = map[string]float64{"claim": 0.015, "COMMIT": 0.04, "complete": 0.04, "release": 0.15, "renew": 0.3, "begin": 0.015, "other": 0.008}

func (c *cuts) rule(conn *proxy.Conn, d proxy.Direction, chunk []byte) proxy.Verdict {
	verb, whole := c.note(conn, d, chunk)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holes[hole{conn.ID, d}] {
		return proxy.Drop
	}
	if c.left == 0 || !whole || c.rnd.Float64() >= chances[verb] {
		return proxy.Forward
	}
	c.left--
	switch {
	case c.rnd.IntN(25) == 0:
		if c.holes == nil {
			c.holes = make(map[hole]bool)
		}
		c.holes[hole{conn.ID, d}] = true
		c.tally.cut(swallow, verb)
		return proxy.Drop
	case d == proxy.ToServer:
		c.tally.cut(cutRequest, verb)
	case c.rnd.IntN(5) == 0:
		c.tally.cut(cutAfter, verb)
		return proxy.ForwardThenKill
	default:
		c.tally.cut(cutReply, verb)
	}
	return proxy.Kill
}

func (c *cuts) remaining() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// weights say which of the faults that are not cuts come how often, in 100.
type weights struct {
	cuts                       int // how many of all faults are cuts, in 100
	kill, stop, crash, session int // of the others
	spoil, clock               int
}

// inject injects n faults.
func (r *run) inject(t *testing.T, slots []*slot, n int, rnd *rand.Rand) {
	srv, w, total := r.server, r.weights, &r.tally
	c := &cuts{rnd: rand.New(rand.NewPCG(rnd.Uint64(), 0)), tally: total}
	if p := srv.proxy(); p != nil {
		c.left = n * w.cuts / 100
		n -= c.left
		p.SetRule(c.rule)
		defer p.SetRule(nil)
	}
	// Where nothing could be broken, another attempt is made.
	for want := total.others() + n; total.others() < want; {
		time.Sleep(time.Duration(5+rnd.IntN(60)) * time.Millisecond)
		s := slots[rnd.IntN(len(slots))]
		// Whoever has not come so far as to call cannot be interrupted at it.
		if err := within(patience, func() error {
			if s.resumed() && !s.working() {
				return fmt.Errorf("worker %d makes no call", s.n)
			}
			return nil
		}); err != nil {
			r.problem("%v", err)
			return
		}
		switch k := rnd.IntN(w.kill + w.stop + w.crash + w.session + w.spoil + w.clock); {
		case k < w.kill:
			s.proc.kill()
			s.stopped = nil
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
			total.add(killWorker)
		case k < w.kill+w.stop:
			if !s.resumed() {
				continue
			}
			if err := s.stop(lease + time.Duration(rnd.IntN(300))*time.Millisecond); err != nil {
				r.problem("worker %d ended by itself: %v", s.n, err)
				return
			}
			total.add(stopWorker)
		case k < w.kill+w.stop+w.crash:
			srv.crash(t)
			total.add(killServer)
		case k < w.kill+w.stop+w.crash+w.spoil:
			f, err := srv.spoil(time.Duration(20+rnd.IntN(200))*time.Millisecond, rnd)
			if err != nil {
				r.problem("spoiling the store: %v", err)
				return
			}
			if f == "" {
				w.spoil, w.kill = 0, w.kill+w.spoil
				continue
			}
			total.add(f)
		case k < w.kill+w.stop+w.crash+w.spoil+w.clock:
			// Its input is closed only when it is to end.
			if _, err := fmt.Fprintln(s.in, time.Duration(rnd.IntN(5)-2)*time.Duration(rnd.IntN(1200))*time.Millisecond); err != nil {
				r.problem("worker %d ended by itself: %v", s.n, err)
				return
			}
			total.add(jumpClock)
		default:
			ok, err := srv.endSession()
			if err != nil {
				r.problem("ending a session: %v", err)
			}
			if ok {
				total.add(endSession)
			}
		}
	}
	// The cuts go on by themselves as long as the workers talk.
	for deadline := time.Now().Add(2 * time.Minute); c.remaining() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.problem("%d connections were not cut in time", c.remaining())
			return
		}
	}
}
