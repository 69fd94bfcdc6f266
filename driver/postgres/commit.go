package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/driver"
)

// errOpenRows is returned by Commit when the connection still delivers a result.
var errOpenRows = errors.New("postgres: rows or batch results of the transaction are still open; close them before returning")

// errEndedBySQL is returned by Commit when the transaction that was begun is gone.
var errEndedBySQL = fmt.Errorf("%w: the application ended the transaction itself, by SQL", driver.ErrOutcomeUnknown)

// sqlInsertOutcome stores claim and outcome in one row, where there was no record
// when the transaction began. It fails, and aborts the transaction before the
// COMMIT behind it, when there is one by now.
//
// Locking: the row, waiting for whoever inserts it. The primary key, not the
// advisory lock, is what lets one transaction commit.
const sqlInsertOutcome = `INSERT INTO {table} (kh, state, hold, attempt, fence, token, created_at, lease_until,
		completed_at, retain_until, grace_until, purge_after,
		namespace, scope, id, operation, summary, note, fingerprint, result)
	VALUES ($2, 2, $3, $4, $5, $6, $7, $8,
		` + now1 + `, ` + now1 + ` + $9::interval, ` + now1 + ` + $9::interval + $10::interval, ` + now1 + ` + $11::interval,
		$12, $13, $14, $15, $16, $17, $18, $19)`

// sqlReplaceOutcome is sqlInsertOutcome where there was a record, of an earlier
// claim. It divides by zero, which aborts the transaction, unless the record is
// still the one that was read ($20 to $24), or has been purged.
//
// Locking: as above.
const sqlReplaceOutcome = `WITH c AS MATERIALIZED (
	SELECT coalesce($1::timestamptz, clock_timestamp()) AS now
), u AS (
	INSERT INTO {table} AS t (kh, state, hold, attempt, fence, token, created_at, lease_until,
		completed_at, retain_until, grace_until, purge_after,
		namespace, scope, id, operation, summary, note, fingerprint, result)
	SELECT $2, 2, $3, $4, $5, $6, $7, $8,
		now, now + $9::interval, now + $9::interval + $10::interval, now + $11::interval,
		$12, $13, $14, $15, $16, $17, $18, $19
	FROM c
	ON CONFLICT (kh) DO UPDATE SET state = 2, hold = excluded.hold, attempt = excluded.attempt, fence = excluded.fence,
		token = excluded.token, created_at = excluded.created_at, lease_until = excluded.lease_until,
		completed_at = excluded.completed_at, retain_until = excluded.retain_until, grace_until = excluded.grace_until,
		purge_after = excluded.purge_after, operation = excluded.operation, summary = excluded.summary,
		note = excluded.note, fingerprint = excluded.fingerprint, result = excluded.result
	WHERE t.state = $20 AND t.token = $21 AND t.fence = $22 AND t.lease_until = $23 AND t.note = $24
	RETURNING 1
)
SELECT 1 / count(*) FROM u`

// sqlCompleteOutcome is sqlComplete, and divides by zero when the claim is no
// longer the holder's.
//
// Locking: the row, which BeginComplete has locked.
const sqlCompleteOutcome = `WITH u AS (` + sqlComplete + ` RETURNING 1) SELECT 1 / count(*) FROM u`

// Commit implements [driver.Tx].
func (t *openTx) Commit(ctx context.Context, p driver.CommitParams) error {
	if t.ended {
		return pgx.ErrTxClosed
	}
	err := p.Validate()
	if err == nil {
		err = t.usable(p.Discard)
	}
	if err == nil && (p.Key != t.holder.Key || p.Token != t.holder.Token || p.Fence != t.holder.Fence) {
		err = driver.ErrNotHolder
	}
	if err != nil {
		t.end(ctx, err)
		return err
	}
	// Either fails when the transaction is not the one that was begun.
	first := t.d.keep
	if p.Discard {
		first = t.d.undo
	}
	lost, before := false, t.s.lost
	send := t.s.exec
	if t.handle.unsure {
		send = t.s.unnamed
	}
	results, err := send(ctx, first, t.store(p.CompleteParams), t.d.commit)
	conn := t.s.conn
	lost = isLost(conn, err)
	switch {
	case err == nil && results[2].tag.String() == "ROLLBACK":
		err = pgx.ErrTxCommitRollback
	case err == nil || lost:
	case len(results) == 0 && code(err) == codeNoSavepoint:
		err = fmt.Errorf("%w: %w", errEndedBySQL, err)
	case len(results) == 1 && code(err) == codeDivisionByZero:
		err = driver.ErrNotHolder
	case len(results) == 1 && code(err) == codeUniqueViolation && t.fresh:
		err = driver.ErrNotHolder
	case len(results) == 1 && code(err) == codeUniqueViolation:
		// Committed by another after this transaction's snapshot was taken.
		err = fmt.Errorf("%w: %w", driver.ErrRetryable, err)
	case t.s.lost != before:
		// The application dropped a prepared statement of ours: another time there is none.
		err = fmt.Errorf("%w: %w", driver.ErrRetryable, err)
	case code(err) == codeFailedTransaction:
		err = fmt.Errorf("%w: %w", pgx.ErrTxCommitRollback, err)
	}
	if lost {
		t.drop()
		return t.d.resolve(ctx, err, t.fate)
	}
	if err == nil {
		t.d.finished.Add(t.kh)
	}
	t.end(ctx, err)
	return t.d.translate(ctx, err)
}

