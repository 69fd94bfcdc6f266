package main

import (
	"context"
	"encoding/json"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/idemhttp"
)

// openRedis keeps orders in a hash. Redis has no transaction that could hold the
// order and the answer to its key, so the order is written first, under a lease, and
// the answer after it. What this does not promise:
//
//   - A process that dies in between leaves an order without an answer. The next
//     attempt must find that order instead of writing another: its ID is derived
//     from the key, and HSETNX writes it once. Do the same with whatever you call.
//   - What Redis forgets (a failover, a loss of power with appendfsync everysec) is
//     forgotten here: an answer that is lost lets the request run again, and an
//     order that is lost is not missed.
func openRedis(ctx context.Context, url string) (store, error) {
	opts, err := goredis.ParseURL(url)
	if err != nil {
		return store{}, err
	}
	opts.ContextTimeoutEnabled = true
	client := goredis.NewClient(opts)
	drv := redis.New(client)
	if err := drv.Check(ctx); err != nil { // an evicting server, for example
		client.Close()
		return store{}, err
	}
	const orders = "orders"
	return store{
		driver: drv,
		guard:  func(c idemhttp.Config) (*idemhttp.Guard, error) { return idemhttp.New(drv, c) },
		insert: func(ctx context.Context, o Order) error {
			row, err := json.Marshal(o)
			if err != nil {
				return err
			}
			// The row of an earlier attempt that died is the same row: ID and content
			// follow from the key and the request.
			return client.HSetNX(ctx, orders, o.ID, row).Err()
		},
		count: func(ctx context.Context, item string) (n int, err error) {
			rows, err := client.HVals(ctx, orders).Result()
			for _, row := range rows {
				var o Order
				if err := json.Unmarshal([]byte(row), &o); err != nil {
					return 0, err
				}
				if item == "" || item == o.Item {
					n++
				}
			}
			return n, err
		},
		close: client.Close,
	}, nil
}
