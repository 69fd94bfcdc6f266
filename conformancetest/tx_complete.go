package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// completing opens a transaction for the holder of a new leased claim, and
// inserts one row.
func (e *env) completing(ctx context.Context, now time.Time) (tx *openTx, r driver.Record, row string, err error) {
	p, r, err := e.held(ctx)
	if err != nil {
		return nil, r, "", err
	}
	row = p.Key.Scope + " " + p.Key.ID
	tx, err = e.tx.beginComplete(ctx, e.d, holder(p.Key, r, now))
	switch {
	case err != nil:
		return nil, r, row, fmt.Errorf("BeginComplete by the holder: %w", err)
	case tx == nil:
		return nil, r, row, errors.New("BeginComplete by the holder returned no transaction")
	}
	if err := tx.insert(ctx, row); err != nil {
		_ = tx.rollback(ctx)
		return nil, r, row, fmt.Errorf("inserting a row through Handle: %w", err)
	}
	return tx, r, row, nil
}

// refusedComplete checks that BeginComplete is refused, and leaves nothing open.
func (e *env) refusedComplete(ctx context.Context, what string, h driver.HolderParams) error {
	tx, err := e.tx.beginComplete(ctx, e.d, h)
	return errors.Join(notHolder("BeginComplete "+what, err), refusedTx(ctx, tx))
}

var txCompleteRules = []rule{
	{
		id:      "tx/then-commit",
		promise: "after BeginComplete the rows and the outcome of a leased claim commit together",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.completing(ctx, t0)
			if err != nil {
				return err
			}
			if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			return e.stores(ctx, r, commit(r, "outcome"))
		},
	},
	{
		id:      "tx/then-rollback",
		promise: "after BeginComplete a rollback leaves the claim with its holder, who can try again",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.completing(ctx, t0)
			if err != nil {
				return err
			}
			if err := tx.rollback(ctx); err != nil {
				return fmt.Errorf("rollback: %w", err)
			}
			if err := e.rowsAre(ctx, row, 0); err != nil {
				return err
			}
			got, err := e.get(ctx, r.Key, t0)
			if err != nil {
				return err
			}
			if err := unchanged(got, r); err != nil {
				return err
			}
			if tx, err = e.tx.beginComplete(ctx, e.d, holder(r.Key, r, t0)); err != nil {
				return fmt.Errorf("BeginComplete, again: %w", err)
			}
			if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
				return fmt.Errorf("commit, again: %w", err)
			}
			return e.stores(ctx, r, commit(r, "outcome"))
		},
	},
	{
		id:      "tx/then-discard",
		promise: "after BeginComplete a commit with Discard stores the outcome, and undoes the rows",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.completing(ctx, t0)
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
		id:      "tx/then-late",
		promise: "BeginComplete succeeds after the lease, when nobody took over",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.completing(ctx, t0.Add(2*lease))
			if err != nil {
				return err
			}
			p := commit(r, "late")
			p.Now = t0.Add(2 * lease)
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
		id:      "tx/then-other-holder",
		promise: "after BeginComplete a commit under another token or fence is ErrNotHolder, and leaves no row",
		check: func(ctx context.Context, e *env) error {
			for _, spoil := range []func(*driver.CommitParams){
				func(p *driver.CommitParams) { p.Token[0] ^= 1 },
				func(p *driver.CommitParams) { p.Fence++ },
			} {
				tx, r, row, err := e.completing(ctx, t0)
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
				got, err := e.get(ctx, r.Key, t0)
				if err != nil {
					return err
				}
				if err := unchanged(got, r); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "tx/then-stale",
		promise: "BeginComplete is refused once the claim was taken over, completed or released, or under another token or fence",
		check: func(ctx context.Context, e *env) error {
			stale, live, err := takenOver(ctx, e)
			if err != nil {
				return err
			}
			now := t0.Add(lease)
			if err := e.refusedComplete(ctx, "after a takeover", holder(stale.Key, stale, now)); err != nil {
				return err
			}
			mixed := holder(live.Key, live, now)
			mixed.Fence = stale.Fence
			if err := e.refusedComplete(ctx, "with an old fence", mixed); err != nil {
				return err
			}
			mixed = holder(live.Key, live, now)
			mixed.Token = stale.Token
			if err := e.refusedComplete(ctx, "with an old token", mixed); err != nil {
				return err
			}
			p, done, err := e.completed(ctx, nil)
			if err != nil {
				return err
			}
			if err := e.refusedComplete(ctx, "after Complete", holder(p.Key, done, t0)); err != nil {
				return err
			}
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0)}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			if err := e.refusedComplete(ctx, "after Release", holder(p.Key, r, t0)); err != nil {
				return err
			}
			none := driver.HolderParams{Key: e.key(), Token: driver.NewToken(), Fence: 1, Now: t0}
			return e.refusedComplete(ctx, "without a record", none)
		},
	},
	{
		id:      "tx/then-no-takeover",
		promise: "while a transaction of BeginComplete is open nobody takes its claim over, though the lease has ended",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.completing(ctx, t0)
			if err != nil {
				return err
			}
			now := t0.Add(2 * lease)
			next := e.claim(r.Key, now)
			var got driver.Record
			_, claimErr := e.blockable(ctx, func(ctx context.Context) (err error) {
				got, err = e.d.Claim(ctx, next)
				return err
			})
			p := commit(r, "outcome")
			p.Now = now
			commitErr := tx.commit(ctx, p)
			switch {
			case claimErr != nil && !errors.Is(claimErr, driver.ErrRetryable):
				return fmt.Errorf("claim beside the transaction: %w", claimErr)
			case claimErr == nil && granted(got, next):
				return fmt.Errorf("the claim was taken over beside the open transaction, and Commit answered %v", commitErr)
			case commitErr != nil:
				return fmt.Errorf("commit: %w", commitErr)
			}
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			return e.stores(ctx, r, p)
		},
	},
}
