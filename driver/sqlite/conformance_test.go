package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"

	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

// configs are DSNs that an application may use; path is put in front.
var configs = []struct {
	name   string
	query  string
	conns  int // 0: any number
	driver []sqlite.Option
}{
	{name: "wal", query: "?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"},
	{name: "default dsn", query: ""}, // journal_mode DELETE, synchronous FULL, deferred, no busy_timeout
	{name: "truncate", query: "?_pragma=journal_mode(TRUNCATE)&_pragma=synchronous(EXTRA)&_pragma=busy_timeout(100)"},
	{name: "groups", query: "?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)",
		driver: []sqlite.Option{sqlite.GroupTransactions()}},
	{name: "groups on default dsn", query: "", driver: []sqlite.Option{sqlite.GroupTransactions()}},
	{name: "one connection", query: "?_pragma=journal_mode(WAL)&_txlock=exclusive", conns: 1,
		driver: []sqlite.Option{sqlite.WithSecret([]byte("s")), sqlite.WithNamespace("n"), sqlite.WithTable(`odd "name"`)}},
}

func TestConformance(t *testing.T) {
	for _, c := range configs {
		t.Run(c.name, func(t *testing.T) {
			var paths sync.Map // *sqlite.Driver -> string: asking the database may wait for a transaction
			on := func(t testing.TB, path string) *sqlite.Driver {
				db := openDB(t, path+c.query)
				db.SetMaxOpenConns(c.conns)
				d := migrated(t, db, c.driver...)
				paths.Store(d, path)
				return d
			}
			path := func(d *sqlite.Driver) string {
				p, _ := paths.Load(d)
				return p.(string)
			}
			fresh := func(t testing.TB) *sqlite.Driver { return on(t, filepath.Join(t.TempDir(), "idem.db")) }
			second := func(t testing.TB, d *sqlite.Driver) *sqlite.Driver { return on(t, path(d)) }
			reopen := func(t testing.TB, d *sqlite.Driver) *sqlite.Driver {
				p := path(d)
				if err := d.Close(); err != nil {
					t.Fatalf("Close: %v", err)
				}
				if err := d.DB().Close(); err != nil {
					t.Fatalf("closing the database: %v", err)
				}
				return on(t, p)
			}
			conformancetest.Run(t, conformancetest.Harness{
				New:    func(t testing.TB) driver.Driver { return fresh(t) },
				Second: func(t testing.TB, d driver.Driver) driver.Driver { return second(t, d.(*sqlite.Driver)) },
				Reopen: func(t testing.TB, d driver.Driver) driver.Driver { return reopen(t, d.(*sqlite.Driver)) },
				Config: c.name,
			})
			conformancetest.RunTx(t, conformancetest.TxHarness[*sql.Tx]{
				New: func(t testing.TB) driver.TxDriver[*sql.Tx] { return withRows(t, fresh(t)) },
				Second: func(t testing.TB, d driver.TxDriver[*sql.Tx]) driver.TxDriver[*sql.Tx] {
					return second(t, d.(*sqlite.Driver))
				},
				Reopen: func(t testing.TB, d driver.TxDriver[*sql.Tx]) driver.TxDriver[*sql.Tx] {
					return reopen(t, d.(*sqlite.Driver))
				},
				Insert: func(ctx context.Context, tx *sql.Tx, row string) error { return insertRow(ctx, tx, row) },
				Count: func(ctx context.Context, d driver.TxDriver[*sql.Tx], row string) (int, error) {
					return countRows(ctx, d.(*sqlite.Driver).DB(), row)
				},
				Config: c.name,
			})
		})
	}
}

func openDB(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatalf("opening %s: %v", dsn, err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func migrated(t testing.TB, db *sql.DB, opts ...sqlite.Option) *sqlite.Driver {
	t.Helper()
	d := sqlite.New(db, opts...)
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatalf("Migrate: %v", err)
	}
	if err := d.Check(t.Context()); err != nil {
		t.Fatalf("Check: %v", err)
	}
	return d
}

// fresh returns a driver over a new file as Open makes it, with the business table.
func fresh(t testing.TB, opts ...sqlite.Option) *sqlite.Driver {
	t.Helper()
	d, err := sqlite.Open(filepath.Join(t.TempDir(), "idem.db"), opts...)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return withRows(t, d)
}

// path returns the file of a driver that has no transaction open.
func path(t testing.TB, d *sqlite.Driver) string {
	t.Helper()
	var p string
	if err := d.DB().QueryRowContext(t.Context(), `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&p); err != nil {
		t.Fatalf("finding the file: %v", err)
	}
	return p
}

func withRows(t testing.TB, d *sqlite.Driver) *sqlite.Driver {
	t.Helper()
	if _, err := d.DB().ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS business (name TEXT NOT NULL) STRICT`); err != nil {
		t.Fatalf("creating the business table: %v", err)
	}
	return d
}

func insertRow(ctx context.Context, tx *sql.Tx, row string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO business (name) VALUES (?)`, row)
	return err
}

func countRows(ctx context.Context, db *sql.DB, row string) (n int, err error) {
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM business WHERE name = ?`, row).Scan(&n)
	return n, err
}
