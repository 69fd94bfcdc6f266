package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

// grouped is a Driver whose transactions share commits, in a bubble in which it is
// certain who is in line.
func grouped(t *testing.T, test func(t *testing.T, d *sqlite.Driver)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := fresh(t, sqlite.GroupTransactions())
		_, err := d.DB().ExecContext(t.Context(), `CREATE TABLE parent (id INTEGER PRIMARY KEY);
			CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
			CREATE TABLE once (n INTEGER UNIQUE)`)
		if err != nil {
			t.Fatal(err)
		}
		test(t, d)
	})
}

// member is a transaction whose steps run in a goroutine of its own.
type member struct {
	id    string
	tx    driver.Tx[*sql.Tx]
	claim driver.Record
	begun error         // of BeginClaim and the row
	done  chan struct{} // closed when it has ended
	err   error         // of Commit
}

func (m *member) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// begin starts a transaction that writes a row; it is in line, or has the turn, afterwards.
func begin(t *testing.T, ctx context.Context, d *sqlite.Driver, id string) *member {
	t.Helper()
	m := &member{id: id, done: make(chan struct{})}
	go func() {
		if m.tx, m.claim, m.begun = d.BeginClaim(ctx, claimParams(id)); m.begun == nil && m.tx != nil {
			m.begun = insertRow(context.Background(), m.tx.Handle(), id)
		}
	}()
	synctest.Wait()
	return m
}

// commit starts to commit, and returns when that has ended or waits.
func (m *member) commit(t *testing.T) {
	t.Helper()
	if m.tx == nil || m.begun != nil {
		t.Fatalf("%s has not begun: %+v, %v", m.id, m.claim, m.begun)
	}
	go func() {
		m.err = m.tx.Commit(context.Background(), commitParams(m.claim, m.id))
		close(m.done)
	}()
	synctest.Wait()
}

func (m *member) exec(t *testing.T, query string) error {
	t.Helper()
	_, err := m.tx.Handle().ExecContext(context.Background(), query)
	return err
}

func (m *member) want(t *testing.T, d *sqlite.Driver, err error, state driver.State, rows int) {
	t.Helper()
	if !m.ended() {
		t.Errorf("%s has no answer", m.id)
	} else if !errors.Is(m.err, err) {
		t.Errorf("%s: %v, want %v", m.id, m.err, err)
	}
	wantState(t, d, m.id, state)
	wantRows(t, d, m.id, rows)
}

// two begins a, lines b up behind it, and lets a complete, which leaves the turn to b.
func two(t *testing.T, d *sqlite.Driver) (a, b *member) {
	t.Helper()
	a = begin(t, t.Context(), d, "a")
	b = begin(t, t.Context(), d, "b")
	if b.tx != nil {
		t.Fatal("two transactions have the turn")
	}
	a.commit(t)
	if a.ended() || b.tx == nil {
		t.Fatalf("a ended: %v, b began: %v; want a to wait for b", a.ended(), b.tx != nil)
	}
	return a, b
}

func TestGroupSharesACommit(t *testing.T) {
	grouped(t, func(t *testing.T, d *sqlite.Driver) {
		a, b := two(t, d)
		wantState(t, d, "a", driver.StateAbsent) // nothing is committed
		wantRows(t, d, "a", 0)
		var n int
		if err := b.tx.Handle().QueryRowContext(t.Context(), `SELECT count(*) FROM business`).Scan(&n); err != nil || n != 2 {
			t.Errorf("b sees %d rows, %v; want a's and its own", n, err)
		}
		b.commit(t)
		a.want(t, d, nil, driver.StateComplete, 1)
		b.want(t, d, nil, driver.StateComplete, 1)
	})
}

