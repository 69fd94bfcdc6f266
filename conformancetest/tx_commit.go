package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/idem-go/idem/driver"
)

// stores checks that a committed transaction left the record of p, one the claim r.
func (e *env) stores(ctx context.Context, r driver.Record, p driver.CommitParams) error {
	got, err := e.get(ctx, r.Key, t0)
	if err != nil {
		return err
	}
	want, err := r.AfterComplete(p.CompleteParams, p.Now)
	if err != nil {
		return err
	}
	if d := diff(got, want); d != "" {
		return fmt.Errorf("the record stored: %s", d)
	}
	return nil
}

var txCommitRules = []rule{
	{
		id:      "tx/commit",
		promise: "Commit makes the claim, the business rows and the outcome durable together",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			p := commit(r, "outcome")
			p.Now, p.Note = t0.Add(time.Second), "a note"
			if err := tx.commit(ctx, p); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			return e.stores(ctx, r, p)
		},
	},
	{
		id:      "tx/results",
		promise: "Commit stores the result exactly: none, empty, every byte, a megabyte",
		check: func(ctx context.Context, e *env) error {
			every := make([]byte, 256)
			for i := range every {
				every[i] = byte(i)
			}
			large := make([]byte, 1<<20)
			chacha := rand.NewChaCha8([32]byte{2})
			_, _ = chacha.Read(large)
			for _, result := range [][]byte{nil, {}, every, large} {
				tx, r, _, err := e.begun(ctx)
				if err != nil {
					return err
				}
				p := commit(r, "")
				p.Result = result
				if err := tx.commit(ctx, p); err != nil {
					return fmt.Errorf("commit with %s: %w", showBytes(result), err)
				}
				if err := e.stores(ctx, r, p); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "tx/many-rows",
		promise: "all rows of a transaction are committed, or none",
		check: func(ctx context.Context, e *env) error {
			for _, keepThem := range []bool{true, false} {
				tx, r, row, err := e.begun(ctx)
				if err != nil {
					return err
				}
				for range 99 {
					if err := tx.insert(ctx, row); err != nil {
						_ = tx.rollback(ctx)
						return fmt.Errorf("inserting a row: %w", err)
					}
				}
				want := 0
				if keepThem {
					want, err = 100, tx.commit(ctx, commit(r, "outcome"))
				} else {
					err = tx.rollback(ctx)
				}
				if err != nil {
					return fmt.Errorf("ending the transaction, by commit: %t: %w", keepThem, err)
				}
				if err := e.rowsAre(ctx, row, want); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "tx/rollback",
		promise: "Rollback leaves nothing: no row, no claim, and the next claim is attempt 1",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			if err := tx.rollback(ctx); err != nil {
				return fmt.Errorf("rollback: %w", err)
			}
			if err := e.rowsAre(ctx, row, 0); err != nil {
				return err
			}
			if err := e.stateIs(ctx, r.Key, t0, driver.StateAbsent); err != nil {
				return err
			}
			tx, r, err = e.beginGranted(ctx, e.d, e.claim(r.Key, t0))
			if err != nil {
				return err
			}
			if r.Attempt != 1 {
				err = fmt.Errorf("the next claim is attempt %d, want 1", r.Attempt)
			}
			_ = tx.rollback(ctx)
			return err
		},
	},
	{
		id:      "tx/discard",
		promise: "Commit with Discard stores the outcome, and undoes the business rows",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			p := commit(r, "a final error")
			p.Discard = true
			if err := tx.commit(ctx, p); err != nil {
				return fmt.Errorf("commit with Discard: %w", err)
			}
			if err := e.rowsAre(ctx, row, 0); err != nil {
				return err
			}
			return e.stores(ctx, r, p)
		},
	},
	{
		id:      "tx/commit-other-holder",
		promise: "Commit under another token or fence is ErrNotHolder, and leaves no row, no outcome and no claim",
		check: func(ctx context.Context, e *env) error {
			for _, spoil := range []func(*driver.CommitParams){
				func(p *driver.CommitParams) { p.Token[0] ^= 1 },
				func(p *driver.CommitParams) { p.Fence++ },
			} {
				tx, r, row, err := e.begun(ctx)
				if err != nil {
					return err
				}
				p := commit(r, "outcome")
				spoil(&p)
				if err := notHolder("Commit", tx.commit(ctx, p)); err != nil {
					return err
				}
				_ = tx.rollback(ctx)
				if err := e.rowsAre(ctx, row, 0); err != nil {
					return err
				}
				if err := e.freeSoon(ctx, r.Key); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "tx/commit-params",
		promise: "Commit with a parameter out of its limits is ErrInvalidParams, and leaves nothing once rolled back",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			p := commit(r, "outcome")
			p.Retention = 0
			err = tx.commit(ctx, p)
			_ = tx.rollback(ctx)
			if err := refusedParams("Commit without retention", err, driver.ErrInvalidParams); err != nil {
				return err
			}
			if err := e.rowsAre(ctx, row, 0); err != nil {
				return err
			}
			return e.freeSoon(ctx, r.Key)
		},
	},
	{
		id:      "tx/unseen",
		promise: "until Commit nobody else sees a row or an outcome",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			n := 0
			_, countErr := e.blockable(ctx, func(ctx context.Context) (err error) {
				n, err = e.tx.count(ctx, e.d, row)
				return err
			})
			var got driver.Record
			_, getErr := e.blockable(ctx, func(ctx context.Context) (err error) {
				got, err = e.d.Get(ctx, driver.GetParams{Key: r.Key, Now: t0})
				return err
			})
			if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			if err := errors.Join(countErr, getErr); err != nil {
				return fmt.Errorf("reading beside the transaction: %w", err)
			}
			if n != 0 || got.State == driver.StateComplete {
				return fmt.Errorf("before Commit %d rows were seen, and the record %s", n, show(got))
			}
			return e.rowsAre(ctx, row, 1)
		},
	},
	{
		id:      "tx/used-up",
		promise: "a transaction that has ended answers Commit with an error, and keeps what it did",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			if err := tx.rollback(ctx); err != nil {
				return fmt.Errorf("rollback: %w", err)
			}
			if err := tx.commit(ctx, commit(r, "outcome")); err == nil {
				return errors.New("commit after Rollback answered nil")
			}
			_ = tx.rollback(ctx)
			if err := e.rowsAre(ctx, row, 0); err != nil {
				return err
			}
			if err := e.stateIs(ctx, r.Key, t0, driver.StateAbsent); err != nil {
				return err
			}
			if tx, r, row, err = e.begun(ctx); err != nil {
				return err
			}
			if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			// Whatever these answer, they neither panic nor undo the commit.
			_ = tx.rollback(ctx)
			_ = tx.commit(ctx, commit(r, "another outcome"))
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			return e.stores(ctx, r, commit(r, "outcome"))
		},
	},
	{
		id:      "tx/commit-ended-context",
		promise: "after Commit with an ended context the rows and the outcome are both there, or both not",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			err = tx.commit(ended(ctx), commit(r, "outcome"))
			_ = tx.rollback(ctx)
			return e.allOrNothing(ctx, r.Key, row, err)
		},
	},
	{
		id:      "tx/rollback-ended-context",
		promise: "Rollback with an ended context still leaves nothing, and frees the key",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			_ = tx.rollback(ended(ctx))
			if err := e.freeSoon(ctx, r.Key); err != nil {
				return err
			}
			return e.rowsAre(ctx, row, 0)
		},
	},
	{
		id:      "tx/caller-gone",
		promise: "a transaction outlives the context of BeginClaim: Commit stores the rows and the outcome",
		check: func(ctx context.Context, e *env) error {
			caller, cancel := context.WithCancel(ctx)
			defer cancel()
			tx, r, row, err := e.begun(caller)
			if err != nil {
				return err
			}
			cancel()
			if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
				_ = tx.rollback(ctx)
				return fmt.Errorf("commit: %w", err)
			}
			return e.allOrNothing(ctx, r.Key, row, nil)
		},
	},
	{
		id:      "tx/own-clock",
		promise: "without Now a transaction goes by the driver's clock",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begunWith(ctx, e.claim(e.key(), time.Time{}))
			if err != nil {
				return err
			}
			if r.Now.IsZero() || (r.LeaseUntil.Sub(r.Now)-lease).Abs() > 2*time.Second {
				_ = tx.rollback(ctx)
				return fmt.Errorf("the lease does not end %v after Now: %s", lease, show(r))
			}
			p := commit(r, "outcome")
			p.Now = time.Time{}
			if err := tx.commit(ctx, p); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			got, err := e.get(ctx, r.Key, time.Time{})
			if err != nil {
				return err
			}
			if got.State != driver.StateComplete || got.CompletedAt.Before(r.CreatedAt) || !got.RetainUntil.Equal(got.CompletedAt.Add(keep)) {
				return fmt.Errorf("the record %s does not fit its claim %s", show(got), show(r))
			}
			return nil
		},
	},
	{
		id:      "tx/reopen",
		promise: "what was committed, rows and outcome, survives reopening the store",
		needs:   aReopening,
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			e.reopen()
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			return e.stores(ctx, r, commit(r, "outcome"))
		},
	},
}
