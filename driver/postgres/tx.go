package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
)

// savepoint is set before the application's first statement: what Commit with
// Discard goes back to, and by which every Commit knows the transaction again.
const savepoint = "idem_claim"

const (
	sqlSave = "SAVEPOINT " + savepoint
	sqlKeep = "RELEASE SAVEPOINT " + savepoint
	sqlUndo = "ROLLBACK TO SAVEPOINT " + savepoint
)

// sqlLock reports whether the key was free of other transactions, whether this one
// can write, whether it takes a snapshot for every statement, and the instant. It
// also bounds for how long the transaction may be idle, when a setting follows.
//
// Locking: the exclusive advisory lock on the key, until the transaction ends,
// without waiting. The record is read by the next statement, whose snapshot sees
// what the lock's last holder committed.
const sqlLock = `SELECT pg_try_advisory_xact_lock($1), current_setting('transaction_read_only')::bool,
	current_setting('transaction_isolation') = 'read committed', clock_timestamp()`

// sqlRead returns the record with its result, or no row.
//
// Locking: none.
const sqlRead = `SELECT ` + storedColumns + `, t.result FROM {table} t WHERE t.kh = $1`

const setIdle = `, set_config('idle_in_transaction_session_timeout', '%d', true)`

// sqlHolder finds the claim of a holder.
//
// Locking: the row, until the transaction ends, waiting for whoever has it. The
// advisory lock, taken where it is free, tells others without making them wait.
const sqlHolder = `SELECT 1 FROM {table} WHERE kh = $1 AND state = 1 AND token = $2 AND fence = $3 FOR UPDATE`

// openTx is an open transaction that holds a key.
type openTx struct {
	d      *Driver
	conn   *pgxpool.Conn
	s      *session
	handle *handle
	holder driver.HolderParams
	kh     driver.KeyHash
	ended  bool

	// Of BeginClaim: the record as it was read, absent included, and the claim
	// that Commit stores together with the outcome.
	claim      bool
	fresh      bool // a snapshot a statement: see sqlLock
	seen, next driver.Record
}

// Handle implements [driver.Tx].
func (t *openTx) Handle() pgx.Tx { return t.handle }

// later returns a statement to prepare and not to send.
func later(st statement) statement {
	st.ahead = true
	return st
}

// lockSQL returns sqlLock with the setting.
func lockSQL(idle time.Duration) string {
	if idle == 0 {
		return sqlLock
	}
	return sqlLock + fmt.Sprintf(setIdle, idle.Milliseconds())
}

func beginSQL(o pgx.TxOptions) string {
	if o.BeginQuery != "" {
		return o.BeginQuery
	}
	sql := "BEGIN"
	if o.IsoLevel != "" {
		sql += " ISOLATION LEVEL " + string(o.IsoLevel)
	}
	for _, mode := range []string{string(o.AccessMode), string(o.DeferrableMode)} {
		if mode != "" {
			sql += " " + strings.ToUpper(mode)
		}
	}
	return sql
}

// open acquires a connection and sends the opening of a transaction: the lock on
// a key, and read. What ends the transaction is prepared before it begins: inside,
// a failure to do so would undo the application's work. The results are those of
// the two statements. When open fails, nothing is left open.
func (d *Driver) open(ctx context.Context, kh driver.KeyHash, read statement, store statement) (*pgxpool.Conn, []result, error) {
	if err := d.ready(ctx); err != nil {
		return nil, nil, err
	}
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, d.translate(ctx, err)
	}
	s := sessionOf(c)
	lost := s.lost
	all := []statement{d.begin, d.stmt(d.sqlLock, int8(d.lock(kh))), read, d.save, later(d.keep), later(store), later(d.commit)}
	results, err := s.exec(ctx, all...)
	if err != nil && s.lost != lost {
		// A prepared statement was of no use, and the transaction fails for that.
		if d.rollback(ctx, s.conn); s.conn.TxStatus() == 'I' {
			results, err = s.exec(ctx, all...)
		}
	}
	if err != nil {
		return nil, nil, d.abort(ctx, c, err)
	}
	return c, results[1:], nil
}

// abort rolls back, gives the connection back and returns err, translated.
func (d *Driver) abort(ctx context.Context, c *pgxpool.Conn, err error) error {
	d.rollback(ctx, c.Conn().PgConn())
	d.release(c, err)
	return d.translate(ctx, err)
}

