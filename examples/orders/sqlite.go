package main

import (
	"context"
	"database/sql"

	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/idemhttp"
)

func openSQLite(ctx context.Context, path string) (store, error) {
	drv, err := sqlite.Open(path)
	if err != nil {
		return store{}, err
	}
	db := drv.DB() // one file holds the orders and the records of their keys
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS orders (
		id TEXT PRIMARY KEY, tenant TEXT NOT NULL, item TEXT NOT NULL, quantity INTEGER NOT NULL)`)
	if err != nil {
		drv.Close()
		return store{}, err
	}
	return store{
		driver: drv,
		guard:  inTx(drv),
		insert: func(ctx context.Context, o Order) error {
			_, err := idemhttp.Tx[*sql.Tx](ctx).ExecContext(ctx,
				`INSERT INTO orders (id, tenant, item, quantity) VALUES (?, ?, ?, ?)`, o.ID, o.Tenant, o.Item, o.Quantity)
			return err
		},
		count: func(ctx context.Context, item string) (n int, err error) {
			err = db.QueryRowContext(ctx, `SELECT count(*) FROM orders WHERE ?1 IN ('', item)`, item).Scan(&n)
			return n, err
		},
		close: drv.Close,
	}, nil
}
