package redis_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/redistest"
)

// Every script touches one slot, whatever braces the user's key has.
func TestField_R03_BracesInCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	d := redis.New(cluster.Client(t))
	for _, name := range []string{"{", "}", "{}", "a{b}c{d}", "{}a", "}{", "{{}}"} {
		p := claimOf(name)
		p.Key.Scope = name
		h := holderOf(p, mustClaim(t, d, p))
		must(t, "Renew", d.Renew(t.Context(), driver.RenewParams{HolderParams: h, Lease: time.Minute}))
		must(t, "Complete", d.Complete(t.Context(), completionOf(h)))
		if r, err := d.Get(t.Context(), driver.GetParams{Key: p.Key}); err != nil || r.Key != p.Key || r.State != driver.StateComplete {
			t.Errorf("Get %q: %+v, %v", name, r, err)
		}
		must(t, "Forget", d.Forget(t.Context(), driver.ForgetParams{HolderParams: h}))
		p.Token = driver.NewToken()
		h = holderOf(p, mustClaim(t, d, p))
		must(t, "Release", d.Release(t.Context(), driver.ReleaseParams{HolderParams: h}))
	}
}

// The server forgets its scripts before each command, also those of a pipeline,
// and all rules hold.
func TestField_R04_ScriptFlush(t *testing.T) {
	addr := redistest.Start(t).Addr
	admin := redistest.Client(t, addr)
	flush := func() {
		if err := admin.ScriptFlush(background).Err(); err != nil {
			t.Errorf("SCRIPT FLUSH: %v", err)
		}
	}
	conformancetest.Run(t, store("script-flush", func(t testing.TB) goredis.UniversalClient {
		c := redistest.Client(t, addr)
		c.AddHook(flusher{flush})
		return c
	}))
}

// A restart forgets the scripts as well, and each node of a Cluster has its own.
func TestField_R04_EveryNodeLearnsTheScripts(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	d := redis.New(cluster.Client(t))
	for i := range 50 {
		p := claimOf(fmt.Sprint("key-", i))
		must(t, "Complete", d.Complete(t.Context(), completionOf(holderOf(p, mustClaim(t, d, p)))))
	}
	for _, n := range cluster.Nodes {
		if size := n.Client(t).DBSize(t.Context()).Val(); size == 0 {
			t.Errorf("node %s holds no record", n.Addr)
		}
	}
}

func TestField_R06_EvictionIsRefused(t *testing.T) {
	for _, policy := range []string{"allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"} {
		t.Run(policy, func(t *testing.T) {
			c := redistest.Start(t, "--maxmemory", "5mb", "--maxmemory-policy", policy).Client(t)
			refused(t, redis.New(c), "noeviction")
			mustClaim(t, redis.New(c, redis.AllowEviction()), claimOf("k"))
		})
	}
}

// With a full memory a claim fails, and so its operation does not run; a claim
// that was granted is settled all the same, and repeats get their outcome.
func TestField_R06_FullMemory(t *testing.T) {
	c := redistest.Start(t, "--maxmemory", "5mb").Client(t)
	d := redis.New(c)
	ctx := t.Context()
	var holders []driver.HolderParams
	for i := range 5 {
		p := claimOf(fmt.Sprint("early-", i))
		holders = append(holders, holderOf(p, mustClaim(t, d, p)))
	}
	done := claimOf("done")
	must(t, "Complete", d.Complete(ctx, completionOf(holderOf(done, mustClaim(t, d, done)))))

	var acked []driver.Key
	var full error
	for i := 0; full == nil; i++ {
		if i == 10_000 {
			t.Fatal("the memory does not fill up")
		}
		p := claimOf(fmt.Sprint("flood-", i))
		p.Summary = strings.Repeat("x", driver.MaxSummary)
		if _, full = d.Claim(ctx, p); full == nil {
			acked = append(acked, p.Key)
		}
	}
	if !goredis.HasErrorPrefix(full, "OOM") {
		t.Fatalf("a claim in a full memory: got %v, want the server's OOM", full)
	}

	repeat := done
	repeat.Token = driver.NewToken()
	if r, err := d.Claim(ctx, repeat); err != nil || string(r.Result) != "outcome" {
		t.Errorf("a repeat in a full memory: %+v, %v", r, err)
	}
	must(t, "Complete", d.Complete(ctx, completionOf(holders[0])))
	must(t, "Renew", d.Renew(ctx, driver.RenewParams{HolderParams: holders[1], Lease: time.Minute}))
	must(t, "Release", d.Release(ctx, driver.ReleaseParams{HolderParams: holders[1]}))
	must(t, "Release", d.Release(ctx, driver.ReleaseParams{HolderParams: holders[2], Abandon: true}))
	must(t, "Forget", d.Forget(ctx, driver.ForgetParams{HolderParams: holders[0]}))
	for _, k := range acked {
		if r, err := d.Get(ctx, driver.GetParams{Key: k}); err != nil || r.State != driver.StateInFlight {
			t.Fatalf("a claim that was granted before: %v, %v", r.State, err)
		}
	}
}

