package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

// claims counts the scripts that claim, and the pipelines that look for an outcome.
type claims struct {
	scripts, looks atomic.Int64
}

func (c *claims) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (c *claims) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			c.scripts.Add(1)
		}
		return next(ctx, cmd)
	}
}
func (c *claims) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if cmds[0].Name() == "echo" {
			c.looks.Add(1)
		}
		return next(ctx, cmds)
	}
}

// took reports how many looks and scripts a claim takes.
func (c *claims) took(t *testing.T, looks, scripts int64, claim func()) {
	t.Helper()
	c.looks.Store(0)
	c.scripts.Store(0)
	claim()
	if l, s := c.looks.Load(), c.scripts.Load(); l != looks || s != scripts {
		t.Errorf("the claim took %d looks and %d scripts, want %d and %d", l, s, looks, scripts)
	}
}

// counted returns a driver whose commands are counted, and a client of its server.
func counted(t *testing.T) (*redis.Driver, *claims, *goredis.Client) {
	s := redistest.Start(t)
	client, n := s.Client(t), new(claims)
	client.AddHook(n)
	d := redis.New(client)
	warmUp(t, d)
	return d, n, s.Client(t)
}

// finish claims and completes the key of p.
func finish(t *testing.T, d driver.Driver, p driver.ClaimParams) driver.HolderParams {
	t.Helper()
	h := holderOf(p, mustClaim(t, d, p))
	must(t, "Complete", d.Complete(t.Context(), completionOf(h)))
	return h
}

// again returns a repeat of p by another caller.
func again(p driver.ClaimParams) driver.ClaimParams {
	p.Token = driver.NewToken()
	return p
}

// A key that the process saw complete is read without a script, and the answer is
// what the script gives to a process that knows nothing.
func TestReplayNeedsNoScript(t *testing.T) {
	for _, clock := range []struct {
		name string
		now  time.Time
	}{{"clock of the server", time.Time{}}, {"now given", now}} {
		for _, result := range [][]byte{nil, {}, []byte("\x00\xff binary \r\n")} {
			t.Run(fmt.Sprintf("%s, result %q", clock.name, result), func(t *testing.T) {
				d, n, other := counted(t)
				p := claimOf("k")
				p.Now = clock.now
				q := completionOf(holderOf(p, mustClaim(t, d, p)))
				q.Result, q.Note = result, "by hand"
				must(t, "Complete", d.Complete(t.Context(), q))
				same := func(by *redis.Driver, p driver.ClaimParams, looks, scripts int64) {
					t.Helper()
					want, err := redis.New(other).Claim(t.Context(), p)
					must(t, "Claim by a new process", err)
					var got driver.Record
					n.took(t, looks, scripts, func() { got, err = by.Claim(t.Context(), p) })
					must(t, "Claim", err)
					later := got.Now.Sub(want.Now)
					if clock.now.IsZero() && 0 <= later && later < time.Minute {
						got.Now = want.Now
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("the claim's answer (-script +look):\n%s", diff)
					}
				}
				same(d, again(p), 1, 0)
				same(d, p, 1, 0) // the holder's own claim, sent twice

				p.Resolve, p.Fingerprint, p.Operation = true, []byte("another"), "another"
				same(d, again(p), 1, 0)
			})
		}
	}
}

// A claim that finds an outcome is enough to remember the key.
func TestReplayIsRememberedByClaims(t *testing.T) {
	d, n, other := counted(t)
	p := claimOf("k")
	n.took(t, 0, 0, func() { finish(t, redis.New(other), p) })
	for _, looks := range []int64{0, 1, 1} {
		n.took(t, looks, 1-looks, func() {
			if r, err := d.Claim(t.Context(), again(p)); err != nil || string(r.Result) != "outcome" {
				t.Errorf("Claim: %+v, %v", r, err)
			}
		})
	}
}

// A Cluster's claims are scripts always.
func TestReplayInCluster(t *testing.T) {
	t.Parallel()
	client := redistest.StartCluster(t).Client(t)
	n := new(claims)
	client.AddHook(n)
	d := redis.New(client)
	warmUp(t, d)
	p := claimOf("k")
	finish(t, d, p)
	n.took(t, 0, 1, func() {
		if r, err := d.Claim(t.Context(), again(p)); err != nil || string(r.Result) != "outcome" {
			t.Errorf("Claim: %+v, %v", r, err)
		}
	})
}

