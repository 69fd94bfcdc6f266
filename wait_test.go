package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

// polled hides the memory driver's Waiter, so that the core has to poll.
type polled struct{ driver.Driver }

// stores are the ways in which a call can learn of another process's end. Each
// function returns one store as two operations see it.
var stores = map[string]func() (driver.Driver, driver.Driver){
	"one operation": func() (driver.Driver, driver.Driver) { d := memory.New(); return d, nil },
	"signal":        func() (driver.Driver, driver.Driver) { d := memory.New(); return d, d },
	"poll":          func() (driver.Driver, driver.Driver) { d := memory.New(); return &polled{d}, &polled{d} },
}

func eachStore(t *testing.T, cfg idem.Config, test func(t *testing.T, a, b *idem.Operation[int], drv driver.Driver)) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := open()
				a := newOp[int](t, first, cfg)
				b := a
				if second != nil {
					b = newOp[int](t, second, cfg)
				}
				test(t, a, b, first)
			})
		})
	}
}

// slow returns an fn that takes d and counts its runs.
func slow(n *atomic.Int64, d time.Duration, err error) func(context.Context, *idem.Run) (int, error) {
	return func(ctx context.Context, run *idem.Run) (int, error) {
		n.Add(1)
		select {
		case <-time.After(d):
			return run.Attempt, err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func TestInFlightAtOnce(t *testing.T) {
	eachStore(t, idem.Config{Lease: 30 * time.Second}, func(t *testing.T, a, b *idem.Operation[int], _ driver.Driver) {
		var n atomic.Int64
		go a.Do(t.Context(), key("k"), print("a"), slow(&n, time.Minute, nil))
		synctest.Wait()
		for _, after := range []time.Duration{0, 35 * time.Second} { // the lease has been renewed meanwhile
			time.Sleep(after)
			began := time.Now()
			for range 64 {
				_, err := b.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil))
				var busy *idem.InFlightError
				if !errors.As(err, &busy) || !errors.Is(err, idem.ErrInFlight) {
					t.Fatalf("error is %v, want an InFlightError", err)
				}
				if busy.RetryAfter < 15*time.Second || busy.RetryAfter > 30*time.Second {
					t.Errorf("after %v: RetryAfter is %v, want what is left of a lease of 30 s", after, busy.RetryAfter)
				}
				_, err = b.Do(t.Context(), key("k"), print("b"), slow(&n, 0, nil))
				wantErr(t, err, idem.ErrMismatch) // also while the first is in flight
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("answers took %v", took)
			}
		}
		time.Sleep(time.Hour)
		if n.Load() != 1 {
			t.Errorf("fn ran %d times", n.Load())
		}
	})
}

func TestWaitersGetTheResult(t *testing.T) {
	eachStore(t, idem.Config{Wait: time.Minute}, func(t *testing.T, a, b *idem.Operation[int], _ driver.Driver) {
		var n, replayed atomic.Int64
		var callers sync.WaitGroup
		for i := range 64 {
			op := a
			if i%2 == 1 {
				op = b
			}
			callers.Go(func() {
				began := time.Now()
				res, err := op.Do(t.Context(), key("k"), print("a"), slow(&n, 10*time.Second, nil))
				if err != nil || res.Value != 1 || res.Attempt != 1 {
					t.Errorf("%+v, %v", res, err)
				}
				if res.Replayed {
					replayed.Add(1)
				}
				if took := time.Since(began); took > 10*time.Second+maxLate {
					t.Errorf("answered after %v", took)
				}
			})
		}
		synctest.Wait()
		_, err := b.Do(t.Context(), key("k"), print("b"), slow(&n, 0, nil))
		wantErr(t, err, idem.ErrMismatch)
		callers.Wait()
		if n.Load() != 1 || replayed.Load() != 63 {
			t.Errorf("fn ran %d times, %d replays", n.Load(), replayed.Load())
		}
	})
}

// maxLate is a waiter's longest pause: 250 ms and a quarter of jitter.
const maxLate = 320 * time.Millisecond

func TestWaitLimit(t *testing.T) {
	eachStore(t, idem.Config{Wait: 3 * time.Second}, func(t *testing.T, a, b *idem.Operation[int], _ driver.Driver) {
		var n atomic.Int64
		go a.Do(t.Context(), key("k"), print("a"), slow(&n, 20*time.Second, nil))
		synctest.Wait()
		began := time.Now()
		_, err := b.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil))
		wantErr(t, err, idem.ErrInFlight)
		if took := time.Since(began); took < 3*time.Second || took > 3*time.Second+maxLate {
			t.Errorf("answered after %v, want 3 s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		_, err = b.Do(ctx, key("k"), print("a"), slow(&n, 0, nil))
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(began); took != time.Second {
			t.Errorf("answered after %v, want 1 s", took)
		}
		if n.Load() != 1 {
			t.Errorf("fn ran %d times", n.Load())
		}
		time.Sleep(time.Minute)
	})
}

// When the holder fails, one waiter takes over, and the others wait for it.
func TestHolderFails(t *testing.T) {
	eachStore(t, idem.Config{Wait: time.Minute}, func(t *testing.T, a, b *idem.Operation[int], _ driver.Driver) {
		var n atomic.Int64
		go a.Do(t.Context(), key("k"), print("a"), slow(&n, time.Second, errBoom))
		synctest.Wait()
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() {
				res, err := b.Do(t.Context(), key("k"), print("a"), slow(&n, time.Second, nil))
				if err != nil || res.Value != 2 {
					t.Errorf("%+v, %v; want the value of attempt 2", res, err)
				}
			})
		}
		callers.Wait()
		if n.Load() != 2 {
			t.Errorf("fn ran %d times, want 2", n.Load())
		}
	})
}

