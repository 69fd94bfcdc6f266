package bolt

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
)

// purgeChunk is how many records one transaction of Purge deletes: other writers
// wait for as long as that takes, some milliseconds.
const purgeChunk = 256

// Purge implements [driver.Driver]. It deletes in small transactions; when one
// fails, or ctx ends between two, it returns what was deleted before and the error.
func (d *Driver) Purge(ctx context.Context, p driver.PurgeParams) (int, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	now := at(p.Now)
	total := 0
	var after []byte // a record that cannot be read is left alone, and passed by
	for total < p.Limit {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		any := false
		err := d.view(ctx, func(b bucket) error {
			any = b.Bucket != nil && nextDue(b.Cursor(), after, now) != nil
			return nil
		})
		if err != nil || !any {
			return total, err
		}
		var n int
		var last []byte
		err = d.write(ctx, func(b bucket) (bool, error) {
			var err error
			n, last, err = purge(b, after, now, min(purgeChunk, p.Limit-total))
			return n > 0, err
		})
		if err != nil {
			return total, err
		}
		total += n
		after = last
	}
	return total, nil
}

// nextDue returns the first entry after an entry that is due at now, or nil.
func nextDue(c *bbolt.Cursor, after []byte, now time.Time) []byte {
	if after == nil {
		after = []byte{duePrefix}
	}
	e, _ := c.Seek(after)
	if bytes.Equal(e, after) {
		e, _ = c.Next()
	}
	if t, _, err := parseDue(e); err != nil || now.Before(t) {
		return nil
	}
	return e
}

// purge deletes, or strips, up to limit records that are due, and returns how many and the
// last entry it looked at.
func purge(b bucket, after []byte, now time.Time, limit int) (n int, last []byte, err error) {
	// A bbolt cursor does not survive changes to its bucket: collect first.
	var entries [][]byte
	c := b.Cursor()
	for e := nextDue(c, after, now); e != nil && len(entries) < limit; e, _ = c.Next() {
		if t, _, err := parseDue(e); err != nil || now.Before(t) {
			break
		}
		entries = append(entries, bytes.Clone(e))
	}
	last = after
	for _, e := range entries {
		last = e
		_, h, err := parseDue(e)
		if err != nil {
			return n, last, err
		}
		r, err := b.record(h)
		if errors.Is(err, driver.ErrNewerVersion) || errors.Is(err, driver.ErrForeignRecord) {
			continue
		}
		if err != nil {
			return n, last, err
		}
		next, due, remove := r.AfterPurge(now)
		switch {
		case !due || !bytes.Equal(e, dueEntry(r, h)):
			err = b.Delete(e)
		case remove:
			err = b.remove(h, r)
		default:
			err = b.replace(h, r, next)
		}
		if err != nil {
			return n + 1, last, err
		}
		n++
	}
	return n, last, nil
}

// List implements [driver.Lister], in the order of key hashes. It reads every
// record up to the end of the page, so that a page of rare records takes as long as a
// scan of the file. Results are omitted.
func (d *Driver) List(ctx context.Context, p driver.ListParams) ([]driver.Record, string, error) {
	if err := p.Validate(); err != nil {
		return nil, "", err
	}
	after, err := hex.DecodeString(p.After)
	if err != nil || len(after) != 0 && len(after) != len(driver.KeyHash{}) {
		return nil, "", fmt.Errorf("%w: the cursor is not one of this driver's", driver.ErrInvalidParams)
	}
	now := at(p.Now)
	var records []driver.Record
	next := ""
	err = d.view(ctx, func(b bucket) error {
		if b.Bucket == nil {
			return ctx.Err()
		}
		from := append([]byte{recordPrefix}, after...)
		c := b.Cursor()
		k, v := c.Seek(from)
		if bytes.Equal(k, from) {
			k, v = c.Next()
		}
		lastKey := driver.KeyHash{}
		for ; len(k) > 0 && k[0] == recordPrefix; k, v = c.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			if len(k) != recordKeySize {
				return fmt.Errorf("bolt: %w: a key of %d bytes", driver.ErrForeignRecord, len(k))
			}
			h := driver.KeyHash(k[1:])
			r, err := driver.DecodeRecord(v, h)
			if err != nil {
				return err
			}
			if r.StateAt(now) != p.State {
				continue
			}
			if len(records) == p.Limit {
				next = lastKey.String()
				return nil
			}
			r.Now, r.Result = now, nil
			records = append(records, r)
			lastKey = h
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	return records, next, nil
}
