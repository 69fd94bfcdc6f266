//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/driver/sqlite"
)

// The durations of the verbs' histories, by a clock that the workload moves.
const (
	verbLease = 200 * time.Millisecond
	verbKeep  = time.Second
	verbGrace = 500 * time.Millisecond

	verbClients = 6
	verbsOfKey  = 90 // after which another key comes into use
	verbKeys    = 3  // in use at the same time
)

// verbStores opens each driver: handles over one store, and the server behind it.
var verbStores = map[string]func(t *testing.T) ([]driver.Driver, server){
	"memory": func(t *testing.T) ([]driver.Driver, server) { return []driver.Driver{memory.New()}, file{} },
	"bolt": func(t *testing.T) ([]driver.Driver, server) {
		d, err := bolt.Open(filepath.Join(t.TempDir(), "verbs.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return []driver.Driver{d}, file{}
	},
	"sqlite": func(t *testing.T) ([]driver.Driver, server) {
		path := filepath.Join(t.TempDir(), "verbs.db")
		var all []driver.Driver
		for range 2 {
			d, err := sqlite.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { d.Close() })
			if err := d.Migrate(ctx()); err != nil {
				t.Fatal(err)
			}
			all = append(all, d)
		}
		return all, file{}
	},
	"postgres": func(t *testing.T) ([]driver.Driver, server) {
		s := startServer(t, "postgres")
		var all []driver.Driver
		for range 2 {
			pool, err := pgxpool.New(ctx(), s.dsn())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			all = append(all, postgres.New(pool))
		}
		return all, s
	},
	"redis": func(t *testing.T) ([]driver.Driver, server) {
		s := startServer(t, "redis")
		var all []driver.Driver
		for range 2 {
			client := goredis.NewClient(&goredis.Options{
				Addr: s.dsn(), ContextTimeoutEnabled: true, ReadTimeout: 300 * time.Millisecond, DialTimeout: time.Second,
			})
			t.Cleanup(func() { client.Close() })
			all = append(all, redis.New(client))
		}
		return all, s
	},
}

// startServer starts the server of one of the drivers.
func startServer(t *testing.T, name string) server {
	t.Helper()
	for _, d := range drivers {
		if d.name == name {
			return d.start(t)
		}
	}
	t.Fatalf("no driver is called %q", name)
	return nil
}

// TestVerbs calls the drivers' own methods concurrently, while their clients' clocks
// jump, their calls are cancelled and, behind a network, their connections are cut and
// their server is killed; and checks each key's history against driver/state.go.
func TestVerbs(t *testing.T) {
	for name, start := range verbStores {
		if *only != "" && *only != name {
			continue
		}
		t.Run(name, func(t *testing.T) {
			handles, srv := start(t)
			w := newVerbs(handles, srv, *seed)
			w.run(t, min(6**count, 24000))
			w.report(t, name)
		})
	}
}

// verbs is a workload of a driver's verbs.
type verbs struct {
	handles []driver.Driver
	server  server
	seed    uint64
	base    time.Time
	elapsed atomic.Int64 // by the clock of the workload
	left    atomic.Int64
	faults  tally
	reached map[driver.State]int // answers, by the state they tell of

	mu       sync.Mutex
	made     int
	next     int // key
	keys     []*verbKey
	all      []*verbKey
	problems []string
}

type verbKey struct {
	key     driver.Key
	holders []driver.HolderParams
	history []*verb
}

func newVerbs(handles []driver.Driver, srv server, seed uint64) *verbs {
	return &verbs{handles: handles, server: srv, seed: seed, base: time.Now().Truncate(time.Second), reached: make(map[driver.State]int)}
}

func (w *verbs) run(t *testing.T, n int) {
	w.left.Store(int64(n))
	c := &cuts{rnd: rand.New(rand.NewPCG(w.seed, 9)), left: -1, tally: &w.faults}
	if p := w.server.proxy(); p != nil {
		p.SetRule(c.rule)
		defer p.SetRule(nil)
	}
	var work sync.WaitGroup
	for i := range verbClients {
		work.Go(func() {
			(&verbClient{w, rand.New(rand.NewPCG(w.seed, uint64(100+i))), w.handles[i%len(w.handles)], 0}).loop()
		})
	}
	if w.server.proxy() != nil {
		rnd := rand.New(rand.NewPCG(w.seed, 8))
		next := int64(n)
		for crashes := 2; w.left.Load() > 0; time.Sleep(5 * time.Millisecond) {
			if w.left.Load() > next {
				continue
			}
			next -= int64(30 + rnd.IntN(60)) // verbs between two sessions that are ended
			if ok, err := w.server.endSession(); err == nil && ok {
				w.faults.add(endSession)
			}
			if crashes > 0 && w.left.Load() < int64(n*crashes/3) {
				crashes--
				w.server.crash(t)
				w.faults.add(killServer)
			}
		}
	}
	work.Wait()
	for _, k := range w.all {
		if wrong := judgeVerbs(k.history); wrong != "" {
			w.problems = append(w.problems, fmt.Sprintf("key %s: %s\n%s", k.key.ID, wrong, tale(k.history, w.base)))
		}
	}
}

func (w *verbs) report(t *testing.T, name string) {
	for i, p := range w.problems {
		if i < 3 {
			t.Error(p)
		}
	}
	if n := len(w.problems); n > 0 {
		t.Errorf("%d of %d histories are wrong; again: make faults FAULTS='-faults.driver %s -faults.seed %d -faults.count %d'",
			n, len(w.all), name, w.seed, *count)
	}
	unknown := 0
	for _, k := range w.all {
		for _, v := range k.history {
			if v.unknown != nil {
				unknown++
			}
		}
	}
	var states []string
	for s := driver.StateAbsent; s <= driver.StateExpired; s++ {
		states = append(states, fmt.Sprintf("%v %d", s, w.reached[s]))
	}
	t.Logf("%s: %d verbs, %d of them unanswered, %d keys, %d faults; answers told of: %s",
		name, w.made, unknown, len(w.all), w.faults.total(), strings.Join(states, ", "))
}

// pick returns one of the keys in use.
func (w *verbs) pick(rnd *rand.Rand) *verbKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.keys) < verbKeys {
		k := &verbKey{key: driver.Key{Scope: "verbs", ID: fmt.Sprintf("v%d-%d", w.seed, w.next)}}
		w.next++
		w.keys, w.all = append(w.keys, k), append(w.all, k)
	}
	i := rnd.IntN(len(w.keys))
	k := w.keys[i]
	if len(k.history) >= verbsOfKey {
		w.keys = append(w.keys[:i], w.keys[i+1:]...)
	}
	return k
}

