package bench

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/sqlite"
)

func growSQLite(tb testing.TB, n int) *grown {
	path := filepath.Join(tb.TempDir(), "grown.db")
	d := must[*sqlite.Driver](tb)(sqlite.Open(path))
	seedRecord(tb, d)
	if err := d.Close(); err != nil {
		tb.Fatal(err)
	}
	multiplySQLite(tb, path, n)
	d = must[*sqlite.Driver](tb)(sqlite.Open(path))
	tb.Cleanup(func() { d.Close() })
	return &grown{n: n, drv: d, doTx: inTx[*sql.Tx](tb, d), parts: []part{{"file", fileSize(tb, path)}}}
}

// multiplySQLite multiplies the one record there is. Its columns are the catalog's, and
// what it does not know it copies.
func multiplySQLite(tb testing.TB, path string, n int) {
	ctx := tb.Context()
	db := must[*sql.DB](tb)(sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=cache_size(-1000000)"))
	defer db.Close()
	db.SetMaxOpenConns(1)
	rows := must[*sql.Rows](tb)(db.QueryContext(ctx, "SELECT name FROM pragma_table_info('idem_keys') WHERE pk = 0"))
	var names, values []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			tb.Fatal(err)
		}
		value := name
		switch {
		case name == "kh":
			value = "?1"
		case name == "id":
			value = "?2"
		case strings.HasSuffix(name, "_us"): // 0 is no time
			value = "CASE WHEN " + name + " = 0 THEN 0 ELSE " + name + " - ?3 END"
		}
		names, values = append(names, name), append(values, value)
	}
	if err := rows.Err(); err != nil {
		tb.Fatal(err)
	}
	insert := "INSERT INTO idem_keys (" + strings.Join(names, ", ") + ") SELECT " + strings.Join(values, ", ") + " FROM idem_keys WHERE seq = 1"
	older := grownAge.Microseconds() / int64(n)
	for from := 1; from < n; from += loadBatch {
		tx := must[*sql.Tx](tb)(db.BeginTx(ctx, nil))
		st := must[*sql.Stmt](tb)(tx.PrepareContext(ctx, insert))
		for i := from; i < min(from+loadBatch, n); i++ {
			kh := grownHash(i)
			if _, err := st.ExecContext(ctx, kh[:], grownID(i), int64(n-i)*older); err != nil {
				tb.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			tb.Fatal(err)
		}
	}
	if _, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		tb.Fatal(err)
	}
}

func growBolt(tb testing.TB, n int) *grown {
	path := filepath.Join(tb.TempDir(), "grown.bolt")
	d := must[*bolt.Driver](tb)(bolt.Open(path))
	seedRecord(tb, d)
	if err := d.Close(); err != nil {
		tb.Fatal(err)
	}
	multiplyBolt(tb, path, n)
	d = must[*bolt.Driver](tb)(bolt.Open(path))
	tb.Cleanup(func() { d.Close() })
	return &grown{n: n, drv: d, doTx: inTx[*bbolt.Tx](tb, d), parts: []part{{"file", fileSize(tb, path)}}}
}

// mould holds bytes of the record of grownKey(0), and where what tells it from others stands in them.
type mould struct {
	bytes            []byte
	hashes, hex, ids []int
}

func newMould(b []byte) mould {
	hash := grownHash(0)
	return mould{bytes.Clone(b), offsets(b, hash[:]), offsets(b, []byte(hash.String())), offsets(b, []byte(grownID(0)))}
}

func offsets(b, sub []byte) (all []int) {
	for at := 0; ; at++ {
		i := bytes.Index(b[at:], sub)
		if i < 0 {
			return all
		}
		at += i
		all = append(all, at)
	}
}

// cast returns the same bytes of the record of another key.
func (m mould) cast(i int, h driver.KeyHash) []byte {
	b := bytes.Clone(m.bytes)
	for _, at := range m.hashes {
		copy(b[at:], h[:])
	}
	for _, at := range m.hex {
		copy(b[at:], h.String())
	}
	for _, at := range m.ids {
		copy(b[at:], grownID(i))
	}
	return b
}

// entry is a key and a value of a bucket, both of the record of grownKey(0).
type entry struct {
	path       [][]byte // of buckets
	key, value mould
}

// multiplyBolt copies every entry that has to do with the one record there is, in the
// order of hashes: pages then are as full as fillPercent says, which is about what a
// tree has that grew at random places.
func multiplyBolt(tb testing.TB, path string, n int) {
	const fillPercent = 0.69
	db := must[*bbolt.DB](tb)(bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, FreelistType: bbolt.FreelistMapType}))
	defer db.Close()
	var entries []entry
	was := grownHash(0)
	if err := db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return ofRecord(b, [][]byte{bytes.Clone(name)}, was[:], &entries)
		})
	}); err != nil {
		tb.Fatal(err)
	}
	type numbered struct {
		h driver.KeyHash
		i int
	}
	all := make([]numbered, n-1)
	for i := range all {
		all[i] = numbered{grownHash(i + 1), i + 1}
	}
	slices.SortFunc(all, func(a, b numbered) int { return bytes.Compare(a.h[:], b.h[:]) })
	for chunk := range slices.Chunk(all, loadBatch) {
		if err := db.Update(func(tx *bbolt.Tx) error {
			for _, e := range entries {
				b := tx.Bucket(e.path[0])
				for _, name := range e.path[1:] {
					b = b.Bucket(name)
				}
				b.FillPercent = fillPercent
				for _, k := range chunk {
					if err := b.Put(e.key.cast(k.i, k.h), e.value.cast(k.i, k.h)); err != nil {
						return err
					}
				}
			}
			return nil
		}); err != nil {
			tb.Fatal(err)
		}
	}
	if err := db.Sync(); err != nil {
		tb.Fatal(err)
	}
}

func ofRecord(b *bbolt.Bucket, path [][]byte, hash []byte, all *[]entry) error {
	return b.ForEach(func(k, v []byte) error {
		if v == nil && b.Bucket(k) != nil {
			return ofRecord(b.Bucket(k), append(slices.Clone(path), bytes.Clone(k)), hash, all)
		}
		if bytes.Contains(k, hash) {
			*all = append(*all, entry{path, newMould(k), newMould(v)})
		}
		return nil
	})
}

func fileSize(tb testing.TB, path string) int64 {
	return must[os.FileInfo](tb)(os.Stat(path)).Size()
}
