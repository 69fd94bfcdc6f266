package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idem-go/idem/driver"
)

var errEnded = errors.New("sqlite: the transaction has ended")

// tx is one open transaction of the application.
type tx struct {
	d       *Driver
	txn     *txn
	h       driver.KeyHash
	claim   driver.Record // as claimed in this transaction
	made    bool          // by this transaction, not before it
	entered bool          // the key is among the Driver's held ones
	release func()        // gives the writer back; nil when the transaction has ended
}

// Mark the end of the claim, where Discard goes back to; the name is gone when
// SQLite, or the application, ended the transaction. They lock nothing.
const (
	savepointSQL = `SAVEPOINT idem_claim`
	releaseSQL   = `RELEASE idem_claim`
	discardSQL   = `ROLLBACK TO idem_claim`
)

// BeginClaim implements [driver.TxDriver]. It waits for the writer as long as ctx
// and the busy timeout allow; a duplicate within this Driver does not. The application must
// neither commit nor roll back the transaction it is given, and close its rows.
func (d *Driver) BeginClaim(ctx context.Context, p driver.ClaimParams) (driver.Tx[*sql.Tx], driver.Record, error) {
	if err := p.Validate(); err != nil {
		return nil, driver.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return nil, driver.Record{}, err
	}
	if r, ok := d.held.Get(p.Key); ok {
		return nil, inFlight(r, at(p.Now)), nil
	}
	r, write, err := d.peek(ctx, p)
	if err != nil || !write && !granted(r, p) {
		return nil, r, err
	}
	// From here on duplicates are answered at once, though the writer may have to be waited for.
	if other, ok := d.held.Enter(p.Key, r); !ok {
		return nil, inFlight(other, at(p.Now)), nil
	}
	t, r, err := d.open(ctx, p.Key, func(old driver.Record) (next driver.Record, ok, write bool) {
		next, write = old.AfterClaim(p, at(p.Now))
		return next, granted(next, p), write
	})
	if t == nil {
		d.held.Leave(p.Key)
		return nil, r, err
	}
	d.held.Update(p.Key, r)
	t.entered = true
	return t, r, nil
}

func granted(r driver.Record, p driver.ClaimParams) bool {
	return r.State == driver.StateInFlight && r.Token == p.Token
}

// BeginComplete implements [driver.TxDriver]. It waits for the writer as long as ctx
// and the busy timeout allow.
func (d *Driver) BeginComplete(ctx context.Context, p driver.HolderParams) (driver.Tx[*sql.Tx], error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	t, _, err := d.open(ctx, p.Key, func(old driver.Record) (driver.Record, bool, bool) {
		return old, old.HeldBy(p.Token, p.Fence), false
	})
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, driver.ErrNotHolder
	}
	// A duplicate that waits for the writer may have entered the key already.
	_, t.entered = d.held.Enter(p.Key, t.claim)
	return t, nil
}

// open takes the writer, begins, and asks claim what the record becomes, whether that is a grant,
// and whether it has to be written. Without a grant it returns no transaction and leaves
// none behind.
func (d *Driver) open(ctx context.Context, k driver.Key, claim func(driver.Record) (next driver.Record, ok, write bool)) (t *tx, r driver.Record, err error) {
	if _, err := d.prepared(ctx); err != nil {
		return nil, r, err
	}
	limit, cancel := d.bounded(ctx)
	defer cancel()
	release, err := d.group.Hold(limit)
	if err != nil {
		return nil, r, d.translate(ctx, limit, err)
	}
	defer func() {
		if t == nil {
			release()
		}
	}()
	txn, err := d.begin(limit)
	if err != nil {
		return nil, r, d.translate(ctx, limit, err)
	}
	defer func() {
		if t == nil {
			_ = txn.rollback()
		}
	}()
	h := d.hash(k)
	old, err := txn.get(h, k)
	if err != nil {
		return nil, r, err
	}
	next, ok, write := claim(old)
	if !ok {
		return nil, next, nil
	}
	if write {
		if err := txn.put(h, old, next); err != nil {
			return nil, r, err
		}
	}
	if _, err := txn.stmt(stmtSavepoint).ExecContext(txn.ctx); err != nil {
		return nil, r, err
	}
	return &tx{d: d, txn: txn, h: h, claim: next, made: write, release: release}, next, nil
}

