package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
)

var _ driver.BatchDriver[*pgx.Batch] = (*Driver)(nil)

// sqlFreshBatch stores claim and outcome in one row, as [sqlInsertOutcome] does, and
// takes the lock as well. It fails, which undoes the batch, when a transaction holds the
// key (it divides by zero) or there is a record (the primary key). It returns the fence,
// which is the instant. Every parameter is cast: pgx sends them in the form of the
// pool's mode.
//
// Locking: as sqlBatch.
const sqlFreshBatch = `INSERT INTO {table} (kh, state, hold, attempt, fence, token, created_at, lease_until,
		completed_at, retain_until, grace_until, purge_after,
		namespace, scope, id, operation, summary, note, fingerprint, result)
	SELECT $3::uuid, 2, $4::boolean, 1, (extract(epoch FROM now) * 1000000)::bigint, $5::uuid, now, now + $6::bigint * interval '1 microsecond',
		now, now + $7::bigint * interval '1 microsecond', now + $8::bigint * interval '1 microsecond', now + $9::bigint * interval '1 microsecond',
		$10::text, $11::text, $12::text, $13::text, $14::text, '', $15::bytea, $16::bytea
	FROM (SELECT ` + now1 + ` AS now) c
	WHERE 1 / pg_try_advisory_xact_lock($2::bigint)::int = 1
	RETURNING 1, fence`

// sqlBatch is sqlFreshBatch where there is a record. It divides by zero unless the
// key is free and the record is the one that was seen ($17 to $21).
//
// Locking: the exclusive advisory lock on the key, until the transaction ends,
// without waiting; then the row, for which a claim of Do that is being committed
// makes it wait.
const sqlBatch = `WITH c AS MATERIALIZED (
	SELECT coalesce($1::timestamptz, clock_timestamp()) AS now, pg_try_advisory_xact_lock($2::bigint) AS free
), u AS (
	INSERT INTO {table} AS t (kh, state, hold, attempt, fence, token, created_at, lease_until,
		completed_at, retain_until, grace_until, purge_after,
		namespace, scope, id, operation, summary, note, fingerprint, result)
	SELECT $3::uuid, 2, $4::boolean, $5::int, greatest($6::bigint, (extract(epoch FROM now) * 1000000)::bigint), $7::uuid,
		coalesce($8::timestamptz, now), now + $25::bigint * interval '1 microsecond',
		now, now + $9::bigint * interval '1 microsecond', now + $10::bigint * interval '1 microsecond', now + $11::bigint * interval '1 microsecond',
		$12::text, $13::text, $14::text, $15::text, $16::text, $22::text, $23::bytea, $24::bytea
	FROM c WHERE free
	ON CONFLICT (kh) DO UPDATE SET state = 2, hold = excluded.hold, attempt = excluded.attempt, fence = excluded.fence,
		token = excluded.token, created_at = excluded.created_at, lease_until = excluded.lease_until,
		completed_at = excluded.completed_at, retain_until = excluded.retain_until, grace_until = excluded.grace_until,
		purge_after = excluded.purge_after, operation = excluded.operation, summary = excluded.summary,
		note = excluded.note, fingerprint = excluded.fingerprint, result = excluded.result
	WHERE t.state = $17::smallint AND t.token = $18::uuid AND t.fence = $19::bigint AND t.lease_until = $20::timestamptz AND t.note = $21::text
	RETURNING completed_at
)
SELECT 1 / count(*), (extract(epoch FROM max(completed_at)) * 1000000)::bigint FROM u`

// sqlBatchFate is sqlFateRow without a fence, which the server chose.
//
// Locking: none.
const sqlBatchFate = `SELECT state FROM {table} WHERE kh = $1 AND token = $2`

// RunBatch implements [driver.BatchDriver]: one round trip and one flush. A
// duplicate costs a second round trip, and a line in the server's log about the
// error by which it is told from the first: a division by zero while a transaction
// holds the key, a violation of the primary key where there is a record, which also
// leaves a dead row. A key that this driver has seen complete is read first, and
// costs neither. The statements run in the pool's exec mode, in which pgx may need a
// round trip of its own to prepare one that a connection has not seen.
//
// A statement that begins or ends a transaction is refused, and so is a callback
// on a statement, which would run after the commit: to find that a statement has
// changed nothing, let it fail. The batch may be sent again by another call.
func (d *Driver) RunBatch(ctx context.Context, p driver.BatchParams, batch *pgx.Batch) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	if err := validBatch(batch); err != nil {
		return driver.Record{}, err
	}
	if err := d.ready(ctx); err != nil {
		return driver.Record{}, err
	}
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return driver.Record{}, d.translate(ctx, err)
	}
	r, err := d.runBatch(ctx, c, p, batch)
	var preparing pgx.ErrPreprocessingBatch // no COMMIT was sent
	if err != nil && c.Conn().IsClosed() && !pgconn.SafeToRetry(err) && !errors.As(err, &preparing) {
		c.Release() // destroyed by the pool; the lookup may need its place
		return d.resolveBatch(ctx, p, err)
	}
	d.rollback(ctx, c.Conn().PgConn())
	d.release(c, err)
	return r, d.translate(ctx, err)
}

