package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// The columns of a record, in the order of fields.dest, without the result.
const columns = `scope, id, state, operation, fingerprint, summary, token, fence, attempt, hold, note,
	created_us, lease_us, completed_us, retain_us, grace_us`

// A point read by the unique index; outside a transaction it takes no lock in WAL mode,
// inside one the write lock is held already.
const getSQL = `SELECT ` + columns + `, result FROM idem_keys WHERE kh = ?`

// Runs under the write lock, for a key that was not found before it was taken, or not looked
// for: it inserts nothing when there is a record. The unique index is what makes a second
// record of a key impossible.
const insertSQL = `INSERT INTO idem_keys (scope, id, state, operation, fingerprint, summary, token, fence, attempt,
	hold, note, created_us, lease_us, completed_us, retain_us, grace_us, due_us, kh)
VALUES (?, ?, 1, ?, ?, ?, ?, ?, 1, ?, '', ?, ?, 0, ?, 0, ?, ?) ON CONFLICT (kh) DO NOTHING`

// Runs under the write lock, for a record that getSQL returned in the same transaction:
// nobody can have changed it since.
const updateSQL = `UPDATE idem_keys SET scope = ?, id = ?, state = ?, operation = ?, fingerprint = ?, summary = ?,
	token = ?, fence = ?, attempt = ?, hold = ?, note = ?, created_us = ?, lease_us = ?, completed_us = ?,
	retain_us = ?, grace_us = ?, due_us = ?, result = ? WHERE kh = ?`

// Runs under the write lock, on what a completion changes of a claim, if that is still
// there: in a transaction the application has had the table in its hands, and what it
// left is what counts.
const settleSQL = `UPDATE idem_keys SET state = ?, note = coalesce(nullif(?, ''), note), completed_us = ?, retain_us = ?,
	grace_us = ?, due_us = ?, result = ? WHERE kh = ? AND state = 1 AND token = ? AND fence = ?`

// Runs under the write lock, for a record that was read in the same transaction.
// It touches one row and its index entries.
const deleteSQL = `DELETE FROM idem_keys WHERE kh = ?`

type scanner interface{ Scan(dest ...any) error }

// fields is where a row is scanned to.
type fields struct {
	r                                        driver.Record
	scope, id                                sql.NullString
	state, hold                              int64
	token                                    []byte
	created, lease, completed, retain, grace int64
}

func (f *fields) dest(more ...any) []any {
	return append([]any{
		&f.scope, &f.id, &f.state, &f.r.Operation, &f.r.Fingerprint, &f.r.Summary, &f.token, &f.r.Fence, &f.r.Attempt,
		&f.hold, &f.r.Note, &f.created, &f.lease, &f.completed, &f.retain, &f.grace,
	}, more...)
}

func (f *fields) record() (driver.Record, error) {
	r := f.r
	if len(f.token) != len(r.Token) || f.state <= int64(driver.StateAbsent) || f.state > int64(driver.StateReleased) || f.hold&^1 != 0 {
		return driver.Record{}, fmt.Errorf("sqlite: %w: a row of state %d", driver.ErrForeignRecord, f.state)
	}
	r.Key = driver.Key{Scope: f.scope.String, ID: f.id.String}
	r.State = driver.State(f.state)
	r.Token = driver.Token(f.token)
	r.Hold = f.hold == 1
	r.CreatedAt, r.LeaseUntil, r.CompletedAt = instant(f.created), instant(f.lease), instant(f.completed)
	r.RetainUntil, r.GraceUntil = instant(f.retain), instant(f.grace)
	return r, nil
}

