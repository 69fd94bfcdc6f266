package bolt

import (
	"context"
	"time"

	"go.etcd.io/bbolt"

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
	r, write, err := d.peek(ctx, h, p)
	if err != nil || !write {
		return r, err
	}
	err = d.write(ctx, func(b bucket) (bool, error) {
		old, err := b.record(h)
		if err != nil {
			return false, err
		}
		r, write = old.AfterClaim(p, at(p.Now))
		if !write {
			return false, nil
		}
		return true, b.replace(h, old, r)
	})
	if err != nil {
		return driver.Record{}, err
	}
	return named(r, p.Key), nil
}

// peek returns what the claim p would make of the record, and whether it has to be
// written: only then is the writer needed.
func (d *Driver) peek(ctx context.Context, h driver.KeyHash, p driver.ClaimParams) (r driver.Record, write bool, err error) {
	err = d.view(ctx, func(b bucket) error {
		old, err := b.record(h)
		if err == nil {
			r, write = old.AfterClaim(p, at(p.Now))
		}
		return err
	})
	return named(r, p.Key), write, err
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

// named fills in the key of a record that is stored without it.
func named(r driver.Record, k driver.Key) driver.Record {
	if r.State != driver.StateAbsent {
		r.Key = k
	}
	return r
}

// write runs fn in a write transaction that it may share with other calls.
func (d *Driver) write(ctx context.Context, fn func(bucket) (wrote bool, err error)) error {
	return d.group.Do(ctx, func(tx *bbolt.Tx) (bool, error) {
		b, err := d.in(tx)
		if err != nil {
			return false, err
		}
		return fn(b)
	})
}

// change applies one verb of a holder.
func (d *Driver) change(ctx context.Context, p driver.HolderParams, after func(driver.Record, time.Time) (driver.Record, error)) error {
	h := d.hash(p.Key)
	return d.write(ctx, func(b bucket) (bool, error) {
		old, err := b.record(h)
		if err != nil {
			return false, err
		}
		next, err := after(old, at(p.Now))
		if err != nil {
			return false, err
		}
		return true, b.replace(h, old, named(next, p.Key))
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
	return d.change(ctx, p.HolderParams, func(r driver.Record, now time.Time) (driver.Record, error) {
		return r.AfterComplete(p, now)
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
	var r driver.Record
	err := d.view(ctx, func(b bucket) (err error) {
		r, err = b.record(d.hash(p.Key))
		return err
	})
	if err != nil {
		return driver.Record{}, err
	}
	r.Now = at(p.Now)
	return named(r, p.Key), nil
}

// Forget implements [driver.Driver].
func (d *Driver) Forget(ctx context.Context, p driver.ForgetParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	h := d.hash(p.Key)
	return d.write(ctx, func(b bucket) (bool, error) {
		r, err := b.record(h)
		if err != nil {
			return false, err
		}
		remove, err := r.AfterForget(p)
		if !remove {
			return false, err
		}
		return true, b.remove(h, r)
	})
}
