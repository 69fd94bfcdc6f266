package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/proxy"
)

// TestFaults lets several callers work on the same keys through a proxy that cuts
// connections, before a request has arrived and before its answer has. However
// often that happens, a key ends with one business row and one outcome, and
// everybody is told the same.
func TestFaults(t *testing.T) {
	t.Parallel()
	const callers = 3
	keys, seeds := 60, uint64(3)
	if testing.Short() {
		keys, seeds = 20, 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			main := open(t, setup{})
			px := through(t, main.db.Server.Addr())
			pools := [callers]*store{}
			for i := range pools {
				pools[i] = main.again(t, setup{pool: []func(*pgxpool.Config){pgtest.Through(px.Addr())}})
			}
			var mu sync.Mutex
			rng := rand.New(rand.NewPCG(seed, 1))
			var kills atomic.Int64
			px.SetRule(func(*proxy.Conn, proxy.Direction, []byte) proxy.Verdict {
				mu.Lock()
				defer mu.Unlock()
				switch rng.IntN(60) {
				case 0:
					kills.Add(1)
					return proxy.Kill
				case 1:
					kills.Add(1)
					return proxy.ForwardThenKill
				}
				return proxy.Forward
			})
			var all sync.WaitGroup
			for k := range keys {
				p := main.claim()
				p.Lease = 300 * time.Millisecond
				told := make([]string, callers)
				all.Go(func() {
					var each sync.WaitGroup
					for c := range callers {
						each.Go(func() { told[c] = pools[c].until(t, p, k%2 == 0, fmt.Sprintf("caller %d", c)) })
					}
					each.Wait()
					for _, got := range told {
						if got != told[0] {
							t.Errorf("seed %d, key %s: the callers were told %q", seed, p.Key.ID, told)
						}
					}
					if n := main.rows(t, p.Key.ID); n != 1 {
						t.Errorf("seed %d, key %s: %d business rows, told %q", seed, p.Key.ID, n, told)
					}
				})
				if k%8 == 7 {
					all.Wait()
				}
			}
			all.Wait()
			if kills.Load() == 0 {
				t.Error("no connection was cut")
			}
			t.Logf("%d keys, %d connections cut", keys, kills.Load())
		})
	}
}

// until calls with one key until it is told an outcome, as a client does. The work
// of a leased call writes its row in the transaction that completes it.
func (s *store) until(t testing.TB, p driver.ClaimParams, inTx bool, mine string) string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		got, err := s.attempt(ctx, repeat(p), inTx, mine)
		if err == nil && got != "" {
			return got
		}
		time.Sleep(time.Duration(1+rand.IntN(10)) * time.Millisecond) // as a client backs off
	}
	t.Errorf("key %s: no outcome in a minute", p.Key.ID)
	return ""
}

func (s *store) attempt(ctx context.Context, p driver.ClaimParams, inTx bool, mine string) (string, error) {
	if inTx {
		tx, r, err := s.BeginClaim(ctx, p)
		if err != nil || tx == nil {
			return string(r.Result), err
		}
		if err := insert(ctx, tx.Handle(), p.Key.ID); err != nil {
			tx.Rollback(ctx)
			return "", err
		}
		return mine, tx.Commit(ctx, commit(p.Key, r, mine))
	}
	r, err := s.Claim(ctx, p)
	for n := 0; err != nil && n < 5; n++ {
		r, err = s.Claim(ctx, p) // the same token: an answer may have been lost
	}
	if err != nil || !r.HeldBy(p.Token, r.Fence) {
		return string(r.Result), err
	}
	tx, err := s.BeginComplete(ctx, holder(p.Key, r))
	for n := 0; err != nil && !errors.Is(err, driver.ErrNotHolder) && n < 5; n++ {
		tx, err = s.BeginComplete(ctx, holder(p.Key, r))
	}
	if err != nil {
		return "", err
	}
	if err := insert(ctx, tx.Handle(), p.Key.ID); err != nil {
		tx.Rollback(ctx)
		return "", err
	}
	return mine, tx.Commit(ctx, commit(p.Key, r, mine))
}

// A claim that is sent again extends its lease and answers in one transaction: a
// release that comes between the two would make it tell of a state that it has changed.
func TestRepeatedClaimAnswersWhatItWrote(t *testing.T) {
	t.Parallel()
	f := openFaulty(t)
	p := f.claim()
	warm := f.claim()
	f.mustClaim(t, warm)
	warm.Lease += time.Minute
	f.mustClaim(t, warm) // the schema has been checked, and the statements are prepared
	first := f.mustClaim(t, p)
	var asked atomic.Int64
	f.px.SetRule(func(_ *proxy.Conn, d proxy.Direction, _ []byte) proxy.Verdict {
		if d == proxy.ToServer {
			asked.Add(1)
		} else if asked.Load() == 2 {
			// The lease is extended, and the answer on its way.
			if err := f.main.Release(context.Background(), driver.ReleaseParams{HolderParams: holder(p.Key, first)}); err != nil {
				t.Error(err)
			}
		}
		return proxy.Forward
	})
	p.Lease += time.Minute
	again, err := f.Claim(t.Context(), p)
	if err != nil || !again.HeldBy(p.Token, first.Fence) || again.LeaseUntil.Sub(first.LeaseUntil) < time.Minute {
		t.Errorf("got %+v, %v; want the claim as it was granted, with a longer lease", again, err)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d round trips, want 2", n)
	}
}
