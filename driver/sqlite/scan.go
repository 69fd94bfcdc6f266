package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/idem-go/idem/driver"
)

// Batch sizes: other writers wait for a chunk of Purge, some milliseconds.
const (
	purgeChunk = 256
	listChunk  = 500
)

// What Purge has something to do with at the instant ?1, by the index of what is due: the
// CASE is driver.Record.DueAt. A row that scan would refuse is left alone, and keeps no
// other from being purged.
const isDue = `due_us <= ?1 AND hold IN (0, 1) AND length(token) = 16 AND CASE state
	WHEN 1 THEN hold = 0 AND max(lease_us, retain_us) <= ?1
	WHEN 2 THEN grace_us <= ?1 OR retain_us <= ?1 AND result IS NOT NULL
	WHEN 3 THEN retain_us <= ?1 END`

// Reads the index of what is due outside a transaction: no lock.
// It is a reason to take the write lock, and no more.
const anyDueSQL = `SELECT EXISTS (SELECT 1 FROM idem_keys WHERE ` + isDue + `)`

// Run under the write lock, together: they are driver.Record.AfterPurge, with and without
// remove. They touch up to ?2 rows and their index entries.
const (
	purgeSQL = `DELETE FROM idem_keys WHERE seq IN (SELECT seq FROM idem_keys WHERE ` + isDue + `
	AND (state <> 2 OR grace_us <= ?1) ORDER BY due_us LIMIT ?2)`
	stripSQL = `UPDATE idem_keys SET result = NULL, due_us = grace_us WHERE seq IN (SELECT seq FROM idem_keys WHERE ` + isDue + `
	AND state = 2 AND grace_us > ?1 ORDER BY due_us LIMIT ?2)`
)

// Purge implements [driver.Driver]. It deletes in small transactions; when one
// fails, or ctx ends between two, it returns what was deleted before and the error.
func (d *Driver) Purge(ctx context.Context, p driver.PurgeParams) (int, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	now := at(p.Now)
	total := 0
	for total < p.Limit {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		chunk := min(purgeChunk, p.Limit-total)
		n, err := d.purge(ctx, now, chunk)
		total += n
		if err != nil || n < chunk {
			return total, err
		}
	}
	return total, nil
}

func (d *Driver) purge(ctx context.Context, now time.Time, limit int) (n int, err error) {
	due, err := d.anyDue(ctx, now)
	if err != nil || !due {
		return 0, err
	}
	err = d.write(ctx, func(t *txn) (bool, error) {
		n = 0
		for _, st := range [...]int{stmtPurge, stmtStrip} {
			c, err := changed(t.stmt(st).ExecContext(t.ctx, micros(now), limit-n))
			if err != nil {
				return true, err
			}
			n += c
		}
		return n > 0, nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// anyDue reports whether there is anything to purge, without the write lock.
func (d *Driver) anyDue(ctx context.Context, now time.Time) (due bool, err error) {
	st, err := d.prepared(ctx)
	if err != nil {
		return false, err
	}
	limit, cancel := d.bounded(ctx)
	defer cancel()
	err = retry(limit, func() error {
		return st[stmtAnyDue].QueryRowContext(limit, micros(now)).Scan(&due)
	})
	return due, d.translate(ctx, limit, err)
}

// Reads in the order of the rowid, without a lock in WAL mode. There is no index on
// the state: it would cost every claim, for what a person asks now and then.
const listSQL = `SELECT seq, kh, ` + columns + `, result IS NOT NULL FROM idem_keys WHERE seq > ? AND state = ? ORDER BY seq LIMIT ?`

// List implements [driver.Lister], oldest key first. A page of rare records takes
// as long as a scan of the table. Results are omitted.
func (d *Driver) List(ctx context.Context, p driver.ListParams) (records []driver.Record, next string, err error) {
	if err := p.Validate(); err != nil {
		return nil, "", err
	}
	after := int64(0)
	if p.After != "" {
		if after, err = strconv.ParseInt(p.After, 10, 64); err != nil || after < 0 {
			return nil, "", fmt.Errorf("%w: the cursor is not one of this driver's", driver.ErrInvalidParams)
		}
	}
	now := at(p.Now)
	stored := driver.StateInFlight
	if p.State == driver.StateComplete || p.State == driver.StateExpired {
		stored = driver.StateComplete
	}
	last := after // of the records returned
	for {
		page, err := d.page(ctx, after, stored)
		if err != nil {
			return nil, "", err
		}
		for _, l := range page {
			after = l.seq
			if l.record.StateAt(now) != p.State {
				continue
			}
			if len(records) == p.Limit {
				return records, strconv.FormatInt(last, 10), nil
			}
			l.record.Now, l.record.Result = now, nil
			records = append(records, l.record)
			last = l.seq
		}
		if len(page) < listChunk {
			return records, "", nil
		}
	}
}

type listed struct {
	seq    int64
	record driver.Record
}

// seqRow is a row whose first column is seq.
type seqRow struct {
	rows *sql.Rows
	seq  *int64
}

func (r seqRow) Scan(dest ...any) error { return r.rows.Scan(append([]any{r.seq}, dest...)...) }

func (d *Driver) page(ctx context.Context, after int64, state driver.State) (page []listed, err error) {
	if _, err := d.prepared(ctx); err != nil {
		return nil, err
	}
	limit, cancel := d.bounded(ctx)
	defer cancel()
	err = retry(limit, func() error {
		page = page[:0]
		rows, err := d.db.QueryContext(limit, d.sql(listSQL), after, int(state), listChunk)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var l listed
			if l.record, _, err = scan(seqRow{rows, &l.seq}); err != nil {
				return err
			}
			page = append(page, l)
		}
		return rows.Err()
	})
	return page, d.translate(ctx, limit, err)
}
