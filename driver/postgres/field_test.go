package postgres_test

// Tests named after cases that users of other idempotency libraries, of pgx and
// of PostgreSQL have reported.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
)

var allModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// everyConn runs sql on each connection of a pool.
func everyConn(t testing.TB, pool *pgxpool.Pool, sql string) {
	t.Helper()
	for _, c := range pool.AcquireAllIdle(t.Context()) {
		if _, err := c.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Error(err)
		}
		c.Release()
	}
}

// A session keeps no setting and no lock, and statements only where pgx keeps its own.
// It may lose everything between two calls.
func TestField_P01_NothingTheSessionMayNotLose(t *testing.T) {
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.Mode(mode), pgtest.MaxConns(2)}})
			for range 10 {
				p, q := s.claim(), s.claim()
				tx, r := s.mustBegin(t, p)
				everyConn(t, s.pool, "DISCARD ALL")
				held := s.mustClaim(t, q)
				everyConn(t, s.pool, "DISCARD ALL")
				if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
					t.Fatal(err)
				}
				everyConn(t, s.pool, "DISCARD ALL")
				if err := s.Complete(t.Context(), outcome(q.Key, held, "result")); err != nil {
					t.Fatal(err)
				}
			}
			if mode != pgx.QueryExecModeCacheStatement {
				// Without it, what is left behind by two more calls.
				held := s.mustClaim(t, s.claim())
				if err := s.Complete(t.Context(), outcome(held.Key, held, "result")); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range s.pool.AcquireAllIdle(t.Context()) {
				var prepared, set, locks int
				res, err := c.Conn().PgConn().Exec(t.Context(), `SELECT (SELECT count(*) FROM pg_prepared_statements),
					(SELECT count(*) FROM pg_settings WHERE name LIKE '%timeout' AND source = 'session'),
					(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())`).ReadAll()
				if err != nil {
					t.Fatal(err)
				}
				fmt.Sscan(string(res[0].Rows[0][0]), &prepared)
				fmt.Sscan(string(res[0].Rows[0][1]), &set)
				fmt.Sscan(string(res[0].Rows[0][2]), &locks)
				if prepared+set+locks != 0 {
					t.Errorf("a session has %d prepared statements, %d settings, %d advisory locks", prepared, set, locks)
				}
				c.Release()
			}
		})
	}
}

func TestField_P02_CancelledInsideTheWork(t *testing.T) {
	s := open(t, setup{})
	p := s.claim()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tx, _ := s.mustBegin(t, p)
	if err := insert(ctx, tx.Handle(), p.Key.ID); err != nil {
		t.Fatal(err)
	}
	slept := make(chan error)
	go func() {
		_, err := tx.Handle().Exec(ctx, "SELECT pg_sleep(60)")
		slept <- err
	}()
	eventually(t, "pg_sleep", func() bool {
		var n int
		err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'").Scan(&n)
		return err == nil && n == 1
	})
	cancel()
	if err := <-slept; !errors.Is(err, context.Canceled) {
		t.Errorf("Exec = %v", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Errorf("Rollback = %v", err)
	}
	// The key is free at once, not when the server happens to notice.
	again, _ := s.mustBegin(t, repeat(p))
	again.Rollback(t.Context())
	if n := s.rows(t, p.Key.ID); n != 0 {
		t.Errorf("%d business rows", n)
	}
	if n := s.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still acquired", n)
	}
}

// Commit under a context that has ended commits nothing, and says so.
func TestField_P02_CancelledBeforeCommit(t *testing.T) {
	s := open(t, setup{})
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tx.Commit(ctx, commit(p.Key, r, "result")); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrOutcomeUnknown) {
		t.Errorf("Commit = %v", err)
	}
	s.stateIs(t, p.Key, driver.StateAbsent)
}

func TestField_P03_CancelledBetweenStatements(t *testing.T) {
	s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(4)}})
	claims := make(chan driver.ClaimParams, 500)
	for range cap(claims) {
		claims <- s.claim()
	}
	close(claims)
	before := s.pool.Stat().NewConnsCount()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for p := range claims {
				ctx, cancel := context.WithCancel(t.Context())
				tx, _, err := s.BeginClaim(ctx, p)
				if err != nil || tx == nil {
					t.Errorf("BeginClaim = %v, %v", tx, err)
					cancel()
					return
				}
				if err := insert(ctx, tx.Handle(), p.Key.ID); err != nil {
					t.Error(err)
				}
				cancel()
				if err := tx.Rollback(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := s.pool.Stat().NewConnsCount() - before; n > 4 {
		t.Errorf("%d new connections: healthy ones were killed", n)
	}
	if n := s.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still acquired", n)
	}
}

