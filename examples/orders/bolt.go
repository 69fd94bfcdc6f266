package main

import (
	"context"
	"encoding/json"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/idemhttp"
)

func openBolt(path string) (store, error) {
	drv, err := bolt.Open(path)
	if err != nil {
		return store{}, err
	}
	orders := []byte("orders") // a bucket beside the driver's own
	return store{
		driver: drv,
		guard:  inTx(drv),
		insert: func(ctx context.Context, o Order) error {
			b, err := idemhttp.Tx[*bbolt.Tx](ctx).CreateBucketIfNotExists(orders)
			if err != nil {
				return err
			}
			row, err := json.Marshal(o)
			if err != nil {
				return err
			}
			return b.Put([]byte(o.ID), row)
		},
		count: func(_ context.Context, item string) (n int, err error) {
			err = drv.DB().View(func(tx *bbolt.Tx) error {
				b := tx.Bucket(orders)
				if b == nil {
					return nil // no order yet
				}
				return b.ForEach(func(_, row []byte) error {
					var o Order
					if err := json.Unmarshal(row, &o); err != nil {
						return err
					}
					if item == "" || item == o.Item {
						n++
					}
					return nil
				})
			})
			return n, err
		},
		close: drv.Close,
	}, nil
}
