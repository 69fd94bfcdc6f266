package conformancetest

import (
	"context"
	"fmt"

	"github.com/idem-go/idem/driver"
)

// begun opens a transaction that claims a new key at t0, and inserts one row.
func (e *env) begun(ctx context.Context) (tx *openTx, r driver.Record, row string, err error) {
	return e.begunWith(ctx, e.claim(e.key(), t0))
}

func (e *env) begunWith(ctx context.Context, p driver.ClaimParams) (tx *openTx, r driver.Record, row string, err error) {
	row = p.Key.Scope + " " + p.Key.ID
	tx, r, err = e.beginGranted(ctx, e.d, p)
	if err != nil {
		return nil, r, row, err
	}
	if err := tx.insert(ctx, row); err != nil {
		_ = tx.rollback(ctx)
		return nil, r, row, fmt.Errorf("inserting a row through Handle: %w", err)
	}
	return tx, r, row, nil
}

func (e *env) beginGranted(ctx context.Context, d driver.Driver, p driver.ClaimParams) (*openTx, driver.Record, error) {
	tx, r, err := e.tx.begin(ctx, d, p)
	switch {
	case err != nil:
		return nil, r, fmt.Errorf("BeginClaim: %w", err)
	case tx == nil:
		return nil, r, fmt.Errorf("BeginClaim was not granted: %s", show(r))
	case !granted(r, p):
		_ = tx.rollback(ctx)
		return nil, r, fmt.Errorf("BeginClaim returned a transaction, and a record that is not a grant: %s", show(r))
	}
	r, err = named(r, p.Key)
	return tx, r, err
}

func commit(r driver.Record, result string) driver.CommitParams {
	return driver.CommitParams{CompleteParams: complete(r, t0, []byte(result))}
}

// rowsAre checks how many business rows of that name are committed.
func (e *env) rowsAre(ctx context.Context, row string, want int) error {
	n, err := e.tx.count(ctx, e.d, row)
	if err != nil {
		return fmt.Errorf("counting rows: %w", err)
	}
	if n != want {
		return fmt.Errorf("%d business rows are committed, want %d", n, want)
	}
	return nil
}

var txBasicRules = []rule{
	{
		id:      "tx/commit",
		promise: "Commit makes the claim, the business rows and the outcome durable together",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			p := commit(r, "outcome")
			if err := tx.commit(ctx, p); err != nil {
				return fmt.Errorf("Commit: %w", err)
			}
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			got, err := e.get(ctx, r.Key, t0)
			if err != nil {
				return err
			}
			want, err := r.AfterComplete(p.CompleteParams, t0)
			if err != nil {
				return err
			}
			if d := diff(got, want); d != "" {
				return fmt.Errorf("the record stored: %s", d)
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
				return fmt.Errorf("Rollback: %w", err)
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
}
