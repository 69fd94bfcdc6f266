//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/driver/sqlite"
)

// lease is short, so that a run sees many of them end.
const lease = 500 * time.Millisecond

var (
	config  = idem.Config{Name: "faults", Lease: lease, Retention: 24 * time.Hour, SettleTimeout: 3 * time.Second, MaxWaiters: 8}
	holding = idem.Config{
		Name: "faults.hold", Policy: idem.Hold, Lease: lease, Retention: 24 * time.Hour, SettleTimeout: 3 * time.Second, MaxWaiters: 8,
	}
	print1 = idem.NewFingerprint("faults.v1", []byte("the same"))
)

// steps are what fn does in a call. A transaction's insert writes the business row.
type steps struct {
	fn   func(context.Context, *idem.Run) (string, error)                                        // of Do and DoThenTx
	tx   func(ctx context.Context, insert func(context.Context) error) (string, error)           // of DoTx
	then func(ctx context.Context, v string, insert func(context.Context) error) (string, error) // of DoThenTx
}

// handle is a store as one user has it: a pool, a client, a file handle.
type handle struct {
	ways    []way
	call    func(ctx context.Context, w way, key idem.Key, id string, s steps, opts ...idem.CallOption) (idem.Result[string], error)
	resolve func(ctx context.Context, key idem.Key, value string, err error) error
	purge   func(ctx context.Context) error
	// rows returns the calls whose business rows are in the store, by key.
	rows func(ctx context.Context) (map[string][]string, error)
	// leak reports what the handle still holds although no call is under way.
	leak  func() error
	close func()
}

func open(kind, dsn string) (*handle, error) {
	switch kind {
	case "postgres":
		return openPostgres(dsn)
	case "sqlite":
		return openSQLite(dsn)
	case "bolt":
		return openBolt(dsn)
	case "redis":
		return openRedis(dsn)
	}
	return nil, fmt.Errorf("no driver is called %q", kind)
}

func withTx[T any](drv driver.TxDriver[T], insert func(ctx context.Context, tx T, key, id string) error) (*handle, error) {
	if mutant != "" {
		drv = &broken[T]{drv}
	}
	if skewing {
		drv = skewed[T]{drv}
	}
	rerun, err := idem.NewTx[string](drv, config)
	if err != nil {
		return nil, err
	}
	hold, err := idem.NewTx[string](drv, holding)
	if err != nil {
		return nil, err
	}
	h := &handle{ways: []way{do, doTx, doThenTx}, leak: func() error { return nil }}
	h.purge = func(ctx context.Context) error { _, err := rerun.Purge(ctx, 100); return err }
	h.resolve = func(ctx context.Context, key idem.Key, value string, err error) error {
		return hold.Resolve(ctx, key, "a person looked", value, err)
	}
	h.call = func(ctx context.Context, w way, key idem.Key, id string, s steps, opts ...idem.CallOption) (idem.Result[string], error) {
		in := func(tx T) func(context.Context) error {
			return func(ctx context.Context) error { return insert(ctx, tx, key.ID, id) }
		}
		op := rerun
		if held(key.ID) {
			op = hold
		}
		switch w {
		case doTx:
			return op.DoTx(ctx, key, print1, func(ctx context.Context, tx T) (string, error) { return s.tx(ctx, in(tx)) }, opts...)
		case doThenTx:
			then := func(ctx context.Context, tx T, v string) (string, error) { return s.then(ctx, v, in(tx)) }
			return op.DoThenTx(ctx, key, print1, s.fn, then, opts...)
		}
		return op.Do(ctx, key, print1, s.fn, opts...)
	}
	return h, nil
}

// A transaction whose process is stopped keeps its key for this long.
const idleTimeout = 600 * time.Millisecond

