package idem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
)

// Random calls of every kind, over two operations that signal and one that polls,
// that fail in every way: one fn at a time, none after the outcome, equal values,
// and answers within their limits. The seed of a failure reruns it.
func TestRandomCalls(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			mem := memory.New()
			td := newTxDriver()
			td.Driver = mem
			ops := []*idem.TxOperation[string, *rows]{
				newTxOp[string](t, td, idem.Config{Lease: 3 * time.Second}),
				newTxOp[string](t, td, idem.Config{Lease: 3 * time.Second}),
			}
			poll := newOp[string](t, newFaulty(mem), idem.Config{Lease: 3 * time.Second})
			var running atomic.Int64
			var mu sync.Mutex
			done := ""
			runs := 0
			body := func(ctx context.Context, dur time.Duration, how int) (string, error) {
				if running.Add(1) > 1 {
					t.Errorf("seed %d: two at once", seed)
				}
				defer running.Add(-1)
				mu.Lock()
				if done != "" {
					t.Errorf("seed %d: ran after done", seed)
				}
				runs++
				v := fmt.Sprint("v", runs)
				mu.Unlock()
				time.Sleep(dur)
				switch how {
				case 0:
					return "", errBoom
				case 1:
					return "", idem.NotApplied(errBoom)
				case 2:
					panic("boom")
				case 3:
					runtime.Goexit()
				}
				mu.Lock()
				done = v
				mu.Unlock()
				return v, nil
			}
			var wg sync.WaitGroup
			n := 5 + r.IntN(30)
			for range n {
				which, start, dur, how := r.IntN(4), time.Duration(r.IntN(3000))*time.Millisecond, time.Duration(r.IntN(5000))*time.Millisecond, r.IntN(8)
				wait := []time.Duration{0, time.Duration(1+r.IntN(5000)) * time.Millisecond, time.Hour}[r.IntN(3)]
				limit := time.Hour * 10
				if r.IntN(3) == 0 {
					limit = time.Duration(1+r.IntN(5000)) * time.Millisecond
				}
				wg.Go(func() {
					time.Sleep(start)
					defer func() { recover() }()
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					began := time.Now()
					ran := false
					var res idem.Result[string]
					var err error
					switch which {
					case 0, 1:
						res, err = ops[which].Do(ctx, key("k"), print("a"), func(ctx context.Context, _ *idem.Run) (string, error) { ran = true; return body(ctx, dur, how) }, idem.WaitAtMost(wait))
					case 2:
						res, err = ops[0].DoThenTx(ctx, key("k"), print("a"), func(ctx context.Context, _ *idem.Run) (string, error) { ran = true; return body(ctx, dur, how) },
							func(_ context.Context, _ *rows, v string) (string, error) { return v, nil }, idem.WaitAtMost(wait))
					case 3:
						res, err = poll.Do(ctx, key("k"), print("a"), func(ctx context.Context, _ *idem.Run) (string, error) { ran = true; return body(ctx, dur, how) }, idem.WaitAtMost(wait))
					}
					took := time.Since(began)
					mu.Lock()
					d := done
					mu.Unlock()
					switch {
					case err == nil && res.Value != d:
						t.Errorf("seed %d: %q, done %q", seed, res.Value, d)
					case err == nil || ran:
					case errors.Is(err, idem.ErrInFlight):
						if wait == time.Hour || took < wait {
							t.Errorf("seed %d: in flight after %v, wait %v", seed, took, wait)
						}
						if took > wait+300*time.Millisecond {
							t.Errorf("seed %d: in flight late %v, wait %v", seed, took, wait)
						}
					case errors.Is(err, context.DeadlineExceeded):
						if took > limit+200*time.Millisecond || took < limit {
							t.Errorf("seed %d: ctx %v, limit %v", seed, took, limit)
						}
					default:
						t.Errorf("seed %d: %v", seed, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// DoTx alone over two engines on one store, and fn never overlapping.
func TestRandomTxCalls(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			td := newTxDriver()
			ops := []*idem.TxOperation[string, *rows]{newTxOp[string](t, td, idem.Config{}), newTxOp[string](t, td, idem.Config{})}
			var wg sync.WaitGroup
			for range 5 + r.IntN(20) {
				which, start, dur, how := r.IntN(2), time.Duration(r.IntN(3000))*time.Millisecond, time.Duration(r.IntN(3000))*time.Millisecond, r.IntN(6)
				wait := []time.Duration{0, time.Duration(1+r.IntN(5000)) * time.Millisecond, time.Hour}[r.IntN(3)]
				wg.Go(func() {
					time.Sleep(start)
					defer func() { recover() }()
					began := time.Now()
					_, err := ops[which].DoTx(t.Context(), key("k"), print("a"), func(ctx context.Context, tx *rows) (string, error) {
						tx.Insert("row")
						time.Sleep(dur)
						switch how {
						case 0:
							return "", errBoom
						case 2:
							panic("boom")
						case 3:
							runtime.Goexit()
						}
						return "v", nil
					}, idem.WaitAtMost(wait))
					took := time.Since(began)
					if errors.Is(err, idem.ErrInFlight) && (took < wait || took > wait+300*time.Millisecond) {
						t.Errorf("seed %d: in flight after %v, wait %v", seed, took, wait)
					}
				})
			}
			wg.Wait()
			if td.rows("row") > 1 || len(td.open) > 0 {
				t.Errorf("seed %d: %d rows, %d open", seed, td.rows("row"), len(td.open))
			}
		})
	}
}
