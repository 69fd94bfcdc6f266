package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

// Under random faults of the network, with callers that die and leases that end,
// every key is completed by one holder, and all callers see its outcome.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			px, err := proxy.Listen(s.Addr)
			must(t, "proxy", err)
			t.Cleanup(func() { px.Close() })
			f := &faulty{t: t, rng: rand.New(rand.NewPCG(seed, 0)), keys: make(map[driver.Key]*outcome)}
			f.d = redis.New(redistest.Client(t, px.Addr(), func(o *goredis.Options) {
				o.ReadTimeout = 60 * time.Millisecond
				o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, 5*time.Millisecond
			}))
			warmUp(t, redis.New(s.Client(t))) // the server knows the scripts
			px.SetRule(f.rule)
			f.run()
			px.SetRule(nil)
			f.judge(redis.New(s.Client(t)))
			if f.faults.Load() < 50 || f.takeovers.Load() == 0 || f.refused.Load() == 0 {
				t.Error("too little happened")
			}
			t.Logf("%d faults, %d takeovers, %d refused completions", f.faults.Load(), f.takeovers.Load(), f.refused.Load())
		})
	}
}

type faulty struct {
	t *testing.T
	d *redis.Driver

	mu   sync.Mutex
	rng  *rand.Rand
	keys map[driver.Key]*outcome

	faults, takeovers, refused atomic.Int64
}

// outcome is what callers were told about one key.
type outcome struct {
	grants    map[int64]driver.Token // by fence
	completed []driver.Token         // whose completion was acknowledged
	seen      []string               // results that were read
}

func (f *faulty) chance(p float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.Float64() < p
}

func (f *faulty) rule(*proxy.Conn, proxy.Direction, []byte) proxy.Verdict {
	const p = 0.05
	if !f.chance(p) {
		return proxy.Forward
	}
	f.faults.Add(1)
	switch {
	case f.chance(0.4):
		return proxy.Kill
	case f.chance(0.5):
		return proxy.ForwardThenKill
	}
	return proxy.Drop
}

// note changes what is known of a key.
func (f *faulty) note(k driver.Key, change func(*outcome)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys[k] == nil {
		f.keys[k] = &outcome{grants: make(map[int64]driver.Token)}
	}
	change(f.keys[k])
}

func (f *faulty) run() {
	const keys, callers = 100, 3
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range keys {
		for range callers {
			slots <- struct{}{}
			running.Go(func() {
				defer func() { <-slots }()
				if err := f.caller(ctx, fmt.Sprint("key-", i)); err != nil {
					f.t.Errorf("key %d: %v", i, err)
				}
			})
		}
	}
	running.Wait()
}

// caller claims a key until it has seen an outcome.
func (f *faulty) caller(ctx context.Context, id string) error {
	for {
		p := claimOf(id)
		p.Lease = 50 * time.Millisecond
		r, err := definite(ctx, func() (driver.Record, error) { return f.d.Claim(ctx, p) })
		if err != nil {
			return fmt.Errorf("Claim: %w", err)
		}
		switch {
		case granted(r, p):
			if r.Attempt > 1 {
				f.takeovers.Add(1)
			}
			f.note(p.Key, func(o *outcome) {
				if other, ok := o.grants[r.Fence]; ok && other != p.Token {
					f.t.Errorf("%s: the fence %d was granted to %v and %v", id, r.Fence, other, p.Token)
				}
				o.grants[r.Fence] = p.Token
			})
			switch {
			case f.chance(0.2):
				continue // dies; a new caller comes
			case f.chance(0.3):
				pause(ctx, p.Lease+20*time.Millisecond) // and completes all the same
			}
			q := completionOf(holderOf(p, r))
			q.Result = []byte(p.Token.String())
			_, err := definite(ctx, func() (struct{}, error) { return struct{}{}, f.d.Complete(ctx, q) })
			switch {
			case err == nil:
				f.note(p.Key, func(o *outcome) { o.completed = append(o.completed, p.Token) })
			case errors.Is(err, driver.ErrNotHolder):
				f.refused.Add(1)
			default:
				return fmt.Errorf("Complete: %w", err)
			}
		case r.State == driver.StateComplete:
			f.note(p.Key, func(o *outcome) { o.seen = append(o.seen, string(r.Result)) })
			return nil
		default:
			if err := pause(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// definite repeats a verb, with the same token, until it has a definite answer.
func definite[T any](ctx context.Context, verb func() (T, error)) (T, error) {
	for {
		v, err := verb()
		if err == nil || errors.Is(err, driver.ErrNotHolder) || errors.Is(err, driver.ErrForeignRecord) || ctx.Err() != nil {
			return v, err
		}
	}
}

func (f *faulty) judge(d *redis.Driver) {
	for k, o := range f.keys {
		r, err := d.Get(f.t.Context(), driver.GetParams{Key: k})
		if err != nil || r.State != driver.StateComplete {
			f.t.Errorf("%s: %v, %v, want complete", k.ID, r.State, err)
			continue
		}
		if len(o.completed) != 1 || o.completed[0] != r.Token || string(r.Result) != r.Token.String() {
			f.t.Errorf("%s: completed by %v, stored of %v: %s", k.ID, o.completed, r.Token, r.Result)
		}
		for fence, token := range o.grants {
			if fence > r.Fence || fence == r.Fence && token != r.Token {
				f.t.Errorf("%s: complete under fence %d, but %d was granted", k.ID, r.Fence, fence)
			}
		}
		for _, seen := range o.seen {
			if seen != string(r.Result) {
				f.t.Errorf("%s: a caller saw %q, stored is %q", k.ID, seen, r.Result)
			}
		}
	}
}
