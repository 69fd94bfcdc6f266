package sqlite

import (
	"context"
	"time"

	"github.com/idem-go/idem/driver"
)

// How long tryClaim waits for other processes, which may have the write lock.
const tryFor = 2 * time.Millisecond

// tryClaim begins and claims a key that is taken to be absent, without looking first: to
// look takes a fifth of a transaction. It returns false, and has changed nothing, unless the
// writer is free, since a record that is there shall be read without waiting for it.
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
	limit, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	now, wrote := at(p.Now), false
	x, err := d.beginOn(limit, st, func(x *txn, limit context.Context) error {
		r, _ = driver.Record{}.AfterClaim(p, now)
		wrote, err = x.insert(limit, h, r)
		return err
	})
	if err != nil { // busy, or what those who look first answer better: a file that is read-only can be read
		release()
		return nil, r, false, nil
	}
	defer func() {
		if t == nil {
			_ = x.rollback()
			release()
		}
	}()
	if !wrote {
		if r, wrote, err = x.reclaim(h, p, now); err != nil || !granted(r, p) {
			d.learn(h, r)
			return nil, r, true, err
		}
	}
	if other, ok := d.held.Enter(p.Key, r); !ok { // somebody waits for the writer with it
		return nil, inFlight(other, now), true, nil
	}
	if err := x.exec(stmtSavepoint); err != nil {
		d.held.Leave(p.Key)
		return nil, driver.Record{}, false, err
	}
	return &tx{d: d, txn: x, handle: x.tx, h: h, claim: r, made: wrote, entered: true, release: release}, r, true, nil
}