// runBatch sends the batch for a key that it takes to be absent and, when it is
// not, for the record that it finds, if that can be claimed.
func (d *Driver) runBatch(ctx context.Context, c *pgxpool.Conn, p driver.BatchParams, batch *pgx.Batch) (driver.Record, error) {
	conn, s, kh := c.Conn(), sessionOf(c), d.hash(p.Key)
	if r, replay, err := d.replay(ctx, s, kh, p.ClaimParams); err != nil || replay {
		return r, err
	}
	var seen driver.Record
	for round := range claimRounds {
		r, refused, err := d.sendBatch(ctx, conn, p, batch, seen)
		if err != nil {
			return r, err
		}
		if refused == nil {
			d.finished.Add(kh)
			return r, nil
		}
		lost, undo := s.lost, []statement{stmt("ROLLBACK"), d.get(kh, p.Now)}
		results, err := s.exec(ctx, undo...)
		if err != nil && s.lost != lost { // a prepared statement was of no use
			results, err = s.exec(ctx, undo...)
		}
		if err != nil {
			return r, err
		}
		if r, err = only(results[1]).recordOf(p.Key); err != nil {
			return r, err
		}
		if r.StateAt(r.Now) == driver.StateComplete {
			d.finished.Add(kh)
		}
		if r.State == driver.StateComplete && r.Token == p.Token {
			return r, nil // an earlier send arrived
		}
		if next, granted := r.AfterBatch(p, r.Now); !granted {
			return micro(next), nil
		}
		unchanged := r.State == seen.State && r.Token == seen.Token && r.Fence == seen.Fence
		switch {
		case unchanged && code(refused) == codeDivisionByZero:
			return busy(p.Key, r), nil // and yet not ours: an open transaction holds the key
		case unchanged && round > 0:
			// Not a record that has gone since, but something else that is unique.
			return r, d.statementError(conn, refused, -1)
		}
		seen = r
	}
	return busy(p.Key, seen), nil
}

// sendBatch sends everything at once. It is refused when the key turns out to be
// taken, or its record not to be the one that was seen.
func (d *Driver) sendBatch(ctx context.Context, conn *pgx.Conn, p driver.BatchParams, batch *pgx.Batch, seen driver.Record) (_ driver.Record, refused, err error) {
	commit := "COMMIT"
	if d.tx.CommitQuery != "" {
		commit = d.tx.CommitQuery
	}
	var all pgx.Batch
	// Without BEGIN a DO block of the application could commit the claim alone.
	all.Queue(beginSQL(d.tx))
	if seen.State == driver.StateAbsent {
		all.Queue(d.sql(sqlFreshBatch), d.freshArgs(p)...)
	} else {
		all.Queue(d.sql(sqlBatch), d.batchArgs(p, seen)...)
	}
	for _, q := range batch.QueuedQueries {
		all.Queue(q.SQL, q.Arguments...)
	}
	all.Queue(commit)

	results := conn.SendBatch(ctx, &all)
	r, refused, err := d.readBatch(results, conn, p, batch, seen)
	if e := results.Close(); err == nil && refused == nil && e != nil {
		err = d.statementError(conn, e, -1)
	}
	return r, refused, err
}

// readBatch reads the results of what sendBatch sent.
func (d *Driver) readBatch(results pgx.BatchResults, conn *pgx.Conn, p driver.BatchParams, batch *pgx.Batch, seen driver.Record) (_ driver.Record, refused, err error) {
	if _, err := results.Exec(); err != nil {
		return seen, nil, d.statementError(conn, err, -1)
	}
	var one, at int64
	switch err := results.QueryRow().Scan(&one, &at); {
	case code(err) == codeDivisionByZero, code(err) == codeUniqueViolation && seen.State == driver.StateAbsent:
		return seen, err, nil
	case err != nil:
		return seen, nil, d.statementError(conn, err, -1)
	}
	for i := range batch.QueuedQueries {
		tag, err := results.Exec()
		if err != nil {
			return seen, nil, d.statementError(conn, err, i)
		}
		if controlsTx(tag.String()) {
			return seen, nil, errEndedBySQL
		}
	}
	tag, err := results.Exec()
	switch {
	case err != nil:
		return seen, nil, d.statementError(conn, err, -1)
	case tag.String() == "ROLLBACK":
		return seen, nil, pgx.ErrTxCommitRollback
	}
	r, _ := seen.AfterBatch(p, time.UnixMicro(at))
	return r, nil, nil
}

