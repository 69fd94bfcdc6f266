//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

// pair is a Redis primary and its replica, with a link that can be made to lag.
type pair struct {
	primary, replica *redistest.Server
	link             *proxy.Proxy
	current          atomic.Pointer[string] // the address that clients dial
	held             chan struct{}
}

func startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{primary: redistest.Start(t, "--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0"), held: make(chan struct{})}
	p.link = inFront(t, p.primary.Addr)
	p.replica = redistest.Start(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(p.link.Port()))
	p.current.Store(&p.primary.Addr)
	t.Cleanup(func() { close(p.held) })
	if err := within(20*time.Second, func() error { return p.behind(t) }); err != nil {
		t.Fatal(err)
	}
	return p
}

// client follows a failover, as one of Sentinel does.
func (p *pair) client(t *testing.T) *goredis.Client {
	return p.primary.Client(t, func(o *goredis.Options) {
		o.ReadTimeout, o.DialTimeout = 500*time.Millisecond, 500*time.Millisecond
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, *p.current.Load())
		}
	})
}

// behind returns an error as long as the replica has not acknowledged all that the
// primary had when it was asked.
func (p *pair) behind(t *testing.T) error {
	info, err := p.primary.Client(t).Info(ctx(), "replication").Result()
	if err != nil {
		return err
	}
	has, _ := strconv.ParseInt(field(info, "master_repl_offset:"), 10, 64)
	return within(20*time.Second, func() error {
		info, err := p.primary.Client(t).Info(ctx(), "replication").Result()
		if err != nil {
			return err
		}
		_, acked, _ := strings.Cut(field(info, "slave0:"), "offset=")
		acked, _, _ = strings.Cut(acked, ",")
		if got, err := strconv.ParseInt(acked, 10, 64); err != nil || got < has || !strings.Contains(info, "state=online") {
			return fmt.Errorf("the replica is behind: %s", info)
		}
		return nil
	})
}