func openPostgres(dsn string) (*handle, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	c.MaxConns = 6
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		return nil, err
	}
	h, err := withTx(postgres.New(pool, postgres.WithIdleTimeout(idleTimeout)), func(ctx context.Context, tx pgx.Tx, key, id string) error {
		_, err := tx.Exec(ctx, "INSERT INTO business VALUES ($1, $2)", key, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	h.close = pool.Close
	h.leak = func() error {
		if n := pool.Stat().AcquiredConns(); n > 0 {
			return fmt.Errorf("%d connections were not given back", n)
		}
		return nil
	}
	h.rows = func(ctx context.Context) (map[string][]string, error) {
		rows, err := pool.Query(ctx, "SELECT key, call FROM business ORDER BY key, call")
		if err != nil {
			return nil, err
		}
		found := make(map[string][]string)
		var key, id string
		_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error { found[key] = append(found[key], id); return nil })
		return found, err
	}
	return h, nil
}

func openSQLite(path string) (*handle, error) {
	drv, err := sqlite.Open(path)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := drv.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := drv.DB().ExecContext(ctx, "CREATE TABLE IF NOT EXISTS business (key TEXT, call TEXT)"); err != nil {
		return nil, err
	}
	h, err := withTx(drv, func(ctx context.Context, tx *sql.Tx, key, id string) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO business VALUES (?, ?)", key, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	h.close = func() { drv.Close() }
	h.rows = func(ctx context.Context) (map[string][]string, error) {
		var check string
		if err := drv.DB().QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
			return nil, fmt.Errorf("integrity check: %s, %v", check, err)
		}
		rows, err := drv.DB().QueryContext(ctx, "SELECT key, call FROM business ORDER BY key, call")
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		found := make(map[string][]string)
		for rows.Next() {
			var key, id string
			if err := rows.Scan(&key, &id); err != nil {
				return nil, err
			}
			found[key] = append(found[key], id)
		}
		return found, rows.Err()
	}
	return h, nil
}

func openBolt(path string) (*handle, error) {
	drv, err := bolt.Open(path)
	if err != nil {
		return nil, err
	}
	h, err := withTx(drv, func(_ context.Context, tx *bbolt.Tx, key, id string) error {
		b, err := tx.CreateBucketIfNotExists([]byte("business"))
		if err != nil {
			return err
		}
		return b.Put([]byte(key+"\x00"+id), []byte{1})
	})
	if err != nil {
		return nil, err
	}
	h.close = func() { drv.Close() }
	h.rows = func(context.Context) (map[string][]string, error) {
		found := make(map[string][]string)
		err := drv.DB().View(func(tx *bbolt.Tx) error {
			for err := range tx.Check() {
				return fmt.Errorf("integrity check: %w", err)
			}
			b := tx.Bucket([]byte("business"))
			if b == nil {
				return nil
			}
			return b.ForEach(func(k, _ []byte) error {
				key, id, _ := strings.Cut(string(k), "\x00")
				found[key] = append(found[key], id)
				return nil
			})
		})
		return found, err
	}
	return h, nil
}

func openRedis(addr string) (*handle, error) {
	client := goredis.NewClient(&goredis.Options{
		Addr: addr, ContextTimeoutEnabled: true, PoolSize: 6, ReadTimeout: 800 * time.Millisecond, DialTimeout: time.Second,
	})
	drv := redis.New(client)
	rerun, err := idem.New[string](drv, config)
	if err != nil {
		return nil, err
	}
	hold, err := idem.New[string](drv, holding)
	if err != nil {
		return nil, err
	}
	return &handle{
		ways: []way{do},
		call: func(ctx context.Context, w way, key idem.Key, _ string, s steps, opts ...idem.CallOption) (idem.Result[string], error) {
			if w != do {
				return idem.Result[string]{}, errors.ErrUnsupported
			}
			if held(key.ID) {
				return hold.Do(ctx, key, print1, s.fn, opts...)
			}
			return rerun.Do(ctx, key, print1, s.fn, opts...)
		},
		resolve: func(ctx context.Context, key idem.Key, value string, err error) error {
			return hold.Resolve(ctx, key, "a person looked", value, err)
		},
		purge: func(ctx context.Context) error { _, err := rerun.Purge(ctx, 100); return err },
		rows:  func(context.Context) (map[string][]string, error) { return nil, nil },
		leak: func() error {
			if s := client.PoolStats(); s.TotalConns != s.IdleConns {
				return fmt.Errorf("%d of %d connections were not given back", s.TotalConns-s.IdleConns, s.TotalConns)
			}
			return nil
		},
		close: func() { client.Close() },
	}, nil
}
