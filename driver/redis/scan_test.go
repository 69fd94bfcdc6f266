package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/redistest"
)

// fill claims n keys at now, in parallel, and returns what was claimed.
func fill(t *testing.T, d driver.Driver, n int) map[driver.Key]driver.HolderParams {
	t.Helper()
	var mu sync.Mutex
	all := make(map[driver.Key]driver.HolderParams)
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := w; i < n; i += 8 {
				p := claimOf(fmt.Sprint("fill-", i))
				p.Now = now
				r, err := d.Claim(background, p)
				if err != nil || !granted(r, p) {
					t.Errorf("Claim: %+v, %v", r, err)
					return
				}
				mu.Lock()
				all[p.Key] = holderOf(p, r)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return all
}

// pages lists all in-flight records in pages of a limit, and checks that each is
// listed once. It returns the number of pages.
func pages(t *testing.T, d driver.Lister, limit int, want map[driver.Key]driver.HolderParams) (n int) {
	t.Helper()
	seen := make(map[driver.Key]bool)
	for after := ""; ; n++ {
		records, next, err := d.List(t.Context(), driver.ListParams{State: driver.StateInFlight, Limit: limit, After: after, Now: now})
		must(t, "List", err)
		if len(records) > limit {
			t.Fatalf("a page of %d records, want at most %d", len(records), limit)
		}
		for _, r := range records {
			if seen[r.Key] {
				t.Errorf("%v is listed twice", r.Key)
			}
			seen[r.Key] = true
			if h := want[r.Key]; h.Token != r.Token || !r.Now.Equal(now) {
				t.Errorf("listed: %+v", r)
			}
		}
		if after = next; after == "" {
			break
		}
	}
	if len(seen) != len(want) {
		t.Errorf("%d records were listed in pages of %d, want %d", len(seen), limit, len(want))
	}
	return n + 1
}

func TestListPages(t *testing.T) {
	t.Parallel()
	const n = 1500
	cluster := redistest.StartCluster(t)
	one := redistest.Start(t)
	for name, client := range map[string]goredis.UniversalClient{"single": one.Client(t), "cluster": cluster.Client(t)} {
		t.Run(name, func(t *testing.T) {
			d := redis.New(client)
			all := fill(t, d, n)
			for _, limit := range []int{1, 7, 100, driver.MaxList} {
				pages(t, d, limit, all)
			}
		})
	}
}

// A page is a bounded amount of work, and may be empty before the end.
func TestListIsBounded(t *testing.T) {
	d, c := single(t)
	all := fill(t, d, 10)
	const others = 60_000
	_, err := c.Pipelined(t.Context(), func(p goredis.Pipeliner) error {
		for i := range others {
			p.Set(t.Context(), fmt.Sprint("other:", i), "", 0)
		}
		return nil
	})
	must(t, "SET", err)
	if n := pages(t, d, 100, all); n < 2 {
		t.Errorf("%d keys were looked at in %d page", others, n)
	}
}

func TestListCursor(t *testing.T) {
	d, _ := single(t)
	for _, after := range []string{"!", "YQ", "YQphCmE"} { // no base64, one field, no number
		_, _, err := d.List(t.Context(), driver.ListParams{State: driver.StateInFlight, Limit: 1, After: after})
		if !errors.Is(err, driver.ErrInvalidParams) {
			t.Errorf("the cursor %q: got %v, want ErrInvalidParams", after, err)
		}
	}
}

// Purge meets its limit as long as anything is due, wherever it is, and drops
// results before it deletes tombstones.
func TestPurgeBatches(t *testing.T) {
	t.Parallel()
	const n = 2500
	cluster := redistest.StartCluster(t)
	one := redistest.Start(t)
	for name, client := range map[string]goredis.UniversalClient{"single": one.Client(t), "cluster": cluster.Client(t)} {
		t.Run(name, func(t *testing.T) {
			d := redis.New(client)
			ctx := t.Context()
			for _, h := range fill(t, d, n) {
				must(t, "Complete", d.Complete(ctx, completionOf(h)))
			}
			live := claimOf("live")
			live.Now = now.Add(3 * time.Hour)
			mustClaim(t, d, live)
			held := claimOf("held")
			held.Now, held.Hold = now, true
			mustClaim(t, d, held)

			drain := func(at time.Time, limit int) {
				t.Helper()
				for total := 0; ; {
					got, err := d.Purge(ctx, driver.PurgeParams{Limit: limit, Now: at})
					must(t, "Purge", err)
					if total += got; total > n || got < limit && total != n {
						t.Fatalf("purged %d, the last time %d of %d, want %d in all", total, got, limit, n)
					}
					if got < limit {
						return
					}
				}
			}
			drain(now.Add(time.Hour), 300)
			drain(now.Add(2*time.Hour), 999)
			for _, p := range []driver.ClaimParams{live, held} {
				if r, err := d.Get(ctx, driver.GetParams{Key: p.Key}); err != nil || !granted(r, p) {
					t.Errorf("%s after the purges: %+v, %v", p.Key.ID, r, err)
				}
			}
		})
	}
}

// Redis deletes by itself what Purge would delete, so an ordinary store is empty
// in the end.
func TestTTLDeletes(t *testing.T) {
	d, c := single(t)
	for _, p := range []struct {
		verb string
		end  func(driver.HolderParams) error
	}{
		{"Complete", func(h driver.HolderParams) error { return d.Complete(t.Context(), completionOf(h)) }},
		{"Release", func(h driver.HolderParams) error {
			return d.Release(t.Context(), driver.ReleaseParams{HolderParams: h})
		}},
	} {
		claim := claimOf(p.verb)
		claim.Hold = true // has no TTL until it ends
		must(t, p.verb, p.end(holderOf(claim, mustClaim(t, d, claim))))
		if ttl := c.PTTL(t.Context(), nameOf(claim.Key)).Val(); ttl <= 0 {
			t.Errorf("after %s the TTL is %v", p.verb, ttl)
		}
	}
}

// Records of a slot that is moving are purged when it has arrived.
func TestPurgeWhileASlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	d := redis.New(cluster.Client(t))
	p := claimOf("k")
	p.Now = now
	h := holderOf(p, mustClaim(t, d, p))
	must(t, "Complete", d.Complete(t.Context(), completionOf(h)))
	from, to := cluster.Move(t, nameOf(p.Key))
	if from == to {
		t.Fatal("the slot did not move")
	}
	if r, err := d.Get(t.Context(), driver.GetParams{Key: p.Key}); err != nil || string(r.Result) != "outcome" {
		t.Errorf("Get after the move: %+v, %v", r, err)
	}
	n, err := d.Purge(t.Context(), driver.PurgeParams{Limit: 10, Now: now.Add(2 * time.Hour)})
	if err != nil || n != 1 {
		t.Errorf("Purge after the move: %d, %v, want 1", n, err)
	}
}

// A context that ends between the two commands of a page leaves the second one to a
// goroutine that shares nothing with its caller: for the race detector.
func TestScanEndsBetweenItsCommands(t *testing.T) {
	client := redistest.Client(t, redistest.Addr(t))
	e := &ender{}
	client.AddHook(e)
	d := redis.New(client, redis.WithPrefix(t.Name()+":"))
	fill(t, d, 20)
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		e.end.Store(&cancel)
		_, err := d.Purge(ctx, driver.PurgeParams{Limit: 10, Now: now})
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}
