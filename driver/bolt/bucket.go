package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
)

// The layout of the driver's bucket:
//
//	version                          one byte, layoutVersion
//	r, key hash                   -> driver.Record.AppendBinary
//	d, 8 bytes of big-endian µs, key hash -> nothing: when Purge looks at the record
//
// One bucket for all, because every page that a commit touches is written anew, and
// each bucket has pages of its own above those that hold its data.
const layoutVersion = 2

var versionKey = []byte("version")

const (
	recordPrefix = 'r'
	duePrefix    = 'd'
)

// bucket is the driver's bucket in one transaction. It is nil in a reading
// transaction over a database that has none yet. Nothing read through it may
// leave the transaction without a copy: the memory belongs to the file.
type bucket struct {
	*bbolt.Bucket
	hidden bool // scope and ID are not stored
}

// view runs fn in a reading transaction. It waits for nobody, except while the file
// is mapped anew: see open.
func (d *Driver) view(ctx context.Context, fn func(bucket) error) error {
	tx, err := d.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	b := bucket{tx.Bucket(d.bucket), len(d.secret) > 0}
	if b.Bucket != nil {
		if err := b.checkVersion(); err != nil {
			return err
		}
	}
	return fn(b)
}

// in returns the bucket in a write transaction, creating it when it is missing.
func (d *Driver) in(tx *bbolt.Tx) (bucket, error) {
	b := bucket{tx.Bucket(d.bucket), len(d.secret) > 0}
	if b.Bucket != nil {
		return b, b.checkVersion()
	}
	var err error
	if b.Bucket, err = tx.CreateBucket(d.bucket); err != nil {
		return b, err
	}
	return b, b.Put(versionKey, []byte{layoutVersion})
}

func (b bucket) checkVersion() error {
	switch v := b.Get(versionKey); {
	case len(v) != 1 || v[0] < layoutVersion: // no older layout was ever released
		return fmt.Errorf("bolt: %w: the bucket holds something else; choose another with WithBucket", driver.ErrForeignRecord)
	case v[0] > layoutVersion:
		return fmt.Errorf("bolt: %w: layout version %d, this is %d", driver.ErrNewerVersion, v[0], layoutVersion)
	}
	return nil
}

// record returns the record under h, in StateAbsent when there is none.
func (b bucket) record(h driver.KeyHash) (driver.Record, error) {
	if b.Bucket == nil {
		return driver.Record{}, nil
	}
	v := b.Get(recordKey(h))
	if v == nil {
		return driver.Record{}, nil
	}
	return driver.DecodeRecord(v, h)
}

// replace replaces the record old under h by next.
func (b bucket) replace(h driver.KeyHash, old, next driver.Record) error {
	if b.hidden {
		next.Key = driver.Key{}
	}
	if err := b.Put(recordKey(h), next.AppendBinary(nil, h)); err != nil {
		return err
	}
	was, is := dueEntry(old, h), dueEntry(next, h)
	if string(was) == string(is) {
		return nil
	}
	if was != nil {
		if err := b.Delete(was); err != nil {
			return err
		}
	}
	if is != nil {
		return b.Put(is, nil)
	}
	return nil
}

// remove deletes the record r under h.
func (b bucket) remove(h driver.KeyHash, r driver.Record) error {
	if was := dueEntry(r, h); was != nil {
		if err := b.Delete(was); err != nil {
			return err
		}
	}
	return b.Delete(recordKey(h))
}

const (
	recordKeySize = 1 + len(driver.KeyHash{})
	dueSize       = 1 + 8 + len(driver.KeyHash{})
)

func recordKey(h driver.KeyHash) []byte {
	return append(append(make([]byte, 0, recordKeySize), recordPrefix), h[:]...)
}

// dueEntry returns the entry that says when r is due; nil when Purge never has to
// look at it. Bytewise order is the order of time, for instants after 1970.
func dueEntry(r driver.Record, h driver.KeyHash) []byte {
	if r.State == driver.StateAbsent {
		return nil
	}
	t, ok := r.DueAt()
	if !ok {
		return nil
	}
	e := append(make([]byte, 0, dueSize), duePrefix)
	e = binary.BigEndian.AppendUint64(e, uint64(t.UnixMicro()))
	return append(e, h[:]...)
}

// parseDue is the inverse of dueEntry.
func parseDue(e []byte) (time.Time, driver.KeyHash, error) {
	if len(e) != dueSize || e[0] != duePrefix {
		return time.Time{}, driver.KeyHash{}, errors.New("bolt: the bucket holds an entry that is not the driver's")
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64(e[1:]))).UTC(), driver.KeyHash(e[9:]), nil
}
