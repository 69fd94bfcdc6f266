package redis_test

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

// now is an instant ahead of every clock, so that nothing ends while a test runs.
var now = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)

func claimOf(id string) driver.ClaimParams {
	return driver.ClaimParams{
		Key: driver.Key{Scope: "tenant", ID: id}, Operation: "op", Fingerprint: []byte("fp"), Summary: "a request",
		Token: driver.NewToken(), Lease: time.Minute, Retention: time.Hour,
	}
}

func holderOf(p driver.ClaimParams, r driver.Record) driver.HolderParams {
	return driver.HolderParams{Key: p.Key, Token: p.Token, Fence: r.Fence, Now: p.Now}
}

func completionOf(h driver.HolderParams) driver.CompleteParams {
	return driver.CompleteParams{HolderParams: h, Result: []byte("outcome"), Retention: time.Hour, Grace: time.Hour}
}

// mustClaim claims and fails unless the claim is granted.
func mustClaim(t testing.TB, d driver.Driver, p driver.ClaimParams) driver.Record {
	t.Helper()
	r, err := d.Claim(t.Context(), p)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	if !granted(r, p) {
		t.Fatalf("the claim was not granted: %+v", r)
	}
	return r
}

func granted(r driver.Record, p driver.ClaimParams) bool {
	return r.State == driver.StateInFlight && r.Token == p.Token
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// single returns a driver over a server of its own, with an empty database, and a
// client of that server.
func single(t testing.TB, opts ...redis.Option) (*redis.Driver, *goredis.Client) {
	t.Helper()
	c := redistest.Start(t).Client(t)
	return redis.New(c, opts...), c
}

// proxied returns a driver that reaches a server through a proxy, has been
// checked, and has run every script once.
func proxied(t testing.TB, change ...func(*goredis.Options)) (*redis.Driver, *proxy.Proxy, *goredis.Client) {
	t.Helper()
	s := redistest.Start(t)
	px, err := proxy.Listen(s.Addr)
	must(t, "proxy", err)
	t.Cleanup(func() { px.Close() })
	d := redis.New(redistest.Client(t, px.Addr(), change...))
	warmUp(t, d)
	return d, px, s.Client(t)
}

func warmUp(t testing.TB, d driver.Driver) {
	t.Helper()
	ctx := t.Context()
	p := claimOf("warm up")
	h := holderOf(p, mustClaim(t, d, p))
	must(t, "Renew", d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: time.Minute}))
	must(t, "Complete", d.Complete(ctx, completionOf(h)))
	_, err := d.Get(ctx, driver.GetParams{Key: p.Key})
	must(t, "Get", err)
	must(t, "Forget", d.Forget(ctx, driver.ForgetParams{HolderParams: h}))
	p = claimOf("warm up")
	h = holderOf(p, mustClaim(t, d, p))
	must(t, "Release", d.Release(ctx, driver.ReleaseParams{HolderParams: h}))
}

// nameOf returns the key in Redis of a record under the default prefix.
func nameOf(k driver.Key) string { return "idem:{" + k.Hash("", nil).String() + "}" }

// within fails when f takes longer than most: far less than the client's
// ReadTimeout, which is three seconds, and enough for a busy machine.
func within(t testing.TB, most time.Duration, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > most {
		t.Errorf("it took %v, want at most %v", took, most)
	}
}

// background is for clients that outlive the context of a test: its cleanups.
var background = context.Background()
