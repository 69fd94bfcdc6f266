package postgres

import (
	"context"

	"github.com/idem-go/idem/driver"
)

// sqlPurge looks at up to $2 records whose purge_after has come, deletes those
// that are due, drops the results of those that are kept for their grace, and moves
// purge_after on where it came too early. The columns are what it looked at, and
// what it deleted or dropped. The CASE is driver.Record.DueAt.
//
// Locking: the rows, in the order of the index, skipping those that are locked:
// purgers share the work, and wait for nobody. Nobody waits for a live record,
// since the purger locks only what was due once, for the length of one batch.
const sqlPurge = `WITH c AS MATERIALIZED (
	SELECT coalesce($1::timestamptz, clock_timestamp()) AS now
), batch AS MATERIALIZED (
	SELECT t.kh, t.state, t.grace_until, CASE t.state
		WHEN 2 THEN CASE WHEN t.result IS NOT NULL AND t.retain_until < t.grace_until THEN t.retain_until ELSE t.grace_until END
		WHEN 1 THEN CASE WHEN t.hold THEN 'infinity' ELSE greatest(t.lease_until, t.retain_until) END
		ELSE t.retain_until END AS due
	FROM {table} t WHERE t.purge_after <= (SELECT now FROM c)
	ORDER BY t.purge_after LIMIT $2 FOR UPDATE SKIP LOCKED
), kept AS MATERIALIZED (
	SELECT batch.*, due <= now AS drop, CASE WHEN due <= now THEN grace_until ELSE due END AS next
	FROM batch, c WHERE due > now OR (state = 2 AND grace_until > now)
), deleted AS (
	DELETE FROM {table} t USING batch WHERE t.kh = batch.kh AND batch.kh NOT IN (SELECT kh FROM kept)
	RETURNING 1
), changed AS (
	UPDATE {table} t SET purge_after = kept.next, result = CASE WHEN kept.drop THEN NULL ELSE t.result END
	FROM kept WHERE t.kh = kept.kh
	RETURNING kept.drop
)
SELECT (SELECT count(*) FROM batch), (SELECT count(*) FROM deleted) + (SELECT count(*) FROM changed WHERE drop)`

// Purge implements [driver.Driver]. It purges the whole table, the records of
// other namespaces included.
func (d *Driver) Purge(ctx context.Context, p driver.PurgeParams) (int, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	purged := 0
	err := d.do(ctx, func(s *session) error {
		for {
			left := p.Limit - purged
			results, err := s.exec(ctx, stmt(d.sql(sqlPurge), instant(p.Now), int8(int64(left))))
			if err != nil {
				return err
			}
			said := only(results[0])
			seen, done := int(said.int8()), int(said.int8())
			purged += done
			// Records that were only looked at leave room for others that are due.
			if said.err != nil || seen < left || purged == p.Limit {
				return said.err
			}
		}
	})
	return purged, err
}