// What others made of the key since is found by the script.
func TestReplayGuessedWrong(t *testing.T) {
	ctx := t.Context()
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, d driver.Driver, c *goredis.Client, h driver.HolderParams)
		after  time.Duration // when the claim comes
	}{
		{"expired", nil, time.Hour},
		{"after its grace", nil, 2 * time.Hour},
		{"forgotten", func(t *testing.T, d driver.Driver, _ *goredis.Client, h driver.HolderParams) {
			must(t, "Forget", d.Forget(ctx, driver.ForgetParams{HolderParams: h}))
		}, 0},
		{"forgotten and claimed", func(t *testing.T, d driver.Driver, _ *goredis.Client, h driver.HolderParams) {
			must(t, "Forget", d.Forget(ctx, driver.ForgetParams{HolderParams: h}))
			p := claimOf("k")
			p.Now = now
			mustClaim(t, d, p)
		}, 0},
		{"purged", func(t *testing.T, d driver.Driver, _ *goredis.Client, _ driver.HolderParams) {
			if n, err := d.Purge(ctx, driver.PurgeParams{Limit: 10, Now: now.Add(2 * time.Hour)}); n < 1 || err != nil {
				t.Fatalf("Purge: %d, %v", n, err)
			}
		}, 0},
		{"purged to a tombstone", func(t *testing.T, d driver.Driver, _ *goredis.Client, _ driver.HolderParams) {
			if n, err := d.Purge(ctx, driver.PurgeParams{Limit: 10, Now: now.Add(time.Hour)}); n < 1 || err != nil {
				t.Fatalf("Purge: %d, %v", n, err)
			}
		}, time.Hour},
		{"dropped", func(t *testing.T, _ driver.Driver, c *goredis.Client, h driver.HolderParams) {
			must(t, "DEL", c.Del(ctx, nameOf(h.Key)).Err())
		}, 0},
		{"another application's", func(t *testing.T, _ driver.Driver, c *goredis.Client, h driver.HolderParams) {
			must(t, "SET", c.Set(ctx, nameOf(h.Key), "locked by 42", 0).Err())
		}, 0},
		{"another type", func(t *testing.T, _ driver.Driver, c *goredis.Client, h driver.HolderParams) {
			must(t, "DEL", c.Del(ctx, nameOf(h.Key)).Err())
			must(t, "HSET", c.HSet(ctx, nameOf(h.Key), "s", "1").Err())
		}, 0},
		{"another key's", func(t *testing.T, d driver.Driver, c *goredis.Client, h driver.HolderParams) {
			p := claimOf("another")
			p.Now = now
			finish(t, d, p)
			must(t, "SET", c.Set(ctx, nameOf(h.Key), c.Get(ctx, nameOf(p.Key)).Val(), 0).Err())
		}, 0},
		{"a newer version's", func(t *testing.T, _ driver.Driver, c *goredis.Client, h driver.HolderParams) {
			must(t, "SETRANGE", c.SetRange(ctx, nameOf(h.Key), 4, "\x02").Err())
		}, 0},
		{"truncated", func(t *testing.T, _ driver.Driver, c *goredis.Client, h driver.HolderParams) {
			must(t, "SET", c.Set(ctx, nameOf(h.Key), c.GetRange(ctx, nameOf(h.Key), 0, 90).Val(), 0).Err())
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, n, other := counted(t)
			p := claimOf("k")
			p.Now = now
			h := finish(t, d, p)
			if tt.change != nil {
				tt.change(t, redis.New(other), other, h)
			}
			q := again(p)
			q.Now = now.Add(tt.after)
			want, wantErr := d.Get(ctx, driver.GetParams{Key: q.Key, Now: q.Now})
			if wantErr == nil {
				want, _ = want.AfterClaim(q, q.Now)
			}
			n.took(t, 1, 1, func() {
				got, err := d.Claim(ctx, q)
				if diff := cmp.Diff(want, got); diff != "" || kind(err) != kind(wantErr) {
					t.Errorf("the claim's answer: %v, want %v (-want +got):\n%s", err, wantErr, diff)
				}
			})
			n.took(t, 0, 1, func() { // it does not guess twice
				if _, err := d.Claim(ctx, q); kind(err) != kind(wantErr) {
					t.Errorf("Claim again: %v, want %v", err, wantErr)
				}
			})
		})
	}
}

// kind returns what an error about the stored value wraps, or the error.
func kind(err error) error {
	for _, k := range [...]error{driver.ErrForeignRecord, driver.ErrNewerVersion} {
		if errors.Is(err, k) {
			return k
		}
	}
	return err
}