func field(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// lag keeps everything from the replica from now on.
func (p *pair) lag() {
	p.link.SetRule(func(_ *proxy.Conn, d proxy.Direction, _ []byte) proxy.Verdict {
		if d == proxy.ToClient {
			<-p.held
			return proxy.Kill
		}
		return proxy.Forward
	})
}

// failover kills the primary, and makes the replica the new one.
func (p *pair) failover(t *testing.T) {
	t.Helper()
	p.primary.Kill()
	if err := p.replica.Client(t).Do(ctx(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	p.current.Store(&p.replica.Addr)
}

// What a lagging replica makes of each state, verb by verb: what it had is kept, what
// it had not is forgotten, and who held a forgotten claim can record nothing.
func TestFailoverVerbs(t *testing.T) {
	p := startPair(t)
	d := redis.New(p.client(t))
	claim := func(id string) driver.HolderParams {
		t.Helper()
		q := driver.ClaimParams{
			Key: driver.Key{Scope: "failover", ID: id}, Operation: "failover", Fingerprint: []byte("f"), Token: driver.NewToken(),
			Lease: time.Minute, Retention: time.Hour,
		}
		r, err := d.Claim(ctx(), q)
		if err != nil || r.Token != q.Token {
			t.Fatalf("claim %s: %+v, %v", id, r, err)
		}
		return driver.HolderParams{Key: q.Key, Token: q.Token, Fence: r.Fence}
	}
	complete := func(h driver.HolderParams) error {
		return d.Complete(ctx(), driver.CompleteParams{HolderParams: h, Result: []byte("outcome"), Retention: time.Hour})
	}
	known, running, completing := claim("known"), claim("running"), claim("completing")
	if err := complete(known); err != nil {
		t.Fatal(err)
	}
	if err := p.behind(t); err != nil {
		t.Fatal(err)
	}
	p.lag()
	lostOutcome, lostClaim := claim("lost outcome"), claim("lost claim")
	for _, h := range []driver.HolderParams{lostOutcome, completing} {
		if err := complete(h); err != nil {
			t.Fatal(err)
		}
	}
	p.failover(t)

	for _, c := range []struct {
		h    driver.HolderParams
		want driver.State
	}{
		{known, driver.StateComplete}, {running, driver.StateInFlight}, {completing, driver.StateInFlight},
		{lostOutcome, driver.StateAbsent}, {lostClaim, driver.StateAbsent},
	} {
		r, err := d.Get(ctx(), driver.GetParams{Key: c.h.Key})
		if err != nil || r.StateAt(r.Now) != c.want {
			t.Errorf("%s: %v, %v; want %v", c.h.Key.ID, r.StateAt(r.Now), err, c.want)
		}
	}
	for _, h := range []driver.HolderParams{lostOutcome, lostClaim} {
		if err := complete(h); !errors.Is(err, driver.ErrNotHolder) {
			t.Errorf("%s: completing a forgotten claim: %v, want ErrNotHolder", h.Key.ID, err)
		}
		if err := d.Renew(ctx(), driver.RenewParams{HolderParams: h, Lease: time.Minute}); !errors.Is(err, driver.ErrNotHolder) {
			t.Errorf("%s: renewing a forgotten claim: %v, want ErrNotHolder", h.Key.ID, err)
		}
		if next := claim(h.Key.ID); next.Fence <= h.Fence {
			t.Errorf("%s: the fence fell from %d to %d", h.Key.ID, h.Fence, next.Fence)
		}
	}
	for _, h := range []driver.HolderParams{running, completing} { // whoever sends it again is heard
		if err := complete(h); err != nil {
			t.Errorf("%s: %v", h.Key.ID, err)
		}
	}
}

// heard is an answer of a call beside a failover.
type heard struct {
	value      string
	begin, end int64
}

// round is one failover beside callers, and what they heard.
type round struct {
	safe     int64 // what was answered before has reached the replica
	killed   int64
	promoted int64
	answers  map[string][]heard
	fences   map[string][]fenceAt
}

type fenceAt struct {
	t     int64
	fence int64
}

func failoverRound(t *testing.T, seed uint64) *round {
	p := startPair(t)
	r := &round{answers: make(map[string][]heard), fences: make(map[string][]fenceAt)}
	op, err := idem.New[string](redis.New(p.client(t)), idem.Config{Name: "failover", Lease: lease, SettleTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var calls atomic.Int64
	stop := make(chan struct{})
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("%d", max(calls.Add(1)/6-int64(rnd.IntN(40)), 0))
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				begin := now()
				res, err := op.Do(ctx, idem.Key{Scope: "failover", ID: key}, print1, func(_ context.Context, run *idem.Run) (string, error) {
					mu.Lock()
					defer mu.Unlock()
					r.fences[key] = append(r.fences[key], fenceAt{now(), run.Fence})
					return fmt.Sprintf("%d.%d", i, n), nil
				})
				end := now()
				cancel()
				if err == nil {
					mu.Lock()
					r.answers[key] = append(r.answers[key], heard{res.Value, begin, end})
					mu.Unlock()
				} else {
					time.Sleep(time.Duration(rnd.IntN(5)) * time.Millisecond)
				}
			}
		})
	}
	until := func(n int64) {
		from := calls.Load()
		if err := within(patience, func() error {
			if calls.Load() < from+n {
				return errors.New("nobody calls")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	until(300)
	r.safe = now()
	if err := p.behind(t); err != nil {
		t.Error(err)
	}
	p.lag()
	until(200 + int64(seed%5)*50)
	r.killed = now()
	p.failover(t)
	r.promoted = now()
	until(600)
	close(stop)
	work.Wait()
	return r
}

// judge returns what is wrong, and how many outcomes were forgotten.
func (r *round) judge() (wrong []string, forgotten int) {
	for key, all := range r.answers {
		old, young := make(map[string]bool), make(map[string]bool)
		for _, a := range all {
			switch {
			case a.end < r.killed:
				old[a.value] = true
			case a.begin > r.promoted:
				young[a.value] = true
			}
		}
		if len(old) > 1 || len(young) > 1 {
			wrong = append(wrong, fmt.Sprintf("key %s has outcomes %v before and %v after the failover", key, old, young))
		}
		for v := range old {
			if len(young) > 0 && !young[v] {
				forgotten++
			}
		}
		for _, a := range all {
			for _, b := range all {
				if a.end < r.safe && b.begin > a.end && a.value != b.value {
					wrong = append(wrong, fmt.Sprintf("key %s: the outcome %s had reached the replica, and became %s", key, a.value, b.value))
				}
			}
		}
		runs := r.fences[key]
		for i := range runs {
			if i > 0 && runs[i].fence <= runs[i-1].fence {
				wrong = append(wrong, fmt.Sprintf("key %s: fence %d after %d", key, runs[i].fence, runs[i-1].fence))
			}
		}
	}
	return wrong, forgotten
}

// A failover to a replica that lags forgets what the replica had not received: that
// is what Guarantees says, and this test sees it happen. Nothing else may break.
func TestFailover(t *testing.T) {
	if *only != "" && *only != "redis" {
		t.Skip("another driver was asked for") // by hand only
	}
	rounds, forgotten, outcomes := min(max(2, *count/200), 25), 0, 0
	for i := range rounds {
		r := failoverRound(t, *seed+uint64(i))
		wrong, n := r.judge()
		for _, w := range wrong {
			t.Errorf("seed %d: %s", *seed+uint64(i), w)
		}
		forgotten += n
		outcomes += len(r.answers)
		// The judge would see it if what is promised did not hold.
		if n > 0 {
			r.safe = r.killed
			if wrong, _ := r.judge(); len(wrong) == 0 {
				t.Error("the judge takes forgotten outcomes for kept ones")
			}
		}
	}
	if forgotten == 0 {
		t.Error("no failover forgot anything: the replica did not lag")
	}
	t.Logf("%d failovers, %d keys with outcomes, %d outcomes forgotten", rounds, outcomes, forgotten)
}
