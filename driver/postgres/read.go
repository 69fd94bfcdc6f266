package postgres

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// sqlGet returns one row: the record with its result, or NULLs, and the instant.
//
// Locking: none.
const sqlGet = `SELECT ` + recordColumns + `, t.result
	FROM (SELECT coalesce($2::timestamptz, clock_timestamp()) AS now) c LEFT JOIN {table} t ON t.kh = $1`

// sqlReplay is sqlGet for a record that is taken to be there: no row when it is not.
//
// Locking: none.
const sqlReplay = `SELECT coalesce($2::timestamptz, clock_timestamp()), ` + storedColumns + `, t.result FROM {table} t WHERE t.kh = $1`

// sqlList walks the primary key. The CASE is driver.Record.StateAt. Results are left out.
//
// Locking: none.
const sqlList = `SELECT ` + recordColumns + `, t.kh
	FROM (SELECT coalesce($5::timestamptz, clock_timestamp()) AS now) c, {table} t
	WHERE t.namespace = $1 AND ($2::uuid IS NULL OR t.kh > $2) AND $3 = CASE t.state
		WHEN 1 THEN CASE WHEN c.now < t.lease_until THEN 1 WHEN t.hold OR c.now < t.retain_until THEN 4 END
		WHEN 2 THEN CASE WHEN c.now < t.retain_until THEN 2 WHEN c.now < t.grace_until THEN 5 END
	END
	ORDER BY t.kh LIMIT $4`

func (d *Driver) get(kh driver.KeyHash, now time.Time) statement {
	return d.stmt(sqlGet, uuid(kh), instant(now))
}

func (d *Driver) look(ctx context.Context, s *session, k driver.Key, now time.Time) (driver.Record, error) {
	results, err := s.exec(ctx, d.get(d.hash(k), now))
	if err != nil {
		return driver.Record{}, err
	}
	return only(results[0]).recordOf(k)
}

// Get implements [driver.Driver]. A key that is held by an open transaction of
// [Driver.BeginClaim] has the record that it had before.
func (d *Driver) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	var r driver.Record
	err := d.do(ctx, func(s *session) (err error) {
		r, err = d.look(ctx, s, p.Key, p.Now)
		return err
	})
	return r, err
}

// List implements [driver.Lister], in the order of the hashed keys and without
// results. It reads the whole table when few records are in the state asked for.
func (d *Driver) List(ctx context.Context, p driver.ListParams) ([]driver.Record, string, error) {
	if err := p.Validate(); err != nil {
		return nil, "", err
	}
	after := arg{oid: uuid(driver.KeyHash{}).oid}
	if p.After != "" {
		b, err := hex.DecodeString(p.After)
		if err != nil || len(b) != len(driver.KeyHash{}) {
			return nil, "", fmt.Errorf("%w: the cursor is not one of this driver", driver.ErrInvalidParams)
		}
		after.value = b
	}
	var records []driver.Record
	var next string
	err := d.do(ctx, func(s *session) error {
		// One more than asked for tells whether there is another page.
		results, err := s.exec(ctx, stmt(d.sql(sqlList),
			text(d.namespace), after, int4(int32(p.State)), int8(int64(p.Limit)+1), instant(p.Now)))
		if err != nil {
			return err
		}
		records, next = nil, ""
		var last driver.KeyHash
		for i, values := range results[0].rows {
			if i == p.Limit {
				next = last.String()
				break
			}
			row := row{values: values}
			r := row.record()
			last = row.uuid()
			if row.err != nil {
				return row.err
			}
			records = append(records, r)
		}
		return nil
	})
	return records, next, err
}
