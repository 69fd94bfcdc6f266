package main

import (
	"context"
	"encoding/json"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/redis"
)

// redisStore keeps orders in a hash. Redis has no transaction that could hold the
// order and the outcome of its key, so the order is written first, under a lease,
// and the outcome after it. What this does not promise:
//
//   - A process that dies in between leaves an order without an outcome. The next
//     attempt must find that order instead of writing another: its ID is derived
//     from the key, and HSETNX writes it once. Do the same with whatever you call.
//   - What Redis forgets (a failover, a loss of power with appendfsync everysec) is
//     forgotten here: an outcome that is lost lets the request run again, and an
//     order that is lost is not missed.
type redisStore struct {
	*idem.Operation[Order]
	client *goredis.Client
}

const ordersHash = "orders"

func openRedis(ctx context.Context, o options) (store, error) {
	opts, err := goredis.ParseURL(o.dsn)
	if err != nil {
		return nil, err
	}
	opts.ContextTimeoutEnabled = true
	client := goredis.NewClient(opts)
	drv := redis.New(client)
	if err := drv.Check(ctx); err != nil { // an evicting server, for example
		client.Close()
		return nil, err
	}
	op, err := idem.New[Order](drv, config(o))
	return &redisStore{op, client}, err
}

// Create implements store.
func (s *redisStore) Create(ctx context.Context, key idem.Key, fp idem.Fingerprint, req request) (idem.Result[Order], error) {
	return s.Do(ctx, key, fp, func(ctx context.Context, run *idem.Run) (Order, error) {
		if err := check(req); err != nil {
			return Order{}, err
		}
		order := Order{ID: run.DownstreamKey("order"), Tenant: key.Scope, Item: req.Item, Quantity: req.Quantity}
		row, err := json.Marshal(order)
		if err != nil {
			return Order{}, err
		}
		// The row of an earlier attempt that died is the same row: ID and content
		// follow from the key and the request.
		if err := s.client.HSetNX(ctx, ordersHash, order.ID, row).Err(); err != nil {
			return Order{}, err // written or not: the next attempt will see
		}
		return order, pause(ctx, req)
	})
}

// Count implements store.
func (s *redisStore) Count(ctx context.Context, item string) (n int, err error) {
	rows, err := s.client.HVals(ctx, ordersHash).Result()
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
}

// Close implements store.
func (s *redisStore) Close() error { return s.client.Close() }
