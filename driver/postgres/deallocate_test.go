package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/pgtest"
)

// committed is rows without the statement cache of pgx, which goes wrong where
// something else takes its statements away.
func (s *store) committed(t testing.TB, p driver.ClaimParams) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM business WHERE name = $1", pgx.QueryExecModeExec, p.Key.ID).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// An application that resets each session as it gives it back.
func TestField_P01_DiscardedAtRelease(t *testing.T) {
	s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(2), func(c *pgxpool.Config) {
		c.AfterRelease = func(conn *pgx.Conn) bool {
			_, err := conn.PgConn().Exec(context.Background(), "DISCARD ALL").ReadAll()
			return err == nil
		}
	}}})
	for range 6 {
		p := s.claim()
		tx, r := s.mustBegin(t, p)
		if err := s.put(t, tx, p); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
			t.Fatal(err)
		}
	}
}

// The work itself takes the statements away with which its outcome is to be stored.
func TestField_P01_DeallocatedInEveryWay(t *testing.T) {
	ways := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Exec": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "deallocate all"); return err },
		"several statements": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1; DEALLOCATE ALL; SELECT 2", pgx.QueryExecModeSimpleProtocol)
			return err
		},
		"DeallocateAll": func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().DeallocateAll(ctx) },
		"Conn().Exec": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, "DEALLOCATE ALL")
			return err
		},
		"Query": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "DEALLOCATE ALL", pgx.QueryExecModeExec)
			if err == nil {
				rows.Close()
			}
			return errors.Join(err, rows.Err())
		},
		"SendBatch": func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue("SELECT 1")
			b.Queue("DEALLOCATE ALL")
			return tx.SendBatch(ctx, &b).Close()
		},
		"in a savepoint": func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "DEALLOCATE ALL"); return err })
		},
		"one by name": func(ctx context.Context, tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, "SELECT name FROM pg_prepared_statements WHERE name LIKE 'idem%'", pgx.QueryExecModeExec)
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			for _, n := range names {
				_, e := tx.Exec(ctx, fmt.Sprintf("DEALLOCATE %q", n))
				err = errors.Join(err, e)
			}
			return err
		},
	}
	for name, way := range ways {
		for _, discard := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, discard=%v", name, discard), func(t *testing.T) {
				s := open(t, setup{pool: one(pgx.QueryExecModeCacheStatement)})
				s.everyVerb(t, func() {})
				rounds := 4
				if name == "SendBatch" {
					rounds = 1 // pgx names the statements of a batch, and misses them the second time
				}
				for range rounds {
					p := s.claim()
					tx, r := s.mustBegin(t, p)
					if err := s.put(t, tx, p); err != nil {
						t.Fatal(err)
					}
					if err := way(t.Context(), tx.Handle()); err != nil {
						t.Fatal(err)
					}
					c := commit(p.Key, r, "result")
					c.Discard = discard
					want := 1
					if discard {
						want = 0
					}
					if err := tx.Commit(t.Context(), c); err != nil {
						t.Fatalf("Commit = %v", err)
					}
					if n := s.committed(t, p); n != want {
						t.Errorf("%d business rows, want %d", n, want)
					}
				}
				s.everyVerb(t, func() {})
			})
		}
	}
}