// verbClient is one caller, with a clock of its own.
type verbClient struct {
	*verbs
	rnd  *rand.Rand
	d    driver.Driver
	skew time.Duration
}

func (c *verbClient) loop() {
	for c.left.Add(-1) >= 0 {
		c.step(c.pick(c.rnd))
	}
}

// now moves the clock of all a little and, at times, this client's own a lot.
func (c *verbClient) now() time.Time {
	steps := [...]time.Duration{0, 0, time.Microsecond, time.Millisecond, 10 * time.Millisecond, verbLease / 3, verbLease}
	if c.rnd.IntN(60) == 0 {
		c.elapsed.Add(int64(verbKeep))
	}
	elapsed := c.elapsed.Add(int64(steps[c.rnd.IntN(len(steps))]))
	if c.rnd.IntN(25) == 0 {
		c.skew = [...]time.Duration{0, 0, 0, verbLease, -verbLease, 3 * time.Second, -3 * time.Second}[c.rnd.IntN(7)]
	}
	return c.base.Add(time.Duration(elapsed) + c.skew)
}

func (c *verbClient) holder(k *verbKey) (h driver.HolderParams, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(k.holders)
	if n == 0 {
		return h, false
	}
	h = k.holders[n-1]
	if c.rnd.IntN(4) == 0 {
		h = k.holders[c.rnd.IntN(n)]
	}
	return h, true
}

func (c *verbClient) step(k *verbKey) {
	now := c.now()
	h, ok := c.holder(k)
	h.Now = now
	switch n := c.rnd.IntN(100); {
	case n < 40 || !ok && n < 90:
		c.claim(k, h, now)
	case n < 50 && ok:
		p := driver.RenewParams{HolderParams: h, Lease: time.Duration(1+c.rnd.IntN(3)) * verbLease}
		c.do(k, &verb{name: "Renew", now: now, after: written(func(r driver.Record) (driver.Record, error) { return r.AfterRenew(p, now) }),
			asked: fmt.Sprintf("%.4s %v", h.Token, p.Lease)}, func(ctx context.Context) (driver.Record, error) { return driver.Record{}, c.d.Renew(ctx, p) })
	case n < 66 && ok:
		p := driver.CompleteParams{HolderParams: h, Retention: verbKeep, Grace: time.Duration(c.rnd.IntN(2)) * verbGrace}
		if c.rnd.IntN(6) > 0 {
			p.Result = fmt.Appendf([]byte{}, "%d", c.rnd.IntN(1000))
		}
		c.do(k, &verb{name: "Complete", now: now, after: written(func(r driver.Record) (driver.Record, error) { return r.AfterComplete(p, now) }),
			asked: fmt.Sprintf("%.4s %q grace %v", h.Token, p.Result, p.Grace)}, func(ctx context.Context) (driver.Record, error) { return driver.Record{}, c.d.Complete(ctx, p) })
	case n < 80 && ok:
		p := driver.ReleaseParams{HolderParams: h, Abandon: c.rnd.IntN(2) == 0}
		if c.rnd.IntN(4) == 0 {
			p.Note = fmt.Sprintf("note %d", c.rnd.IntN(9))
		}
		c.do(k, &verb{name: "Release", now: now, after: written(func(r driver.Record) (driver.Record, error) { return r.AfterRelease(p, now) }),
			asked: fmt.Sprintf("%.4s abandon %t note %q", h.Token, p.Abandon, p.Note)}, func(ctx context.Context) (driver.Record, error) { return driver.Record{}, c.d.Release(ctx, p) })
	case n < 84 && ok:
		p := driver.ForgetParams{HolderParams: h}
		c.do(k, &verb{name: "Forget", now: now, after: written(func(r driver.Record) (driver.Record, error) {
			remove, err := r.AfterForget(p)
			if remove {
				r = driver.Record{}
			}
			return r, err
		}), asked: fmt.Sprintf("%.4s", h.Token)}, func(ctx context.Context) (driver.Record, error) { return driver.Record{}, c.d.Forget(ctx, p) })
	case n < 89:
		c.purge(now)
	default:
		c.do(k, &verb{name: "Get", now: now, get: true, after: written(func(r driver.Record) (driver.Record, error) { return r, nil })},
			func(ctx context.Context) (driver.Record, error) {
				return c.d.Get(ctx, driver.GetParams{Key: k.key, Now: now})
			})
	}
}

