package postgres_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
)

// everyVerb runs a leased call, a transaction that claims, and one that completes.
// Between them, disturb does something to the sessions.
func (s *store) everyVerb(t testing.TB, disturb func()) {
	t.Helper()
	p, q := s.claim(), s.claim()
	disturb()
	r := s.mustClaim(t, p)
	disturb()
	if err := s.Renew(t.Context(), driver.RenewParams{HolderParams: holder(p.Key, r), Lease: p.Lease}); err != nil {
		t.Errorf("Renew: %v", err)
	}
	disturb()
	tx, err := s.BeginComplete(t.Context(), holder(p.Key, r))
	if err != nil {
		t.Fatalf("BeginComplete: %v", err)
	}
	if err := s.put(t, tx, p); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
		t.Errorf("Commit of a completion: %v", err)
	}
	disturb()
	tx, r = s.mustBegin(t, q)
	if err := s.put(t, tx, q); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context(), commit(q.Key, r, "result")); err != nil {
		t.Errorf("Commit of a claim: %v", err)
	}
	for _, c := range []driver.ClaimParams{p, q} {
		disturb()
		if r, err := s.Claim(t.Context(), repeat(c)); err != nil || string(r.Result) != "result" {
			t.Errorf("a repeat was told %q, %v", r.Result, err)
		}
		disturb()
		if tx, r, err := s.BeginClaim(t.Context(), repeat(c)); err != nil || tx != nil || string(r.Result) != "result" {
			t.Errorf("a repeat in a transaction was told %q, %v", r.Result, err)
		}
	}
	third := s.mustClaim(t, s.claim())
	disturb()
	if err := s.Release(t.Context(), driver.ReleaseParams{HolderParams: holder(third.Key, third)}); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// put inserts a business row in a statement that does not need the session.
func (s *store) put(t testing.TB, tx driver.Tx[pgx.Tx], p driver.ClaimParams) error {
	_, err := tx.Handle().Exec(t.Context(), "INSERT INTO business VALUES ($1)", pgx.QueryExecModeExec, p.Key.ID)
	return err
}

// prepared returns how many statements the only connection of a pool has prepared,
// and the largest number of times that one of them was run.
func (s *store) prepared(t testing.TB) (n, most int) {
	t.Helper()
	err := s.pool.QueryRow(t.Context(), `SELECT count(*), coalesce(max(generic_plans + custom_plans), 0)
		FROM pg_prepared_statements WHERE name LIKE 'idem\_%'`, pgx.QueryExecModeExec).Scan(&n, &most)
	if err != nil {
		t.Fatal(err)
	}
	return n, most
}

func one(mode pgx.QueryExecMode) []func(*pgxpool.Config) {
	return []func(*pgxpool.Config){pgtest.Mode(mode), pgtest.MaxConns(1)}
}

// Statements are prepared where pgx prepares its own, a bounded number, and shared
// by the drivers of a pool.
func TestPreparedByMode(t *testing.T) {
	for _, mode := range allModes {
		t.Run(mode.String(), func(t *testing.T) {
			s := open(t, setup{pool: one(mode)})
			s.everyVerb(t, func() {})
			n, _ := s.prepared(t)
			if want := mode == pgx.QueryExecModeCacheStatement; (n > 0) != want || n > 20 {
				t.Errorf("%d statements are prepared", n)
			}
			other := &store{Driver: postgres.New(s.pool), db: s.db, pool: s.pool, ids: 100}
			other.everyVerb(t, func() {})
			if again, _ := s.prepared(t); again != n {
				t.Errorf("another driver on the same pool made it %d statements, from %d", again, n)
			}
		})
	}
}

func TestNoPreparedStatementWithoutACache(t *testing.T) {
	s := open(t, setup{})
	s = s.again(t, setup{pool: append(one(pgx.QueryExecModeCacheStatement), func(c *pgxpool.Config) { c.ConnConfig.StatementCacheCapacity = 0 })})
	s.everyVerb(t, func() {})
	if n, _ := s.prepared(t); n != 0 {
		t.Errorf("%d statements are prepared", n)
	}
}

// A plan that was made while the table was small is not kept for ever.
func TestPreparedAnew(t *testing.T) {
	s := open(t, setup{pool: one(pgx.QueryExecModeCacheStatement)})
	for range 1100 {
		if _, err := s.Get(t.Context(), driver.GetParams{Key: driver.Key{Scope: "s", ID: "absent"}}); err != nil {
			t.Fatal(err)
		}
	}
	if n, most := s.prepared(t); n != 1 || most > 1000 {
		t.Errorf("%d statements, run %d times since they were prepared", n, most)
	}
}

