package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem/driver"
)

// runToEnd does what the core does for one call: claims in a transaction, inserts
// one row and commits, or waits until somebody else has. It reports whether it
// was the one that committed.
func (e *env) runToEnd(ctx context.Context, d driver.Driver, k driver.Key, row string) (ran bool, err error) {
	for {
		tx, r, err := e.tx.begin(ctx, d, e.claim(k, t0))
		switch {
		case errors.Is(err, driver.ErrRetryable):
		case err != nil:
			return false, fmt.Errorf("BeginClaim: %w", err)
		case tx != nil:
			r.Key = k
			if err = tx.insert(ctx, row); err == nil {
				err = tx.commit(ctx, commit(r, "outcome"))
			} else {
				_ = tx.rollback(ctx)
			}
			if err == nil || !errors.Is(err, driver.ErrRetryable) {
				return err == nil, err
			}
		case r.State == driver.StateComplete:
			return false, nil
		case r.State != driver.StateInFlight:
			return false, fmt.Errorf("BeginClaim answered %s, want the outcome or a claim in flight", show(r))
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

var txRaceRules = []rule{
	{
		id:      "tx/race-claim",
		promise: "of many concurrent calls in transactions exactly one runs, its row is there once, and all get its outcome",
		check: func(ctx context.Context, e *env) error {
			handles := e.handles()
			k := e.key()
			row := k.Scope + " " + k.ID
			var runs atomic.Int64
			err := together(racers, func(i int) error {
				ran, err := e.runToEnd(ctx, handles[i%len(handles)], k, row)
				if ran {
					runs.Add(1)
				}
				return err
			})
			if err != nil {
				return err
			}
			if n := runs.Load(); n != 1 {
				return fmt.Errorf("%d of %d calls ran, want 1", n, racers)
			}
			return e.rowsAre(ctx, row, 1)
		},
	},
	{
		id:      "tx/race-distinct-keys",
		promise: "concurrent transactions on different keys all commit, and no row is lost",
		check: func(ctx context.Context, e *env) error {
			handles := e.handles()
			keys := make([]driver.Key, racers/2)
			for i := range keys {
				keys[i] = e.key()
			}
			row := e.scope + " shared"
			err := together(len(keys), func(i int) error {
				ran, err := e.runToEnd(ctx, handles[i%len(handles)], keys[i], row)
				if err == nil && !ran {
					err = fmt.Errorf("%s was complete before it ran", keys[i].ID)
				}
				return err
			})
			if err != nil {
				return err
			}
			return e.rowsAre(ctx, row, len(keys))
		},
	},
	{
		id:      "tx/race-takeover",
		promise: "of a late transaction of the holder and a takeover exactly one happens, and the rows tell which",
		check: func(ctx context.Context, e *env) error {
			handles := e.handles()
			for range 2 * rounds {
				p, r, err := e.held(ctx)
				if err != nil {
					return err
				}
				row := p.Key.Scope + " " + p.Key.ID
				now := t0.Add(lease)
				next := e.claim(p.Key, now)
				var took bool
				var lost error
				err = together(2, func(i int) (err error) {
					if i == 1 {
						_, took, err = claimOnce(ctx, handles[len(handles)-1], next)
						return err
					}
					lost = resent(ctx, func() error {
						tx, err := e.tx.beginComplete(ctx, e.d, holder(p.Key, r, now))
						if err != nil {
							return err
						}
						if err := tx.insert(ctx, row); err != nil {
							_ = tx.rollback(ctx)
							return err
						}
						c := commit(r, "late")
						c.Now = now
						return tx.commit(ctx, c)
					})
					return nil
				})
				if err != nil {
					return err
				}
				if lost != nil {
					if err := notHolder("the late holder", lost); err != nil {
						return err
					}
				}
				if (lost == nil) == took {
					return fmt.Errorf("committed: %t, taken over: %t, want exactly one", lost == nil, took)
				}
				want := 1
				if took {
					want = 0
				}
				if err := e.rowsAre(ctx, row, want); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "tx/claim-beside",
		promise: "of a leased claim and an open transaction on one key exactly one keeps it, and the rows tell which",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			beside := e.claim(r.Key, t0)
			took := false
			answered, claimErr := e.blockable(ctx, func(ctx context.Context) error {
				got, err := e.d.Claim(ctx, beside)
				took = err == nil && granted(got, beside)
				return err
			})
			commitErr := tx.commit(ctx, commit(r, "outcome"))
			_ = tx.rollback(ctx)
			if claimErr != nil && !errors.Is(claimErr, driver.ErrRetryable) {
				return fmt.Errorf("claim beside the transaction, answered %t: %w", answered, claimErr)
			}
			got, err := e.get(ctx, r.Key, t0)
			if err != nil {
				return err
			}
			if commitErr == nil {
				if took {
					return errors.New("the claim beside the transaction was granted, and Commit answered nil")
				}
				if got.State != driver.StateComplete || got.Token != r.Token {
					return fmt.Errorf("commit answered nil, and the record is %s", show(got))
				}
				return e.rowsAre(ctx, row, 1)
			}
			if !granted(got, beside) {
				return fmt.Errorf("commit answered %v, and the record is %s, want the other claim", commitErr, show(got))
			}
			if err := notHolder("Commit", commitErr); err != nil {
				return err
			}
			return e.rowsAre(ctx, row, 0)
		},
	},
	{
		id:      "tx/other-keys",
		promise: "an open transaction keeps other keys waiting exactly when a single writer is stated",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			var other *openTx
			answered, err := e.blockable(ctx, func(ctx context.Context) (err error) {
				other, _, err = e.tx.begin(ctx, e.d, e.claim(e.key(), t0))
				return err
			})
			if other != nil {
				_ = other.rollback(ctx)
			}
			if errors.Is(err, driver.ErrRetryable) {
				answered, err = false, nil // a busy writer
			}
			commitErr := tx.commit(ctx, commit(r, "outcome"))
			switch single := e.d.Guarantees().SingleWriter; {
			case err != nil:
				return fmt.Errorf("BeginClaim of another key: %w", err)
			case commitErr != nil:
				return fmt.Errorf("commit: %w", commitErr)
			case answered == single:
				return fmt.Errorf("a single writer is stated: %t, and BeginClaim of another key went on: %t", single, answered)
			}
			return e.rowsAre(ctx, row, 1)
		},
	},
	{
		id:      "tx/no-leak",
		promise: "transactions that are rolled back, refused or replayed leave nothing open",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.completed(ctx, nil)
			if err != nil {
				return err
			}
			before := runtime.NumGoroutine()
			for range 100 {
				tx, _, err := e.beginGranted(ctx, e.d, e.claim(e.key(), t0))
				if err != nil {
					return err
				}
				if err := tx.rollback(ctx); err != nil {
					return fmt.Errorf("rollback: %w", err)
				}
				if _, err := e.refusedBegin(ctx, e.d, e.claim(p.Key, t0)); err != nil {
					return err
				}
				if err := e.refusedComplete(ctx, "after Complete", holder(p.Key, r, t0)); err != nil {
					return err
				}
			}
			// A goroutine may take a moment to end.
			return e.soon(ctx, "the end of the goroutines that 300 calls started", func() (bool, error) {
				return runtime.NumGoroutine() < before+50, nil
			})
		},
	},
}
