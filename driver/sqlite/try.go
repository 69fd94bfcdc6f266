package sqlite

import (
	"context"
	"time"

	"github.com/idem-go/idem/driver"
)

// How long tryClaim waits for another process that has the write lock.
const tryFor = 2 * time.Millisecond

// tryClaim begins and claims a key that is taken to be absent, without looking first: to
// look takes a tenth of a transaction. It returns false, and has changed nothing, unless
// the writer is free, since a record that is there shall be read without waiting for it.
func (d *Driver) tryClaim(ctx context.Context, h driver.KeyHash, p driver.ClaimParams) (t *tx, r driver.Record, ok bool, err error) {
	if d.turn != nil || d.finished.Has(h) {
		return nil, r, false, nil
	}
	st, err := d.prepared(ctx)
	if err != nil {
		return nil, r, false, err
	}
	release, free := d.group.TryHold()
	if !free {
		return nil, r, false, nil
	}
	var x *txn
	defer func() {
		if t == nil {
			if x != nil {
				_ = x.rollback()
			}
			release()
		}
	}()
	limit, cancel := d.bounded(ctx)
	defer cancel()
	x, err = d.beginOn(limit, st, (*txn).tryLock)
	if err != nil { // busy, or what those who look first answer better: a file that is read-only can be read
		return nil, r, false, nil
	}
	r, wrote, err := x.claim(h, p, true)
	if err == nil && !granted(r, p) {
		d.learn(h, r)
		return nil, r, true, nil
	}
	if err == nil {
		if other, ok := d.held.Enter(p.Key, r); !ok { // somebody waits for the writer with it
			return nil, inFlight(other, at(p.Now)), true, nil
		}
		if err = x.exec(stmtSavepoint); err != nil {
			d.held.Leave(p.Key)
		}
	}
	if err != nil {
		return nil, driver.Record{}, false, d.translate(ctx, limit, err)
	}
	return &tx{d: d, txn: x, handle: x.tx, h: h, claim: r, made: wrote, entered: true, release: release}, r, true, nil
}

// tryLock is lock that gives up soon.
func (t *txn) tryLock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	return t.lock(ctx)
}