// Who comes when the first has completed is not waited for, so that it is answered.
func TestGroupIsClosedByItsFirst(t *testing.T) {
	grouped(t, func(t *testing.T, d *sqlite.Driver) {
		a, b := two(t, d)
		c := begin(t, t.Context(), d, "c")
		b.commit(t)
		a.want(t, d, nil, driver.StateComplete, 1)
		b.want(t, d, nil, driver.StateComplete, 1)
		wantRows(t, d, "c", 0)
		c.commit(t)
		c.want(t, d, nil, driver.StateComplete, 1)
	})
}

func TestGroupMemberLeaves(t *testing.T) {
	t.Run("rolls back", func(t *testing.T) {
		grouped(t, func(t *testing.T, d *sqlite.Driver) {
			a, b := two(t, d)
			if err := b.tx.Rollback(t.Context()); err != nil {
				t.Errorf("Rollback: %v", err)
			}
			synctest.Wait()
			a.want(t, d, nil, driver.StateComplete, 1)
			wantState(t, d, "b", driver.StateAbsent)
			wantRows(t, d, "b", 0)
		})
	})
	t.Run("in line", func(t *testing.T) {
		grouped(t, func(t *testing.T, d *sqlite.Driver) {
			ctx, cancel := context.WithCancel(t.Context())
			a := begin(t, t.Context(), d, "a")
			b := begin(t, ctx, d, "b")
			cancel()
			synctest.Wait()
			wantError(t, "b", b.begun, context.Canceled)
			a.commit(t)
			a.want(t, d, nil, driver.StateComplete, 1)
		})
	})
	t.Run("discards", func(t *testing.T) {
		grouped(t, func(t *testing.T, d *sqlite.Driver) {
			a, b := two(t, d)
			p := commitParams(b.claim, "final")
			p.Discard = true
			if err := b.tx.Commit(t.Context(), p); err != nil {
				t.Errorf("Commit: %v", err)
			}
			synctest.Wait()
			a.want(t, d, nil, driver.StateComplete, 1)
			wantState(t, d, "b", driver.StateComplete)
			wantRows(t, d, "b", 0)
		})
	})
	t.Run("lost its claim", func(t *testing.T) {
		grouped(t, func(t *testing.T, d *sqlite.Driver) {
			a, b := two(t, d)
			if err := b.exec(t, `DELETE FROM idem_keys WHERE id = 'b'`); err != nil {
				t.Fatal(err)
			}
			b.commit(t)
			a.want(t, d, nil, driver.StateComplete, 1)
			b.want(t, d, driver.ErrNotHolder, driver.StateAbsent, 0)
		})
	})
	for name, end := range map[string]func(*sql.Tx) error{"ends the handle by Rollback": (*sql.Tx).Rollback, "ends the handle by Commit": (*sql.Tx).Commit} {
		t.Run(name, func(t *testing.T) {
			grouped(t, func(t *testing.T, d *sqlite.Driver) {
				a, b := two(t, d)
				_ = end(b.tx.Handle())
				wantRows(t, d, "a", 0)
				b.commit(t)
				a.want(t, d, nil, driver.StateComplete, 1)
				b.want(t, d, driver.ErrNotHolder, driver.StateAbsent, 0)
			})
		})
	}
}

// A member that ends the transaction of all loses or commits nobody's work in silence.
func TestGroupIsBroken(t *testing.T) {
	for _, c := range []struct {
		query string
		fails bool // the query does, which the application ignores
		a, b  error
		state driver.State // of a
		rows  int          // of both
	}{
		{`ROLLBACK`, false, driver.ErrRetryable, driver.ErrNotHolder, driver.StateAbsent, 0},
		{`INSERT OR ROLLBACK INTO once (n) VALUES (1), (1)`, true, driver.ErrRetryable, driver.ErrNotHolder, driver.StateAbsent, 0},
		{`COMMIT`, false, nil, driver.ErrOutcomeUnknown, driver.StateComplete, 1},
		{`COMMIT; BEGIN`, false, nil, driver.ErrOutcomeUnknown, driver.StateComplete, 1},
	} {
		t.Run(c.query, func(t *testing.T) {
			grouped(t, func(t *testing.T, d *sqlite.Driver) {
				a, b := two(t, d)
				if err := b.exec(t, c.query); (err != nil) != c.fails {
					t.Fatal(err)
				}
				b.commit(t)
				a.want(t, d, c.a, c.state, c.rows)
				if !b.ended() || !errors.Is(b.err, c.b) {
					t.Errorf("b: ended %v; want it to, with %v", b.ended(), c.b)
				}
				wantRows(t, d, "b", c.rows)
				next := begin(t, t.Context(), d, "next")
				next.commit(t)
				next.want(t, d, nil, driver.StateComplete, 1)
			})
		})
	}
}

