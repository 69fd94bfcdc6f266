package postgres

import (
	"context"

	"github.com/idem-go/idem/driver"
)

// sqlHeld reads the state of a record of one holder. It is sent when a change
// found nothing to do, as a statement of its own: only a new snapshot sees what a
// first send of the same verb committed while the change waited for it.
//
// Locking: none.
const sqlHeld = `SELECT state FROM {table} WHERE kh = $1 AND token = $2 AND fence = $3`

// now5 and its like are the instant that is given or, for NULL, when the server began
// with the statement: the same in all of it, so that it needs no query around it. That is
// not later than when a wait for a row has ended, and not the beginning of a transaction,
// as now() is.
const (
	now1 = `coalesce($1::timestamptz, statement_timestamp())`
	now5 = `coalesce($5::timestamptz, statement_timestamp())`
	now9 = `coalesce($9::timestamptz, statement_timestamp())`
)

// sqlRenew locks the row. It waits for a transaction that completes the claim.
const sqlRenew = `UPDATE {table} SET lease_until = ` + now5 + ` + $4::interval
	WHERE kh = $1 AND state = 1 AND token = $2 AND fence = $3`

// sqlComplete locks the row, and waits for whoever has it. The index on
// purge_after is touched only when the record is due earlier than the claim was.
const sqlComplete = `UPDATE {table} SET state = 2, result = $4, completed_at = ` + now9 + `, retain_until = ` + now9 + ` + $5::interval,
		grace_until = ` + now9 + ` + $5::interval + $6::interval, purge_after = least(purge_after, ` + now9 + ` + $7::interval),
		note = CASE WHEN $8 = '' THEN note ELSE $8 END
	WHERE kh = $1 AND state = 1 AND token = $2 AND fence = $3`

// sqlRelease locks the row, and waits for whoever has it. A released record is
// remembered until its lease would have ended, one with a note for longer.
const sqlRelease = `UPDATE {table} SET state = 3, retain_until = CASE WHEN $4 = '' AND note = '' THEN lease_until ELSE retain_until END,
		purge_after = least(purge_after, CASE WHEN $4 = '' AND note = '' THEN lease_until ELSE retain_until END),
		note = CASE WHEN $4 = '' THEN note ELSE $4 END
	WHERE kh = $1 AND state = 1 AND token = $2 AND fence = $3`

// sqlAbandon locks the row, and waits for whoever has it.
const sqlAbandon = `UPDATE {table} SET lease_until = least(lease_until, ` + now5 + `),
		note = CASE WHEN $4 = '' THEN note ELSE $4 END
	WHERE kh = $1 AND state = 1 AND token = $2 AND fence = $3`

// sqlForget locks the row, and waits for whoever has it.
const sqlForget = `DELETE FROM {table} WHERE kh = $1 AND state = 2 AND token = $2 AND fence = $3`

// sqlExists takes no lock.
const sqlExists = `SELECT 1 FROM {table} WHERE kh = $1`

// holder returns the parameters $1 to $3 of the statements of a holder.
func (d *Driver) holder(p driver.HolderParams) []arg {
	return []arg{uuid(d.hash(p.Key)), uuid(p.Token), int8(p.Fence)}
}

// settle sends a change and, when that found nothing to do, reads whether it has
// been done: whether the record of the holder is in that state already.
func (d *Driver) settle(ctx context.Context, p driver.HolderParams, template string, done func(driver.State) bool, args ...arg) error {
	return d.do(ctx, func(s *session) error {
		h := d.holder(p)
		results, err := s.exec(ctx, d.stmt(template, append(h, args...)...))
		if err != nil || results[0].tag.RowsAffected() > 0 {
			return err
		}
		results, err = s.exec(ctx, stmt(d.sql(sqlHeld), h...))
		if err != nil {
			return err
		}
		if len(results[0].rows) == 0 {
			return driver.ErrNotHolder
		}
		state := only(results[0])
		if s := driver.State(state.int2()); state.err == nil && !done(s) {
			return driver.ErrNotHolder
		}
		return state.err
	})
}

// Renew implements [driver.Driver].
func (d *Driver) Renew(ctx context.Context, p driver.RenewParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return d.do(ctx, func(s *session) error {
		results, err := s.exec(ctx, d.stmt(sqlRenew, append(d.holder(p.HolderParams), interval(p.Lease), instant(p.Now))...))
		if err == nil && results[0].tag.RowsAffected() == 0 {
			err = driver.ErrNotHolder
		}
		return err
	})
}

// Complete implements [driver.Driver].
func (d *Driver) Complete(ctx context.Context, p driver.CompleteParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	err := d.settle(ctx, p.HolderParams, sqlComplete, func(s driver.State) bool { return s == driver.StateComplete }, outcome(p)...)
	if err == nil {
		d.finished.Add(d.hash(p.Key))
	}
	return err
}

// outcome returns the parameters of a completion: $4 to $9 of sqlComplete.
func outcome(p driver.CompleteParams) []arg {
	due := p.Retention // when the result is dropped, or the record where there is none to drop
	if p.Result == nil {
		due += p.Grace
	}
	return []arg{bytea(p.Result), interval(p.Retention), interval(p.Grace), interval(due), text(p.Note), instant(p.Now)}
}

// Release implements [driver.Driver].
func (d *Driver) Release(ctx context.Context, p driver.ReleaseParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if p.Abandon {
		return d.settle(ctx, p.HolderParams, sqlAbandon, func(s driver.State) bool {
			return s == driver.StateInFlight || s == driver.StateReleased
		}, text(p.Note), instant(p.Now))
	}
	return d.settle(ctx, p.HolderParams, sqlRelease, func(s driver.State) bool { return s == driver.StateReleased }, text(p.Note))
}

// Forget implements [driver.Driver].
func (d *Driver) Forget(ctx context.Context, p driver.ForgetParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return d.do(ctx, func(s *session) error {
		h := d.holder(p.HolderParams)
		results, err := s.exec(ctx, stmt(d.sql(sqlForget), h...), stmt(d.sql(sqlExists), h[0]))
		if err == nil && len(results[1].rows) > 0 {
			err = driver.ErrNotHolder
		}
		return err
	})
}