// store returns the statement that stores the outcome.
func (t *openTx) store(p driver.CompleteParams) statement {
	if !t.claim {
		st := t.d.completeOutcome
		st.args = append(t.d.holder(p.HolderParams), outcome(p)...)
		return st
	}
	args := insertArgs(t.next, t.d, p)
	if seen := t.seen; seen.State != driver.StateAbsent {
		return stmt(t.d.sql(sqlReplaceOutcome), append(args,
			int2(int16(seen.State)), uuid(seen.Token), int8(seen.Fence), instant(seen.LeaseUntil), text(seen.Note))...)
	}
	st := t.d.insertOutcome
	st.args = args
	return st
}

// insertArgs returns the parameters of sqlInsertOutcome, the first of sqlReplaceOutcome.
func insertArgs(next driver.Record, d *Driver, p driver.CompleteParams) []arg {
	out, k := outcome(p), d.stored(next.Key)
	return []arg{
		instant(p.Now), uuid(d.hash(next.Key)), boolean(next.Hold), int4(int32(next.Attempt)), int8(next.Fence), uuid(next.Token),
		instant(next.CreatedAt), instant(next.LeaseUntil), out[1], out[2], out[3],
		text(d.namespace), text(k.Scope), text(k.ID), text(next.Operation), text(next.Summary), text(cmp.Or(p.Note, next.Note)),
		bytea(next.Fingerprint), bytea(p.Result),
	}
}

// sqlFate reports whether the transaction of a lost connection has ended, as far
// as its advisory lock tells, and whether the server is the one that writes.
//
// Locking: the advisory lock on the key, if it is free, for this statement's transaction.
const sqlFate = `SELECT pg_try_advisory_xact_lock($1), pg_is_in_recovery()`

// sqlFateRow reads the record of a holder. Where BeginComplete locked the row,
// getting that lock means that its transaction has ended.
//
// Locking: the row, unless somebody has it.
const sqlFateRow = `SELECT state FROM {table} WHERE kh = $1 AND token = $2 AND fence = $3 FOR UPDATE SKIP LOCKED`

// resolve finds out, by asking fate until it is known, how a commit ended whose
// answer was lost to err. It returns nil when it succeeded, an error that matches
// driver.ErrRetryable when everything was rolled back, and driver.ErrOutcomeUnknown
// when the server could not tell in time.
func (d *Driver) resolve(ctx context.Context, err error, fate func(context.Context) (committed, known bool)) error {
	err = d.translate(ctx, err)
	bounded, cancel := d.detached(ctx)
	defer cancel()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		committed, known := fate(bounded)
		switch {
		case committed:
			return nil
		case known:
			return fmt.Errorf("%w: the connection was lost before the commit: %w", driver.ErrRetryable, err)
		}
		select {
		case <-bounded.Done():
			return fmt.Errorf("%w: %w", driver.ErrOutcomeUnknown, err)
		case <-time.After(wait):
		}
	}
}

// fate looks the record up once, on another connection.
func (t *openTx) fate(ctx context.Context) (committed, known bool) {
	err := t.d.once(ctx, func(s *session) error {
		h := t.d.holder(t.holder)
		// Read committed, so that the record is read after the lock was taken.
		results, err := s.exec(ctx, stmt("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"), stmt(sqlFate, int8(t.d.lock(t.kh))),
			stmt(t.d.sql(sqlHeld), h...), stmt(t.d.sql(sqlFateRow), h...), stmt("ROLLBACK"))
		if err != nil {
			return err // the pool destroys a connection that is inside a transaction
		}
		said := only(results[1])
		free, standby := said.bool(), said.bool()
		if said.err != nil {
			return said.err
		}
		state := driver.StateAbsent
		if len(results[2].rows) == 1 {
			row := only(results[2])
			if state = driver.State(row.int2()); row.err != nil {
				return row.err
			}
		}
		// A record that is not there in the end was not committed: it would be
		// kept for its retention. One that is still in flight under this token
		// could only be completed by the transaction that had locked it.
		committed = state == driver.StateComplete
		known = committed || free && !standby && (t.claim || len(results[3].rows) == 1 || state == driver.StateAbsent)
		return nil
	})
	return committed && err == nil, known && err == nil
}