// A commit that fails is told to everybody; alone, with the error that it is.
func TestGroupCommitFails(t *testing.T) {
	orphan := func(t *testing.T, m *member) {
		if err := m.exec(t, `INSERT INTO child (parent) VALUES (7)`); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		db := openDB(t, t.TempDir()+"/idem.db?_pragma=foreign_keys(ON)&_pragma=journal_mode(WAL)")
		d := withRows(t, migrated(t, db, sqlite.GroupTransactions()))
		if _, err := db.ExecContext(t.Context(), `CREATE TABLE parent (id INTEGER PRIMARY KEY);
			CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)`); err != nil {
			t.Fatal(err)
		}
		a, b := two(t, d)
		orphan(t, b)
		b.commit(t)
		a.want(t, d, driver.ErrRetryable, driver.StateAbsent, 0)
		b.want(t, d, driver.ErrRetryable, driver.StateAbsent, 0)
		c := begin(t, t.Context(), d, "c")
		orphan(t, c)
		c.commit(t)
		if !c.ended() || c.err == nil || errors.Is(c.err, driver.ErrRetryable) {
			t.Errorf("alone: %v, want the definite error of the constraint", c.err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A handle that was kept cannot write into the turn of another.
func TestGroupHandleEndsWithItsTurn(t *testing.T) {
	grouped(t, func(t *testing.T, d *sqlite.Driver) {
		a := begin(t, t.Context(), d, "a")
		st, err := a.tx.Handle().PrepareContext(t.Context(), `INSERT INTO business (name) VALUES ('late')`)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := a.tx.Handle().QueryContext(t.Context(), `SELECT name FROM business`)
		if err != nil || !rows.Next() {
			t.Fatal(err)
		}
		b := begin(t, t.Context(), d, "b")
		a.commit(t)
		if b.tx == nil {
			t.Fatal("b has not begun")
		}
		if err := a.exec(t, `INSERT INTO business (name) VALUES ('late')`); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("a statement by the handle: %v, want ErrTxDone", err)
		}
		if _, err := st.ExecContext(t.Context()); err == nil {
			t.Error("a prepared statement of the handle ran")
		}
		if rows.Next() {
			t.Error("rows of the handle go on")
		}
		b.commit(t)
		a.want(t, d, nil, driver.StateComplete, 1)
		b.want(t, d, nil, driver.StateComplete, 1)
		wantRows(t, d, "late", 0)
	})
}

// A member that waits for one whose commit waits for it is rolled back in the end.
func TestGroupMemberWaitsForAnother(t *testing.T) {
	grouped(t, func(t *testing.T, d *sqlite.Driver) {
		a, b := two(t, d)
		time.Sleep(sqlite.DefaultBusyTimeout - time.Millisecond)
		synctest.Wait()
		if a.ended() {
			t.Fatal("a did not wait")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		a.want(t, d, driver.ErrRetryable, driver.StateAbsent, 0)
		wantError(t, "a statement of b", insertRow(t.Context(), b.tx.Handle(), "b"), driver.ErrRetryable)
		b.commit(t)
		b.want(t, d, driver.ErrRetryable, driver.StateAbsent, 0)
		next := begin(t, t.Context(), d, "next")
		next.commit(t)
		next.want(t, d, nil, driver.StateComplete, 1)
		if n := d.DB().Stats().InUse; n != 0 {
			t.Errorf("%d connections are in use", n)
		}
	})
}

// An outcome that is not committed is not replayed.
func TestGroupReplaysNothingUncommitted(t *testing.T) {
	grouped(t, func(t *testing.T, d *sqlite.Driver) {
		leased := mustClaim(t, d, claimParams("k"))
		a := begin(t, t.Context(), d, "a")
		k := &member{id: "k", claim: leased, done: make(chan struct{})}
		go func() { k.tx, k.begun = d.BeginComplete(t.Context(), completeParams(leased, nil).HolderParams) }()
		synctest.Wait()
		late := claimParams("k") // by a clock by which the lease has ended
		late.Now = time.Now().Add(2 * late.Lease)
		var replay driver.Record
		answered := make(chan error, 1)
		go func() {
			var err error
			_, replay, err = d.BeginClaim(context.Background(), late)
			answered <- err
		}()
		synctest.Wait()
		c := begin(t, t.Context(), d, "c")
		a.commit(t)
		k.commit(t) // the duplicate's turn, then c's
		if c.tx == nil {
			t.Fatal("c has not the turn")
		}
		select {
		case err := <-answered:
			t.Fatalf("the duplicate got %+v, %v before the commit", replay, err)
		default:
		}
		c.commit(t)
		select {
		case err := <-answered:
			if err != nil || replay.State != driver.StateComplete || string(replay.Result) != "k" {
				t.Errorf("the duplicate got %+v, %v, want the outcome", replay, err)
			}
		default:
			t.Error("the duplicate has no answer")
		}
	})
}

// Many members, of every kind: what is recorded is what is there.
func TestGroupsUnderLoad(t *testing.T) {
	d := fresh(t, sqlite.GroupTransactions(), sqlite.WithBusyTimeout(time.Minute))
	if _, err := d.DB().ExecContext(t.Context(), `CREATE TABLE once (n INTEGER UNIQUE)`); err != nil {
		t.Fatal(err)
	}
	const goroutines, each = 300, 2 // two groups and more, which two members spoil at most
	var mu sync.Mutex
	rows := make(map[string]int)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				p := claimParams(fmt.Sprintf("%d-%d", g, i))
				tx, r, err := d.BeginClaim(t.Context(), p)
				if err != nil || tx == nil {
					t.Errorf("BeginClaim: %+v, %v", r, err)
					return
				}
				c := commitParams(r, "done")
				want := 1
				if err := insertRow(t.Context(), tx.Handle(), p.Key.ID); err != nil && !errors.Is(err, driver.ErrRetryable) {
					t.Errorf("inserting: %v", err)
				}
				switch {
				case g%10 == 0:
					_ = tx.Rollback(t.Context())
					continue
				case g%10 == 1:
					c.Discard, want = true, 0
				case g%150 == 2 && i == 0: // rolls back its whole group
					_, _ = tx.Handle().ExecContext(t.Context(), `INSERT OR ROLLBACK INTO once (n) VALUES (1), (1)`)
				}
				err = tx.Commit(t.Context(), c)
				if err == nil {
					mu.Lock()
					rows[p.Key.ID] = want
					mu.Unlock()
				} else if !errors.Is(err, driver.ErrRetryable) && !errors.Is(err, driver.ErrNotHolder) {
					t.Errorf("Commit: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if len(rows) == 0 {
		t.Fatal("nothing was committed")
	}
	for g := range goroutines {
		for i := range each {
			id := fmt.Sprintf("%d-%d", g, i)
			want, ok := rows[id]
			wantRows(t, d, id, want)
			if ok {
				wantState(t, d, id, driver.StateComplete)
			} else {
				wantState(t, d, id, driver.StateAbsent)
			}
		}
	}
	if n := d.DB().Stats().InUse; n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
}
