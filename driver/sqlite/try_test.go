package sqlite_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

// A finished key is replayed without waiting, whoever has the writer, and whether or not
// this Driver has seen it before.
func TestReplayWaitsForNobody(t *testing.T) {
	patient := sqlite.WithBusyTimeout(time.Hour)
	d := fresh(t, patient)
	done := claimParams("done")
	tx, r := mustBegin(t, d, done)
	if err := tx.Commit(t.Context(), commitParams(r, "result")); err != nil {
		t.Fatal(err)
	}
	replays := func(name string, d *sqlite.Driver) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		tx, r, err := d.BeginClaim(ctx, claimParams("done"))
		if err != nil || tx != nil || r.State != driver.StateComplete || string(r.Result) != "result" || r.Token != done.Token {
			t.Errorf("%s: BeginClaim of a finished key: %+v, %v", name, r, err)
		}
	}
	other := func() *sqlite.Driver { return sqlite.New(d.DB(), patient) } // as another process has
	seen := other()
	replays("the writer is free", seen)
	replays("the writer is free, and the key was seen", seen)

	held, _ := mustBegin(t, d, claimParams("held"))
	replays("another Driver has the writer", other())
	replays("another Driver has the writer, and the key was seen", seen)
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]*sqlite.Driver{"this Driver has the writer": other(), "this Driver has the writer, and the key was seen": seen} {
		held, _ := mustBegin(t, d, claimParams("held"))
		replays(name, d)
		if err := held.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	replays("it cannot write", sqlite.New(openDB(t, "file:"+path(t, d)+"?mode=ro"), patient))
}

// opener opens connections, and fails or panics when it is told to.
type opener struct {
	dsn   string
	fails atomic.Bool
	err   error // nil panics
}

func (o *opener) Driver() sqldriver.Driver { return &modernc.Driver{} }

func (o *opener) Connect(context.Context) (sqldriver.Conn, error) {
	if o.fails.Load() && o.err == nil {
		panic("opener")
	}
	if o.fails.Load() {
		return nil, o.err
	}
	return o.Driver().Open(o.dsn)
}

// However BeginClaim ends, the next one finds the writer free.
func TestWriterIsGivenBack(t *testing.T) {
	for name, err := range map[string]error{"error": errors.New("opener"), "panic": nil} {
		t.Run(name, func(t *testing.T) {
			o := &opener{dsn: filepath.Join(t.TempDir(), "idem.db") + configs[0].query, err: err}
			db := sql.OpenDB(o)
			t.Cleanup(func() { _ = db.Close() })
			d := migrated(t, db)
			mustClaim(t, d, claimParams("prepares"))
			db.SetMaxIdleConns(-1) // every transaction opens a connection
			o.fails.Store(true)
			func() {
				defer func() {
					if p := recover(); (p != nil) != (err == nil) {
						t.Errorf("panicked with %v", p)
					}
				}()
				_, _, got := d.BeginClaim(t.Context(), claimParams("k"))
				wantError(t, "BeginClaim", got, err)
			}()
			o.fails.Store(false)
			tx, _ := mustBegin(t, d, claimParams("k"))
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A context ends every wait, also for a database that cannot even be read, and also that of
// a connection which has not read its schema yet.
func TestContextEndsTheWaitForALockedFile(t *testing.T) {
	for _, open := range []int{2, -1} { // connections that stay open
		file := filepath.Join(t.TempDir(), "idem.db")
		db := openDB(t, "file:"+file+"?_pragma=busy_timeout(3600000)") // journal_mode DELETE
		d := migrated(t, db, sqlite.WithBusyTimeout(time.Hour))
		r := mustClaim(t, d, claimParams("held"))
		db.SetMaxIdleConns(open)
		locked, err := openDB(t, file).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := locked.ExecContext(t.Context(), `BEGIN EXCLUSIVE`); err != nil {
			t.Fatal(err)
		}
		for name, call := range map[string]func(context.Context) error{
			"Get":        func(ctx context.Context) error { _, err := d.Get(ctx, driver.GetParams{Key: r.Key}); return err },
			"Claim":      func(ctx context.Context) error { _, err := d.Claim(ctx, claimParams("k")); return err },
			"Complete":   func(ctx context.Context) error { return d.Complete(ctx, completeParams(r, nil)) },
			"BeginClaim": func(ctx context.Context) error { _, _, err := d.BeginClaim(ctx, claimParams("k")); return err },
			"BeginComplete": func(ctx context.Context) error {
				_, err := d.BeginComplete(ctx, completeParams(r, nil).HolderParams)
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			ended := make(chan error, 1)
			go func() { ended <- call(ctx) }()
			select {
			case err := <-ended:
				wantError(t, name, err, context.DeadlineExceeded)
			case <-time.After(30 * time.Second):
				t.Fatalf("%s, %d connections stay open: it waits on", name, open)
			}
			cancel()
		}
		if _, err := locked.ExecContext(t.Context(), `ROLLBACK`); err != nil {
			t.Fatal(err)
		}
		if err := locked.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
