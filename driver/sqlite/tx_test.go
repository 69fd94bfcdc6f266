package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

// mustBeginComplete begins to complete a leased claim, as the second half of a leased call does.
func mustBeginComplete(t *testing.T, d *sqlite.Driver, id string) (driver.Tx[*sql.Tx], driver.Record) {
	t.Helper()
	r := mustClaim(t, d, claimParams(id))
	tx, err := d.BeginComplete(t.Context(), completeParams(r, nil).HolderParams)
	if err != nil {
		t.Fatalf("BeginComplete: %v", err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx, r
}

// Where the journal is not a write-ahead log, a reader holds up the commit.
func TestField_S08_ReaderHoldsUpTheCommit(t *testing.T) {
	for _, mode := range []string{"DELETE", "TRUNCATE", "PERSIST"} {
		t.Run(mode, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "idem.db")
			db := openDB(t, file+"?_pragma=journal_mode("+mode+")")
			patient := withRows(t, migrated(t, db))
			d := sqlite.New(db, sqlite.WithBusyTimeout(100*time.Millisecond))

			tx, r := mustBegin(t, d, claimParams("tx"))
			if err := insertRow(t.Context(), tx.Handle(), "tx"); err != nil {
				t.Fatal(err)
			}
			reader, err := openDB(t, file).BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := reader.QueryRowContext(t.Context(), `SELECT count(*) FROM business`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			wantError(t, "Commit under a reader", tx.Commit(t.Context(), commitParams(r, "done")), driver.ErrRetryable)
			_, err = d.Claim(t.Context(), claimParams("leased"))
			wantError(t, "Claim under a reader", err, driver.ErrRetryable)
			if err := reader.Rollback(); err != nil {
				t.Fatal(err)
			}

			wantState(t, d, "tx", driver.StateAbsent)
			wantRows(t, d, "tx", 0)
			wantState(t, d, "leased", driver.StateAbsent)
			mustClaim(t, patient, claimParams("tx"))
		})
	}
}

// A commit that a reader holds up goes on when the reader is done, without a busy_timeout.
func TestField_S08_CommitWaitsForTheReader(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	d := withRows(t, migrated(t, openDB(t, file), sqlite.WithBusyTimeout(time.Minute)))
	others := openDB(t, file)
	hold := func() (*sql.Tx, error) {
		reader, err := others.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return nil, err
		}
		var n int
		if err := reader.QueryRowContext(t.Context(), `SELECT count(*) FROM business`).Scan(&n); err != nil {
			_ = reader.Rollback()
			return nil, err
		}
		return reader, nil
	}
	for name, commit := range map[string]func() error{
		"transaction": func() error {
			tx, r, err := d.BeginClaim(t.Context(), claimParams("tx"))
			if err != nil {
				return err
			}
			return tx.Commit(t.Context(), commitParams(r, "done"))
		},
		"group": func() error { _, err := d.Claim(t.Context(), claimParams("leased")); return err },
	} {
		reader, err := hold()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- commit() }()
		for { // a writer that waits to commit lets no new reader in
			second, err := hold()
			if err != nil {
				break
			}
			if err := second.Rollback(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				t.Fatalf("%s: committed under a reader: %v", name, err)
			default:
			}
		}
		if err := reader.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantState(t, d, "tx", driver.StateComplete)
	wantState(t, d, "leased", driver.StateInFlight)
}

// A statement whose failure rolls the transaction back, and whose error is ignored,
// leaves the business code outside any transaction: there is no outcome to store.
func TestField_P05_SwallowedError(t *testing.T) {
	swallow := func(t *testing.T, tx *sql.Tx) {
		t.Helper()
		if err := insertRow(t.Context(), tx, "before"); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), `INSERT OR ROLLBACK INTO once (n) VALUES (1), (1)`); err == nil {
			t.Fatal("the statement did not fail")
		}
	}
	setup := func(t *testing.T) *sqlite.Driver {
		d := fresh(t)
		if _, err := d.DB().ExecContext(t.Context(), `CREATE TABLE once (n INTEGER UNIQUE)`); err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, discard := range []bool{false, true} {
		d := setup(t)
		tx, r := mustBegin(t, d, claimParams("k"))
		swallow(t, tx.Handle())
		p := commitParams(r, "done")
		p.Discard = discard
		wantError(t, "Commit", tx.Commit(t.Context(), p), driver.ErrNotHolder)
		wantState(t, d, "k", driver.StateAbsent)
		wantRows(t, d, "before", 0)

		tx, r = mustBeginComplete(t, d, "then")
		swallow(t, tx.Handle())
		p = commitParams(r, "done")
		p.Discard = discard
		if err := tx.Commit(t.Context(), p); err == nil {
			t.Error("Commit stored an outcome without the business writes")
		}
		if r := wantState(t, d, "then", driver.StateInFlight); r.Result != nil {
			t.Errorf("a result was stored: %q", r.Result)
		}
		wantRows(t, d, "before", 0)
	}
	d := setup(t)
	tx, _ := mustBegin(t, d, claimParams("k"))
	swallow(t, tx.Handle())
	if err := tx.Rollback(t.Context()); err != nil {
		t.Errorf("Rollback after a statement that rolled back: %v", err)
	}
	wantState(t, d, "k", driver.StateAbsent)
}

