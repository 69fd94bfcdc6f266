package postgres

import (
	"context"
	"time"

	"github.com/idem-go/idem/driver"
)

// claimRounds is how often a claim looks again at a record that changed between
// its two steps, or that another claim has locked, and is about to have committed.
// The first of these pauses is a millisecond, and each is twice the one before.
const claimRounds = 9

// sqlClaim returns the record and, where its snapshot has none, inserts a claim,
// whose fence it returns: the instant in microseconds. When it does neither, a
// transaction holds the key, or there is a record newer than the snapshot.
//
// Locking: none when there is a record: a replay writes nothing and needs no flush.
// Otherwise a shared advisory lock on the key until the statement is committed, so
// that claims do not exclude one another but wait for no transaction of DoTx; a
// conflicting row that is not committed yet is waited for, which is another
// claim's flush.
const sqlClaim = `WITH i AS (
	INSERT INTO {table} (kh, state, hold, attempt, fence, token, created_at, lease_until, retain_until, purge_after,
		namespace, scope, id, operation, summary, note, fingerprint)
	SELECT $3, 1, $4, 1, (extract(epoch FROM now) * 1000000)::bigint, $5, now, now + $6::interval, now + $7::interval, now + $7::interval,
		$8, $9, $10, $11, $12, '', $13
	FROM (
		SELECT coalesce($1::timestamptz, clock_timestamp()) AS now, pg_try_advisory_xact_lock_shared($2) AS free
		WHERE NOT EXISTS (SELECT FROM {table} WHERE kh = $3)
	) c WHERE free
	ON CONFLICT (kh) DO NOTHING
	RETURNING fence
)
SELECT (SELECT fence FROM i), ` + recordColumns + `, t.result
	FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) c LEFT JOIN {table} t ON t.kh = $3`

// sqlFree reports whether no transaction holds a key.
//
// Locking: the shared advisory lock, for this statement's transaction.
const sqlFree = `SELECT pg_try_advisory_xact_lock_shared($1)`

// sqlRegrant gives a record that was read as seen to a new holder, and reports
// whether no transaction holds the key and whether the record was still the same.
//
// Locking: the shared advisory lock as above, and the row. A row that a completing
// transaction has locked is skipped: its key is in flight.
const sqlRegrant = `WITH c AS MATERIALIZED (
	SELECT pg_try_advisory_xact_lock_shared($1) AS free
), seen AS (
	SELECT t.kh FROM {table} t
	WHERE (SELECT free FROM c) AND t.kh = $2 AND t.state = $3 AND t.token = $4 AND t.fence = $5 AND t.lease_until = $6 AND t.note = $7
	FOR UPDATE SKIP LOCKED
), u AS (
	UPDATE {table} t SET state = 1, hold = $8, attempt = $9, fence = $10, token = $11, created_at = $12, lease_until = $13,
		retain_until = $14, purge_after = $14, completed_at = NULL, grace_until = NULL, operation = $15, summary = $16,
		note = $17, fingerprint = $18, result = NULL
	FROM seen WHERE t.kh = seen.kh
	RETURNING 1
)
SELECT free, EXISTS (SELECT FROM u) FROM c`

// sqlReclaim is sqlRegrant for a record that time has made absent. It waits for
// the row: who has locked it is the purger, and the key is free when it is done.
const sqlReclaim = `WITH c AS MATERIALIZED (
	SELECT pg_try_advisory_xact_lock_shared($1) AS free
), u AS (
	UPDATE {table} t SET state = 1, hold = $8, attempt = $9, fence = $10, token = $11, created_at = $12, lease_until = $13,
		retain_until = $14, purge_after = $14, completed_at = NULL, grace_until = NULL, operation = $15, summary = $16,
		note = $17, fingerprint = $18, result = NULL
	WHERE (SELECT free FROM c) AND t.kh = $2 AND t.state = $3 AND t.token = $4 AND t.fence = $5 AND t.lease_until = $6 AND t.note = $7
	RETURNING 1
)
SELECT free, EXISTS (SELECT FROM u) FROM c`

// sqlExtend extends the lease of a claim that was sent twice.
//
// Locking: the row, waiting for whoever has it.
const sqlExtend = `UPDATE {table} SET lease_until = $4
	WHERE kh = $1 AND state = 1 AND token = $2 AND fence = $3 AND lease_until < $4`

// Claim implements [driver.Driver]: one round trip, and a second one to take over
// or reuse a record that is there. The Fingerprint and LeaseUntil of the record
// are zero when the key is held by a transaction and has no record yet.
func (d *Driver) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	var r driver.Record
	err := d.do(ctx, func(s *session) (err error) {
		r, err = d.claim(ctx, s, p)
		return err
	})
	if err != nil {
		return driver.Record{}, err
	}
	return r, nil
}

