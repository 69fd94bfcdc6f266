package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
)

// Order is a row of the business table, and the answer to the request.
type Order struct {
	ID       string `json:"id"`
	Tenant   string `json:"tenant"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
}

// request is the body of POST /orders.
type request struct {
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`

	pause time.Duration // for demonstrations
}

// store is what the handlers need.
type store interface {
	// Create creates an order, unless the key has one: then it returns that.
	Create(ctx context.Context, key idem.Key, fp idem.Fingerprint, req request) (idem.Result[Order], error)
	// Count counts the orders of an item, or all of them when item is empty.
	Count(ctx context.Context, item string) (int, error)
	// Maintain deletes records that are over, until ctx ends.
	Maintain(ctx context.Context) error
	Close() error
}

func open(ctx context.Context, o options) (store, error) {
	switch o.driver {
	case "sqlite":
		return openSQLite(ctx, o)
	case "bolt":
		return openBolt(o)
	case "postgres":
		return openPostgres(ctx, o)
	case "redis":
		return openRedis(ctx, o)
	}
	return nil, fmt.Errorf("-driver is %q, want sqlite, bolt, postgres or redis", o.driver)
}

// table is a business table that transactions of type T write to.
type table[T any] struct {
	insert func(ctx context.Context, tx T, o Order) error
	count  func(ctx context.Context, item string) (int, error)
	close  func() error
}

// txStore is a store with transactions: order and outcome commit together.
type txStore[T any] struct {
	*idem.TxOperation[Order, T]
	table table[T]
}

func newTxStore[T any](drv driver.TxDriver[T], o options, t table[T]) (store, error) {
	op, err := idem.NewTx[Order](drv, config(o))
	return &txStore[T]{op, t}, err
}

// Create implements store.
func (s *txStore[T]) Create(ctx context.Context, key idem.Key, fp idem.Fingerprint, req request) (idem.Result[Order], error) {
	return s.DoTx(ctx, key, fp, func(ctx context.Context, tx T) (Order, error) {
		if err := check(req); err != nil {
			return Order{}, err
		}
		order := Order{ID: rand.Text(), Tenant: key.Scope, Item: req.Item, Quantity: req.Quantity}
		if err := s.table.insert(ctx, tx, order); err != nil {
			return Order{}, err
		}
		return order, pause(ctx, req)
	})
}

// Count implements store.
func (s *txStore[T]) Count(ctx context.Context, item string) (int, error) {
	return s.table.count(ctx, item)
}

// Close implements store.
func (s *txStore[T]) Close() error { return s.table.close() }

// check refuses an order for good: the refusal is stored, and repeats get it too.
func check(req request) error {
	if req.Quantity > 100 {
		return &idem.FinalError{Code: "order_too_large", Message: "an order has at most 100 pieces"}
	}
	return nil
}

// pause stops a request of a demonstration where a crash would hurt most.
func pause(ctx context.Context, req request) error {
	if req.pause <= 0 {
		return nil
	}
	log.Printf("the order of %s is written, its outcome is not: pausing for %v", req.Item, req.pause)
	select {
	case <-time.After(req.pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
