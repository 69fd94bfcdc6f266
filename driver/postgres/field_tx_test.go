package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
)

// Keys taken in opposite orders answer in flight; rows locked in opposite orders
// are a deadlock that the driver calls retryable, and undoes.
func TestField_P12_OppositeOrders(t *testing.T) {
	s := open(t, setup{})
	k1, k2 := s.claim(), s.claim()
	a, _ := s.mustBegin(t, k1)
	b, _ := s.mustBegin(t, k2)
	for _, p := range []driver.ClaimParams{k1, k2} {
		if tx, r, err := s.BeginClaim(t.Context(), repeat(p)); err != nil || tx != nil || r.State != driver.StateInFlight {
			t.Errorf("BeginClaim = %v, %v, %v", tx, r.State, err)
		}
	}
	if _, err := s.pool.Exec(t.Context(), "INSERT INTO once VALUES ('x'), ('y')"); err != nil {
		t.Fatal(err)
	}
	lock := func(tx pgx.Tx, name string) error {
		_, err := tx.Exec(t.Context(), "SELECT FROM once WHERE name = $1 FOR UPDATE", name)
		return err
	}
	if err := errors.Join(lock(a.Handle(), "x"), lock(b.Handle(), "y")); err != nil {
		t.Fatal(err)
	}
	first := make(chan error)
	go func() {
		err := lock(a.Handle(), "y")
		if err != nil {
			a.Rollback(t.Context())
		}
		first <- err
	}()
	err := lock(b.Handle(), "x")
	if err != nil {
		b.Rollback(t.Context())
	}
	victims := 0
	for _, err := range []error{err, <-first} {
		if err == nil {
			continue
		}
		victims++
		if !s.Retryable(err) {
			t.Errorf("%v is not retryable", err)
		}
	}
	if victims != 1 {
		t.Errorf("%d victims, want 1", victims)
	}
	a.Rollback(t.Context())
	b.Rollback(t.Context())
	s.stateIs(t, k1.Key, driver.StateAbsent)
	s.stateIs(t, k2.Key, driver.StateAbsent)
}

func TestField_P12_SweepersBesideClaims(t *testing.T) {
	t.Parallel()
	s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(16)}})
	rounds := 200
	if testing.Short() {
		rounds = 50
	}
	keys := make([]driver.ClaimParams, 20)
	for i := range keys {
		keys[i] = s.claim()
		keys[i].Lease, keys[i].Retention = time.Millisecond, time.Millisecond
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sweepers, claimers sync.WaitGroup
	for range 3 {
		sweepers.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Purge(ctx, driver.PurgeParams{Limit: 7}); err != nil && ctx.Err() == nil {
					t.Errorf("Purge: %v", err)
				}
			}
		})
	}
	for c := range 6 {
		claimers.Go(func() {
			for i := range rounds {
				p := repeat(keys[(i*(c+1))%len(keys)])
				r, err := s.Claim(ctx, p)
				if err != nil {
					t.Errorf("Claim: %v", err)
					continue
				}
				if !r.HeldBy(p.Token, r.Fence) {
					continue
				}
				done := outcome(p.Key, r, "result")
				done.Retention = time.Millisecond
				if err := s.Complete(ctx, done); err != nil && !errors.Is(err, driver.ErrNotHolder) {
					t.Errorf("Complete: %v", err)
				}
			}
		})
	}
	claimers.Wait()
	cancel()
	sweepers.Wait()
}

