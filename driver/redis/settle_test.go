package redis_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/deadline"
	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

// settling is a context like that of the core for verbs that its caller cannot end.
type settling struct{ context.Context }

func (settling) OnlyDeadline() {}

var _ deadline.Only = settling{}

// caller notes whether a command runs in a goroutine of its caller's.
type caller struct {
	name string
	same atomic.Bool
}

func (c *caller) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (c *caller) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		c.same.Store(strings.Contains(string(debug.Stack()), c.name))
		return next(ctx, cmd)
	}
}
func (c *caller) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// A verb whose context ends at its deadline only takes no goroutine, unless the
// client is one of a Cluster.
func TestSettlingTakesNoGoroutine(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]goredis.UniversalClient{
		"single": redistest.Start(t).Client(t), "cluster": redistest.StartCluster(t).Client(t),
	} {
		t.Run(name, func(t *testing.T) {
			c := &caller{name: "TestSettlingTakesNoGoroutine"}
			client.AddHook(c)
			d := redis.New(client)
			p := claimOf("k")
			h := holderOf(p, mustClaim(t, d, p))
			if c.same.Load() {
				t.Error("a claim that may be cancelled runs in its caller's goroutine")
			}
			ctx, cancel := contextWithTimeout(t, time.Minute)
			defer cancel()
			must(t, "Complete", d.Complete(settling{ctx}, completionOf(h)))
			if same := c.same.Load(); same != (name == "single") {
				t.Errorf("a completion runs in its caller's goroutine: %v", same)
			}
		})
	}
}

// Whatever the client waits for, the deadline ends it.
func TestSettlingEndsAtItsDeadline(t *testing.T) {
	mute := func(_ *proxy.Conn, dir proxy.Direction, _ []byte) proxy.Verdict {
		if dir == proxy.ToClient {
			return proxy.Drop
		}
		return proxy.Forward
	}
	for _, tt := range []struct {
		name   string
		result int // bytes; a write waits when the buffers of the connection are full
		spoil  func(t *testing.T, d driver.Driver, px *proxy.Proxy, dials *atomic.Bool)
	}{
		{"a reply", 10, func(_ *testing.T, _ driver.Driver, px *proxy.Proxy, _ *atomic.Bool) { px.SetRule(mute) }},
		{"a write", 32 << 20, func(t *testing.T, _ driver.Driver, px *proxy.Proxy, _ *atomic.Bool) {
			release := make(chan struct{})
			t.Cleanup(func() { close(release) })
			px.SetRule(func(*proxy.Conn, proxy.Direction, []byte) proxy.Verdict { <-release; return proxy.Kill })
		}},
		{"a dial", 10, func(_ *testing.T, _ driver.Driver, px *proxy.Proxy, dials *atomic.Bool) {
			dials.Store(false)
			px.SetRule(func(*proxy.Conn, proxy.Direction, []byte) proxy.Verdict { return proxy.Kill })
		}},
		{"the greeting of a connection", 10, func(_ *testing.T, _ driver.Driver, px *proxy.Proxy, _ *atomic.Bool) {
			var once atomic.Bool
			px.SetRule(func(c *proxy.Conn, dir proxy.Direction, b []byte) proxy.Verdict {
				if once.CompareAndSwap(false, true) {
					return proxy.Kill
				}
				return mute(c, dir, b)
			})
		}},
		{"a connection", 10, func(t *testing.T, d driver.Driver, px *proxy.Proxy, _ *atomic.Bool) {
			asked := make(chan struct{})
			var once atomic.Bool
			px.SetRule(func(c *proxy.Conn, dir proxy.Direction, b []byte) proxy.Verdict {
				if once.CompareAndSwap(false, true) {
					close(asked)
				}
				return mute(c, dir, b)
			})
			go d.Claim(t.Context(), claimOf("another")) // has the only one
			<-asked
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var dials atomic.Bool
			dials.Store(true)
			d, px, _ := proxied(t, func(o *goredis.Options) {
				o.PoolSize = 1
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if !dials.Load() {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return new(net.Dialer).DialContext(ctx, network, addr)
				}
			})
			p := claimOf("k")
			q := completionOf(holderOf(p, mustClaim(t, d, p)))
			q.Result = bytes.Repeat([]byte("x"), tt.result)
			tt.spoil(t, d, px, &dials)
			ctx, cancel := contextWithTimeout(t, 100*time.Millisecond)
			defer cancel()
			within(t, time.Second, func() {
				if err := d.Complete(settling{ctx}, q); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Complete: got %v, want the deadline's error", err)
				}
			})
		})
	}
}
