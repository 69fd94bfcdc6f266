package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"time"

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

// refusedBegin checks that BeginClaim is not granted, and returns what it says.
func (e *env) refusedBegin(ctx context.Context, d driver.Driver, p driver.ClaimParams) (driver.Record, error) {
	tx, r, err := e.tx.begin(ctx, d, p)
	if tx != nil {
		_ = tx.rollback(ctx)
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("BeginClaim: %w", err)
	case tx != nil:
		return r, fmt.Errorf("BeginClaim opened a transaction, with the record %s", show(r))
	case granted(r, p):
		return r, fmt.Errorf("BeginClaim opened no transaction, and returned a granted claim: %s", show(r))
	}
	return named(r, p.Key)
}

// refusedTx checks that no transaction came with an error.
func refusedTx(ctx context.Context, tx *openTx) error {
	if tx != nil {
		_ = tx.rollback(ctx)
		return errors.New("a transaction came back beside the error")
	}
	return nil
}

// freeSoon checks that the key can be claimed in a transaction, in the end: a store
// may need a moment to notice that a connection was closed.
func (e *env) freeSoon(ctx context.Context, k driver.Key) error {
	return e.soon(ctx, "the next claim", func() (bool, error) {
		tx, r, err := e.tx.begin(ctx, e.d, e.claim(k, t0))
		if err != nil && !errors.Is(err, driver.ErrRetryable) {
			return false, fmt.Errorf("BeginClaim: %w", err)
		}
		if tx == nil {
			if r.State == driver.StateComplete {
				return false, fmt.Errorf("the key is complete: %s", show(r))
			}
			return false, nil
		}
		if err := tx.rollback(ctx); err != nil {
			return false, fmt.Errorf("rollback: %w", err)
		}
		return true, nil
	})
}

// allOrNothing checks, after a commit that answered err, that the rows and the
// outcome are both there or both not, and that err says which.
func (e *env) allOrNothing(ctx context.Context, k driver.Key, row string, err error) error {
	n, countErr := e.tx.count(ctx, e.d, row)
	if countErr != nil {
		return fmt.Errorf("counting rows: %w", countErr)
	}
	r, getErr := e.get(ctx, k, t0)
	if getErr != nil {
		return getErr
	}
	done := r.State == driver.StateComplete
	switch {
	case (n == 1) != done || n > 1:
		return fmt.Errorf("%d business rows are committed, and the key is %v", n, r.StateAt(t0))
	case err == nil && !done:
		return errors.New("commit answered nil, and nothing is committed")
	case err != nil && done && !errors.Is(err, driver.ErrOutcomeUnknown):
		return fmt.Errorf("commit answered %v, a definite error, and everything is committed", err)
	case !done:
		return e.freeSoon(ctx, k)
	}
	return nil
}

// blockable calls a verb that may wait for an open transaction, where the store
// has one writer, and gives up then. It reports whether there was an answer.
func (e *env) blockable(ctx context.Context, call func(ctx context.Context) error) (answered bool, err error) {
	limit := e.patience
	if e.d.Guarantees().SingleWriter {
		limit = 150 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err = call(ctx); err != nil && ctx.Err() != nil {
		return false, nil
	}
	return true, err
}