// scan reads a row of a result set that begins with the hash and ends with whether there
// is a result, which comes back empty then.
func scan(row scanner) (r driver.Record, h driver.KeyHash, err error) {
	var f fields
	var kh []byte
	var present bool
	if err := row.Scan(append([]any{&kh}, f.dest(&present)...)...); err != nil {
		return driver.Record{}, h, err
	}
	if len(kh) != len(h) {
		return driver.Record{}, h, fmt.Errorf("sqlite: %w: a hash of %d bytes", driver.ErrForeignRecord, len(kh))
	}
	if r, err = f.record(); err != nil {
		return driver.Record{}, h, err
	}
	if present {
		r.Result = []byte{}
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

// args returns the arguments of updateSQL.
func (d *Driver) args(h driver.KeyHash, r driver.Record) []any {
	scope, id := d.readable(r.Key)
	return []any{
		scope, id, int(r.State), r.Operation, r.Fingerprint, r.Summary, r.Token[:], r.Fence, r.Attempt,
		r.Hold, r.Note, micros(r.CreatedAt), micros(r.LeaseUntil), micros(r.CompletedAt), micros(r.RetainUntil),
		micros(r.GraceUntil), due(r), r.Result, h[:],
	}
}

// readable returns what stands beside the hash of a key for people to read.
func (d *Driver) readable(k driver.Key) (scope, id any) {
	if len(d.secret) > 0 {
		return nil, nil
	}
	return k.Scope, k.ID
}

// due is when Purge looks at the record, or NULL.
func due(r driver.Record) any {
	if t, ok := r.DueAt(); ok {
		return micros(t)
	}
	return nil
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
	var f fields
	var result any // tells NULL from a result of no bytes
	if err := row.Scan(f.dest(&result)...); err == sql.ErrNoRows {
		return driver.Record{}, nil
	} else if err != nil {
		return driver.Record{}, err
	}
	r, err := f.record()
	if err != nil {
		return driver.Record{}, err
	}
	if b, ok := result.([]byte); ok {
		r.Result = b
		if b == nil {
			r.Result = []byte{}
		}
	}
	return named(r, k)
}

// read returns the committed record of a key, without waiting for a writer.
func (d *Driver) read(ctx context.Context, h driver.KeyHash, k driver.Key) (r driver.Record, err error) {
	st, err := d.prepared(ctx)
	if err != nil {
		return r, err
	}
	limit, cancel := d.bounded(ctx)
	defer cancel()
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
	if old.State == driver.StateAbsent {
		ok, err := t.insert(h, next)
		if err == nil && !ok {
			err = fmt.Errorf("sqlite: %w: a record that was not there a moment ago", driver.ErrForeignRecord)
		}
		return err
	}
	_, err := t.stmt(stmtUpdate).ExecContext(t.ctx, t.d.args(h, next)...)
	return err
}

// insert adds the first claim of a key, unless it has a record.
func (t *txn) insert(h driver.KeyHash, r driver.Record) (bool, error) {
	scope, id := t.d.readable(r.Key)
	n, err := changed(t.stmt(stmtInsert).ExecContext(t.ctx, scope, id, r.Operation, r.Fingerprint, r.Summary, r.Token[:], r.Fence,
		r.Hold, micros(r.CreatedAt), micros(r.LeaseUntil), micros(r.RetainUntil), due(r), h[:]))
	return n > 0, err
}

// settle replaces a claim by its outcome. It returns [driver.ErrNotHolder] when the
// claim is not there.
func (t *txn) settle(h driver.KeyHash, r driver.Record) error {
	n, err := changed(t.stmt(stmtSettle).ExecContext(t.ctx, int64(r.State), r.Note, micros(r.CompletedAt), micros(r.RetainUntil),
		micros(r.GraceUntil), due(r), r.Result, h[:], r.Token[:], r.Fence))
	if err == nil && n == 0 {
		err = driver.ErrNotHolder
	}
	return err
}

// changed returns how many rows a statement has changed.
func changed(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// remove deletes the record under h.
func (t *txn) remove(h driver.KeyHash) error {
	_, err := t.stmt(stmtDelete).ExecContext(t.ctx, h[:])
	return err
}
