package redis_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

func TestField_R01_DeadlineOfACommandInFlight(t *testing.T) {
	d, px, _ := proxied(t)
	px.SetRule(func(_ *proxy.Conn, dir proxy.Direction, _ []byte) proxy.Verdict {
		if dir == proxy.ToClient {
			return proxy.Drop
		}
		return proxy.Forward
	})
	ctx, cancel := contextWithTimeout(t, 100*time.Millisecond)
	defer cancel()
	within(t, time.Second, func() {
		if r, err := d.Claim(ctx, claimOf("k")); !errors.Is(err, context.DeadlineExceeded) || r.State != driver.StateAbsent {
			t.Errorf("Claim: got %+v, %v, want the deadline's error and no record", r, err)
		}
	})
}

// A cancellation has no deadline that the client could observe.
func TestField_R01_CancellationOfACommandInFlight(t *testing.T) {
	d, px, _ := proxied(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	px.SetRule(func(_ *proxy.Conn, dir proxy.Direction, _ []byte) proxy.Verdict {
		if dir == proxy.ToClient {
			cancel(errors.New("the client hung up"))
			return proxy.Drop
		}
		return proxy.Forward
	})
	within(t, time.Second, func() {
		if _, err := d.Claim(ctx, claimOf("k")); !errors.Is(err, context.Canceled) {
			t.Errorf("Claim: got %v, want the context's error", err)
		}
	})
}

func TestField_R02_DeadlineWhenNodesAreDown(t *testing.T) {
	// As when a firewall drops every packet.
	blackHole := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connects, and never answers
	must(t, "listen", err)
	t.Cleanup(func() { silent.Close() })

	single := goredis.NewClient(&goredis.Options{Addr: "192.0.2.1:6379", ContextTimeoutEnabled: true, Dialer: blackHole})
	cluster := goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: []string{"192.0.2.1:6379", "192.0.2.2:6379", "192.0.2.3:6379"}, ContextTimeoutEnabled: true, Dialer: blackHole,
	})
	mute := goredis.NewClient(&goredis.Options{Addr: silent.Addr().String(), ContextTimeoutEnabled: true})
	muteCluster := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{silent.Addr().String()}, ContextTimeoutEnabled: true})
	for name, client := range map[string]goredis.UniversalClient{
		"single": single, "cluster": cluster, "mute": mute, "mute cluster": muteCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { client.Close() })
			ctx, cancel := contextWithTimeout(t, 100*time.Millisecond)
			defer cancel()
			within(t, time.Second, func() {
				if _, err := redis.New(client).Claim(ctx, claimOf("k")); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Claim: got %v, want the deadline's error", err)
				}
			})
		})
	}
}

// A role change is a store failure, and over when the role is.
func TestField_R07_RoleChange(t *testing.T) {
	d, c := single(t)
	warmUp(t, d)
	ctx := t.Context()
	p := claimOf("held")
	h := holderOf(p, mustClaim(t, d, p))
	must(t, "REPLICAOF", c.ReplicaOf(ctx, "127.0.0.1", "1").Err())

	absent := claimOf("absent")
	_, claimErr := d.Claim(ctx, absent)
	_, getErr := d.Get(ctx, driver.GetParams{Key: p.Key})
	for name, err := range map[string]error{
		"Claim": claimErr, "Get": getErr, "Complete": d.Complete(ctx, completionOf(h)),
	} {
		if !goredis.HasErrorPrefix(err, "READONLY") || errors.Is(err, driver.ErrNotHolder) {
			t.Errorf("%s on a replica: got %v, want the server's READONLY", name, err)
		}
	}
	repeat := claimOf("held")
	if r, err := d.Claim(ctx, repeat); err == nil && granted(r, repeat) {
		t.Error("a replica granted a claim")
	}

	must(t, "REPLICAOF NO ONE", c.ReplicaOf(ctx, "NO", "ONE").Err())
	must(t, "Complete", d.Complete(ctx, completionOf(h)))
	mustClaim(t, d, absent)
}

// Wherever the connection breaks, a claim that can be taken over ends by itself.
func TestField_R09_NoKeyWithoutTTL(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	written := 0
	for n := 1; n <= 10; n++ {
		for _, verdict := range []proxy.Verdict{proxy.Kill, proxy.ForwardThenKill} {
			must(t, "FLUSHALL", admin.FlushAll(t.Context()).Err())
			must(t, "SCRIPT FLUSH", admin.ScriptFlush(t.Context()).Err())
			cutAfter(t, s.Addr, n, verdict)
			for _, key := range admin.Keys(t.Context(), "*").Val() {
				written++
				if ttl := admin.PTTL(t.Context(), key).Val(); ttl <= 0 {
					t.Errorf("cut at chunk %d, verdict %d: the TTL of %s is %v", n, verdict, key, ttl)
				}
			}
		}
	}

	if written < 8 || written > 16 {
		t.Errorf("a record was written before %d of 20 cuts, so these are the wrong places to cut", written)
	}

	d := redis.New(admin)
	p := claimOf("held for ever")
	p.Hold = true
	mustClaim(t, d, p)
	if ttl := admin.PTTL(t.Context(), nameOf(p.Key)).Val(); ttl != -1 {
		t.Errorf("the TTL of a claim under Hold is %v, want none", ttl)
	}
}

