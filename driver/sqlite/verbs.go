package sqlite

import (
	"context"
	"time"

	"github.com/idem-go/idem/driver"
)

// Claim implements [driver.Driver]. A claim that changes nothing, such as the
// replay of a finished record, only reads.
func (d *Driver) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Record{}, err
	}
	if r, ok := d.held.Get(p.Key); ok && r.Token != p.Token {
		return inFlight(r, at(p.Now)), nil
	}
	h := d.hash(p.Key)
	r, fresh, write, err := d.peek(ctx, h, p)
	if err != nil || !write {
		return r, err
	}
	err = d.write(ctx, func(t *txn) (_ bool, err error) {
		r, write, err = t.claim(h, p, fresh)
		return write, err
	})
	if err != nil {
		return driver.Record{}, err
	}
	return r, nil
}

// claim claims a key, and returns what becomes of its record and whether that was
// written. fresh says that there was no record a moment ago.
func (t *txn) claim(h driver.KeyHash, p driver.ClaimParams, fresh bool) (r driver.Record, wrote bool, err error) {
	now := at(p.Now)
	if fresh {
		r, _ = driver.Record{}.AfterClaim(p, now)
		if ok, err := t.insert(h, r); ok || err != nil {
			return r, ok, err
		}
	}
	old, err := t.get(h, p.Key)
	if err != nil {
		return driver.Record{}, false, err
	}
	r, write := old.AfterClaim(p, now)
	if write {
		err = t.put(h, old, r)
	}
	return r, write, err
}

// peek returns what the claim p would make of the record, and whether it has to be
// written: only then is the writer needed. fresh says that there is none.
func (d *Driver) peek(ctx context.Context, h driver.KeyHash, p driver.ClaimParams) (r driver.Record, fresh, write bool, err error) {
	old, err := d.read(ctx, h, p.Key)
	if err != nil {
		return driver.Record{}, false, false, err
	}
	d.learn(h, old)
	r, write = old.AfterClaim(p, at(p.Now))
	return r, old.State == driver.StateAbsent, write, nil
}

// learn remembers a key that has an outcome, and forgets one that has none any more.
func (d *Driver) learn(h driver.KeyHash, r driver.Record) {
	if r.State == driver.StateComplete {
		d.finished.Add(h)
	} else {
		d.finished.Remove(h)
	}
}

// inFlight is the answer to a duplicate while a transaction of this Driver holds
// the key. A transaction has no lease: it holds the key until it ends.
func inFlight(r driver.Record, now time.Time) driver.Record {
	r.Now = now
	if !now.Before(r.LeaseUntil) {
		r.LeaseUntil = now.Add(time.Second)
	}
	return r
}

// write runs fn in a write transaction that it may share with other calls.
func (d *Driver) write(ctx context.Context, fn func(*txn) (wrote bool, err error)) error {
	if _, err := d.prepared(ctx); err != nil {
		return err
	}
	limit, cancel := d.bounded(ctx)
	defer cancel()
	return d.translate(ctx, limit, d.group.Do(limit, fn))
}

// change applies one verb of a holder.
func (d *Driver) change(ctx context.Context, p driver.HolderParams, after func(driver.Record, time.Time) (driver.Record, error)) error {
	h := d.hash(p.Key)
	return d.write(ctx, func(t *txn) (bool, error) {
		old, err := t.get(h, p.Key)
		if err != nil {
			return false, err
		}
		next, err := after(old, at(p.Now))
		if err != nil {
			return false, err
		}
		return true, t.put(h, old, next)
	})
}

// Renew implements [driver.Driver].
func (d *Driver) Renew(ctx context.Context, p driver.RenewParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return d.change(ctx, p.HolderParams, func(r driver.Record, now time.Time) (driver.Record, error) {
		return r.AfterRenew(p, now)
	})
}

// Complete implements [driver.Driver].
func (d *Driver) Complete(ctx context.Context, p driver.CompleteParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	h := d.hash(p.Key)
	return d.write(ctx, func(t *txn) (bool, error) {
		// What the claim is besides does not matter, unless it is not there any more.
		claim := driver.Record{State: driver.StateInFlight, Token: p.Token, Fence: p.Fence}
		next, err := claim.AfterComplete(p, at(p.Now))
		if err != nil {
			return false, err
		}
		if err = t.settle(h, next); err != driver.ErrNotHolder {
			return true, err
		}
		old, err := t.get(h, p.Key)
		if err != nil {
			return false, err
		}
		if next, err = old.AfterComplete(p, at(p.Now)); err != nil {
			return false, err
		}
		return true, t.put(h, old, next)
	})
}

// Release implements [driver.Driver].
func (d *Driver) Release(ctx context.Context, p driver.ReleaseParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return d.change(ctx, p.HolderParams, func(r driver.Record, now time.Time) (driver.Record, error) {
		return r.AfterRelease(p, now)
	})
}

// Get implements [driver.Driver]. While a transaction holds the key it returns the
// record as it was before.
func (d *Driver) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Record{}, err
	}
	r, err := d.read(ctx, d.hash(p.Key), p.Key)
	if err != nil {
		return driver.Record{}, err
	}
	r.Now = at(p.Now)
	return r, nil
}

// Forget implements [driver.Driver].
func (d *Driver) Forget(ctx context.Context, p driver.ForgetParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	h := d.hash(p.Key)
	return d.write(ctx, func(t *txn) (bool, error) {
		r, err := t.get(h, p.Key)
		if err != nil {
			return false, err
		}
		remove, err := r.AfterForget(p)
		if !remove {
			return false, err
		}
		return true, t.remove(h)
	})
}
