package bench

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

const (
	liteBusiness = "INSERT INTO business (name) VALUES (?)"
	liteClaim    = "INSERT INTO byhand (key, fingerprint) VALUES (?, ?) ON CONFLICT DO NOTHING"
	liteStore    = "UPDATE byhand SET result = ? WHERE key = ?"
	liteRead     = "SELECT fingerprint, result FROM byhand WHERE key = ?"
	liteSchema   = "CREATE TABLE business (name TEXT NOT NULL); CREATE TABLE byhand (key TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, result BLOB)"
)

// oneByOne lets one call into a store at a time, so that nothing shares a commit.
type oneByOne struct {
	driver.Driver
	mu sync.Mutex
}

func (d *oneByOne) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Driver.Claim(ctx, p)
}

func (d *oneByOne) Complete(ctx context.Context, p driver.CompleteParams) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Driver.Complete(ctx, p)
}

// doing is Operation.Do over a driver.
func doing(tb testing.TB, name string, d driver.Driver) subject {
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](d, config))
	return subject{name: name, call: func(ctx context.Context, id string) error {
		res, err := op.Do(ctx, key(id), print(), runs)
		return is(false, res, err)
	}}
}

// redoing repeats what doing has done.
func redoing(tb testing.TB, d driver.Driver) subject {
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](d, config))
	return replaying(replayDo, known(tb, doing(tb, do, d).call), func(ctx context.Context, id string) error {
		res, err := op.Do(ctx, key(id), print(), runs)
		return is(true, res, err)
	})
}

const (
	oneCommitAStep = "idem Do, one commit a step"
	groupedDoTx    = "idem DoTx, in groups"
	bareTxAlone    = "BEGIN, INSERT, COMMIT, one at a time"
)

// liteTables use the pool of sqlite.Open for everything: WAL, synchronous FULL.
func liteTables(tb testing.TB) []*table {
	d := must[*sqlite.Driver](tb)(sqlite.Open(filepath.Join(tb.TempDir(), "bench.db")))
	tb.Cleanup(func() { d.Close() })
	db := d.DB()
	if _, err := db.ExecContext(tb.Context(), liteSchema); err != nil {
		tb.Fatal(err)
	}
	op := must[*idem.TxOperation[[]byte, *sql.Tx]](tb)(idem.NewTx[[]byte](d, config))
	groups := sqlite.New(db, sqlite.GroupTransactions())
	tb.Cleanup(func() { groups.Close() })
	groupedOp := must[*idem.TxOperation[[]byte, *sql.Tx]](tb)(idem.NewTx[[]byte](groups, config))
	inTx := func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := fn(tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	insert := func(ctx context.Context, tx *sql.Tx, id string) error {
		_, err := tx.ExecContext(ctx, liteBusiness, id)
		return err
	}
	bare := func(ctx context.Context, id string) error {
		return inTx(ctx, func(tx *sql.Tx) error { return insert(ctx, tx, id) })
	}
	hand := func(ctx context.Context, id string) error {
		if _, err := db.ExecContext(ctx, liteClaim, id, print().Sum()); err != nil {
			return err
		}
		return inTx(ctx, func(tx *sql.Tx) error {
			if err := insert(ctx, tx, id); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, liteStore, result, id)
			return err
		})
	}
	joined := subject{name: doTx, call: func(ctx context.Context, id string) error {
		res, err := op.DoTx(ctx, key(id), print(), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
			return result, insert(ctx, tx, id)
		})
		return is(false, res, err)
	}}
	grouped := subject{name: groupedDoTx, call: func(ctx context.Context, id string) error {
		res, err := groupedOp.DoTx(ctx, key(id), print(), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
			return result, insert(ctx, tx, id)
		})
		return is(false, res, err)
	}}
	var mu sync.Mutex
	first := &table{id: "sqlite-first", title: "SQLite, synchronous FULL, first run, one caller", callers: 1, subjects: []subject{
		{name: bareTx, call: bare}, {name: byHand, call: hand}, joined, doing(tb, do, d),
	}}
	many := &table{id: "sqlite-64", title: "SQLite, synchronous FULL, first run, 64 callers", callers: 64, subjects: []subject{
		{name: bareTxAlone, call: func(ctx context.Context, id string) error {
			mu.Lock()
			defer mu.Unlock()
			return bare(ctx, id)
		}},
		joined, grouped, doing(tb, oneCommitAStep, &oneByOne{Driver: d}), doing(tb, do, d),
	}}
	prepared := must[*sql.Stmt](tb)(db.PrepareContext(tb.Context(), liteRead))
	tb.Cleanup(func() { prepared.Close() })
	replay := &table{id: "sqlite-replay", title: "SQLite, replay, one caller", callers: 1, subjects: []subject{
		replaying(bareRead, known(tb, hand), func(ctx context.Context, id string) error {
			var sum, value []byte
			err := prepared.QueryRowContext(ctx, id).Scan(&sum, &value)
			return had(value, err)
		}),
		redoing(tb, d),
	}}
	return []*table{first, many, replay}
}
