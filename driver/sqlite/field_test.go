package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func granted(r driver.Record, p driver.ClaimParams) bool {
	return r.State == driver.StateInFlight && r.Token == p.Token
}

func commitParams(r driver.Record, result string) driver.CommitParams {
	return driver.CommitParams{CompleteParams: completeParams(r, []byte(result))}
}

// mustClaim claims a new key.
func mustClaim(t testing.TB, d *sqlite.Driver, p driver.ClaimParams) driver.Record {
	t.Helper()
	r, err := d.Claim(t.Context(), p)
	if err != nil || !granted(r, p) {
		t.Fatalf("Claim: %+v, %v; want a grant", r, err)
	}
	return r
}

func mustBegin(t testing.TB, d *sqlite.Driver, p driver.ClaimParams) (driver.Tx[*sql.Tx], driver.Record) {
	t.Helper()
	tx, r, err := d.BeginClaim(t.Context(), p)
	if err != nil || tx == nil {
		t.Fatalf("BeginClaim: %+v, %v; want a transaction", r, err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx, r
}

func wantState(t testing.TB, d *sqlite.Driver, id string, want driver.State) driver.Record {
	t.Helper()
	r, err := d.Get(t.Context(), driver.GetParams{Key: driver.Key{Scope: "tenant", ID: id}})
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	if got := r.StateAt(r.Now); got != want {
		t.Errorf("%s is %v, want %v", id, got, want)
	}
	return r
}

func wantRows(t testing.TB, d *sqlite.Driver, name string, want int) {
	t.Helper()
	if n, err := countRows(t.Context(), d.DB(), name); err != nil || n != want {
		t.Errorf("%d rows named %s, %v; want %d", n, name, err, want)
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want one that matches %q", what, err, want)
	}
}

// Reading before writing in a deferred transaction fails at once when another has
// written between: no call may show that, from whatever DSN.
func TestField_S01_NoBusyInsideTheWait(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	var handles []*sqlite.Driver
	for range 2 {
		db := openDB(t, file+"?_pragma=journal_mode(WAL)") // deferred, and no busy_timeout
		db.SetMaxOpenConns(8)
		handles = append(handles, withRows(t, migrated(t, db, sqlite.WithBusyTimeout(time.Minute))))
	}
	const goroutines, keys = 50, 20
	var wg sync.WaitGroup
	for g := range goroutines {
		d := handles[g%len(handles)]
		wg.Go(func() {
			for _, k := range rand.Perm(keys) {
				p := claimParams(fmt.Sprint(k))
				tx, r, err := d.BeginClaim(t.Context(), p)
				if err != nil {
					t.Errorf("BeginClaim: %v", err)
					return
				}
				if tx != nil {
					if err := insertRow(t.Context(), tx.Handle(), p.Key.ID); err != nil {
						t.Errorf("inserting: %v", err)
					}
					if err := tx.Commit(t.Context(), commitParams(r, "done")); err != nil {
						t.Errorf("Commit: %v", err)
					}
				}
				leased := claimParams(fmt.Sprintf("leased %d %d", g, k))
				if r, err = d.Claim(t.Context(), leased); err != nil {
					t.Errorf("Claim: %v", err)
					return
				}
				if err := d.Complete(t.Context(), completeParams(r, nil)); err != nil {
					t.Errorf("Complete: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for k := range keys {
		wantState(t, handles[0], fmt.Sprint(k), driver.StateComplete)
		wantRows(t, handles[0], fmt.Sprint(k), 1)
	}
}

// A PRAGMA by Exec reaches one connection of the pool, and is lost with it.
func TestField_S02_PooledPragmas(t *testing.T) {
	t.Run("recycled connections", func(t *testing.T) {
		db := openDB(t, filepath.Join(t.TempDir(), "idem.db"))
		db.SetConnMaxLifetime(time.Nanosecond)
		db.SetMaxIdleConns(0)
		d := migrated(t, db)
		for i := range 20 {
			r := mustClaim(t, d, claimParams(fmt.Sprint(i)))
			if err := d.Complete(t.Context(), completeParams(r, nil)); err != nil {
				t.Fatalf("Complete: %v", err)
			}
		}
	})
	t.Run("a writer elsewhere", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "idem.db")
		d := migrated(t, openDB(t, file)) // no busy_timeout
		other, err := openDB(t, file+"?_txlock=immediate").BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		hasty := sqlite.New(d.DB(), sqlite.WithBusyTimeout(20*time.Millisecond))
		_, err = hasty.Claim(t.Context(), claimParams("k"))
		wantError(t, "Claim while another writer stays", err, driver.ErrRetryable)
		done := make(chan error, 1)
		p := claimParams("k")
		go func() { _, err := d.Claim(t.Context(), p); done <- err }()
		if err := other.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("Claim after the other writer ended: %v", err)
		}
	})
	t.Run("changed under way", func(t *testing.T) {
		db := openDB(t, filepath.Join(t.TempDir(), "idem.db"))
		db.SetMaxOpenConns(1)
		d := migrated(t, db)
		mustClaim(t, d, claimParams("before"))
		for _, bad := range []string{`PRAGMA synchronous = OFF`, `PRAGMA synchronous = NORMAL`, `PRAGMA journal_mode = MEMORY`} {
			if _, err := db.ExecContext(t.Context(), bad); err != nil {
				t.Fatal(err)
			}
			_, err := d.Claim(t.Context(), claimParams(bad))
			wantError(t, "Claim after "+bad, err, driver.ErrUnsafeConfig)
			if _, err := db.ExecContext(t.Context(), `PRAGMA synchronous = FULL; PRAGMA journal_mode = DELETE`); err != nil {
				t.Fatal(err)
			}
			mustClaim(t, d, claimParams(bad))
		}
	})
}

// Settings that were spelled for another driver used to be ignored.
func TestField_S03_SettingsTakeEffect(t *testing.T) {
	d := fresh(t)
	var mode string
	var synchronous, timeout int
	row := d.DB().QueryRowContext(t.Context(), `SELECT (SELECT journal_mode FROM pragma_journal_mode),
		(SELECT synchronous FROM pragma_synchronous), (SELECT timeout FROM pragma_busy_timeout)`)
	if err := row.Scan(&mode, &synchronous, &timeout); err != nil {
		t.Fatal(err)
	}
	if mode != "wal" || synchronous != 2 || timeout != 5000 {
		t.Errorf("Open left journal_mode %s, synchronous %d, busy_timeout %d; want wal, 2, 5000", mode, synchronous, timeout)
	}
	for _, query := range []string{"?_synchronous=OFF", "?_pragma=synchronous(OFF)", "?_journal_mode=MEMORY", "?_pragma=journal_mode(MEMORY)"} {
		d := sqlite.New(openDB(t, filepath.Join(t.TempDir(), "idem.db")+query))
		wantError(t, "Check with "+query, d.Check(t.Context()), driver.ErrUnsafeConfig)
	}
}

// A database in memory is another one for every connection.
func TestField_S04_InMemory(t *testing.T) {
	for _, dsn := range []string{":memory:", "file::memory:?cache=shared", "file:x?mode=memory&cache=shared", "file:"} {
		d := sqlite.New(openDB(t, dsn))
		wantError(t, "Check with "+dsn, d.Check(t.Context()), driver.ErrUnsafeConfig)
		_, err := d.Claim(t.Context(), claimParams("k"))
		wantError(t, "Claim with "+dsn, err, driver.ErrUnsafeConfig)
	}
	for _, path := range []string{"", ":memory:", "file:some.db?mode=memory"} {
		_, err := sqlite.Open(path)
		wantError(t, "Open "+path, err, driver.ErrUnsafeConfig)
	}
}

// A time.Time is stored as text that some zones cannot be read back from.
func TestField_S05_Zones(t *testing.T) {
	local := time.Local
	defer func() { time.Local = local }()
	for _, name := range []string{"Asia/Kathmandu", "Asia/Tehran", "Europe/Berlin", "America/St_Johns"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		time.Local = zone
		d := fresh(t)
		now := time.Date(2030, 3, 31, 1, 59, 59, 0, zone) // Berlin's clocks go forward a second later
		p := claimParams("k")
		p.Now, p.Lease, p.Retention = now, 2*time.Second, 2*time.Second
		mustClaim(t, d, p)
		for after, want := range map[time.Duration]driver.State{
			0: driver.StateInFlight, 2*time.Second - time.Microsecond: driver.StateInFlight, 2 * time.Second: driver.StateAbsent,
		} {
			r, err := d.Get(t.Context(), driver.GetParams{Key: p.Key, Now: now.Add(after).UTC()})
			if err != nil {
				t.Fatal(err)
			}
			if got := r.StateAt(r.Now); got != want {
				t.Errorf("%s: %v after the claim the key is %v, want %v", name, after, got, want)
			}
		}
		n, err := d.Purge(t.Context(), driver.PurgeParams{Limit: 10, Now: now.Add(2 * time.Second)})
		if n != 1 || err != nil {
			t.Errorf("%s: Purge: %d, %v; want 1", name, n, err)
		}
	}
}

// Cancelled write transactions used to stay on their pooled connections and keep the lock.
func TestField_S07_CancelledTransactions(t *testing.T) {
	d := fresh(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 125 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Millisecond))
				p := claimParams(fmt.Sprintf("%d-%d", g, i))
				if i%2 == 0 {
					_, _ = d.Claim(ctx, p)
					_, _ = d.Purge(ctx, driver.PurgeParams{Limit: 10, Now: t0})
				} else if tx, r, err := d.BeginClaim(ctx, p); err == nil && tx != nil {
					_ = insertRow(ctx, tx.Handle(), p.Key.ID)
					_ = tx.Commit(ctx, commitParams(r, "done"))
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if n := d.DB().Stats().InUse; n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	other := openDB(t, path(t, d)+"?_txlock=immediate&_pragma=busy_timeout(1000)")
	tx, err := other.BeginTx(ctx, nil)
	if err != nil {
		t.Fatalf("another writer, after the cancels: %v", err)
	}
	_ = tx.Rollback()
	rows, err := d.DB().QueryContext(t.Context(), `SELECT id, state, (SELECT count(*) FROM business WHERE name = id)
		FROM idem_keys WHERE CAST(substr(id, instr(id, '-') + 1) AS INTEGER) % 2 = 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		var state, n int
		if err := rows.Scan(&id, &state, &n); err != nil {
			t.Fatal(err)
		}
		if state != int(driver.StateComplete) || n != 1 {
			t.Errorf("%s: state %d with %d business rows; want complete with one", id, state, n)
		}
	}
}