// A result ends at the instant its retention does, whoever reads it.
func TestReplayEndsWithRetention(t *testing.T) {
	d, n, _ := counted(t)
	p := claimOf("k")
	p.Now = now
	finish(t, d, p)
	for _, tt := range []struct {
		at      time.Duration
		scripts int64
		state   driver.State
	}{
		{-time.Microsecond, 0, driver.StateComplete},
		{-time.Nanosecond, 0, driver.StateComplete}, // instants are cut to microseconds
		{0, 1, driver.StateExpired},
	} {
		q := again(p)
		q.Now = now.Add(time.Hour + tt.at)
		n.took(t, 1, tt.scripts, func() {
			r, err := d.Claim(t.Context(), q)
			if state := r.StateAt(r.Now); state != tt.state || err != nil || !r.Now.Equal(q.Now.Truncate(time.Microsecond)) {
				t.Errorf("%v from its end: %v at %v, %v, want %v", tt.at, state, r.Now, err, tt.state)
			}
		})
	}
}

// Earlier replies, which tell of an outcome that has been forgotten since, are not
// taken for those to a look: its own tag stands before its own.
func TestReplayOfShiftedReplies(t *testing.T) {
	s := redistest.Start(t)
	other := redis.New(s.Client(t))
	for name, given := range map[string]time.Time{"clock of the server": {}, "now given": now} {
		t.Run(name, func(t *testing.T) {
			var shift atomic.Bool
			client := redistest.Client(t, shifter(t, s.Addr, &shift), func(o *goredis.Options) { o.PoolSize, o.PipelinePoolSize = 1, 1 })
			n := new(claims)
			client.AddHook(n)
			d := redis.New(client)
			warmUp(t, d)
			p := claimOf(name)
			p.Now = given
			h := finish(t, d, p)
			n.took(t, 1, 0, func() {
				if r, err := d.Claim(t.Context(), again(p)); err != nil || string(r.Result) != "outcome" {
					t.Errorf("Claim: %+v, %v", r, err)
				}
			})
			must(t, "Forget", other.Forget(t.Context(), driver.ForgetParams{HolderParams: h}))
			shift.Store(true)
			n.took(t, 1, 1, func() {
				// The look gets what the last one should have got, and the script, in the
				// other connection, what Complete should have got.
				if r, err := d.Claim(t.Context(), again(p)); !errors.Is(err, driver.ErrForeignRecord) {
					t.Errorf("Claim with replies of others: %+v, %v, want ErrForeignRecord", r, err)
				}
			})
		})
	}
}

// A look is one round trip, and sent again when its reply is lost.
func TestReplayOverABadNetwork(t *testing.T) {
	d, px, _ := proxied(t, func(o *goredis.Options) { o.ReadTimeout = 200 * time.Millisecond })
	p := claimOf("k")
	finish(t, d, p)
	claim := func() {
		t.Helper()
		if r, err := d.Claim(t.Context(), again(p)); err != nil || string(r.Result) != "outcome" {
			t.Errorf("Claim: %+v, %v", r, err)
		}
	}
	claim() // connects
	before := px.Trips()
	claim()
	if trips := px.Trips() - before; trips != 1 {
		t.Errorf("a replay took %d round trips, want 1", trips)
	}
	for _, verdict := range []proxy.Verdict{proxy.Drop, proxy.Kill} {
		requests := loseReply(px, verdict)
		claim()
		if requests.Load() < 2 {
			t.Error("the look was not sent again")
		}
		px.SetRule(nil)
	}
	px.SetRule(func(*proxy.Conn, proxy.Direction, []byte) proxy.Verdict { return proxy.Kill })
	if r, err := d.Claim(t.Context(), again(p)); err == nil || errors.Is(err, driver.ErrForeignRecord) || r.State != driver.StateAbsent {
		t.Errorf("Claim without a server: %+v, %v, want a store failure", r, err)
	}
}

// A caller who leaves does not wait for the look.
func TestReplayEndsWithItsContext(t *testing.T) {
	d, px, _ := proxied(t)
	p := claimOf("k")
	finish(t, d, p)
	ctx, cancel := context.WithCancel(t.Context())
	px.SetRule(func(_ *proxy.Conn, dir proxy.Direction, _ []byte) proxy.Verdict {
		if dir == proxy.ToClient {
			cancel()
			return proxy.Drop
		}
		return proxy.Forward
	})
	for _, when := range []string{"under way", "before"} {
		within(t, time.Second, func() {
			if _, err := d.Claim(ctx, again(p)); !errors.Is(err, context.Canceled) {
				t.Errorf("a claim whose caller left %s: %v, want the context's error", when, err)
			}
		})
	}
}
