package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/idemhttp"
)

func openPostgres(ctx context.Context, dsn string) (store, error) {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return store{}, err
	}
	drv := postgres.New(pool)
	err = drv.Migrate(ctx) // or put postgres.Schema into migrations of your own
	if err == nil {
		_, err = pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (
			id text PRIMARY KEY, tenant text NOT NULL, item text NOT NULL, quantity int NOT NULL)`)
	}
	if err != nil {
		pool.Close()
		return store{}, err
	}
	return store{
		driver: drv,
		guard:  inTx(drv),
		insert: func(ctx context.Context, o Order) error {
			_, err := idemhttp.Tx[pgx.Tx](ctx).Exec(ctx,
				`INSERT INTO orders (id, tenant, item, quantity) VALUES ($1, $2, $3, $4)`, o.ID, o.Tenant, o.Item, o.Quantity)
			return err
		},
		count: func(ctx context.Context, item string) (n int, err error) {
			err = pool.QueryRow(ctx, `SELECT count(*) FROM orders WHERE $1 IN ('', item)`, item).Scan(&n)
			return n, err
		},
		close: func() error { pool.Close(); return nil },
	}, nil
}