// Leases and lives are exact to the microsecond, or refused. The TTL never rounds
// a record's life down.
func TestField_R10_ShortTimes(t *testing.T) {
	d, c := single(t)
	for _, lease := range []time.Duration{999 * time.Microsecond, 1, 0, -1, -time.Hour, math.MaxInt64, math.MinInt64} {
		p := claimOf("refused")
		p.Lease, p.Retention = lease, max(lease, time.Hour)
		if _, err := d.Claim(t.Context(), p); !errors.Is(err, driver.ErrInvalidParams) {
			t.Errorf("a lease of %v: got %v, want ErrInvalidParams", lease, err)
		}
	}
	for i, lease := range []time.Duration{
		time.Millisecond, 1001 * time.Microsecond, 500 * time.Millisecond, time.Second, driver.MaxDuration,
	} {
		p := claimOf(fmt.Sprint("exact-", i))
		p.Lease, p.Retention, p.Now = lease, lease, now
		r := mustClaim(t, d, p)
		if got := r.LeaseUntil.Sub(r.Now); got != lease {
			t.Errorf("a lease of %v lasts %v", lease, got)
		}
		lives(t, c, p.Key, lease)

		h := holderOf(p, r)
		q := completionOf(h)
		q.Retention, q.Grace = lease, 3*time.Microsecond
		must(t, "Complete", d.Complete(t.Context(), q))
		lives(t, c, p.Key, q.Retention+q.Grace)
		got, err := d.Get(t.Context(), driver.GetParams{Key: p.Key})
		must(t, "Get", err)
		if !got.RetainUntil.Equal(now.Add(q.Retention)) || !got.GraceUntil.Equal(now.Add(q.Retention+q.Grace)) {
			t.Errorf("retention %v ends %v, grace %v", q.Retention, got.RetainUntil, got.GraceUntil)
		}
	}
}

// lives checks that the TTL of a record is d rounded up, and the spare minute.
func lives(t *testing.T, c *goredis.Client, k driver.Key, d time.Duration) {
	t.Helper()
	ttl, err := c.PTTL(t.Context(), nameOf(k)).Result()
	must(t, "PTTL", err)
	most := (d+time.Millisecond-1)/time.Millisecond*time.Millisecond + time.Minute
	// The time that passed since the write counts.
	if ttl > most || ttl < most-10*time.Second {
		t.Errorf("the TTL of a record that is wanted for %v is %v, want %v", d, ttl, most)
	}
}

// The holder is a random token, not a name that two processes may share: a process
// that knows the key and the fence settles nothing.
func TestField_R12_OwnersAreNotNamed(t *testing.T) {
	a, c := single(t)
	b := redis.New(c)
	p := claimOf("k")
	h := holderOf(p, mustClaim(t, a, p))

	other := claimOf("k")
	if r, err := b.Claim(t.Context(), other); err != nil || granted(r, other) {
		t.Fatalf("the claim of B: %+v, %v", r, err)
	}
	forged := h
	forged.Token = other.Token
	for name, err := range map[string]error{
		"Complete": b.Complete(t.Context(), completionOf(forged)),
		"Release":  b.Release(t.Context(), driver.ReleaseParams{HolderParams: forged}),
		"Abandon":  b.Release(t.Context(), driver.ReleaseParams{HolderParams: forged, Abandon: true}),
		"Renew":    b.Renew(t.Context(), driver.RenewParams{HolderParams: forged, Lease: time.Minute}),
		"Forget":   b.Forget(t.Context(), driver.ForgetParams{HolderParams: forged}),
	} {
		if !errors.Is(err, driver.ErrNotHolder) {
			t.Errorf("%s by B: got %v, want ErrNotHolder", name, err)
		}
	}
	must(t, "Complete by A", a.Complete(t.Context(), completionOf(h)))
}

// A claim is one command, so that there is no boundary at which two could
// interleave: of many at once exactly one is granted, and nothing is overwritten.
func TestField_R16_NoCommandBoundary(t *testing.T) {
	d, c := single(t)
	warmUp(t, d)
	calls := func() (n int) {
		info := c.InfoMap(t.Context(), "commandstats").Val()["Commandstats"]
		for name, stats := range info {
			if strings.HasPrefix(name, "cmdstat_eval") {
				var once int
				fmt.Sscanf(stats, "calls=%d", &once)
				n += once
			}
		}
		return n
	}
	before := calls()
	const keys, claimants = 50, 8
	for i := range keys {
		var mu sync.Mutex
		var owners []driver.Token
		var claims sync.WaitGroup
		for range claimants {
			claims.Go(func() {
				p := claimOf(fmt.Sprint("key-", i))
				r, err := d.Claim(background, p)
				if err != nil {
					t.Errorf("Claim: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				if granted(r, p) {
					owners = append(owners, p.Token)
				}
			})
		}
		claims.Wait()
		r, err := d.Get(t.Context(), driver.GetParams{Key: claimOf(fmt.Sprint("key-", i)).Key})
		if err != nil || len(owners) != 1 || r.Token != owners[0] {
			t.Fatalf("key %d: owners %v, stored %v, %v", i, owners, r.Token, err)
		}
	}
	if got, want := calls()-before, keys*(claimants+1); got != want {
		t.Errorf("%d verbs took %d scripts", want, got)
	}
}