func TestField_P13_NoLockStays(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	px := through(t, s.db.Server.Addr())
	cut := s.again(t, setup{pool: []func(*pgxpool.Config){pgtest.Through(px.Addr())}})
	for i := range 1000 {
		p := s.claim()
		tx, r := cut.mustBegin(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		switch i % 4 {
		case 0:
			cancel()
			tx.Rollback(ctx)
		case 1:
			cancel()
			tx.Handle().Exec(ctx, "SELECT 1")
			tx.Rollback(ctx)
		case 2:
			if err := tx.Commit(ctx, commit(p.Key, r, "result")); err != nil {
				t.Error(err)
			}
		case 3:
			if i%100 == 3 { // as when the process is killed
				px.KillAll()
			}
			tx.Rollback(ctx)
		}
		cancel()
	}
	conn := s.db.Conn(t)
	eventually(t, "the release of every advisory lock", func() bool {
		var n int
		err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE locktype = 'advisory' AND a.datname = current_database()").Scan(&n)
		return err == nil && n == 0
	})
}

func TestField_P14_RowsLeftOpen(t *testing.T) {
	left := map[string]func(tx pgx.Tx) error{
		"rows": func(tx pgx.Tx) error {
			_, err := tx.Query(t.Context(), "SELECT * FROM generate_series(1, 100000)")
			return err
		},
		"batch": func(tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue("SELECT * FROM generate_series(1, 100000)")
			b.Queue("SELECT 1")
			tx.SendBatch(t.Context(), &b)
			return nil
		},
	}
	for name, leave := range left {
		for _, rollback := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/rollback=%v", name, rollback), func(t *testing.T) {
				s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(1)}})
				p := s.claim()
				tx, r := s.mustBegin(t, p)
				if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
					t.Fatal(err)
				}
				if err := leave(tx.Handle()); err != nil {
					t.Fatal(err)
				}
				if rollback {
					if err := tx.Rollback(t.Context()); err != nil {
						t.Error(err)
					}
				} else if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err == nil || !strings.Contains(err.Error(), "still open") {
					t.Errorf("Commit = %v, want an error that names the cause", err)
				}
				// The only connection was not given back dirty.
				s.stateIs(t, p.Key, driver.StateAbsent)
				if n := s.rows(t, p.Key.ID); n != 0 {
					t.Errorf("%d business rows", n)
				}
				eventually(t, "the end of the old session", func() bool {
					tx, _, err := s.BeginClaim(t.Context(), repeat(p))
					if err != nil {
						t.Fatal(err)
					}
					if tx != nil {
						tx.Rollback(t.Context())
					}
					return tx != nil
				})
			})
		}
	}
}

func TestField_P15_SerializationFailureAtCommit(t *testing.T) {
	s := open(t, setup{
		pool:   []func(*pgxpool.Config){pgtest.MaxConns(8)},
		driver: []postgres.Option{postgres.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})},
	})
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	var failed, stored atomic.Int32
	for i := range rounds {
		group := fmt.Sprintf("group-%d", i)
		var all sync.WaitGroup
		for range 4 {
			p := s.claim()
			all.Go(func() {
				tx, r, err := s.BeginClaim(t.Context(), p)
				if err != nil || tx == nil {
					if !errors.Is(err, driver.ErrRetryable) {
						t.Errorf("BeginClaim = %v, %v", tx, err)
					}
					failed.Add(1)
					return
				}
				// Write skew: each counts the rows of the group, then adds one.
				var n int
				err = tx.Handle().QueryRow(t.Context(), "SELECT count(*) FROM business WHERE name = $1", group).Scan(&n)
				if err == nil && n == 0 {
					err = insert(t.Context(), tx.Handle(), group)
				}
				if err != nil {
					if !s.Retryable(err) {
						t.Errorf("in the work: %v", err)
					}
					failed.Add(1)
					tx.Rollback(t.Context())
					return
				}
				if err := tx.Commit(t.Context(), commit(p.Key, r, group)); err == nil {
					stored.Add(1)
				} else {
					failed.Add(1)
					var pgErr *pgconn.PgError
					if !errors.Is(err, driver.ErrRetryable) || !errors.As(err, &pgErr) || pgErr.Code != "40001" {
						t.Errorf("Commit = %v", err)
					}
				}
			})
		}
		all.Wait()
		if n := s.rows(t, group); n > 1 {
			t.Fatalf("%s has %d rows", group, n)
		}
	}
	if failed.Load() == 0 || stored.Load() == 0 {
		t.Errorf("%d failed, %d committed: the test tests nothing", failed.Load(), stored.Load())
	}
	stat := s.pool.Stat()
	if stat.AcquiredConns() != 0 || stat.TotalConns() != stat.IdleConns() || stat.NewConnsCount() > 16 {
		t.Errorf("the pool has %d acquired, %d idle of %d, %d made", stat.AcquiredConns(), stat.IdleConns(), stat.TotalConns(), stat.NewConnsCount())
	}
	var records int32
	if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM idem_records WHERE state = 2").Scan(&records); err != nil || records != stored.Load() {
		t.Errorf("%d records for %d commits, %v", records, stored.Load(), err)
	}
}

