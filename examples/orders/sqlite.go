package main

import (
	"context"
	"database/sql"

	"github.com/idem-go/idem/driver/sqlite"
)

func openSQLite(ctx context.Context, o options) (store, error) {
	drv, err := sqlite.Open(o.dsn)
	if err != nil {
		return nil, err
	}
	db := drv.DB() // one file holds the orders and the records of their keys
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS orders (
		id TEXT PRIMARY KEY, tenant TEXT NOT NULL, item TEXT NOT NULL, quantity INTEGER NOT NULL)`)
	if err != nil {
		drv.Close()
		return nil, err
	}
	return newTxStore(drv, o, table[*sql.Tx]{
		insert: func(ctx context.Context, tx *sql.Tx, o Order) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO orders (id, tenant, item, quantity) VALUES (?, ?, ?, ?)`,
				o.ID, o.Tenant, o.Item, o.Quantity)
			return err
		},
		count: func(ctx context.Context, item string) (n int, err error) {
			err = db.QueryRowContext(ctx, `SELECT count(*) FROM orders WHERE ?1 IN ('', item)`, item).Scan(&n)
			return n, err
		},
		close: drv.Close,
	})
}
