package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// The columns of a record, in the order of scan, without the result.
const columns = `kh, scope, id, state, operation, fingerprint, summary, token, fence, attempt, hold, note,
	created_us, lease_us, completed_us, retain_us, grace_us, result IS NOT NULL`

// A point read by the unique index; outside a transaction it takes no lock in WAL mode,
// inside one the write lock is held already.
const getSQL = `SELECT ` + columns + `, result FROM idem_keys WHERE kh = ?`

// Runs under the write lock, for a key that getSQL did not find in the same transaction.
// The unique index is what makes a second record of a key impossible.
const insertSQL = `INSERT INTO idem_keys (scope, id, state, operation, fingerprint, summary, token, fence, attempt,
	hold, note, created_us, lease_us, completed_us, retain_us, grace_us, due_us, result, kh)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// Runs under the write lock, for a record that getSQL returned in the same transaction:
// nobody can have changed it since.
const updateSQL = `UPDATE idem_keys SET scope = ?, id = ?, state = ?, operation = ?, fingerprint = ?, summary = ?,
	token = ?, fence = ?, attempt = ?, hold = ?, note = ?, created_us = ?, lease_us = ?, completed_us = ?,
	retain_us = ?, grace_us = ?, due_us = ?, result = ? WHERE kh = ?`

// updateSQL for the claim of a transaction, under the write lock that it took: the
// application has had the table in its hands, and what it left is what counts.
const settleSQL = updateSQL + ` AND state = 1 AND token = ? AND fence = ?`

// Runs under the write lock, for a record that was read in the same transaction.
// It touches one row and its index entries.
const deleteSQL = `DELETE FROM idem_keys WHERE kh = ?`

type scanner interface{ Scan(dest ...any) error }

// scan reads the columns, and the result when withResult is set; otherwise a result
// that is there comes back empty.
func scan(row scanner, withResult bool) (r driver.Record, h driver.KeyHash, err error) {
	var kh, token, result []byte
	var scope, id sql.NullString
	var state int
	var hold, present bool
	var created, lease, completed, retain, grace int64
	dest := []any{
		&kh, &scope, &id, &state, &r.Operation, &r.Fingerprint, &r.Summary, &token, &r.Fence, &r.Attempt, &hold, &r.Note,
		&created, &lease, &completed, &retain, &grace, &present,
	}
	if withResult {
		dest = append(dest, &result)
	}
	if err := row.Scan(dest...); err != nil {
		return driver.Record{}, h, err
	}
	if len(kh) != len(h) || len(token) != len(r.Token) || state <= int(driver.StateAbsent) || state > int(driver.StateReleased) {
		return driver.Record{}, h, fmt.Errorf("sqlite: %w: a row of state %d", driver.ErrForeignRecord, state)
	}
	r.Key = driver.Key{Scope: scope.String, ID: id.String}
	r.State = driver.State(state)
	r.Token = driver.Token(token)
	r.Hold = hold
	r.CreatedAt, r.LeaseUntil, r.CompletedAt = instant(created), instant(lease), instant(completed)
	r.RetainUntil, r.GraceUntil = instant(retain), instant(grace)
	if present { // a result of no bytes is scanned as nil
		r.Result = append([]byte{}, result...)
	}
	return r, driver.KeyHash(kh), nil
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// args returns the arguments of insertSQL and updateSQL.
func (d *Driver) args(h driver.KeyHash, r driver.Record) []any {
	var scope, id, due any
	if len(d.secret) == 0 {
		scope, id = r.Key.Scope, r.Key.ID
	}
	if t, ok := r.DueAt(); ok {
		due = micros(t)
	}
	return []any{
		scope, id, int(r.State), r.Operation, r.Fingerprint, r.Summary, r.Token[:], r.Fence, r.Attempt,
		r.Hold, r.Note, micros(r.CreatedAt), micros(r.LeaseUntil), micros(r.CompletedAt), micros(r.RetainUntil),
		micros(r.GraceUntil), due, r.Result, h[:],
	}
}

// named fills in the key of a record that was read by it, and refuses a record of another key.
func named(r driver.Record, k driver.Key) (driver.Record, error) {
	if r.State == driver.StateAbsent {
		return r, nil
	}
	if r.Key != (driver.Key{}) && r.Key != k {
		return driver.Record{}, fmt.Errorf("sqlite: %w: another key has the same hash", driver.ErrForeignRecord)
	}
	r.Key = k
	return r, nil
}

// one scans the row of getSQL; no row is a record in StateAbsent.
func one(row *sql.Row, k driver.Key) (driver.Record, error) {
	r, _, err := scan(row, true)
	if err == sql.ErrNoRows {
		return driver.Record{}, nil
	}
	if err != nil {
		return driver.Record{}, err
	}
	return named(r, k)
}

// read returns the committed record of a key, without waiting for a writer.
func (d *Driver) read(ctx context.Context, k driver.Key) (r driver.Record, err error) {
	st, err := d.prepared(ctx)
	if err != nil {
		return r, err
	}
	limit, cancel := d.bounded(ctx)
	defer cancel()
	h := d.hash(k)
	err = retry(limit, func() error {
		r, err = one(st[stmtGet].QueryRowContext(limit, h[:]), k)
		return err
	})
	return r, d.translate(ctx, limit, err)
}

// get returns the record of a key as the transaction sees it.
func (t *txn) get(h driver.KeyHash, k driver.Key) (driver.Record, error) {
	return one(t.stmt(stmtGet).QueryRowContext(t.ctx, h[:]), k)
}

// put replaces the record old under h by next.
func (t *txn) put(h driver.KeyHash, old, next driver.Record) error {
	i := stmtUpdate
	if old.State == driver.StateAbsent {
		i = stmtInsert
	}
	_, err := t.stmt(i).ExecContext(t.ctx, t.d.args(h, next)...)
	return err
}

// settle replaces a claim by its outcome. It returns [driver.ErrNotHolder] when the
// claim is not there.
func (t *txn) settle(h driver.KeyHash, claim, outcome driver.Record) error {
	res, err := t.stmt(stmtSettle).ExecContext(t.ctx, append(t.d.args(h, outcome), claim.Token[:], claim.Fence)...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = driver.ErrNotHolder
	}
	return err
}

// remove deletes the record under h.
func (t *txn) remove(h driver.KeyHash) error {
	_, err := t.stmt(stmtDelete).ExecContext(t.ctx, h[:])
	return err
}
