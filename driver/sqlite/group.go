package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/idem-go/idem/driver"
)

// maxMembers bounds how many transactions share one commit.
const maxMembers = 256

// Enclose one member of a group, claim and all. They lock nothing.
const (
	memberSQL     = `SAVEPOINT idem_member`
	memberUndoSQL = `ROLLBACK TO idem_member`
	memberDoneSQL = `RELEASE idem_member`
)

// joint is the transaction that a group shares. Its members run one after another, as the
// turn of the Driver is passed on, each inside a savepoint. The first of them to
// complete lines up for the turn again, and commits when it comes: everybody who was in
// line by then is in the group, and nobody who came later. The others wait for that.
//
// The turn guards what has no other guard. A joint that has ended is taken down by
// whoever has the turn then, or has it next.
type joint struct {
	d       *Driver
	txn     *txn
	release func()  // gives the writer back
	handles *sql.DB // see handle.go
	waiting int     // members that have completed

	mu    sync.Mutex // also held while a handle, or abort, uses the connection
	ended bool       // nobody may use it any more

	done chan struct{} // closed when the members that wait have an answer
	err  error         // their answer
	lost bool          // the transaction was not there any more when it was rolled back
}

var errGroupLate = fmt.Errorf("sqlite: %w: another transaction of the group took too long", driver.ErrRetryable)

// openInGroup joins the open group, or begins one.
func (d *Driver) openInGroup(limit context.Context, h driver.KeyHash, claim claimer) (*tx, driver.Record, error) {
	select {
	case d.turn <- struct{}{}:
	case <-limit.Done():
		return nil, driver.Record{}, limit.Err()
	}
	j, err := d.join(limit)
	if err != nil {
		<-d.turn
		return nil, driver.Record{}, err
	}
	t := &tx{d: d, txn: j.txn, h: h, joint: j}
	ok, err := t.enter(claim)
	if ok && err == nil {
		return t, t.claim, nil
	}
	undone := j.undo()
	if err == nil && undone == nil && j.waiting > 0 {
		// What keeps the key may be a neighbour's that is not committed yet.
		j.pass()
		if err := j.wait(limit); err != nil {
			return nil, driver.Record{}, err
		}
		return nil, t.claim, nil
	}
	j.pass()
	if err == nil {
		err = undone
	}
	return nil, t.claim, err
}

// enter claims inside the savepoint of a member.
func (t *tx) enter(claim claimer) (ok bool, err error) {
	if err := t.txn.exec(stmtMember); err != nil {
		return false, err
	}
	if t.claim, ok, t.made, err = claim(t.txn); err != nil || !ok {
		return false, err
	}
	if err := t.txn.exec(stmtSavepoint); err != nil {
		return false, err
	}
	t.handle, err = t.joint.handles.BeginTx(t.txn.ctx, nil)
	return err == nil, err
}

// join returns the open transaction, or begins one. The caller has the turn.
func (d *Driver) join(limit context.Context) (*joint, error) {
	if j := d.joint; j != nil {
		j.mu.Lock()
		ended := j.ended
		j.mu.Unlock()
		if !ended {
			return j, nil
		}
		j.takeDown()
	}
	release, err := d.group.Hold(limit)
	if err != nil {
		return nil, err
	}
	x, err := d.begin(limit)
	if err != nil {
		release()
		return nil, err
	}
	j := &joint{d: d, txn: x, release: release, done: make(chan struct{})}
	j.handles = sql.OpenDB(handles{j})
	j.handles.SetMaxIdleConns(-1)
	d.joint = j
	return j, nil
}

// undo rolls the member that has the turn back. When that fails there is no transaction
// any more, and everybody gets to know.
func (j *joint) undo() error {
	err := j.txn.exec(stmtMemberUndo)
	if err == nil {
		err = j.txn.exec(stmtMemberDone)
	}
	if err != nil {
		err = j.broken(err)
	}
	return err
}

// broken ends the group because its transaction is not what it has to be. The
// caller has the turn.
func (j *joint) broken(err error) error {
	j.end(fmt.Errorf("sqlite: %w: another transaction of the group, or a statement of it that failed, ended it", driver.ErrRetryable), nil)
	return err
}