// Sessions that began while the server was read-only must not stay in the pool.
func TestField_P19_ReadOnlyServer(t *testing.T) {
	s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(4)}})
	s.mustClaim(t, s.claim())
	admin := s.db.Conn(t)
	readOnly := func(on string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), "ALTER DATABASE "+s.db.Name+" SET default_transaction_read_only = "+on); err != nil {
			t.Fatal(err)
		}
	}
	readOnly("on")
	s.pool.Reset()
	p := s.claim()
	var state interface{ SQLState() string }
	for range 8 {
		tx, _, err := s.BeginClaim(t.Context(), p)
		if tx != nil || !errors.As(err, &state) || state.SQLState() != "25006" {
			t.Fatalf("BeginClaim = %v, %v: work would be done that cannot be committed", tx, err)
		}
		if _, err := s.Claim(t.Context(), p); !errors.As(err, &state) || state.SQLState() != "25006" {
			t.Fatalf("Claim = %v", err)
		}
	}
	// The admin session is read-write still.
	readOnly("off")
	for range 8 {
		s.mustClaim(t, s.claim())
		p := s.claim()
		tx, r := s.mustBegin(t, p)
		if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
			t.Error(err)
		}
	}
}

func TestField_P20_P21_KeysThatTextRefuses(t *testing.T) {
	main := open(t, setup{})
	px := through(t, main.db.Server.Addr())
	s := main.again(t, setup{pool: []func(*pgxpool.Config){pgtest.Through(px.Addr())}})
	s.mustClaim(t, s.claim())
	before := px.Trips()
	for _, id := range []string{"", "a\x00b", "a\xffb", "ä", strings.Repeat("k", 256), strings.Repeat("k", 2705), strings.Repeat("k", 1<<20)} {
		p := s.claim()
		p.Key.ID = id
		if _, err := s.Claim(t.Context(), p); !errors.Is(err, driver.ErrInvalidKey) {
			t.Errorf("Claim of %d bytes = %v", len(id), err)
		}
		if tx, _, err := s.BeginClaim(t.Context(), p); tx != nil || !errors.Is(err, driver.ErrInvalidKey) {
			t.Errorf("BeginClaim of %d bytes = %v", len(id), err)
		}
	}
	if got := px.Trips() - before; got != 0 {
		t.Errorf("%d round trips for keys that are refused", got)
	}
	p := s.claim()
	p.Key = driver.Key{Scope: strings.Repeat("s", driver.MaxScope), ID: strings.Repeat(`"\'`, driver.MaxID/3)}
	s.mustClaim(t, p)
}

func TestField_P22_ResultsAreStoredExactly(t *testing.T) {
	s := open(t, setup{})
	for name, result := range map[string][]byte{
		"nil": nil, "empty": {}, "null": []byte("null"), "bytes": []byte("a\x00b\xff"), "large": bytes.Repeat([]byte{0, 1, 2, 3}, 1<<18),
	} {
		t.Run(name, func(t *testing.T) {
			for _, inTx := range []bool{false, true} {
				p := s.claim()
				if inTx {
					tx, r := s.mustBegin(t, p)
					c := commit(p.Key, r, "")
					c.Result = result
					if err := tx.Commit(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				} else {
					c := outcome(p.Key, s.mustClaim(t, p), "")
					c.Result = result
					if err := s.Complete(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				got, err := s.Claim(t.Context(), repeat(p))
				if err != nil || got.State != driver.StateComplete || !bytes.Equal(got.Result, result) || (got.Result == nil) != (result == nil) {
					t.Errorf("replay: %v, %d bytes, nil %v, %v", got.State, len(got.Result), got.Result == nil, err)
				}
			}
		})
	}
}

// Where the database's default isolation level is stricter than read committed,
// claims that race fail to serialize; the driver sends them again by itself.
func TestDefaultIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(16), param("default_transaction_isolation", level)}})
			for range 30 {
				p := s.claim()
				var granted atomic.Int32
				var all sync.WaitGroup
				for range 16 {
					all.Go(func() {
						q := repeat(p)
						r, err := s.Claim(t.Context(), q)
						if err != nil {
							t.Errorf("Claim: %v", err)
						} else if r.HeldBy(q.Token, r.Fence) {
							granted.Add(1)
							if err := s.Complete(t.Context(), outcome(q.Key, r, "result")); err != nil {
								t.Errorf("Complete: %v", err)
							}
						}
					})
				}
				all.Wait()
				if n := granted.Load(); n != 1 {
					t.Fatalf("granted %d times", n)
				}
			}
		})
	}
}