func (c *verbClient) claim(k *verbKey, h driver.HolderParams, now time.Time) {
	p := driver.ClaimParams{
		Key: k.key, Operation: "verbs", Fingerprint: []byte("one"), Summary: "a request", Token: driver.NewToken(),
		Lease: verbLease, Retention: verbKeep + verbLease, Hold: c.rnd.IntN(10) == 0, Resolve: c.rnd.IntN(8) == 0, Now: now,
	}
	if !h.Token.IsZero() && c.rnd.IntN(5) == 0 {
		p.Token = h.Token // sent again, or delayed on the network
	}
	if c.rnd.IntN(12) == 0 {
		p.Operation, p.Fingerprint = "verbs.other", []byte("two")
	}
	v := &verb{name: "Claim", now: now, claim: true, asked: fmt.Sprintf("%.4s %s hold %t resolve %t", p.Token, p.Operation, p.Hold, p.Resolve),
		after: func(r driver.Record) (driver.Record, bool, error) {
			next, write := r.AfterClaim(p, now)
			return next, write, nil
		}}
	c.do(k, v, func(ctx context.Context) (driver.Record, error) { return c.d.Claim(ctx, p) })
	if v.unknown == nil && v.rec.State == driver.StateInFlight && v.rec.Token == p.Token {
		c.mu.Lock()
		k.holders = append(k.holders, driver.HolderParams{Key: k.key, Token: p.Token, Fence: v.rec.Fence})
		c.mu.Unlock()
	}
}

// written is the step of a verb that writes what the record becomes.
func written(after func(driver.Record) (driver.Record, error)) func(driver.Record) (driver.Record, bool, error) {
	return func(r driver.Record) (driver.Record, bool, error) {
		next, err := after(r)
		return next, err == nil, err
	}
}

// purge is a step of every key: it may do, or leave, what is due of each. It is of
// one record, since a larger one works in batches, and may meet a key again that
// was claimed meanwhile by a slower clock than its own.
func (c *verbClient) purge(now time.Time) {
	v := verb{name: "Purge", now: now, purge: true, after: func(r driver.Record) (driver.Record, bool, error) {
		next, due, remove := r.AfterPurge(now)
		if remove {
			next = driver.Record{}
		}
		return next, due, nil
	}}
	c.try(&v, func(ctx context.Context) (driver.Record, error) {
		_, err := c.d.Purge(ctx, driver.PurgeParams{Limit: 1, Now: now})
		return driver.Record{}, err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	for _, k := range c.all[max(0, len(c.all)-8*verbKeys):] { // the others have long been over
		own := v
		k.history = append(k.history, &own)
	}
}

func (c *verbClient) do(k *verbKey, v *verb, f func(context.Context) (driver.Record, error)) {
	v.key = k.key
	c.try(v, f)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	k.history = append(k.history, v)
	if v.unknown == nil && (v.claim || v.get) {
		c.reached[v.rec.StateAt(v.now)]++
	}
}

// try calls f, at times with little patience.
func (c *verbClient) try(v *verb, f func(context.Context) (driver.Record, error)) {
	limit := time.Second
	if c.rnd.IntN(25) == 0 {
		limit = time.Duration(100+c.rnd.IntN(2000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	before := c.faults.total()
	v.call = now()
	rec, err := f(ctx)
	v.ret = now()
	v.again = c.faults.total() != before
	v.rec = rec
	switch {
	case definite(err):
		v.err = err
	default:
		v.unknown = err
		if c.server.proxy() != nil {
			time.Sleep(time.Duration(c.rnd.IntN(100)) * time.Millisecond) // the server may be down
		}
		for _, never := range [...]error{
			driver.ErrInvalidParams, driver.ErrInvalidKey, driver.ErrForeignRecord, driver.ErrNewerVersion, driver.ErrUnsafeConfig,
		} {
			if errors.Is(err, never) {
				c.mu.Lock()
				c.problems = append(c.problems, fmt.Sprintf("%s: %v", v.name, err))
				c.mu.Unlock()
			}
		}
	}
}