func TestField_P04_ServerEndsTheIdleTransaction(t *testing.T) {
	s := open(t, setup{driver: []postgres.Option{postgres.WithIdleTimeout(100 * time.Millisecond)}})
	for name, end := range map[string]func(driver.Tx[pgx.Tx], driver.ClaimParams, driver.Record) error{
		"commit": func(tx driver.Tx[pgx.Tx], p driver.ClaimParams, r driver.Record) error {
			err := tx.Commit(t.Context(), commit(p.Key, r, "result"))
			if !errors.Is(err, driver.ErrRetryable) {
				t.Errorf("Commit = %v, want ErrRetryable: everything was rolled back", err)
			}
			return nil
		},
		"rollback": func(tx driver.Tx[pgx.Tx], _ driver.ClaimParams, _ driver.Record) error {
			return tx.Rollback(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.claim()
			tx, r := s.mustBegin(t, p)
			if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
				t.Fatal(err)
			}
			conn := s.db.Conn(t)
			eventually(t, "the end of the idle session", func() bool {
				var n int
				err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'").Scan(&n)
				return err == nil && n == 0
			})
			if err := end(tx, p, r); err != nil {
				t.Error(err)
			}
			if n := s.rows(t, p.Key.ID); n != 0 {
				t.Errorf("%d business rows", n)
			}
			p = repeat(p)
			tx, r = s.mustBegin(t, p)
			if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
				t.Errorf("the next attempt: %v", err)
			}
		})
	}
}

func TestField_P05_SwallowedError(t *testing.T) {
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.Mode(mode)}})
			p := s.claim()
			tx, r := s.mustBegin(t, p)
			for range 2 {
				tx.Handle().Exec(t.Context(), "INSERT INTO once VALUES ('one')") // the second violates the key
			}
			if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); !errors.Is(err, pgx.ErrTxCommitRollback) {
				t.Errorf("Commit = %v, want ErrTxCommitRollback", err)
			}
			s.stateIs(t, p.Key, driver.StateAbsent)

			// A final error, returned as one, is stored although a statement failed.
			p = repeat(p)
			tx, r = s.mustBegin(t, p)
			for range 2 {
				tx.Handle().Exec(t.Context(), "INSERT INTO once VALUES ('one')")
			}
			c := commit(p.Key, r, "failed")
			c.Discard = true
			if err := tx.Commit(t.Context(), c); err != nil {
				t.Errorf("Commit with Discard = %v", err)
			}
			if got := s.stateIs(t, p.Key, driver.StateComplete); string(got.Result) != "failed" {
				t.Errorf("result %q", got.Result)
			}
			var n int
			if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM once").Scan(&n); err != nil || n != 0 {
				t.Errorf("%d business rows, %v", n, err)
			}
		})
	}
}

// idem joins no transaction that the caller has open. What remains of the case:
// meeting a key that is taken must not leave a transaction of anybody unusable.
func TestField_P06_ConflictLeavesNothingAborted(t *testing.T) {
	s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(2)}})
	p := s.claim()
	if err := s.Complete(t.Context(), outcome(p.Key, s.mustClaim(t, p), "result")); err != nil {
		t.Fatal(err)
	}
	q := s.claim()
	tx, r := s.mustBegin(t, q)
	if dup, got, err := s.BeginClaim(t.Context(), repeat(p)); dup != nil || err != nil || string(got.Result) != "result" {
		t.Errorf("BeginClaim inside the work = %v, %q, %v", dup, got.Result, err)
	}
	if err := insert(t.Context(), tx.Handle(), q.Key.ID); err != nil {
		t.Errorf("the next statement: %v", err)
	}
	if err := tx.Commit(t.Context(), commit(q.Key, r, "result")); err != nil {
		t.Error(err)
	}
	for _, c := range s.pool.AcquireAllIdle(t.Context()) {
		if st := c.Conn().PgConn().TxStatus(); st != 'I' {
			t.Errorf("a pooled connection has status %c", st)
		}
		c.Release()
	}
}

