package soak

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/fingerprint"
	"github.com/idem-go/idem/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	crowdKeys  = 200
	duplicates = 64
	processes  = 2 // operations of their own, as processes have: calls of one operation share a claim
)

// 64 duplicates of each of 200 keys at the same moment, with a pool of 4 connections: no
// deadlock, one run and one row a key, equal values, and every connection given back.
// Waiters hold none, or the four would be theirs and the holders could not end.
func TestCrowd(t *testing.T) {
	const connections = 4
	pool := pgtest.Pool(t, pgtest.MaxConns(connections))
	drv := postgres.New(pool)
	if err := drv.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "CREATE TABLE business (name text PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	insert := func(ctx context.Context, tx pgx.Tx, k idem.Key) error {
		_, err := tx.Exec(ctx, "INSERT INTO business VALUES ($1)", k.ID)
		return err
	}
	for name, call := range map[string]func(op *idem.TxOperation[string, pgx.Tx], k idem.Key, fn func() string) (idem.Result[string], error){
		"Do": func(op *idem.TxOperation[string, pgx.Tx], k idem.Key, fn func() string) (idem.Result[string], error) {
			return op.Do(ctx, k, fingerprint.None(), func(ctx context.Context, _ *idem.Run) (string, error) {
				_, err := pool.Exec(ctx, "INSERT INTO business VALUES ($1)", k.ID)
				return fn(), err
			})
		},
		"DoTx": func(op *idem.TxOperation[string, pgx.Tx], k idem.Key, fn func() string) (idem.Result[string], error) {
			return op.DoTx(ctx, k, fingerprint.None(), func(ctx context.Context, tx pgx.Tx) (string, error) {
				return fn(), insert(ctx, tx, k)
			})
		},
		"DoThenTx": func(op *idem.TxOperation[string, pgx.Tx], k idem.Key, fn func() string) (idem.Result[string], error) {
			return op.DoThenTx(ctx, k, fingerprint.None(),
				func(context.Context, *idem.Run) (string, error) { return fn(), nil },
				func(ctx context.Context, tx pgx.Tx, v string) (string, error) { return v, insert(ctx, tx, k) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			var ops []*idem.TxOperation[string, pgx.Tx]
			for range processes {
				op, err := idem.NewTx[string](drv, idem.Config{
					Name: "crowd", Wait: 2 * time.Minute, MaxWaiters: crowdKeys * duplicates,
					// Settling waits for a connection, too: here behind hundreds of others.
					Lease: 2 * time.Minute, SettleTimeout: 2 * time.Minute,
				})
				if err != nil {
					t.Fatal(err)
				}
				ops = append(ops, op)
			}
			var runs [crowdKeys]atomic.Int64
			var values [crowdKeys][duplicates]string
			var wg sync.WaitGroup
			for i := range crowdKeys {
				k := idem.Key{Scope: name, ID: name + "-" + strconv.Itoa(i)}
				for j := range duplicates {
					wg.Go(func() {
						res, err := call(ops[j%processes], k, func() string {
							runs[i].Add(1)
							return k.ID
						})
						if err != nil {
							t.Errorf("%s: %v", k.ID, err)
						}
						values[i][j] = res.Value
					})
				}
			}
			wg.Wait()
			for i := range crowdKeys {
				if n := runs[i].Load(); n != 1 {
					t.Errorf("key %d ran %d times", i, n)
				}
				for _, v := range values[i] {
					if v == "" || v != values[i][0] {
						t.Errorf("key %d: values %q and %q", i, v, values[i][0])
					}
				}
			}
			var rows int
			if err := pool.QueryRow(ctx, "SELECT count(*) FROM business WHERE name LIKE $1", name+"-%").Scan(&rows); err != nil || rows != crowdKeys {
				t.Errorf("%d rows, %v, want %d", rows, err, crowdKeys)
			}
			if s := pool.Stat(); s.AcquiredConns() != 0 || s.TotalConns() > connections {
				t.Errorf("%d of %d connections are not given back", s.AcquiredConns(), s.TotalConns())
			}
			settle(t, before+connections)
		})
	}
}

// settle waits until no more than that many goroutines are left: those of a call have
// ended when it returns, but those of the client it used may take a moment.
func settle(t *testing.T, most int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > most; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%d goroutines are left, want at most %d", runtime.NumGoroutine(), most)
			return
		}
	}
}
