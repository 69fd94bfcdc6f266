package seed

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/redistest"
)

// call is one call of the operation under test. It runs fn, in a transaction that
// also writes a business row named after the key, or under a lease.
type call func(ctx context.Context, key idem.Key, fn func() string) (string, error)

// opened is a store as one process has it.
type opened struct {
	call  call
	count func(row string) (int, error) // business rows; nil without transactions
	close func()
}

// kinds are the drivers and ways of calling.
var kinds = []struct {
	driver   string
	way      way
	create   func(t *testing.T) (dsn string)
	open     func(dsn string, wait time.Duration) (opened, error)
	alone    bool // one process only
	waitsFor bool // a duplicate of another process waits for the transaction
}{
	{"memory", do, func(*testing.T) string { return "" }, openMemory, true, false},
	{"postgres", do, createPostgres, openPostgres(do), false, false},
	{"postgres", doTx, createPostgres, openPostgres(doTx), false, false},
	{"postgres", doThenTx, createPostgres, openPostgres(doThenTx), false, false},
	{"sqlite", do, createFile, openSQLite(do), false, false},
	{"sqlite", doTx, createFile, openSQLite(doTx), false, true},
	{"sqlite", doThenTx, createFile, openSQLite(doThenTx), false, false},
	{"sqlite in groups", doTx, createFile, openSQLite(doTx, sqlite.GroupTransactions()), false, true},
	{"sqlite in groups", doThenTx, createFile, openSQLite(doThenTx, sqlite.GroupTransactions()), false, false},
	{"bolt", do, createFile, openBolt(do), true, false},
	{"bolt", doTx, createFile, openBolt(doTx), true, false},
	{"bolt", doThenTx, createFile, openBolt(doThenTx), true, false},
	{"redis", do, func(t *testing.T) string { return redistest.Addr(t) }, openRedis, false, false},
}

// way is how an operation is called.
type way uint8

const (
	do way = iota
	doTx
	doThenTx
)

func (w way) String() string { return [...]string{"Do", "DoTx", "DoThenTx"}[w] }

var request = idem.NewFingerprint("seed.v1", []byte("the same"))

func config(wait time.Duration) idem.Config {
	return idem.Config{Name: "seed", Wait: wait, Lease: time.Minute}
}

// leased declares an operation and calls it under a lease.
func leased(drv driver.Driver, wait time.Duration) (call, error) {
	op, err := idem.New[string](drv, config(wait))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key idem.Key, fn func() string) (string, error) {
		res, err := op.Do(ctx, key, request, func(context.Context, *idem.Run) (string, error) { return fn(), nil })
		return res.Value, err
	}, nil
}

// inTx declares an operation and calls it with a transaction, in which insert
// writes the business row.
func inTx[T any](w way, drv driver.TxDriver[T], wait time.Duration, insert func(context.Context, T, string) error) (call, error) {
	op, err := idem.NewTx[string](drv, config(wait))
	if err != nil {
		return nil, err
	}
	if w == doThenTx {
		return func(ctx context.Context, key idem.Key, fn func() string) (string, error) {
			res, err := op.DoThenTx(ctx, key, request,
				func(context.Context, *idem.Run) (string, error) { return fn(), nil },
				func(ctx context.Context, tx T, v string) (string, error) { return v, insert(ctx, tx, key.ID) })
			return res.Value, err
		}, nil
	}
	return func(ctx context.Context, key idem.Key, fn func() string) (string, error) {
		res, err := op.DoTx(ctx, key, request, func(ctx context.Context, tx T) (string, error) {
			return fn(), insert(ctx, tx, key.ID)
		})
		return res.Value, err
	}, nil
}

func openMemory(_ string, wait time.Duration) (opened, error) {
	c, err := leased(memory.New(), wait)
	return opened{call: c, close: func() {}}, err
}

func createPostgres(t *testing.T) string {
	d := pgtest.Shared(t).Database(t)
	pool := d.Pool(t)
	if err := postgres.New(pool).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "CREATE TABLE business (name text)"); err != nil {
		t.Fatal(err)
	}
	return d.DSN()
}

func openPostgres(w way) func(string, time.Duration) (opened, error) {
	return func(dsn string, wait time.Duration) (opened, error) {
		pool, err := pgxpool.New(context.Background(), dsn)
		if err != nil {
			return opened{}, err
		}
		drv := postgres.New(pool)
		o := opened{close: pool.Close}
		if w == do {
			o.call, err = leased(drv, wait)
			return o, err
		}
		o.count = func(row string) (n int, err error) {
			err = pool.QueryRow(context.Background(), "SELECT count(*) FROM business WHERE name = $1", row).Scan(&n)
			return n, err
		}
		o.call, err = inTx(w, drv, wait, func(ctx context.Context, tx pgx.Tx, row string) error {
			_, err := tx.Exec(ctx, "INSERT INTO business VALUES ($1)", row)
			return err
		})
		return o, err
	}
}

func createFile(t *testing.T) string { return filepath.Join(t.TempDir(), "seed.db") }

func openSQLite(w way, opts ...sqlite.Option) func(string, time.Duration) (opened, error) {
	return func(dsn string, wait time.Duration) (opened, error) {
		ctx := context.Background()
		drv, err := sqlite.Open(dsn, opts...)
		if err != nil {
			return opened{}, err
		}
		o := opened{close: func() { drv.Close() }}
		if err := drv.Migrate(ctx); err != nil {
			return o, err
		}
		if w == do {
			o.call, err = leased(drv, wait)
			return o, err
		}
		if _, err := drv.DB().ExecContext(ctx, "CREATE TABLE IF NOT EXISTS business (name TEXT)"); err != nil {
			return o, err
		}
		o.count = func(row string) (n int, err error) {
			err = drv.DB().QueryRowContext(ctx, "SELECT count(*) FROM business WHERE name = ?", row).Scan(&n)
			return n, err
		}
		o.call, err = inTx(w, drv, wait, func(ctx context.Context, tx *sql.Tx, row string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO business VALUES (?)", row)
			return err
		})
		return o, err
	}
}

func openBolt(w way) func(string, time.Duration) (opened, error) {
	return func(dsn string, wait time.Duration) (opened, error) {
		drv, err := bolt.Open(dsn)
		if err != nil {
			return opened{}, err
		}
		o := opened{close: func() { drv.Close() }}
		if w == do {
			o.call, err = leased(drv, wait)
			return o, err
		}
		o.count = func(row string) (n int, err error) {
			err = drv.DB().View(func(tx *bbolt.Tx) error {
				if v := tx.Bucket([]byte("business")).Get([]byte(row)); v != nil {
					n = int(binary.BigEndian.Uint64(v))
				}
				return nil
			})
			return n, err
		}
		o.call, err = inTx(w, drv, wait, func(_ context.Context, tx *bbolt.Tx, row string) error {
			b, err := tx.CreateBucketIfNotExists([]byte("business"))
			if err != nil {
				return err
			}
			var n uint64
			if v := b.Get([]byte(row)); v != nil {
				n = binary.BigEndian.Uint64(v)
			}
			return b.Put([]byte(row), binary.BigEndian.AppendUint64(nil, n+1))
		})
		return o, err
	}
}

func openRedis(dsn string, wait time.Duration) (opened, error) {
	client := goredis.NewClient(&goredis.Options{Addr: dsn, ContextTimeoutEnabled: true})
	c, err := leased(redis.New(client, redis.WithNamespace(fmt.Sprint("seed", wait))), wait)
	return opened{call: c, close: func() { client.Close() }}, err
}
