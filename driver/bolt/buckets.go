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

// The layout under the driver's bucket:
//
//	version   one byte, layoutVersion
//	records   key hash -> driver.Record.AppendBinary
//	due       8 bytes of big-endian µs, key hash -> nothing: when Purge looks at the record
const layoutVersion = 1

var (
	versionKey = []byte("version")
	recordsKey = []byte("records")
	dueKey     = []byte("due")
)

// buckets are the driver's buckets in one transaction. They are nil in a reading
// transaction over a database that has none yet. Nothing read through them may
// leave the transaction without a copy: the memory belongs to the file.
type buckets struct {
	records *bbolt.Bucket
	due     *bbolt.Bucket
	hidden  bool // scope and ID are not stored
}

// view runs fn in a reading transaction. It waits for nobody, except while the file
// is mapped anew: see open.
func (d *Driver) view(ctx context.Context, fn func(buckets) error) error {
	tx, err := d.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	root := tx.Bucket(d.bucket)
	if root == nil {
		return fn(buckets{hidden: len(d.secret) > 0})
	}
	if err := checkVersion(root); err != nil {
		return err
	}
	return fn(buckets{root.Bucket(recordsKey), root.Bucket(dueKey), len(d.secret) > 0})
}

// in returns the buckets in a write transaction, creating what is missing.
func (d *Driver) in(tx *bbolt.Tx) (buckets, error) {
	b := buckets{hidden: len(d.secret) > 0}
	root := tx.Bucket(d.bucket)
	if root != nil {
		if err := checkVersion(root); err != nil {
			return b, err
		}
		b.records, b.due = root.Bucket(recordsKey), root.Bucket(dueKey)
		if b.records != nil && b.due != nil {
			return b, nil
		}
	}
	root, err := tx.CreateBucketIfNotExists(d.bucket)
	if err != nil {
		return b, err
	}
	if err := root.Put(versionKey, []byte{layoutVersion}); err != nil {
		return b, err
	}
	if b.records, err = root.CreateBucketIfNotExists(recordsKey); err != nil {
		return b, err
	}
	b.due, err = root.CreateBucketIfNotExists(dueKey)
	return b, err
}

func checkVersion(root *bbolt.Bucket) error {
	switch v := root.Get(versionKey); {
	case len(v) != 1:
		return fmt.Errorf("bolt: %w: the bucket holds something else; choose another with WithBucket", driver.ErrForeignRecord)
	case v[0] > layoutVersion:
		return fmt.Errorf("bolt: %w: layout version %d, this is %d", driver.ErrNewerVersion, v[0], layoutVersion)
	}
	return nil
}

// get returns the record under h, in StateAbsent when there is none.
func (b buckets) get(h driver.KeyHash) (driver.Record, error) {
	if b.records == nil {
		return driver.Record{}, nil
	}
	v := b.records.Get(h[:])
	if v == nil {
		return driver.Record{}, nil
	}
	return driver.DecodeRecord(v, h)
}

// put replaces the record old under h by next.
func (b buckets) put(h driver.KeyHash, old, next driver.Record) error {
	if b.hidden {
		next.Key = driver.Key{}
	}
	if err := b.records.Put(h[:], next.AppendBinary(nil, h)); err != nil {
		return err
	}
	was, is := dueEntry(old, h), dueEntry(next, h)
	if string(was) == string(is) {
		return nil
	}
	if was != nil {
		if err := b.due.Delete(was); err != nil {
			return err
		}
	}
	if is != nil {
		return b.due.Put(is, nil)
	}
	return nil
}

// remove deletes the record r under h.
func (b buckets) remove(h driver.KeyHash, r driver.Record) error {
	if was := dueEntry(r, h); was != nil {
		if err := b.due.Delete(was); err != nil {
			return err
		}
	}
	return b.records.Delete(h[:])
}

const dueSize = 8 + len(driver.KeyHash{})

// dueEntry returns the key of r in the due bucket; nil when Purge never has to
// look at it. Bytewise order is the order of time, for instants after 1970.
func dueEntry(r driver.Record, h driver.KeyHash) []byte {
	if r.State == driver.StateAbsent {
		return nil
	}
	t, ok := r.DueAt()
	if !ok {
		return nil
	}
	e := binary.BigEndian.AppendUint64(make([]byte, 0, dueSize), uint64(t.UnixMicro()))
	return append(e, h[:]...)
}

// parseDue is the inverse of dueEntry.
func parseDue(e []byte) (time.Time, driver.KeyHash, error) {
	if len(e) != dueSize {
		return time.Time{}, driver.KeyHash{}, errors.New("bolt: the due bucket holds an entry that is not the driver's")
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64(e))).UTC(), driver.KeyHash(e[8:]), nil
}