func TestApplicationEndsTheTransaction(t *testing.T) {
	commit := func(tx driver.Tx[*sql.Tx], r driver.Record) error {
		return tx.Commit(context.Background(), commitParams(r, "done"))
	}
	rollback := func(tx driver.Tx[*sql.Tx], _ driver.Record) error { return tx.Rollback(context.Background()) }
	exec := func(query string) func(*sql.Tx) error {
		return func(tx *sql.Tx) error { _, err := tx.ExecContext(context.Background(), query); return err }
	}
	for _, c := range []struct {
		name string
		end  func(*sql.Tx) error
		then func(driver.Tx[*sql.Tx], driver.Record) error
		want error // of a claim made in the transaction
		late error // of a leased claim
		rows int
	}{
		{"commit, Commit", (*sql.Tx).Commit, commit, driver.ErrOutcomeUnknown, driver.ErrOutcomeUnknown, 1},
		{"commit, Rollback", (*sql.Tx).Commit, rollback, driver.ErrOutcomeUnknown, driver.ErrOutcomeUnknown, 1},
		{"rollback, Commit", (*sql.Tx).Rollback, commit, driver.ErrNotHolder, driver.ErrOutcomeUnknown, 0},
		{"rollback, Rollback", (*sql.Tx).Rollback, rollback, nil, driver.ErrOutcomeUnknown, 0},
		{"COMMIT, Commit", exec("COMMIT"), commit, driver.ErrOutcomeUnknown, driver.ErrOutcomeUnknown, 1},
		{"COMMIT and BEGIN, Commit", exec("COMMIT; BEGIN"), commit, driver.ErrOutcomeUnknown, driver.ErrOutcomeUnknown, 1},
		{"COMMIT, Rollback", exec("COMMIT"), rollback, driver.ErrOutcomeUnknown, nil, 1},
		{"ROLLBACK, Commit", exec("ROLLBACK"), commit, driver.ErrNotHolder, driver.ErrOutcomeUnknown, 0},
		{"ROLLBACK, Rollback", exec("ROLLBACK"), rollback, nil, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := fresh(t)
			tx, r := mustBegin(t, d, claimParams("k"))
			if err := insertRow(t.Context(), tx.Handle(), "k"); err != nil {
				t.Fatal(err)
			}
			if err := c.end(tx.Handle()); err != nil {
				t.Fatalf("ending it: %v", err)
			}
			if err := c.then(tx, r); !errors.Is(err, c.want) {
				t.Errorf("claim: error %v, want %v", err, c.want)
			}
			wantRows(t, d, "k", c.rows)

			tx, r = mustBeginComplete(t, d, "late")
			if err := c.end(tx.Handle()); err != nil {
				t.Fatalf("ending it: %v", err)
			}
			if err := c.then(tx, r); !errors.Is(err, c.late) {
				t.Errorf("leased claim: error %v, want %v", err, c.late)
			}
			mustClaim(t, d, claimParams("other")) // the lock is free
		})
	}
}

// A constraint that is checked at COMMIT fails the commit, definitely.
func TestCommitFails(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "idem.db")+"?_pragma=foreign_keys(ON)&_pragma=journal_mode(WAL)")
	d := withRows(t, migrated(t, db))
	_, err := db.ExecContext(t.Context(), `CREATE TABLE parent (id INTEGER PRIMARY KEY);
		CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)`)
	if err != nil {
		t.Fatal(err)
	}
	tx, r := mustBegin(t, d, claimParams("k"))
	if _, err := tx.Handle().ExecContext(t.Context(), `INSERT INTO child (parent) VALUES (7)`); err != nil {
		t.Fatal(err)
	}
	err = tx.Commit(t.Context(), commitParams(r, "done"))
	if err == nil || errors.Is(err, driver.ErrOutcomeUnknown) || errors.Is(err, driver.ErrRetryable) {
		t.Errorf("Commit: error %v, want the definite one of the constraint", err)
	}
	wantState(t, d, "k", driver.StateAbsent)
	mustClaim(t, d, claimParams("k"))
}