func (d *Driver) claim(ctx context.Context, s *session, p driver.ClaimParams) (r driver.Record, err error) {
	kh, k := d.hash(p.Key), d.stored(p.Key)
	if r, replay, err := d.replay(ctx, s, kh, p); err != nil || replay {
		return r, err
	}
	claim := d.stmt(sqlClaim,
		instant(p.Now), int8(d.lock(kh)), uuid(kh), boolean(p.Hold), uuid(p.Token), interval(p.Lease), interval(p.Retention),
		text(d.namespace), text(k.Scope), text(k.ID), text(p.Operation), text(p.Summary), bytea(p.Fingerprint))
	for round := range claimRounds {
		results, err := s.exec(ctx, claim)
		if err != nil {
			return r, err
		}
		row := only(results[0])
		fence := row.int8()
		if r, err = row.recordOf(p.Key); err != nil {
			return r, err
		}
		if r.State == driver.StateAbsent && fence != 0 {
			r, _ = r.AfterClaim(p, time.UnixMicro(fence))
			return micro(r), nil
		}
		if r.State == driver.StateAbsent {
			if results, err = s.exec(ctx, stmt(sqlFree, int8(d.lock(kh)))); err != nil {
				return r, err
			}
			if said := only(results[0]); said.err != nil || !said.bool() {
				return busy(p.Key, r), said.err
			}
			continue
		}
		next, write := r.AfterClaim(p, r.Now)
		next = micro(next)
		switch {
		case !write:
			if next.State == driver.StateComplete {
				d.finished.Add(kh)
			}
			return next, nil
		case r.Token == p.Token && r.Fence == next.Fence:
			// Read in the same transaction, or the answer would be what somebody made of the
			// key after its lease was extended. When it was not, since a renewal had done more,
			// it may have become less again by the time of the second statement.
			results, err := s.exec(ctx, stmt(d.sql(sqlExtend), uuid(kh), uuid(r.Token), int8(r.Fence), instant(next.LeaseUntil)), d.get(kh, p.Now))
			if err != nil {
				return r, err
			}
			if r, err = only(results[1]).recordOf(p.Key); err != nil {
				return r, err
			}
			if r.HeldBy(p.Token, next.Fence) && !r.LeaseUntil.Before(next.LeaseUntil) {
				return r, nil
			}
			continue
		}
		free, granted, err := d.regrant(ctx, s, kh, r, next)
		switch {
		case err != nil || granted:
			return next, err
		case !free || round == claimRounds-1:
			return busy(p.Key, r), nil
		}
		select {
		case <-time.After(time.Millisecond << round):
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
	return busy(p.Key, r), nil
}

// regrant replaces the record seen by next, unless it has changed or is locked. It
// reports whether no transaction holds the key, and whether it did.
func (d *Driver) regrant(ctx context.Context, s *session, kh driver.KeyHash, seen, next driver.Record) (free, granted bool, err error) {
	template := sqlReclaim
	if seen.StateAt(seen.Now) == driver.StateUnknown {
		template = sqlRegrant
	}
	results, err := s.exec(ctx, stmt(d.sql(template),
		int8(d.lock(kh)), uuid(kh), int2(int16(seen.State)), uuid(seen.Token), int8(seen.Fence), instant(seen.LeaseUntil), text(seen.Note),
		boolean(next.Hold), int4(int32(next.Attempt)), int8(next.Fence), uuid(next.Token), instant(next.CreatedAt),
		instant(next.LeaseUntil), instant(next.RetainUntil), text(next.Operation), text(next.Summary), text(next.Note), bytea(next.Fingerprint)))
	if err != nil {
		return false, false, err
	}
	said := only(results[0])
	free, granted = said.bool(), said.bool()
	return free, granted, said.err
}

// busy returns what is known of a claim that an open transaction holds, seen as
// the record r or as none. Only a claim of the same operation and request takes
// over an unknown record; one that reuses an absent record may be any.
func busy(k driver.Key, r driver.Record) driver.Record {
	held := driver.Record{Key: k, State: driver.StateInFlight, Now: r.Now}
	if r.StateAt(r.Now) == driver.StateUnknown {
		held.Operation, held.Fingerprint, held.Summary = r.Operation, r.Fingerprint, r.Summary
	}
	return held
}

// micro cuts the instants that the pure functions computed to what is stored.
func micro(r driver.Record) driver.Record {
	for _, t := range []*time.Time{&r.CreatedAt, &r.LeaseUntil, &r.CompletedAt, &r.RetainUntil, &r.GraceUntil} {
		*t = driver.Micro(*t)
	}
	return r
}
