package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"

	"github.com/idem-go/idem/driver"
)

// txn is a write transaction on a connection of its own, which goes back to the pool when
// it ends.
type txn struct {
	d      *Driver
	conn   *sql.Conn
	tx     *sql.Tx
	ctx    context.Context // has the caller's values, and never ends: interrupting a write would roll back everything
	wal    bool            // the journal is a write-ahead log
	shared *statements     // the Driver's
	own    statements      // the same, on conn
}

// writer opens and ends the transactions of groups.
type writer struct{ d *Driver }

func (w writer) Begin(ctx context.Context) (*txn, error) { return w.d.begin(ctx) }

func (w writer) Commit(t *txn) error {
	limit, cancel := w.d.bounded(t.ctx)
	defer cancel()
	// The statement itself is not given a context: a group, which nobody can ask for
	// a record to find out, needs a definite answer more than a prompt one.
	return w.d.translate(t.ctx, limit, t.commit(t.ctx, limit))
}

func (w writer) Rollback(t *txn) { _ = t.rollback() }

// Takes the write lock, though it changes nothing: reading first would make a
// deferred transaction fail with SQLITE_BUSY_SNAPSHOT when it writes.
const lockSQL = `UPDATE idem_keys SET fence = fence WHERE seq = -1`

// begin opens a transaction that holds the write lock. It waits for it until ctx
// ends, or for the busy timeout when ctx has no deadline.
func (d *Driver) begin(ctx context.Context) (t *txn, err error) {
	st, err := d.prepared(ctx)
	if err != nil {
		return nil, err
	}
	limit := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		limit, cancel = d.bounded(ctx)
		defer cancel()
	}
	err = retry(limit, func() error {
		t, err = d.beginOn(limit, st, (*txn).lock)
		return err
	})
	if err != nil {
		return nil, d.translate(ctx, limit, err)
	}
	return t, nil
}

// lock takes the write lock, waiting for it until ctx ends.
func (t *txn) lock(ctx context.Context) error {
	_, err := t.stmt(stmtLock).ExecContext(ctx)
	return err
}

// deferred is a BEGIN that takes no lock whatever _txlock says, and so has nothing to wait
// for: a context that can end costs every statement a goroutine.
var deferred = &sql.TxOptions{ReadOnly: true}

// beginOn begins on a connection of the pool and runs the first statement, whose waiting
// the end of limit ends; from then on nothing interrupts the transaction. What was set on
// the connection is checked before that: nobody else can change it now, and it decides
// whether what is written can be rolled back. Migrate has no prepared statements yet.
func (d *Driver) beginOn(limit context.Context, st *statements, first func(*txn, context.Context) error) (*txn, error) {
	conn, err := d.db.Conn(limit)
	if err != nil {
		return nil, err
	}
	endless := context.WithoutCancel(limit)
	t := &txn{d: d, conn: conn, ctx: endless, shared: st}
	if !d.wal.Load() { // a connection that reads the schema first may have to wait even for that
		t.ctx = limit
	}
	t.tx, err = conn.BeginTx(endless, deferred)
	if err == nil {
		t.wal, err = d.checkPragmas(t.ctx, t.tx, t.journalMode)
	}
	if err == nil {
		d.wal.Store(t.wal)
		err = first(t, limit)
	}
	t.ctx = endless
	if err == nil {
		err = limit.Err()
	}
	if err != nil {
		_ = t.rollback()
		return nil, err
	}
	return t, nil
}

func (t *txn) journalMode() *sql.Row {
	if t.shared == nil {
		return t.tx.QueryRowContext(t.ctx, journalModeSQL)
	}
	return t.stmt(stmtJournalMode).QueryRowContext(t.ctx)
}

// Ends the transaction; SQLITE_BUSY leaves it open and may be tried again (a
// reader holds up the commit where the journal is not a write-ahead log).
const commitSQL = `COMMIT`

