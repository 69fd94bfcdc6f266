package redis_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/redistest"
)

// refused checks that the first verb fails, says what to change, and stores nothing.
func refused(t *testing.T, d *redis.Driver, says string) {
	t.Helper()
	for _, verb := range []struct {
		name string
		call func() error
	}{
		{"Check", func() error { return d.Check(t.Context()) }},
		{"Claim", func() error { _, err := d.Claim(t.Context(), claimOf("k")); return err }},
		{"Purge", func() error { _, err := d.Purge(t.Context(), driver.PurgeParams{Limit: 1}); return err }},
		{"List", func() error {
			_, _, err := d.List(t.Context(), driver.ListParams{State: driver.StateInFlight, Limit: 1})
			return err
		}},
	} {
		err := verb.call()
		if !errors.Is(err, driver.ErrUnsafeConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want ErrUnsafeConfig that says %q", verb.name, err, says)
		}
	}
}

func TestCheckClient(t *testing.T) {
	bounded := &goredis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true}
	for _, tt := range []struct {
		name   string
		client goredis.UniversalClient
		opts   []redis.Option
		says   string
	}{
		{"nil", nil, nil, "nil"},
		{"deadlines", goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"}), nil, "ContextTimeoutEnabled"},
		{"deadlines in a cluster", goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}), nil, "ContextTimeoutEnabled"},
		{"ring", goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}}), nil, "Ring"},
		{"wrapped", struct{ goredis.UniversalClient }{goredis.NewClient(bounded)}, nil, "not known"},
		{"brace", goredis.NewClient(bounded), []redis.Option{redis.WithPrefix("a{b}:")}, "brace"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.client != nil {
				t.Cleanup(func() { tt.client.Close() })
			}
			refused(t, redis.New(tt.client, tt.opts...), tt.says)
		})
	}
}

// A client that embeds go-redis's own is as good as that.
func TestCheckEmbeddedClient(t *testing.T) {
	type traced struct{ *goredis.Client }
	d := redis.New(traced{redistest.Client(t, redistest.Addr(t))}, uniquePrefix())
	mustClaim(t, d, claimOf("k"))
}

func TestCheckReplica(t *testing.T) {
	d, c := single(t)
	must(t, "REPLICAOF", c.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	refused(t, d, "master")

	must(t, "REPLICAOF NO ONE", c.ReplicaOf(t.Context(), "NO", "ONE").Err())
	mustClaim(t, d, claimOf("k"))
}

func TestCheckNeedsInfo(t *testing.T) {
	s := redistest.Start(t)
	must(t, "ACL", s.Client(t).Do(t.Context(), "ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", "-info").Err())
	d := redis.New(s.Client(t, func(o *goredis.Options) { o.Username, o.Password = "app", "any" }))
	refused(t, d, "+info")
}

// A server that cannot be asked is a store failure, and is asked again.
func TestCheckIsRetried(t *testing.T) {
	s := redistest.Start(t)
	d := redis.New(s.Client(t, func(o *goredis.Options) { o.MaxRetries = -1 }))
	s.Kill()
	if _, err := d.Claim(t.Context(), claimOf("k")); err == nil || errors.Is(err, driver.ErrUnsafeConfig) {
		t.Fatalf("without a server: got %v, want a store failure", err)
	}
	s.Restart(t)
	mustClaim(t, d, claimOf("k"))
}

// Every master of a Cluster is checked.
func TestCheckCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	d := redis.New(cluster.Client(t))
	must(t, "Check", d.Check(t.Context()))

	last := cluster.Nodes[2].Client(t)
	must(t, "CONFIG SET", last.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lfu").Err())
	if err := d.Check(t.Context()); !errors.Is(err, driver.ErrUnsafeConfig) || !strings.Contains(err.Error(), cluster.Nodes[2].Addr) {
		t.Errorf("Check: got %v, want ErrUnsafeConfig that names %s", err, cluster.Nodes[2].Addr)
	}
}

// Claims that arrive while the first one is checking wait for it, no longer than
// their contexts last.
func TestCheckIsWaitedFor(t *testing.T) {
	s := redistest.Start(t)
	asked, release := make(chan struct{}), make(chan struct{})
	c := s.Client(t)
	c.AddHook(&heldPipeline{asked: asked, release: release})
	d := redis.New(c)

	first := make(chan error)
	go func() {
		_, err := d.Claim(background, claimOf("first"))
		first <- err
	}()
	<-asked
	ctx, cancel := contextWithTimeout(t, 20*time.Millisecond)
	defer cancel()
	if _, err := d.Claim(ctx, claimOf("second")); !errors.Is(err, ctx.Err()) || err == nil {
		t.Errorf("a claim during the check: got %v, want %v", err, ctx.Err())
	}
	close(release)
	must(t, "the first claim", <-first)
}

// Callers that wait for a check of a server that does not answer get its error
// together: they do not ask, and wait for a timeout, one after the other.
func TestFailedCheckIsShared(t *testing.T) {
	s := redistest.Start(t)
	asked, release := make(chan struct{}), make(chan struct{})
	c := s.Client(t, func(o *goredis.Options) { o.MaxRetries = -1 })
	h := &heldPipeline{asked: asked, release: release}
	c.AddHook(h)
	d := redis.New(c)
	const callers = 20
	errs := make(chan error, callers)
	claim := func() {
		_, err := d.Claim(background, claimOf("k"))
		errs <- err
	}
	go claim()
	<-asked
	for range callers - 1 {
		go claim()
	}
	within(t, 10*time.Second, func() {
		stacks := make([]byte, 1<<20)
		for strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "ensureChecked(") < callers {
			runtime.Gosched()
		}
	})
	s.Kill()
	close(release)
	for range callers {
		if err := <-errs; err == nil || errors.Is(err, driver.ErrUnsafeConfig) {
			t.Errorf("got %v, want a store failure", err)
		}
	}
	if n := h.count.Load(); n != 1 {
		t.Errorf("the server was asked %d times, want once", n)
	}
}
