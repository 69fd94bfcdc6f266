package bolt_test

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
)

// configs are the ways of opening a file that the driver accepts.
var configs = []struct {
	name    string
	options bbolt.Options
	driver  []bolt.Option
}{
	{"default", bbolt.Options{FreelistType: bbolt.FreelistMapType}, nil},
	{"no freelist sync", bbolt.Options{NoFreelistSync: true},
		[]bolt.Option{bolt.WithSecret([]byte("s")), bolt.WithNamespace("n"), bolt.WithBucket("b")}},
}

func TestConformance(t *testing.T) {
	for _, c := range configs {
		t.Run(c.name, func(t *testing.T) {
			open := func(t testing.TB, path string) *bolt.Driver { return open(t, path, c.options, c.driver...) }
			fresh := func(t testing.TB) *bolt.Driver { return open(t, filepath.Join(t.TempDir(), "idem.db")) }
			reopen := func(t testing.TB, d *bolt.Driver) *bolt.Driver {
				path := d.DB().Path()
				if err := d.DB().Close(); err != nil {
					t.Fatalf("closing: %v", err)
				}
				return open(t, path)
			}
			conformancetest.Run(t, conformancetest.Harness{
				New:    func(t testing.TB) driver.Driver { return fresh(t) },
				Reopen: func(t testing.TB, d driver.Driver) driver.Driver { return reopen(t, d.(*bolt.Driver)) },
				Config: c.name,
			})
			conformancetest.RunTx(t, conformancetest.TxHarness[*bbolt.Tx]{
				New: func(t testing.TB) driver.TxDriver[*bbolt.Tx] { return fresh(t) },
				Reopen: func(t testing.TB, d driver.TxDriver[*bbolt.Tx]) driver.TxDriver[*bbolt.Tx] {
					return reopen(t, d.(*bolt.Driver))
				},
				Insert: func(_ context.Context, tx *bbolt.Tx, row string) error { return insertRow(tx, row) },
				Count: func(_ context.Context, d driver.TxDriver[*bbolt.Tx], row string) (int, error) {
					return countRows(d.(*bolt.Driver).DB(), row)
				},
				Config: c.name,
			})
		})
	}
}

func open(t testing.TB, path string, o bbolt.Options, opts ...bolt.Option) *bolt.Driver {
	t.Helper()
	o.Timeout = time.Second
	db, err := bbolt.Open(path, 0o600, &o)
	if err != nil {
		t.Fatalf("opening %s: %v", path, err)
	}
	t.Cleanup(func() { _ = db.Close() })
	d := bolt.New(db, opts...)
	if err := d.Check(t.Context()); err != nil {
		t.Fatalf("Check: %v", err)
	}
	return d
}

func fresh(t testing.TB, opts ...bolt.Option) *bolt.Driver {
	t.Helper()
	return open(t, filepath.Join(t.TempDir(), "idem.db"), bbolt.Options{FreelistType: bbolt.FreelistMapType}, opts...)
}

var business = []byte("business")

// insertRow counts in a bucket of the application how often a row was written.
func insertRow(tx *bbolt.Tx, row string) error {
	b, err := tx.CreateBucketIfNotExists(business)
	if err != nil {
		return err
	}
	var n uint64
	if v := b.Get([]byte(row)); v != nil {
		n = binary.BigEndian.Uint64(v)
	}
	return b.Put([]byte(row), binary.BigEndian.AppendUint64(nil, n+1))
}

func countRows(db *bbolt.DB, row string) (n int, err error) {
	err = db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(business); b != nil {
			if v := b.Get([]byte(row)); v != nil {
				n = int(binary.BigEndian.Uint64(v))
			}
		}
		return nil
	})
	return n, err
}