// A full database fails the commit, definitely, and works again when there is room.
func TestCommitWhenFull(t *testing.T) {
	d := fresh(t)
	tx, r := mustBegin(t, d, claimParams("k"))
	if err := insertRow(t.Context(), tx.Handle(), "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Handle().ExecContext(t.Context(), `PRAGMA max_page_count = 1`); err != nil { // as many as there are
		t.Fatal(err)
	}
	p := commitParams(r, "")
	p.Result = make([]byte, 1<<20)
	err := tx.Commit(t.Context(), p)
	if full, ok := errors.AsType[interface {
		error
		Code() int
	}](err); !ok || full.Code() != 13 {
		t.Errorf("Commit: error %v, want SQLITE_FULL", err)
	}
	wantState(t, d, "k", driver.StateAbsent)
	wantRows(t, d, "k", 0)
	tx, r = mustBegin(t, d, claimParams("k"))
	if err := tx.Commit(t.Context(), commitParams(r, "small")); err != nil {
		t.Errorf("Commit of a small result: %v", err)
	}
}

// What waits for the writer gives up in time, with the right error, and leaves nothing.
func TestWaitingForTheWriter(t *testing.T) {
	d := sqlite.New(fresh(t).DB(), sqlite.WithBusyTimeout(100*time.Millisecond))
	tx, r := mustBegin(t, d, claimParams("held"))
	ended, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	held := completeParams(r, nil).HolderParams
	calls := map[string]func(context.Context) error{
		"Claim":         func(ctx context.Context) error { _, err := d.Claim(ctx, claimParams("k")); return err },
		"BeginClaim":    func(ctx context.Context) error { _, _, err := d.BeginClaim(ctx, claimParams("k")); return err },
		"BeginComplete": func(ctx context.Context) error { _, err := d.BeginComplete(ctx, held); return err },
		"Complete":      func(ctx context.Context) error { return d.Complete(ctx, completeParams(r, nil)) },
	}
	for name, call := range calls {
		wantError(t, name+" beyond the busy timeout", call(t.Context()), driver.ErrRetryable)
		wantError(t, name+" beyond its context", call(ended), context.DeadlineExceeded)
	}
	if err := tx.Commit(t.Context(), commitParams(r, "done")); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	wantState(t, d, "k", driver.StateAbsent)
	for _, name := range []string{"Claim", "Complete"} {
		if err := calls[name](t.Context()); err != nil {
			t.Errorf("%s when the writer is free: %v", name, err)
		}
	}
	wantError(t, "BeginComplete of a finished key", calls["BeginComplete"](t.Context()), driver.ErrNotHolder)
}

// A duplicate is answered at once also while the first still waits for the writer.
func TestDuplicateOfOneThatWaits(t *testing.T) {
	d := fresh(t)
	tx, _ := mustBegin(t, d, claimParams("other"))
	first := claimParams("k")
	type begun struct {
		tx  driver.Tx[*sql.Tx]
		r   driver.Record
		err error
	}
	waiting := make(chan begun, 1)
	go func() {
		tx, r, err := d.BeginClaim(context.Background(), first)
		waiting <- begun{tx, r, err}
	}()
	for try := 0; ; try++ { // a Claim waits for the writer itself until the first is in line
		if try == 500 {
			t.Fatal("the first does not hold its key while it waits")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		r, err := d.Claim(ctx, claimParams("k"))
		cancel()
		if err == nil {
			if r.Token != first.Token || r.StateAt(r.Now) != driver.StateInFlight || !r.Same(first) {
				t.Fatalf("Claim of a duplicate: %+v, want the claim of the first, in flight", r)
			}
			break
		}
		wantError(t, "Claim before the first was in line", err, context.DeadlineExceeded)
	}
	dup, r, err := d.BeginClaim(t.Context(), claimParams("k"))
	if err != nil || dup != nil || r.Token != first.Token {
		t.Errorf("BeginClaim of a duplicate: %+v, %v", r, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := <-waiting
	if b.err != nil || b.tx == nil {
		t.Fatalf("the first: %+v, %v", b.r, b.err)
	}
	if err := b.tx.Commit(t.Context(), commitParams(b.r, "done")); err != nil {
		t.Fatal(err)
	}
	if err := b.tx.Commit(t.Context(), commitParams(b.r, "done")); err == nil {
		t.Error("a second Commit succeeded")
	}
	wantState(t, d, "k", driver.StateComplete)
}

// The application has the table in its hands: what it leaves is what counts.
func TestApplicationChangesTheClaim(t *testing.T) {
	for _, query := range []string{
		`DELETE FROM idem_keys`,
		`UPDATE idem_keys SET state = 3`,
		`UPDATE idem_keys SET fence = fence + 1`,
		`UPDATE idem_keys SET token = randomblob(16)`,
	} {
		d := fresh(t)
		tx, r := mustBegin(t, d, claimParams("k"))
		if err := insertRow(t.Context(), tx.Handle(), "k"); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Handle().ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
		wantError(t, query, tx.Commit(t.Context(), commitParams(r, "done")), driver.ErrNotHolder)
		wantRows(t, d, "k", 0)
		wantState(t, d, "k", driver.StateAbsent)
	}
}