// cutAfter runs verbs, each unknown to the server at first, through a connection
// that breaks at its n-th chunk, for good. They fail; the caller looks at what is left.
func cutAfter(t *testing.T, addr string, n int, verdict proxy.Verdict) {
	px, err := proxy.Listen(addr)
	must(t, "proxy", err)
	defer px.Close()
	d := redis.New(redistest.Client(t, px.Addr(), func(o *goredis.Options) { o.MaxRetries = -1; o.PoolSize = 1 }))
	p := claimOf("k")
	_, err = d.Get(t.Context(), driver.GetParams{Key: p.Key}) // checks and connects
	must(t, "Get", err)
	var seen atomic.Int64
	px.SetRule(func(*proxy.Conn, proxy.Direction, []byte) proxy.Verdict {
		switch i := int(seen.Add(1)); {
		case i < n:
			return proxy.Forward
		case i == n:
			return verdict
		}
		return proxy.Kill
	})
	r, err := d.Claim(t.Context(), p)
	if err == nil {
		err = d.Renew(t.Context(), driver.RenewParams{HolderParams: holderOf(p, r), Lease: time.Minute})
	}
	if err == nil {
		d.Release(t.Context(), driver.ReleaseParams{HolderParams: holderOf(p, r), Abandon: true})
	}
}

// While the server is away renewing fails, but not for good; a renewal after a
// takeover is refused. Calls that were given up leave no goroutine behind.
func TestField_R14_RenewalAcrossAnOutage(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	d := redis.New(s.Client(t, func(o *goredis.Options) { o.MaxRetries = -1 }))
	p := claimOf("k")
	p.Now = now
	h := holderOf(p, mustClaim(t, d, p))
	renew := driver.RenewParams{HolderParams: h, Lease: time.Minute}

	s.Kill()
	if err := d.Renew(t.Context(), renew); err == nil || errors.Is(err, driver.ErrNotHolder) {
		t.Errorf("Renew without a server: got %v, want a store failure", err)
	}
	s.Restart(t)
	renew.Now = now.Add(p.Lease / 3)
	must(t, "Renew after a third of the lease", d.Renew(t.Context(), renew))

	taker := claimOf("k")
	taker.Now = now.Add(2 * p.Lease)
	mustClaim(t, d, taker)
	renew.Now = taker.Now
	if err := d.Renew(t.Context(), renew); !errors.Is(err, driver.ErrNotHolder) {
		t.Errorf("Renew after the takeover: got %v, want ErrNotHolder", err)
	}
	if err := d.Complete(t.Context(), completionOf(h)); !errors.Is(err, driver.ErrNotHolder) {
		t.Errorf("Complete after the takeover: got %v, want ErrNotHolder", err)
	}
}

func TestField_R14_NoGoroutineLeft(t *testing.T) {
	d, _ := single(t)
	warmUp(t, d)
	before := runtime.NumGoroutine()
	for range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { cancel(); close(done) }()
		d.Claim(ctx, claimOf("k"))
		<-done
	}
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		runtime.Gosched()
	}
}

func TestRoundTrips(t *testing.T) {
	d, px, _ := proxied(t)
	ctx := t.Context()
	p := claimOf("k")
	var h driver.HolderParams
	for _, verb := range []struct {
		name string
		call func() error
	}{
		{"Claim", func() error { r, err := d.Claim(ctx, p); h = holderOf(p, r); return err }},
		{"Renew", func() error { return d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: time.Minute}) }},
		{"Complete", func() error { return d.Complete(ctx, completionOf(h)) }},
		{"Get", func() error { _, err := d.Get(ctx, driver.GetParams{Key: p.Key}); return err }},
		{"Forget", func() error { return d.Forget(ctx, driver.ForgetParams{HolderParams: h}) }},
		{"Claim again", func() error { r, err := d.Claim(ctx, p); h = holderOf(p, r); return err }},
		{"Release", func() error { return d.Release(ctx, driver.ReleaseParams{HolderParams: h}) }},
	} {
		before := px.Trips()
		must(t, verb.name, verb.call())
		if trips := px.Trips() - before; trips != 1 {
			t.Errorf("%s took %d round trips, want 1", verb.name, trips)
		}
	}
}
