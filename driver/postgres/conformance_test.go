package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
)

// configurations are the ways in which the driver is used: each query mode of
// pgx, each isolation level, a pooler in transaction mode, and a table in partitions.
var configurations = []struct {
	name    string
	mode    pgx.QueryExecMode
	level   pgx.TxIsoLevel
	bouncer bool
	options []postgres.Option
	long    bool
	open    func(testing.TB, setup) *store // nil is open
}{
	{name: "cache-statement", mode: pgx.QueryExecModeCacheStatement},
	{name: "cache-describe", long: true, mode: pgx.QueryExecModeCacheDescribe},
	{name: "describe-exec", long: true, mode: pgx.QueryExecModeDescribeExec},
	{name: "exec", mode: pgx.QueryExecModeExec},
	{name: "simple-protocol", mode: pgx.QueryExecModeSimpleProtocol},
	{name: "repeatable-read", level: pgx.RepeatableRead},
	{name: "serializable", level: pgx.Serializable},
	{name: "pgbouncer", mode: pgx.QueryExecModeExec, bouncer: true},
	{name: "partitioned", open: openPartitioned},
	{name: "secret", options: []postgres.Option{
		postgres.WithSecret([]byte("pepper")), postgres.WithNamespace("shop"), postgres.WithTable("public.idem_secret"),
	}},
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.long {
				t.Skip("only without -short")
			}
			t.Parallel()
			set := setup{
				pool:   []func(*pgxpool.Config){pgtest.Mode(c.mode)},
				driver: append(c.options, postgres.WithTxOptions(pgx.TxOptions{IsoLevel: c.level})),
			}
			make := func(t testing.TB) *store {
				open := open
				if c.open != nil {
					open = c.open
				}
				s := open(t, setup{driver: c.options})
				if c.bouncer {
					set.pool = append(set.pool, pgtest.Through(s.db.Bouncer(t, 20)))
				}
				return s.again(t, set)
			}
			again := func(t testing.TB, d driver.Driver) *store { return d.(*store).again(t, set) }
			reopen := func(t testing.TB, d driver.Driver) *store {
				s := d.(*store).again(t, set)
				d.(*store).pool.Close()
				return s
			}
			conformancetest.Run(t, conformancetest.Harness{
				New:    func(t testing.TB) driver.Driver { return make(t) },
				Second: func(t testing.TB, d driver.Driver) driver.Driver { return again(t, d) },
				Reopen: func(t testing.TB, d driver.Driver) driver.Driver { return reopen(t, d) },
				Config: c.name,
			})
			conformancetest.RunTx(t, conformancetest.TxHarness[pgx.Tx]{
				New:    func(t testing.TB) driver.TxDriver[pgx.Tx] { return make(t) },
				Second: func(t testing.TB, d driver.TxDriver[pgx.Tx]) driver.TxDriver[pgx.Tx] { return again(t, d) },
				Reopen: func(t testing.TB, d driver.TxDriver[pgx.Tx]) driver.TxDriver[pgx.Tx] { return reopen(t, d) },
				Insert: insert,
				Count: func(ctx context.Context, d driver.TxDriver[pgx.Tx], row string) (n int, err error) {
					err = d.(*store).pool.QueryRow(ctx, "SELECT count(*) FROM business WHERE name = $1", row).Scan(&n)
					return n, err
				},
				Config: c.name,
			})
			conformancetest.RunBatch(t, conformancetest.BatchHarness[*pgx.Batch]{
				New: func(t testing.TB) driver.BatchDriver[*pgx.Batch] { return make(t) },
				Second: func(t testing.TB, d driver.BatchDriver[*pgx.Batch]) driver.BatchDriver[*pgx.Batch] {
					return again(t, d)
				},
				Insert: func(row string) *pgx.Batch { return inserting(row) },
				Fail: func(row string) *pgx.Batch {
					b := inserting(row)
					b.Queue("INSERT INTO business VALUES (NULL)")
					return b
				},
				Count: func(ctx context.Context, d driver.BatchDriver[*pgx.Batch], row string) (n int, err error) {
					err = d.(*store).pool.QueryRow(ctx, "SELECT count(*) FROM business WHERE name = $1", row).Scan(&n)
					return n, err
				},
				Config: c.name,
			})
		})
	}
}
