package differential

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/redistest"
)

// store is a driver under test, over a store that is shared by all sequences.
type store struct {
	name  string
	empty func(ctx context.Context, n int) (session, error) // for the sequence of that number
}

// session is a driver over a store without records.
type session struct {
	driver.Driver
	tx *txs // nil without transactions
}

// txs are the transactions of a driver, without their type.
type txs struct {
	begin         func(context.Context, driver.ClaimParams) (*openTx, driver.Record, error)
	beginComplete func(context.Context, driver.HolderParams) (*openTx, error)
	count         func(ctx context.Context, row string) (int, error)
}

type openTx struct {
	insert   func(ctx context.Context, row string) error
	commit   func(context.Context, driver.CommitParams) error
	rollback func(context.Context) error
}

func untyped[T any](d driver.TxDriver[T], insert func(context.Context, T, string) error, count func(context.Context, string) (int, error)) *txs {
	open := func(tx driver.Tx[T]) *openTx {
		if tx == nil {
			return nil
		}
		return &openTx{
			insert:   func(ctx context.Context, row string) error { return insert(ctx, tx.Handle(), row) },
			commit:   tx.Commit,
			rollback: tx.Rollback,
		}
	}
	return &txs{
		begin: func(ctx context.Context, p driver.ClaimParams) (*openTx, driver.Record, error) {
			tx, r, err := d.BeginClaim(ctx, p)
			return open(tx), r, err
		},
		beginComplete: func(ctx context.Context, p driver.HolderParams) (*openTx, error) {
			tx, err := d.BeginComplete(ctx, p)
			return open(tx), err
		},
		count: count,
	}
}

func stores(t *testing.T) []store {
	return []store{openMemory(), openBolt(t), openSQLite(t), openPostgres(t), openRedis(t)}
}

func openMemory() store {
	return store{"memory", func(context.Context, int) (session, error) { return session{Driver: memory.New()}, nil }}
}

func openBolt(t *testing.T) store {
	d, err := bolt.Open(filepath.Join(t.TempDir(), "bolt.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	business := []byte("business")
	empty := func(_ context.Context, n int) (session, error) {
		err := d.DB().Update(func(tx *bbolt.Tx) error {
			for _, name := range []string{string(business), fmt.Sprint("idem-", n-1)} {
				if err := tx.DeleteBucket([]byte(name)); err != nil && tx.Bucket([]byte(name)) != nil {
					return err
				}
			}
			_, err := tx.CreateBucket(business)
			return err
		})
		d := bolt.New(d.DB(), bolt.WithBucket(fmt.Sprint("idem-", n)))
		insert := func(_ context.Context, tx *bbolt.Tx, row string) error {
			b := tx.Bucket(business)
			return b.Put([]byte(row), binary.BigEndian.AppendUint64(nil, number(b.Get([]byte(row)))+1))
		}
		count := func(_ context.Context, row string) (n int, err error) {
			err = d.DB().View(func(tx *bbolt.Tx) error {
				n = int(number(tx.Bucket(business).Get([]byte(row))))
				return nil
			})
			return n, err
		}
		return session{d, untyped(d, insert, count)}, err
	}
	return store{"bolt", empty}
}

func number(b []byte) uint64 {
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func openSQLite(t *testing.T) store {
	d, err := sqlite.Open(filepath.Join(t.TempDir(), "sqlite.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if _, err := d.DB().Exec("CREATE TABLE business (name TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	empty := func(ctx context.Context, _ int) (session, error) {
		_, err := d.DB().ExecContext(ctx, "DELETE FROM business; DELETE FROM "+sqlite.DefaultTable)
		insert := func(ctx context.Context, tx *sql.Tx, row string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO business VALUES (?)", row)
			return err
		}
		count := func(ctx context.Context, row string) (n int, err error) {
			err = d.DB().QueryRowContext(ctx, "SELECT count(*) FROM business WHERE name = ?", row).Scan(&n)
			return n, err
		}
		return session{d, untyped(d, insert, count)}, err
	}
	return store{"sqlite", empty}
}

func openPostgres(t *testing.T) store {
	pool := pgtest.Pool(t)
	d := postgres.New(pool)
	_, err := pool.Exec(t.Context(), "CREATE TABLE business (name text NOT NULL)")
	if err := errors.Join(err, d.Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	empty := func(ctx context.Context, _ int) (session, error) {
		_, err := pool.Exec(ctx, "DELETE FROM business")
		_, err2 := pool.Exec(ctx, "DELETE FROM "+postgres.DefaultTable)
		insert := func(ctx context.Context, tx pgx.Tx, row string) error {
			_, err := tx.Exec(ctx, "INSERT INTO business VALUES ($1)", row)
			return err
		}
		count := func(ctx context.Context, row string) (n int, err error) {
			err = pool.QueryRow(ctx, "SELECT count(*) FROM business WHERE name = $1", row).Scan(&n)
			return n, err
		}
		return session{d, untyped(d, insert, count)}, errors.Join(err, err2)
	}
	return store{"postgres", empty}
}

func openRedis(t *testing.T) store {
	c := redistest.Client(t, redistest.Addr(t))
	run := driver.NewToken() // a server that is shared may hold what an earlier run left
	empty := func(ctx context.Context, n int) (session, error) {
		return session{Driver: redis.New(c, redis.WithPrefix(fmt.Sprintf("differential-%s-%d:", run, n)))}, nil
	}
	return store{"redis", empty}
}