func TestField_P07_LoserOfTheConflict(t *testing.T) {
	s := open(t, setup{})
	p := s.claim()
	r := s.mustClaim(t, p)
	if got, err := s.Claim(t.Context(), repeat(p)); err != nil || got.State != driver.StateInFlight || got.Token != p.Token {
		t.Errorf("in flight: %+v, %v", got, err)
	}
	if err := s.Complete(t.Context(), outcome(p.Key, r, "result")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Claim(t.Context(), repeat(p)); err != nil || got.State != driver.StateComplete || string(got.Result) != "result" {
		t.Errorf("complete: %+v, %v", got, err)
	}
}

// The nearest thing to joining a transaction whose snapshot is older than the
// conflicting record: one that is begun by the driver on a snapshot of its own, in
// which the record appears before the commit. Nothing runs twice.
func TestField_P08_RecordNewerThanTheSnapshot(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			s := open(t, setup{driver: []postgres.Option{postgres.WithTxOptions(pgx.TxOptions{IsoLevel: level})}})
			p := s.claim()
			tx, r := s.mustBegin(t, p)
			if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
				t.Fatal(err)
			}
			// Somebody who does not look at the lock: an old version, say.
			if _, err := s.pool.Exec(t.Context(), "INSERT INTO business VALUES ($1)", p.Key.ID); err != nil {
				t.Fatal(err)
			}
			s.insertComplete(t, repeat(p), "theirs")

			err := tx.Commit(t.Context(), commit(p.Key, r, "ours"))
			if level == pgx.ReadCommitted && !errors.Is(err, driver.ErrNotHolder) {
				t.Errorf("Commit = %v, want ErrNotHolder", err)
			}
			if level != pgx.ReadCommitted && !errors.Is(err, driver.ErrRetryable) {
				t.Errorf("Commit = %v, want ErrRetryable", err)
			}
			if got := s.stateIs(t, p.Key, driver.StateComplete); string(got.Result) != "theirs" {
				t.Errorf("result %q", got.Result)
			}
			if n := s.rows(t, p.Key.ID); n != 1 {
				t.Errorf("%d business rows, want 1", n)
			}
		})
	}
}

func TestField_P09_DuplicateDoesNotWait(t *testing.T) {
	s := open(t, setup{})
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if dup, got, err := s.BeginClaim(ctx, repeat(p)); err != nil || dup != nil || got.State != driver.StateInFlight {
		t.Errorf("BeginClaim = %v, %v, %v", dup, got.State, err)
	}
	if got, err := s.Claim(ctx, repeat(p)); err != nil || got.State != driver.StateInFlight || got.Token == p.Token {
		t.Errorf("Claim = %v, %v", got.State, err)
	}
	if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
		t.Error(err)
	}
}

func TestField_P10_OnlyTypedAnswersInARace(t *testing.T) {
	t.Parallel()
	const callers = 64
	rounds := 200
	if testing.Short() {
		rounds = 10
	}
	s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(16)}})
	for i := range rounds {
		p := s.claim()
		var granted atomic.Int32
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				q := repeat(p)
				if (c+i)%2 == 0 {
					tx, r, err := s.BeginClaim(t.Context(), q)
					if err == nil && tx != nil {
						granted.Add(1)
						err = tx.Commit(t.Context(), commit(q.Key, r, "result"))
					}
					if err != nil {
						t.Errorf("in a transaction: %v", err)
					}
					return
				}
				r, err := s.Claim(t.Context(), q)
				if err == nil && r.HeldBy(q.Token, r.Fence) {
					granted.Add(1)
					err = s.Complete(t.Context(), outcome(q.Key, r, "result"))
				}
				if err != nil {
					t.Errorf("leased: %v", err)
				}
			})
		}
		all.Wait()
		if n := granted.Load(); n != 1 {
			t.Fatalf("round %d: granted %d times", i, n)
		}
	}
}

func TestField_P17_TableChangesUnderTheDriver(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.Mode(mode), pgtest.MaxConns(1)}})
			run := func() {
				t.Helper()
				p := s.claim()
				tx, r := s.mustBegin(t, p)
				if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
					t.Fatal(err)
				}
				s.stateIs(t, p.Key, driver.StateComplete)
				if _, _, err := s.List(t.Context(), driver.ListParams{State: driver.StateComplete, Limit: 10}); err != nil {
					t.Fatal(err)
				}
			}
			run()
			for _, ddl := range []string{"ADD COLUMN mine text", "ALTER COLUMN mine TYPE varchar(10)", "DROP COLUMN mine"} {
				if _, err := s.db.Conn(t).Exec(t.Context(), "ALTER TABLE idem_records "+ddl); err != nil {
					t.Fatal(err)
				}
				run()
			}
		})
	}
}
