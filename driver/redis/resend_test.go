package redis_test

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

// loseReply makes the proxy lose the next reply, and returns how many requests
// have passed since.
func loseReply(px *proxy.Proxy, how proxy.Verdict) *atomic.Int64 {
	var requests atomic.Int64
	var lost atomic.Bool
	px.SetRule(func(_ *proxy.Conn, dir proxy.Direction, _ []byte) proxy.Verdict {
		if dir == proxy.ToServer {
			requests.Add(1)
			return proxy.Forward
		}
		if lost.CompareAndSwap(false, true) {
			return how
		}
		return proxy.Forward
	})
	return &requests
}

// The client sends a command again when its reply is lost. The server has applied
// it already, and the answer is that of the first time.
func TestResentCommands(t *testing.T) {
	for _, how := range []struct {
		name    string
		verdict proxy.Verdict
	}{{"swallowed", proxy.Drop}, {"killed", proxy.Kill}} {
		t.Run(how.name, func(t *testing.T) {
			d, px, _ := proxied(t, func(o *goredis.Options) { o.ReadTimeout = 200 * time.Millisecond })
			lose := func(verb string, call func() error) {
				t.Helper()
				requests := loseReply(px, how.verdict)
				must(t, verb, call())
				if requests.Load() < 2 {
					t.Errorf("%s was not sent again", verb)
				}
				px.SetRule(nil)
			}
			ctx := t.Context()
			p := claimOf("k")
			var r driver.Record
			lose("Claim", func() (err error) { r, err = d.Claim(ctx, p); return err })
			if !granted(r, p) || r.Attempt != 1 {
				t.Fatalf("the claim that was sent twice: %+v", r)
			}
			h := holderOf(p, r)
			lose("Renew", func() error { return d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: time.Minute}) })
			lose("Complete", func() error { return d.Complete(ctx, completionOf(h)) })
			lose("Get", func() (err error) { r, err = d.Get(ctx, driver.GetParams{Key: p.Key}); return err })
			if r.State != driver.StateComplete || string(r.Result) != "outcome" || r.Fence != h.Fence {
				t.Fatalf("after Complete: %+v", r)
			}
			lose("Forget", func() error { return d.Forget(ctx, driver.ForgetParams{HolderParams: h}) })

			for _, abandon := range []bool{false, true} {
				p = claimOf("released")
				p.Now = now
				h = holderOf(p, mustClaim(t, d, p))
				// Also of a claim whose lease has ended.
				h.Now = now.Add(2 * p.Lease)
				lose("Release", func() error { return d.Release(ctx, driver.ReleaseParams{HolderParams: h, Abandon: abandon}) })
			}
		})
	}
}

// A reply that belongs to another command is refused, on the wire of a real server.
func TestField_R11_ShiftedReplies(t *testing.T) {
	s := redistest.Start(t)
	var shift atomic.Bool
	addr := shifter(t, s.Addr, &shift)
	d := redis.New(redistest.Client(t, addr, func(o *goredis.Options) { o.PoolSize = 1 }))
	warmUp(t, d)

	ctx := t.Context()
	p, q := claimOf("p"), claimOf("q")
	h := holderOf(p, mustClaim(t, d, p))
	mustClaim(t, d, q)
	shift.Store(true)
	_, getErr := d.Get(ctx, driver.GetParams{Key: p.Key}) // gets the reply of q's claim
	_, sameErr := d.Get(ctx, driver.GetParams{Key: p.Key})
	_, claimErr := d.Claim(ctx, p)
	for name, err := range map[string]error{
		"Get": getErr, "Get again": sameErr, "Claim": claimErr,
		"Complete": d.Complete(ctx, completionOf(h)),
		"Renew":    d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: time.Minute}),
		"Release":  d.Release(ctx, driver.ReleaseParams{HolderParams: h}),
	} {
		if !errors.Is(err, driver.ErrForeignRecord) {
			t.Errorf("%s with another command's reply: got %v, want ErrForeignRecord", name, err)
		}
	}
}

// shifter is a server in front of addr that, from when shift is set, answers every
// request with the reply to the one before.
func shifter(t *testing.T, addr string, shift *atomic.Bool) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, "listen", err)
	t.Cleanup(func() { l.Close() })
	serve := func(client net.Conn) {
		defer client.Close()
		server, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		defer server.Close()
		go io.Copy(server, client)
		// One request is out at a time, and its reply is small: one read, one reply.
		var last []byte
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			reply := append([]byte(nil), buf[:n]...)
			if shift.Load() {
				reply, last = last, reply
			} else {
				last = reply
			}
			if _, err := client.Write(reply); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}
