package bolt

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
)

var errEnded = errors.New("bolt: the transaction has ended")

// tx is one open transaction of the application.
type tx struct {
	d       *Driver
	bolt    *bbolt.Tx
	h       driver.KeyHash
	before  driver.Record // as committed
	claim   driver.Record // as claimed in this transaction
	entered bool          // the key is among the Driver's held ones
	release func()        // gives the writer back
}

// BeginClaim implements [driver.TxDriver]. It waits for the writer as long as ctx
// allows; a duplicate within this Driver does not. The application must neither commit nor
// roll back the transaction it is given.
func (d *Driver) BeginClaim(ctx context.Context, p driver.ClaimParams) (driver.Tx[*bbolt.Tx], driver.Record, error) {
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
	r, write, err := d.peek(ctx, h, p)
	if err != nil || !write && !granted(r, p) {
		return nil, r, err
	}
	// From here on duplicates are answered at once, though the writer may have to be waited for.
	if other, ok := d.held.Enter(p.Key, r); !ok {
		return nil, inFlight(other, at(p.Now)), nil
	}
	t, r, err := d.begin(ctx, p.Key, func(old driver.Record) (driver.Record, bool) {
		next, _ := old.AfterClaim(p, at(p.Now))
		return next, granted(next, p)
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

// BeginComplete implements [driver.TxDriver]. It waits for the writer as long as
// ctx allows.
func (d *Driver) BeginComplete(ctx context.Context, p driver.HolderParams) (driver.Tx[*bbolt.Tx], error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t, _, err := d.begin(ctx, p.Key, func(old driver.Record) (driver.Record, bool) {
		return old, old.HeldBy(p.Token, p.Fence)
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

// begin takes the writer, opens a transaction, and puts into it the record that claim makes of
// the one there is. Without a grant it returns no transaction and leaves none behind.
func (d *Driver) begin(ctx context.Context, k driver.Key, claim func(driver.Record) (next driver.Record, granted bool)) (t *tx, r driver.Record, err error) {
	release, err := d.group.Hold(ctx)
	if err != nil {
		return nil, r, err
	}
	defer func() {
		if t == nil {
			release()
		}
	}()
	btx, err := writer{d}.Begin(ctx)
	if err != nil {
		return nil, r, err
	}
	defer func() {
		if t == nil {
			_ = btx.Rollback()
		}
	}()
	b, err := d.in(btx)
	if err != nil {
		return nil, r, err
	}
	h := d.hash(k)
	old, err := b.record(h)
	if err != nil {
		return nil, r, err
	}
	next, ok := claim(old)
	next = named(next, k)
	if !ok {
		return nil, next, nil
	}
	if err := b.replace(h, old, next); err != nil {
		return nil, r, err
	}
	return &tx{d: d, bolt: btx, h: h, before: old, claim: next, release: release}, next, nil
}

// Handle implements [driver.Tx].
func (t *tx) Handle() *bbolt.Tx { return t.bolt }

// end gives key and writer back.
func (t *tx) end() {
	if t.entered {
		t.d.held.Leave(t.claim.Key)
	}
	t.release()
	t.release = nil
}

// Commit implements [driver.Tx].
func (t *tx) Commit(ctx context.Context, p driver.CommitParams) error {
	if t.release == nil {
		return errEnded
	}
	defer t.end()
	err := t.commit(ctx, p)
	if err != nil && t.bolt.DB() != nil {
		_ = t.bolt.Rollback()
	}
	return err
}

func (t *tx) commit(ctx context.Context, p driver.CommitParams) error {
	if t.bolt.DB() == nil {
		return t.endedByApplication(ctx)
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if p.Key != t.claim.Key {
		return driver.ErrNotHolder
	}
	next, err := t.claim.AfterComplete(p.CompleteParams, at(p.Now))
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Discard {
		if err := t.discard(ctx); err != nil {
			return err
		}
	}
	b, err := t.d.in(t.bolt)
	if err != nil {
		return err
	}
	// The application has had the file in its hands: what it left is what counts.
	old, err := b.record(t.h)
	if err != nil {
		return err
	}
	if !p.Discard && !old.HeldBy(p.Token, p.Fence) {
		return driver.ErrNotHolder
	}
	if err := b.replace(t.h, old, next); err != nil {
		return err
	}
	if err := t.bolt.Commit(); err != nil {
		return t.resolve(ctx, err)
	}
	return nil
}

// discard undoes everything done in the transaction and goes on in a new one. bbolt
// has no savepoints. The slot keeps this Driver's calls out meanwhile, and nobody else in the
// process changes records unless it has a Driver of its own: that is looked for.
func (t *tx) discard(ctx context.Context) error {
	if err := t.bolt.Rollback(); err != nil {
		return err
	}
	btx, err := writer{t.d}.Begin(ctx)
	if err != nil {
		return err
	}
	t.bolt = btx
	b, err := t.d.in(btx)
	if err != nil {
		return err
	}
	now, err := b.record(t.h)
	if err != nil {
		return err
	}
	if now.State != t.before.State || now.Token != t.before.Token || now.Fence != t.before.Fence {
		return driver.ErrNotHolder
	}
	return nil
}

// resolve finds out how a commit ended that returned an error. bbolt rolls back, but when
// writing the meta page succeeded and its flush failed, readers see the commit all the same.
func (t *tx) resolve(ctx context.Context, err error) error {
	var r driver.Record
	look := t.d.view(context.WithoutCancel(ctx), func(b bucket) (err error) {
		r, err = b.record(t.h)
		return err
	})
	if look != nil {
		return fmt.Errorf("bolt: %w: %w", driver.ErrOutcomeUnknown, errors.Join(err, look))
	}
	if r.State == driver.StateComplete && r.Token == t.claim.Token && r.Fence == t.claim.Fence {
		return fmt.Errorf("bolt: %w: it is visible, but was not flushed to disk: %w", driver.ErrOutcomeUnknown, err)
	}
	return fmt.Errorf("bolt: commit: %w", err)
}

// endedByApplication answers for a transaction that the application has ended
// itself. If it committed, the claim is in the file without an outcome, which is what
// nobody can know any more; if it rolled back, there is no claim.
func (t *tx) endedByApplication(ctx context.Context) error {
	const what = "bolt: the application ended the transaction it was given"
	var r driver.Record
	err := t.d.view(context.WithoutCancel(ctx), func(b bucket) (err error) {
		r, err = b.record(t.h)
		return err
	})
	if err != nil {
		return fmt.Errorf(what+": %w: %w", driver.ErrOutcomeUnknown, err)
	}
	if r.HeldBy(t.claim.Token, t.claim.Fence) {
		return fmt.Errorf(what+": %w", driver.ErrOutcomeUnknown)
	}
	return errors.New(what + " with a rollback")
}

// Rollback implements [driver.Tx]. A transaction that has ended is left alone.
func (t *tx) Rollback(ctx context.Context) error {
	if t.release == nil {
		return nil
	}
	defer t.end()
	if t.bolt.DB() == nil {
		return t.endedByApplication(ctx)
	}
	return t.bolt.Rollback()
}
