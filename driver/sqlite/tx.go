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
	handle  *sql.Tx
	h       driver.KeyHash
	claim   driver.Record // as claimed in this transaction
	made    bool          // by this transaction, not before it
	entered bool          // the key is among the Driver's held ones
	ended   bool

	release func() // gives the writer back; nil in a group
	joint   *joint // the transaction that a group shares; nil outside one
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
	h := d.hash(p.Key)
	if t, r, ok, err := d.tryClaim(ctx, h, p); ok || err != nil {
		if t == nil {
			return nil, r, err
		}
		return t, r, nil
	}
	r, fresh, write, err := d.peek(ctx, h, p)
	if err != nil || !write && !granted(r, p) {
		return nil, r, err
	}
	// From here on duplicates are answered at once, though the writer may have to be waited for.
	if other, ok := d.held.Enter(p.Key, r); !ok {
		return nil, inFlight(other, at(p.Now)), nil
	}
	t, r, err := d.open(ctx, h, func(x *txn) (r driver.Record, ok, wrote bool, err error) {
		r, wrote, err = x.claim(h, p, fresh)
		return r, granted(r, p), wrote, err
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
	h := d.hash(p.Key)
	t, _, err := d.open(ctx, h, func(x *txn) (r driver.Record, ok, wrote bool, err error) {
		r, err = x.get(h, p.Key)
		return r, r.HeldBy(p.Token, p.Fence), false, err
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

// A claimer claims a key in a transaction, and returns what its record becomes, whether
// that is a grant, and whether it was written.
type claimer func(*txn) (r driver.Record, ok, wrote bool, err error)

// open takes the writer, begins, and claims. Without a grant it returns no transaction and
// leaves none behind.
func (d *Driver) open(ctx context.Context, h driver.KeyHash, claim claimer) (*tx, driver.Record, error) {
	if _, err := d.prepared(ctx); err != nil {
		return nil, driver.Record{}, err
	}
	limit, cancel := d.bounded(ctx)
	defer cancel()
	var t *tx
	var r driver.Record
	var err error
	if d.turn != nil {
		t, r, err = d.openInGroup(limit, h, claim)
	} else {
		t, r, err = d.openAlone(limit, h, claim)
	}
	return t, r, d.translate(ctx, limit, err)
}

func (d *Driver) openAlone(limit context.Context, h driver.KeyHash, claim claimer) (t *tx, r driver.Record, err error) {
	release, err := d.group.Hold(limit)
	if err != nil {
		return nil, r, err
	}
	defer func() {
		if t == nil {
			release()
		}
	}()
	x, err := d.begin(limit)
	if err != nil {
		return nil, r, err
	}
	defer func() {
		if t == nil {
			_ = x.rollback()
		}
	}()
	r, ok, wrote, err := claim(x)
	if err != nil || !ok {
		return nil, r, err
	}
	if err := x.exec(stmtSavepoint); err != nil {
		return nil, r, err
	}
	return &tx{d: d, txn: x, handle: x.tx, h: h, claim: r, made: wrote, release: release}, r, nil
}

// Handle implements [driver.Tx].
func (t *tx) Handle() *sql.Tx { return t.handle }

// end gives key and writer back.
func (t *tx) end() {
	t.ended = true
	if t.entered {
		t.d.held.Leave(t.claim.Key)
	}
	if t.release != nil {
		t.release()
	}
}

// Rollback implements [driver.Tx]. A transaction that has ended is left alone.
func (t *tx) Rollback(ctx context.Context) error {
	if t.ended {
		return nil
	}
	defer t.end()
	var err error
	if t.joint != nil {
		err = t.leave()
	} else {
		err = t.txn.rollback()
	}
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
	if t.ended {
		return errEnded
	}
	defer t.end()
	limit := ctx
	if t.joint != nil || !t.txn.wal { // nothing else waits
		var cancel context.CancelFunc
		limit, cancel = t.d.bounded(ctx)
		defer cancel()
	}
	if t.joint != nil {
		return t.commitInGroup(ctx, limit, p)
	}
	if err := t.regain(p.Discard); err != nil {
		_ = t.txn.rollback()
		return t.lost(ctx)
	}
	if err := t.store(ctx, p); err != nil {
		_ = t.txn.rollback()
		return t.d.translate(ctx, limit, err)
	}
	err := t.txn.commit(limit, limit)
	if err == nil {
		t.d.finished.Add(t.h)
		return nil
	}
	return t.resolve(ctx, t.d.translate(ctx, limit, err))
}

// regain makes sure that the transaction of the claim is still open, and undoes the
// business writes if asked. Outside it the outcome would be stored without them.
func (t *tx) regain(discard bool) error {
	if discard {
		if err := t.txn.exec(stmtDiscard); err != nil {
			return err
		}
	}
	return t.txn.exec(stmtRelease)
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
	return t.txn.settle(t.h, next)
}

// look reads the record back after the end of the transaction, whatever has become of ctx.
func (t *tx) look(ctx context.Context) (driver.Record, error) {
	return t.d.read(context.WithoutCancel(ctx), t.h, t.claim.Key)
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