// freshArgs are the parameters of sqlFreshBatch.
func (d *Driver) freshArgs(p driver.BatchParams) []any {
	kh, k := d.hash(p.Key), d.stored(p.Key)
	return []any{
		given(p.Now), d.lock(kh), text16(kh), p.Hold, text16(p.Token), p.Lease.Microseconds(),
		p.Keep.Microseconds(), (p.Keep + p.Grace).Microseconds(), batchDue(p).Microseconds(),
		d.namespace, k.Scope, k.ID, p.Operation, p.Summary, p.Fingerprint, p.Result,
	}
}

// batchArgs are the parameters of sqlBatch.
func (d *Driver) batchArgs(p driver.BatchParams, seen driver.Record) []any {
	kh, k := d.hash(p.Key), d.stored(p.Key)
	claim, _ := seen.AfterClaim(p.ClaimParams, seen.Now)
	var created any
	if claim.Attempt > 1 {
		created = driver.Micro(claim.CreatedAt)
	}
	return []any{
		given(p.Now), d.lock(kh), text16(kh), claim.Hold, int32(claim.Attempt), seen.Fence + 1, text16(p.Token), created,
		p.Keep.Microseconds(), (p.Keep + p.Grace).Microseconds(), batchDue(p).Microseconds(),
		d.namespace, k.Scope, k.ID, p.Operation, p.Summary,
		int16(seen.State), text16(seen.Token), seen.Fence, seen.LeaseUntil, seen.Note,
		claim.Note, p.Fingerprint, p.Result, p.Lease.Microseconds(),
	}
}

// given is an instant, or NULL for the server's clock.
func given(now time.Time) any {
	if now.IsZero() {
		return nil
	}
	return driver.Micro(now)
}

// batchDue is after how long the result is dropped, or the record where there is none to drop.
func batchDue(p driver.BatchParams) time.Duration {
	if p.Result == nil {
		return p.Keep + p.Grace
	}
	return p.Keep
}

// text16 is a uuid as text, which every exec mode sends alike.
func text16[T ~[16]byte](v T) string { return hex.EncodeToString(v[:]) }

// statementError says which statement the server refused, unless the error is
// one of the connection, or passing.
func (d *Driver) statementError(conn *pgx.Conn, err error, i int) error {
	var preparing pgx.ErrPreprocessingBatch
	var network net.Error
	encoding := errors.As(err, &preparing) && !errors.As(err, &network) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
	if conn.IsClosed() && !encoding || d.Retryable(err) || code(err) == codeReadOnly {
		return err
	}
	return &driver.StatementError{Statement: i, Err: err}
}

// validBatch refuses what cannot be run as part of one transaction.
func validBatch(batch *pgx.Batch) error {
	if batch == nil {
		return fmt.Errorf("%w: the batch is nil", driver.ErrInvalidParams)
	}
	for i, q := range batch.QueuedQueries {
		if q.Fn != nil {
			return fmt.Errorf("%w: statement %d of the batch has a callback, which would run after the commit", driver.ErrInvalidParams, i)
		}
		if controlsTx(q.SQL) {
			return fmt.Errorf("%w: statement %d of the batch begins or ends a transaction", driver.ErrInvalidParams, i)
		}
	}
	return nil
}

// controlsTx reports whether a statement, or the tag that the server gave it,
// begins with a word that controls transactions. One that hides behind a comment
// is found by its tag.
func controlsTx(sql string) bool {
	word := strings.TrimLeft(sql, " \t\r\n;")
	if end := strings.IndexFunc(word, func(r rune) bool { return !unicode.IsLetter(r) }); end >= 0 {
		word = word[:end]
	}
	switch strings.ToUpper(word) {
	case "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE":
		return true
	}
	return false
}

// resolveBatch finds out how a batch ended whose answer was lost to err.
func (d *Driver) resolveBatch(ctx context.Context, p driver.BatchParams, err error) (driver.Record, error) {
	kh := d.hash(p.Key)
	err = d.resolve(ctx, err, func(ctx context.Context) (committed, known bool) {
		e := d.once(ctx, func(s *session) error {
			// Read committed, so that the record is read after the lock was taken.
			results, err := s.exec(ctx, stmt("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"), stmt(sqlFate, int8(d.lock(kh))),
				stmt(d.sql(sqlBatchFate), uuid(kh), uuid(p.Token)), stmt("ROLLBACK"))
			if err != nil {
				return err
			}
			said := only(results[1])
			free, standby := said.bool(), said.bool()
			committed = len(results[2].rows) == 1
			known = committed || free && !standby
			return said.err
		})
		return committed && e == nil, known && e == nil
	})
	if err != nil {
		return driver.Record{}, err
	}
	bounded, cancel := d.detached(ctx)
	defer cancel()
	r, err := d.Get(bounded, driver.GetParams{Key: p.Key, Now: p.Now})
	switch {
	case err != nil:
		return r, errors.Join(driver.ErrOutcomeUnknown, err)
	case r.State != driver.StateComplete || r.Token != p.Token:
		return r, fmt.Errorf("%w: committed, and gone since", driver.ErrOutcomeUnknown)
	}
	return r, nil
}