// A holder that died is taken over when its lease ends: not before, and not much later.
func TestHolderDied(t *testing.T) {
	eachStore(t, idem.Config{Wait: time.Minute, Lease: 2 * time.Second}, func(t *testing.T, a, _ *idem.Operation[int], drv driver.Driver) {
		dead := claimByHand(t, drv, 2*time.Second)
		began := time.Now()
		var n atomic.Int64
		res, err := a.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil))
		if took := time.Since(began); err != nil || res.Attempt != 2 || took < 2*time.Second || took > 2*time.Second+maxLate {
			t.Errorf("%+v, %v after %v; want attempt 2 after 2 s", res, err, took)
		}
		err = drv.Complete(t.Context(), driver.CompleteParams{HolderParams: dead, Retention: time.Hour})
		wantErr(t, err, driver.ErrNotHolder)
	})
}

// claimByHand claims key k as a process that then dies.
func claimByHand(t *testing.T, drv driver.Driver, lease time.Duration) driver.HolderParams {
	t.Helper()
	p := driver.ClaimParams{
		Key: key("k"), Operation: "op", Fingerprint: storedForm("a"), Token: driver.NewToken(), Lease: lease, Retention: time.Hour,
	}
	rec, err := drv.Claim(t.Context(), p)
	if err != nil || rec.Token != p.Token {
		t.Fatalf("claim: %+v, %v", rec, err)
	}
	return driver.HolderParams{Key: p.Key, Token: p.Token, Fence: rec.Fence}
}

// storedForm is how the record of print(s) looks.
func storedForm(s string) []byte { return append([]byte{1, 7}, "test.v1"+s...) }

// Field case C01: a waiter that leaves takes nothing with it, also when it is the
// one that watches the store for the others.
func TestField_C01_WaiterLeaves(t *testing.T) {
	eachStore(t, idem.Config{Wait: time.Hour}, func(t *testing.T, a, b *idem.Operation[int], _ driver.Driver) {
		var n atomic.Int64
		go a.Do(t.Context(), key("k"), print("a"), slow(&n, 10*time.Second, nil))
		synctest.Wait()

		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := b.Do(ctx, key("k"), print("a"), slow(&n, 0, nil))
			left <- err
		}()
		synctest.Wait()
		var callers sync.WaitGroup
		call := func() {
			if res, err := b.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil)); err != nil || !res.Replayed {
				t.Errorf("%+v, %v", res, err)
			}
		}
		for range 62 {
			callers.Go(call)
		}
		synctest.Wait()
		leave()
		wantErr(t, <-left, context.Canceled)
		callers.Go(call) // and another one comes
		callers.Wait()
		if n.Load() != 1 {
			t.Errorf("fn ran %d times", n.Load())
		}
	})
}

func TestMaxWaiters(t *testing.T) {
	eachStore(t, idem.Config{Wait: time.Hour, MaxWaiters: 3}, func(t *testing.T, a, b *idem.Operation[int], _ driver.Driver) {
		var n, busy atomic.Int64
		go a.Do(t.Context(), key("k"), print("a"), slow(&n, time.Minute, nil))
		synctest.Wait()
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				began := time.Now()
				_, err := b.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil))
				if errors.Is(err, idem.ErrInFlight) && time.Since(began) == 0 {
					busy.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if busy.Load() != 7 || n.Load() != 1 {
			t.Errorf("%d calls were refused, fn ran %d times; want 7 and 1", busy.Load(), n.Load())
		}
	})
}

// A call that waits and joins while one that does not is claiming has to wait all
// the same: the first is answered ErrInFlight, and the others are not.
func TestWaiterFollowsOneThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		claimByHand(t, drv, 10*time.Second)
		op := newOp[int](t, drv, idem.Config{})
		drv.set("claim", func(context.Context) error { time.Sleep(time.Second); return nil }, nil)
		var n, ok, busy atomic.Int64
		var callers sync.WaitGroup
		for i := range 16 {
			wait := idem.WaitAtMost(time.Duration(i%4) * time.Minute)
			callers.Go(func() {
				switch _, err := op.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil), wait); {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, idem.ErrInFlight):
					busy.Add(1)
				default:
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		callers.Wait()
		if ok.Load() != 12 || busy.Load() != 4 || n.Load() != 1 {
			t.Errorf("%d results, %d in flight, %d runs; want 12, 4 and 1", ok.Load(), busy.Load(), n.Load())
		}
	})
}