// Handle implements [driver.Tx].
func (t *tx) Handle() *sql.Tx { return t.txn.tx }

// end gives key and writer back.
func (t *tx) end() {
	if t.entered {
		t.d.held.Leave(t.claim.Key)
	}
	t.release()
	t.release = nil
}

// Rollback implements [driver.Tx]. A transaction that has ended is left alone.
func (t *tx) Rollback(ctx context.Context) error {
	if t.release == nil {
		return nil
	}
	defer t.end()
	err := t.txn.rollback()
	if err == nil {
		return nil
	}
	// After a statement that made SQLite roll back there is nothing left to undo.
	lost := t.lost(ctx)
	if errors.Is(lost, driver.ErrOutcomeUnknown) && (t.made || errors.Is(err, sql.ErrTxDone)) {
		return lost
	}
	return nil
}

// Commit implements [driver.Tx].
func (t *tx) Commit(ctx context.Context, p driver.CommitParams) error {
	if t.release == nil {
		return errEnded
	}
	defer t.end()
	limit, cancel := t.d.bounded(ctx)
	defer cancel()
	if err := t.reclaim(p.Discard); err != nil {
		_ = t.txn.rollback()
		return t.lost(ctx)
	}
	if err := t.store(ctx, p); err != nil {
		_ = t.txn.rollback()
		return t.d.translate(ctx, limit, err)
	}
	err := t.txn.commit(limit, limit)
	if err == nil {
		return nil
	}
	return t.resolve(ctx, t.d.translate(ctx, limit, err))
}

// reclaim makes sure that the transaction of the claim is still open, and undoes the
// business writes if asked. Outside it the outcome would be stored without them.
func (t *tx) reclaim(discard bool) error {
	if discard {
		if _, err := t.txn.tx.ExecContext(t.txn.ctx, discardSQL); err != nil {
			return err
		}
	}
	_, err := t.txn.stmt(stmtRelease).ExecContext(t.txn.ctx)
	return err
}

// store writes the outcome into the transaction.
func (t *tx) store(ctx context.Context, p driver.CommitParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Key != t.claim.Key {
		return driver.ErrNotHolder
	}
	next, err := t.claim.AfterComplete(p.CompleteParams, at(p.Now))
	if err != nil {
		return err
	}
	return t.txn.settle(t.h, t.claim, next)
}

// look reads the record back after the end of the transaction, whatever has become of ctx.
func (t *tx) look(ctx context.Context) (driver.Record, error) {
	return t.d.read(context.WithoutCancel(ctx), t.claim.Key)
}

// resolve finds out how a commit ended that returned an error.
func (t *tx) resolve(ctx context.Context, err error) error {
	r, look := t.look(ctx)
	switch {
	case look != nil:
		return fmt.Errorf("sqlite: %w: %w", driver.ErrOutcomeUnknown, errors.Join(err, look))
	case r.State == driver.StateComplete && r.Token == t.claim.Token && r.Fence == t.claim.Fence:
		return nil
	case !errors.Is(err, driver.ErrOutcomeUnknown) || code(err) == codeIOErr:
		return err
	case ctx.Err() != nil: // SQLite is out of the transaction, and there is no outcome
		return ctx.Err()
	}
	return fmt.Errorf("sqlite: commit: %w: the database was locked for %v", driver.ErrRetryable, t.d.busyTimeout)
}

// lost answers for a transaction that was ended by somebody else. A claim made in it
// that can be read now was committed by the application, with whatever it had written.
func (t *tx) lost(ctx context.Context) error {
	r, err := t.look(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("sqlite: the transaction was ended before its time: %w: %w", driver.ErrOutcomeUnknown, err)
	case r.HeldBy(t.claim.Token, t.claim.Fence):
		return fmt.Errorf("sqlite: the application ended the transaction, or a statement failed and SQLite did: %w", driver.ErrOutcomeUnknown)
	}
	return fmt.Errorf("sqlite: the transaction was rolled back before its time, by the application, or by SQLite when a statement failed: %w", driver.ErrNotHolder)
}