// Whatever takes the prepared statements away between two calls, no call notices.
func TestField_P01_StatementsGone(t *testing.T) {
	for name, sql := range map[string]string{
		"DISCARD ALL": "DISCARD ALL", "DEALLOCATE ALL": "DEALLOCATE ALL",
		"some of them": `DO $$ DECLARE n text; BEGIN
			FOR n IN SELECT name FROM pg_prepared_statements WHERE name LIKE 'idem\_%\_SELECT' LOOP
				EXECUTE format('DEALLOCATE %I', n);
			END LOOP; END $$`,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, setup{pool: one(pgx.QueryExecModeCacheStatement)})
			s.everyVerb(t, func() {})
			for range 3 {
				s.everyVerb(t, func() { everyConn(t, s.pool, sql) })
			}
		})
	}
}

// fn may deallocate everything. Where the driver sees that, the commit succeeds;
// where it cannot, nothing is committed, once, and another time it succeeds.
func TestField_P01_DeallocatedInsideTheWork(t *testing.T) {
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("seen=%v", seen), func(t *testing.T) {
			main := open(t, setup{})
			s := main.again(t, setup{pool: one(pgx.QueryExecModeCacheStatement)})
			for round := range 3 {
				p := s.claim()
				tx, r := s.mustBegin(t, p)
				if err := s.put(t, tx, p); err != nil {
					t.Fatal(err)
				}
				var err error
				if seen {
					_, err = tx.Handle().Exec(t.Context(), "DEALLOCATE ALL")
				} else {
					_, err = tx.Handle().Exec(t.Context(), "DO $$ BEGIN EXECUTE 'DEALL' || 'OCATE ALL'; END $$")
				}
				if err != nil {
					t.Fatal(err)
				}
				err = tx.Commit(t.Context(), commit(p.Key, r, "result"))
				want := 1
				if !seen && round == 0 {
					want = 0
					if !errors.Is(err, driver.ErrRetryable) {
						t.Errorf("Commit = %v, want ErrRetryable", err)
					}
					s.stateIs(t, p.Key, driver.StateAbsent)
				} else if err != nil {
					t.Errorf("round %d: Commit = %v", round, err)
				}
				if n := main.rows(t, p.Key.ID); n != want {
					t.Errorf("round %d: %d business rows, want %d", round, n, want)
				}
			}
		})
	}
}

// "cached plan must not change result type", for the driver's own statements.
func TestField_P17_TableAltered(t *testing.T) {
	s := open(t, setup{pool: one(pgx.QueryExecModeCacheStatement)})
	s.everyVerb(t, func() {})
	admin := s.db.Conn(t)
	n := 500
	s.everyVerb(t, func() {
		n++
		if _, err := admin.Exec(t.Context(), fmt.Sprintf("ALTER TABLE idem_records ALTER summary TYPE varchar(%d)", n)); err != nil {
			t.Error(err)
		}
	})
}

// Behind a pooler in transaction mode that knows no prepared statements, the
// statements that pgx prepares for the application fail. Those of the driver do not.
func TestField_P01_PreparedBehindAPooler(t *testing.T) {
	t.Parallel()
	main := open(t, setup{})
	addr := main.db.Bouncer(t, 3)
	var all sync.WaitGroup
	for i := range 6 {
		s := main.again(t, setup{pool: append(one(pgx.QueryExecModeCacheStatement), pgtest.Through(addr))})
		s.ids = 1000 * (i + 1)
		all.Go(func() {
			for range 20 {
				p := s.claim()
				tx, r, err := s.BeginClaim(t.Context(), p)
				if err != nil || tx == nil {
					t.Errorf("BeginClaim = %v, %v", tx, err)
					return
				}
				if err := s.put(t, tx, p); err != nil {
					t.Error(err)
				}
				if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
					t.Errorf("Commit: %v", err)
				}
				q := s.claim()
				if r, err = s.Claim(t.Context(), q); err != nil {
					t.Errorf("Claim: %v", err)
					return
				}
				if err := s.Complete(t.Context(), outcome(q.Key, r, "result")); err != nil {
					t.Errorf("Complete: %v", err)
				}
				if n := main.rows(t, p.Key.ID); n != 1 {
					t.Errorf("%d business rows", n)
				}
			}
		})
	}
	all.Wait()
}
