package bench

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/bolt"
)

const (
	bareUpdate   = "one Update"
	byHandUpdate = "by hand: Update with the claim; Update with row and result"
	bareView     = "View of a stored result"
)

func boltTables(tb testing.TB) []*table {
	d := must[*bolt.Driver](tb)(bolt.Open(filepath.Join(tb.TempDir(), "bench.bolt")))
	tb.Cleanup(func() { d.Close() })
	db := d.DB()
	business, hand := []byte("business"), []byte("byhand")
	if err := db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucket(business); err != nil {
			return err
		}
		_, err := tx.CreateBucket(hand)
		return err
	}); err != nil {
		tb.Fatal(err)
	}
	op := must[*idem.TxOperation[[]byte, *bbolt.Tx]](tb)(idem.NewTx[[]byte](d, config))
	insert := func(tx *bbolt.Tx, id string) error { return tx.Bucket(business).Put([]byte(id), body) }
	byhand := func(_ context.Context, id string) error {
		k := []byte(id)
		if err := db.Update(func(tx *bbolt.Tx) error {
			if tx.Bucket(hand).Get(k) != nil {
				return errTaken
			}
			return tx.Bucket(hand).Put(k, print().Sum())
		}); err != nil {
			return err
		}
		return db.Update(func(tx *bbolt.Tx) error {
			if err := insert(tx, id); err != nil {
				return err
			}
			return tx.Bucket(hand).Put(k, result)
		})
	}
	first := &table{id: "bolt-first", title: "bbolt, first run, one caller", callers: 1, subjects: []subject{
		{name: bareUpdate, call: func(_ context.Context, id string) error {
			return db.Update(func(tx *bbolt.Tx) error { return insert(tx, id) })
		}},
		{name: byHandUpdate, call: byhand},
		{name: doTx, call: func(ctx context.Context, id string) error {
			res, err := op.DoTx(ctx, key(id), print(), func(_ context.Context, tx *bbolt.Tx) ([]byte, error) {
				return result, insert(tx, id)
			})
			return is(false, res, err)
		}},
		doing(tb, do, d),
	}}
	many := &table{id: "bolt-64", title: "bbolt, first run, 64 callers", callers: 64, subjects: []subject{
		{name: bareUpdate, call: first.subjects[0].call},
		first.subjects[2], doing(tb, oneCommitAStep, &oneByOne{Driver: d}), doing(tb, do, d),
	}}
	replay := &table{id: "bolt-replay", title: "bbolt, replay, one caller", callers: 1, subjects: []subject{
		replaying(bareView, known(tb, byhand), func(_ context.Context, id string) error {
			var value []byte
			err := db.View(func(tx *bbolt.Tx) error {
				value = bytes.Clone(tx.Bucket(hand).Get([]byte(id)))
				return nil
			})
			return had(value, err)
		}),
		redoing(tb, d),
	}}
	return []*table{first, many, replay}
}