// BeginClaim implements [driver.TxDriver]. A duplicate costs a second round trip,
// which rolls back, and so does a key that has an outcome which this process has
// not seen yet.
func (d *Driver) BeginClaim(ctx context.Context, p driver.ClaimParams) (driver.Tx[pgx.Tx], driver.Record, error) {
	if err := p.Validate(); err != nil {
		return nil, driver.Record{}, err
	}
	// The number of the advisory lock depends on the table, which is looked up once.
	if err := d.ready(ctx); err != nil {
		return nil, driver.Record{}, err
	}
	kh := d.hash(p.Key)
	if d.finished.Has(kh) {
		var r driver.Record
		var replay bool
		err := d.do(ctx, func(s *session) (err error) {
			r, replay, err = d.replay(ctx, s, kh, p)
			return err
		})
		if err != nil || replay {
			return nil, r, err
		}
	}
	c, results, err := d.open(ctx, kh, d.stmt(sqlRead, uuid(kh)), d.insertOutcome)
	if err != nil {
		return nil, driver.Record{}, err
	}
	said := only(results[0])
	free, readOnly, fresh, now := said.bool(), said.bool(), said.bool(), said.instant()
	if !p.Now.IsZero() {
		now = driver.Micro(p.Now)
	}
	seen := driver.Record{Now: now}
	if err = said.err; err == nil && len(results[1].rows) > 0 {
		row := only(results[1])
		seen, err = row.result(row.stored(now), p.Key)
	}
	if err == nil && readOnly {
		// Said before the work is done rather than when it is committed.
		err = readOnlyError{}
	}
	if err != nil {
		return nil, driver.Record{}, d.abort(ctx, c, err)
	}
	next, _ := seen.AfterClaim(p, seen.Now)
	next = micro(next)
	granted := next.State == driver.StateInFlight && next.Token == p.Token
	if granted && !free {
		granted, next = false, busy(p.Key, seen)
	}
	if !granted {
		if next.State == driver.StateComplete {
			d.finished.Add(kh)
		}
		return nil, next, d.abort(ctx, c, nil)
	}
	t := &openTx{
		d: d, conn: c, s: sessionOf(c), handle: newHandle(c.Conn()), kh: kh, claim: true, fresh: fresh, seen: seen, next: next,
		holder: driver.HolderParams{Key: p.Key, Token: p.Token, Fence: next.Fence},
	}
	return t, next, nil
}

// BeginComplete implements [driver.TxDriver].
func (d *Driver) BeginComplete(ctx context.Context, p driver.HolderParams) (driver.Tx[pgx.Tx], error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := d.ready(ctx); err != nil {
		return nil, err
	}
	kh := d.hash(p.Key)
	c, results, err := d.open(ctx, kh, d.stmt(sqlHolder, d.holder(p)...), d.completeOutcome)
	if err != nil {
		return nil, err
	}
	if len(results[1].rows) == 0 {
		return nil, d.abort(ctx, c, driver.ErrNotHolder)
	}
	p.Now = time.Time{}
	return &openTx{d: d, conn: c, s: sessionOf(c), handle: newHandle(c.Conn()), kh: kh, holder: p}, nil
}

// Rollback implements [driver.Tx]. It does not depend on ctx, and its nil means
// that nothing of the transaction will ever be committed.
func (t *openTx) Rollback(ctx context.Context) error {
	if t.ended {
		return pgx.ErrTxClosed
	}
	t.end(ctx, nil)
	return nil
}

// end rolls back what is still open and gives the connection back.
func (t *openTx) end(ctx context.Context, err error) {
	t.d.rollback(ctx, t.conn.Conn().PgConn())
	t.d.release(t.conn, err)
	t.drop()
}

// drop gives the connection back; one that is not idle is destroyed.
func (t *openTx) drop() {
	t.ended = true
	t.handle.close()
	t.conn.Release()
}

// usable returns why a commit cannot even be sent.
func (t *openTx) usable(discard bool) error {
	conn := t.conn.Conn().PgConn()
	switch {
	case conn.IsClosed():
		return fmt.Errorf("%w: the connection was lost inside the transaction: %w", driver.ErrRetryable, pgconn.ErrConnClosed)
	case conn.IsBusy():
		return errOpenRows
	case conn.TxStatus() == 'I':
		return errEndedBySQL
	case conn.TxStatus() == 'E' && !discard:
		return fmt.Errorf("%w: a statement failed and its error was not returned", pgx.ErrTxCommitRollback)
	}
	return nil
}