// Waiters read, and one of them for all: whatever their number, the store sees one poller.
func TestOnePollerPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		claimByHand(t, drv, 10*time.Second)
		op := newOp[int](t, drv, idem.Config{Wait: time.Minute})
		var callers sync.WaitGroup
		var n atomic.Int64
		for range 64 {
			callers.Go(func() { op.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil)) })
		}
		callers.Wait()
		// A twentieth of the time waited, from 2 ms to 250 ms: about 20 × ln(10 s / 40 ms).
		if gets := drv.count("get"); gets > 160 {
			t.Errorf("64 waiters read %d times in 10 s", gets)
		}
		if claims := drv.count("claim"); claims > 3 || n.Load() != 1 {
			t.Errorf("%d claims, %d runs", claims, n.Load())
		}
	})
}

// 64 duplicates in one process cost the store what one call costs.
func TestDuplicatesShareTheLeader(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			drv := newFaulty(memory.New())
			op := newOp[int](t, drv, idem.Config{Wait: wait})
			var n, ok, busy atomic.Int64
			var callers sync.WaitGroup
			for range 64 {
				callers.Go(func() {
					switch _, err := op.Do(t.Context(), key("k"), print("a"), slow(&n, time.Second, nil)); {
					case err == nil:
						ok.Add(1)
					case errors.Is(err, idem.ErrInFlight):
						busy.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			callers.Wait()
			wantBusy := int64(63)
			if wait > 0 {
				wantBusy = 0
			}
			if n.Load() != 1 || busy.Load() != wantBusy || ok.Load() != 64-wantBusy {
				t.Errorf("wait %v: %d runs, %d results, %d in flight", wait, n.Load(), ok.Load(), busy.Load())
			}
			if calls := drv.count("claim") + drv.count("get") + drv.count("complete"); calls != 2 {
				t.Errorf("wait %v: %d calls to the store, want a claim and a completion", wait, calls)
			}
		})
	}
}

// A store failure of the leader is everybody's; a leader that was cancelled is not.
func TestLeaderFails(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		t.Run(fmt.Sprint("cancelled ", cancelled), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv := newFaulty(memory.New())
				op := newOp[int](t, drv, idem.Config{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				release := make(chan struct{})
				drv.set("claim", func(ctx context.Context) error {
					select {
					case <-release:
						return errStore
					case <-ctx.Done():
						return ctx.Err()
					}
				}, nil)
				var n atomic.Int64
				leader := make(chan error, 1)
				go func() {
					_, err := op.Do(ctx, key("k"), print("a"), slow(&n, 0, nil))
					leader <- err
				}()
				synctest.Wait()
				var callers sync.WaitGroup
				for range 8 {
					callers.Go(func() {
						_, err := op.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil))
						if cancelled && err != nil && !errors.Is(err, idem.ErrInFlight) || !cancelled && !errors.Is(err, idem.ErrStore) {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				want := int64(0)
				if cancelled {
					want = 1
					drv.set("claim", nil, nil)
					cancel()
					wantErr(t, <-leader, context.Canceled)
				} else {
					close(release)
					wantErr(t, <-leader, idem.ErrStore, errStore)
				}
				callers.Wait()
				if n.Load() != want {
					t.Errorf("fn ran %d times, want %d", n.Load(), want)
				}
			})
		})
	}
}

// A store that fails while a call waits: the error says so, and fn has not run.
func TestStoreFailsWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		claimByHand(t, drv, time.Hour)
		op := newOp[int](t, drv, idem.Config{Wait: time.Minute})
		drv.set("get", fails(1, errStore), nil)
		var n atomic.Int64
		_, err := op.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil))
		wantErr(t, err, idem.ErrStore, errStore)
		if n.Load() != 0 {
			t.Error("fn ran")
		}
	})
}

// One call may wait longer, or not at all, than its operation says; calls of
// both kinds share a leader.
func TestWaitAtMost(t *testing.T) {
	eachStore(t, idem.Config{Wait: 3 * time.Second}, func(t *testing.T, a, b *idem.Operation[int], _ driver.Driver) {
		var n atomic.Int64
		go a.Do(t.Context(), key("k"), print("a"), slow(&n, 20*time.Second, nil))
		synctest.Wait()
		var callers sync.WaitGroup
		for wait, want := range map[time.Duration]error{0: idem.ErrInFlight, time.Second: idem.ErrInFlight, time.Minute: nil} {
			for range 3 {
				callers.Go(func() {
					began := time.Now()
					res, err := b.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil), idem.WaitAtMost(wait))
					took, limit := time.Since(began), min(wait, 20*time.Second)
					if !errors.Is(err, want) || want == nil && res.Value != 1 || took < limit || took > limit+maxLate {
						t.Errorf("WaitAtMost(%v): %+v, %v after %v", wait, res, err, took)
					}
				})
			}
		}
		callers.Wait()
		if n.Load() != 1 {
			t.Errorf("fn ran %d times", n.Load())
		}
		_, err := b.Do(t.Context(), key("k"), print("a"), slow(&n, 0, nil), idem.WaitAtMost(-1))
		wantErr(t, err, idem.ErrInvalidArgument)
	})
}
