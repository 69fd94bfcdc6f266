package foreign

import (
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/redistest"
)

// FuzzBolt: any bytes in the bucket of records.
func FuzzBolt(f *testing.F) {
	for _, b := range records() {
		f.Add(b)
	}
	d, err := bolt.Open(filepath.Join(f.TempDir(), "foreign.db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = d.Close() })
	bucket := []byte(bolt.DefaultBucket)
	f.Fuzz(func(t *testing.T, b []byte) {
		put := func() error {
			return d.DB().Update(func(tx *bbolt.Tx) error {
				if tx.Bucket(bucket) != nil {
					if err := tx.DeleteBucket(bucket); err != nil {
						return err
					}
				}
				root, err := tx.CreateBucket(bucket)
				if err != nil {
					return err
				}
				if err := root.Put([]byte("version"), []byte{1}); err != nil {
					return err
				}
				records, err := root.CreateBucket([]byte("records"))
				if err != nil {
					return err
				}
				due, err := root.CreateBucket([]byte("due"))
				if err != nil {
					return err
				}
				if err := due.Put(append(make([]byte, 8), hash[:]...), nil); err != nil {
					return err
				}
				return records.Put(hash[:], b)
			})
		}
		stored := func() (s string) {
			if err := d.DB().View(func(tx *bbolt.Tx) error {
				s = string(tx.Bucket(bucket).Bucket([]byte("records")).Get(hash[:]))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return s
		}
		check(t, d, put, stored)
	})
}

// FuzzRedis: any string under the name of a record, as it is and after the mark.
func FuzzRedis(f *testing.F) {
	for _, b := range records() {
		f.Add(b, true)
		f.Add(b, false)
	}
	c := redistest.Client(f, redistest.Addr(f))
	const prefix = "foreign:"
	d := redis.New(c, redis.WithPrefix(prefix))
	name := prefix + "{" + hash.String() + "}"
	f.Fuzz(func(t *testing.T, b []byte, marked bool) {
		if marked {
			b = append([]byte("idem"), b...)
		}
		put := func() error { return c.Set(t.Context(), name, b, 0).Err() }
		check(t, d, put, func() string { return c.Get(t.Context(), name).Val() })
	})
}