// pass gives the turn to the next in line. Without anybody who waits for the commit there
// is nothing to keep the transaction for.
func (j *joint) pass() {
	if j.waiting == 0 {
		j.end(nil, nil)
	}
	j.mu.Lock() // so that abort sees either the turn free, or its holder see to the rest
	defer j.mu.Unlock()
	if j.ended && j.d.joint == j {
		j.takeDown()
	}
	<-j.d.turn
}

// end ends the transaction, by commit if given, and answers those who wait. It reports
// whether it was the one to do so.
func (j *joint) end(err error, commit func() error) bool {
	j.mu.Lock()
	if j.ended {
		j.mu.Unlock()
		return false
	}
	j.ended = true
	if commit == nil {
		j.lost = j.txn.tx.Rollback() != nil
	}
	j.mu.Unlock()
	if commit != nil {
		err = commit()
	}
	j.err = err
	close(j.done)
	return true
}

// takeDown gives back what the joint holds. The caller has the turn, and no handle is
// open.
func (j *joint) takeDown() {
	j.d.joint = nil
	_ = j.handles.Close()
	if j.lost { // the connection may be in another one
		j.txn.discard()
	}
	j.txn.close()
	j.release()
}

// commit commits for everybody. The caller has the turn, and gives it away.
func (j *joint) commit(ctx, limit context.Context) {
	j.end(nil, func() error {
		err := j.txn.commit(j.txn.ctx, limit)
		if err = j.d.translate(ctx, limit, err); err == nil || j.waiting == 1 ||
			errors.Is(err, driver.ErrOutcomeUnknown) || errors.Is(err, driver.ErrRetryable) {
			return err
		}
		return fmt.Errorf("sqlite: the commit of the group: %w: %w", driver.ErrRetryable, err)
	})
	j.pass()
}

// wait waits for the commit of others. When limit ends while one of them has the turn, the
// transaction is rolled back under it: it may be waiting for us.
func (j *joint) wait(limit context.Context) error {
	select {
	case <-j.done:
	case <-limit.Done():
		j.abort()
	}
	return j.answer()
}

// lead is wait for the first that completed, who commits when the turn comes.
func (j *joint) lead(ctx, limit context.Context) error {
	select {
	case <-j.done:
	case j.d.turn <- struct{}{}:
		j.commit(ctx, limit)
	case <-limit.Done():
		j.abort()
	}
	return j.answer()
}

func (j *joint) answer() error {
	<-j.done
	return j.err
}

// abort rolls the transaction back, though the caller has not the turn.
func (j *joint) abort() {
	if !j.end(errGroupLate, nil) {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case j.d.turn <- struct{}{}:
		if j.d.joint == j {
			j.takeDown()
		}
		<-j.d.turn
	default: // whoever has the turn takes it down
	}
}

// close takes the transaction from the application, and reports whether it was
// open until now. Nothing that still has the handle can write by it from then on.
func (t *tx) close() bool { return t.handle.Rollback() == nil }

// leave rolls a member back.
func (t *tx) leave() error {
	open := t.close()
	err := t.joint.undo()
	t.joint.pass()
	if err == nil && !open {
		return nil // the application rolled back, as far as it could
	}
	return err
}

// commitInGroup stores the outcome of a member, and returns when the group has been committed.
func (t *tx) commitInGroup(ctx, limit context.Context, p driver.CommitParams) error {
	j := t.joint
	if !t.close() {
		err := j.undo()
		j.pass()
		if err != nil {
			return t.lost(ctx)
		}
		return fmt.Errorf("sqlite: the application ended the transaction, which was rolled back: %w", driver.ErrNotHolder)
	}
	if err := t.regain(p.Discard); err != nil {
		if !j.end(fmt.Errorf("sqlite: %w: another transaction of the group ended it", driver.ErrRetryable), nil) {
			err = j.answer()
			j.pass()
			return err
		}
		j.pass()
		return t.lost(ctx)
	}
	err := t.store(ctx, p)
	if err == nil {
		err = j.txn.exec(stmtMemberDone)
	}
	if err != nil {
		_ = j.undo()
		j.pass()
		return t.d.translate(ctx, limit, err)
	}
	switch j.waiting++; j.waiting {
	case 1:
		j.pass()
		err = j.lead(ctx, limit)
	case maxMembers:
		j.commit(ctx, limit)
		err = j.answer()
	default:
		j.pass()
		err = j.wait(limit)
	}
	if err == nil {
		return nil
	}
	return t.resolve(ctx, err) // a neighbour may have committed on its own
}