// commit commits, waiting for readers until limit ends, and ends t in any case. ctx is that
// of the statement. An error that matches [driver.ErrOutcomeUnknown] may hide a commit; after
// any other there is none.
func (t *txn) commit(ctx, limit context.Context) error {
	if t.wal { // no reader can hold it up
		err := t.tx.Commit()
		if err != nil {
			t.discard()
		}
		t.close()
		if code(err) == codeIOErr {
			return fmt.Errorf("sqlite: %w: %w", driver.ErrOutcomeUnknown, err)
		}
		return err
	}
	// By statement: Tx.Commit rolls back at the first SQLITE_BUSY.
	err := retry(limit, func() error {
		if t.shared == nil {
			_, err := t.tx.ExecContext(ctx, commitSQL)
			return err
		}
		_, err := t.stmt(stmtCommit).ExecContext(ctx)
		return err
	})
	if err == nil {
		t.close()
		return nil
	}
	if t.rollback() == nil {
		return err
	}
	// SQLite is out of the transaction by itself: the statement was done when ctx
	// ended, or it failed and rolled back. What it wrote before a failed flush may be
	// found again by the recovery after a crash.
	if ctx.Err() != nil || code(err) == codeIOErr {
		return fmt.Errorf("sqlite: %w: %w", driver.ErrOutcomeUnknown, err)
	}
	return err
}

// rollback ends t without a trace. It returns an error when there was no
// transaction to roll back: sql.ErrTxDone when the application ended it, and one of SQLite
// when a statement did. A connection that may still be in one does not go back to the pool,
// where it would keep everyone from writing.
func (t *txn) rollback() error {
	var err error
	if t.tx != nil {
		err = t.tx.Rollback()
	}
	if err != nil {
		t.discard()
	}
	t.close()
	return err
}

// discard keeps the connection from going back to the pool.
func (t *txn) discard() {
	_ = t.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
}

// close gives the connection back. After a COMMIT by statement database/sql
// still has to be told; its own ROLLBACK finds no transaction.
func (t *txn) close() {
	if t.tx != nil {
		_ = t.tx.Rollback()
	}
	_ = t.conn.Close()
}

// stmt returns a prepared statement of the Driver, for use in t.
func (t *txn) stmt(i int) *sql.Stmt {
	if t.own[i] == nil {
		t.own[i] = t.tx.StmtContext(t.ctx, t.shared[i])
	}
	return t.own[i]
}

// exec runs a statement without parameters.
func (t *txn) exec(i int) error {
	_, err := t.stmt(i).ExecContext(t.ctx)
	return err
}

// statements are the prepared statements of a Driver, by the constants below.
// database/sql prepares them again on every connection that runs them.
type statements [numStatements]*sql.Stmt

const (
	stmtGet = iota
	stmtInsert
	stmtUpdate
	stmtDelete
	stmtAnyDue
	stmtPurge
	stmtStrip
	stmtLock
	stmtJournalMode
	stmtSettle
	stmtSavepoint
	stmtRelease
	stmtDiscard
	stmtMember
	stmtMemberUndo
	stmtMemberDone
	stmtCommit
	numStatements
)

var statementSQL = [numStatements]string{
	stmtGet: getSQL, stmtInsert: insertSQL, stmtUpdate: updateSQL, stmtDelete: deleteSQL, stmtAnyDue: anyDueSQL, stmtPurge: purgeSQL, stmtStrip: stripSQL,
	stmtLock: lockSQL, stmtJournalMode: journalModeSQL, stmtSettle: settleSQL, stmtSavepoint: savepointSQL, stmtRelease: releaseSQL, stmtCommit: commitSQL,
	stmtDiscard: discardSQL, stmtMember: memberSQL, stmtMemberUndo: memberUndoSQL, stmtMemberDone: memberDoneSQL,
}

// prepared returns the statements. The first call checks the configuration; a
// call that fails leaves that to the next.
func (d *Driver) prepared(ctx context.Context) (*statements, error) {
	if st := d.ready.Load(); st != nil {
		return st, nil
	}
	limit, cancel := d.patient(ctx)
	defer cancel()
	st, err := d.prepare(limit)
	return st, d.translate(ctx, limit, err)
}

func (d *Driver) prepare(limit context.Context) (*statements, error) {
	select {
	case d.checking <- struct{}{}:
		defer func() { <-d.checking }()
	case <-limit.Done():
		return nil, limit.Err()
	}
	if st := d.ready.Load(); st != nil {
		return st, nil
	}
	if err := d.check(limit); err != nil {
		return nil, err
	}
	st := new(statements)
	for i, query := range statementSQL {
		err := retry(limit, func() (err error) {
			st[i], err = d.db.PrepareContext(limit, d.sql(query))
			return err
		})
		if err != nil {
			for _, s := range st[:i] {
				_ = s.Close()
			}
			return nil, err
		}
	}
	d.ready.Store(st)
	return st, nil
}
