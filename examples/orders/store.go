package main

import (
	"context"
	"fmt"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/idemhttp"
)

// store keeps the orders, and the records of the keys of orders and refunds.
type store struct {
	driver driver.Driver
	// guard declares an endpoint whose handler creates orders.
	guard func(idemhttp.Config) (*idemhttp.Guard, error)
	// insert writes an order with the context of a guarded handler.
	insert func(ctx context.Context, o Order) error
	// count counts the orders of an item, or all of them when item is empty.
	count func(ctx context.Context, item string) (int, error)
	close func() error
}

func open(ctx context.Context, o options) (store, error) {
	switch o.driver {
	case "sqlite":
		return openSQLite(ctx, o.dsn)
	case "bolt":
		return openBolt(o.dsn)
	case "postgres":
		return openPostgres(ctx, o.dsn)
	case "redis":
		return openRedis(ctx, o.dsn)
	}
	return store{}, fmt.Errorf("-driver is %q, want sqlite, bolt, postgres or redis", o.driver)
}

// inTx declares endpoints whose handlers run in a transaction of a store.
func inTx[T any](drv driver.TxDriver[T]) func(idemhttp.Config) (*idemhttp.Guard, error) {
	return func(c idemhttp.Config) (*idemhttp.Guard, error) { return idemhttp.NewTx(drv, c) }
}
