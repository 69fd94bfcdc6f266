package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// TxOperation is an [Operation] on a store with transactions of type T that
// business data can join. It is declared with [NewTx].
type TxOperation[R, T any] struct {
	*Operation[R]
	drv driver.TxDriver[T]
}

// NewTx declares an operation on a store with transactions. The driver fixes the
// transaction type: NewTx[Order](postgres.New(pool), cfg). See [New].
func NewTx[R, T any](drv driver.TxDriver[T], cfg Config) (*TxOperation[R, T], error) {
	if drv == nil { // a nil TxDriver would not be a nil Driver
		return nil, &ConfigError{"driver", "is nil"}
	}
	o, err := New[R](drv, cfg)
	if err != nil {
		return nil, err
	}
	return &TxOperation[R, T]{o, drv}, nil
}

// DoTx runs fn inside one transaction of the store, unless the operation named by
// key has run: then it returns the stored outcome. The claim, what fn writes
// through tx, and the outcome commit together, in one commit, or not at all.
//
//	fn                            becomes                                      a repeat
//	returns a value               committed with the business writes           gets the value
//	returns [Final](err)          business writes rolled back, error stored    gets the error
//	returns any other error,      rolled back: nothing happened                runs
//	panics, its context ends
//
// fn must not end the transaction, and runs once a call. The commit does not
// depend on ctx. The errors are those of [Operation.Do], and
//
//   - [ErrRetryable]: the transaction was rolled back for a passing reason, met by a statement
//     of fn (whose error is matched too) or by the commit
//   - [ErrStore]: the store failed, and everything was rolled back
//   - [ErrUnknown]: the answer to the commit was lost, and the record could not be read;
//     call again with the same key. The value is in the Result
func (o *TxOperation[R, T]) DoTx(ctx context.Context, key Key, fp Fingerprint, fn func(ctx context.Context, tx T) (R, error), opts ...CallOption) (Result[R], error) {
	if fn == nil {
		return Result[R]{}, fmt.Errorf("idem: %w: fn is nil", ErrInvalidArgument)
	}
	c := &doTxCall[R, T]{o: o.Operation, fn: fn}
	c.mode = inTx[T]{e: o.e, drv: o.drv, fn: c}
	ans, err := o.e.do(ctx, &c.call, key, fp, &c.mode, opts)
	return o.result(ans, &c.value, err)
}

// doTxCall is the memory of one call of DoTx.
type doTxCall[R, T any] struct {
	call
	mode  inTx[T]
	o     *Operation[R]
	fn    func(context.Context, T) (R, error)
	value R
}

func (c *doTxCall[R, T]) exec(ctx context.Context, tx T) work {
	v, err := c.fn(ctx, tx)
	return c.o.judge(&c.value, v, err)
}

// DoThenTx runs fn as [Operation.Do] does, for an effect outside the store, and
// then runs then inside one transaction, which makes sure first that the claim is
// still ours. What then writes through tx and the outcome commit together. The
// outcome is what then returns; v is what fn returned.
//
// An error of fn, and one of then, becomes what the table of Do says; what then
// wrote is rolled back. Since fn has returned, [NotApplied] from then is like any
// other error, and the context of then does not end with ctx: it has
// [Config.SettleTimeout]. When the transaction fails (a statement of then with an
// error that matches [ErrRetryable], or the commit), the error matches
// [ErrNotRecorded], the Result has the value, and the claim stays held.
func (o *TxOperation[R, T]) DoThenTx(ctx context.Context, key Key, fp Fingerprint, fn func(context.Context, *Run) (R, error), then func(ctx context.Context, tx T, v R) (R, error), opts ...CallOption) (Result[R], error) {
	if fn == nil || then == nil {
		return Result[R]{}, fmt.Errorf("idem: %w: fn or then is nil", ErrInvalidArgument)
	}
	c := &doThenTxCall[R, T]{o: o, fn: fn, then: then}
	c.mode = leased{e: o.e, fn: c, then: c.end}
	ans, err := o.e.do(ctx, &c.call, key, fp, &c.mode, opts)
	return o.result(ans, &c.value, err)
}

// doThenTxCall is the memory of one call of DoThenTx.
type doThenTxCall[R, T any] struct {
	call
	mode  leased
	o     *TxOperation[R, T]
	fn    func(context.Context, *Run) (R, error)
	then  func(context.Context, T, R) (R, error)
	value R // of fn, and then the outcome
}

func (c *doThenTxCall[R, T]) exec(ctx context.Context, run *Run) work {
	v, err := c.fn(ctx, run)
	if err != nil {
		return c.o.e.failed(err)
	}
	c.value = v
	return work{says: saysDone}
}

func (c *doThenTxCall[R, T]) end(ctx context.Context, held *claimed) (work, error) {
	return thenTx(ctx, c.o.e, c.o.drv, held, func(ctx context.Context, tx T) work {
		v, err := c.then(ctx, tx, c.value)
		return c.o.judge(&c.value, v, err)
	})
}

// inTx runs fn in the transaction that claims the key.
type inTx[T any] struct {
	e   *engine
	drv driver.TxDriver[T]
	tx  driver.Tx[T]
	fn  interface {
		exec(context.Context, T) work
	}
}

func (m *inTx[T]) claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	tx, rec, err := m.drv.BeginClaim(ctx, p)
	m.tx = tx
	if err == nil && tx != nil {
		rec.LeaseUntil = time.Time{} // a transaction has no lease
	}
	return rec, err
}

func (m *inTx[T]) own(error) error { return nil }

func (m *inTx[T]) run(ctx context.Context, c *claimed, _ time.Time) (answer, error) {
	rollback := true
	defer func() {
		if rollback { // also when a panic or runtime.Goexit goes on after this
			rollBack(ctx, m.e, m.tx)
		}
	}()
	if ctx.Err() != nil { // the claim came too late: fn does not start after the deadline
		return answer{}, fmt.Errorf("idem: %w", ended(ctx))
	}
	w := runInTx(ctx, m.e, c, m.tx, m.fn.exec)
	if w.says != saysDone {
		return answer{}, m.e.retryable(w.err)
	}
	rollback = false
	err := commit(ctx, m.e, m.tx, c, w)
	if err == nil {
		return c.completed(m.e, w), w.err
	}
	if errors.Is(err, driver.ErrOutcomeUnknown) {
		return c.answer(w), &UnknownError{Attempt: c.attempt, Err: err}
	}
	if errors.Is(err, driver.ErrNotHolder) {
		err = fmt.Errorf("%w: %w", ErrLeaseLost, err)
	}
	return answer{}, wrap(context.WithoutCancel(ctx), "commit", err)
}

// thenTx ends a leased claim in a transaction. The error says that what fn did is
// not recorded.
func thenTx[T any](ctx context.Context, e *engine, drv driver.TxDriver[T], c *claimed, then func(context.Context, T) work) (work, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.SettleTimeout)
	defer cancel()
	var tx driver.Tx[T]
	again := false
	err := e.settle(ctx, new(settling), "begin", e.cfg.SettleTimeout, func(ctx context.Context) (err error) {
		if again { // nobody else renews the lease any more
			_ = drv.Renew(ctx, driver.RenewParams{HolderParams: c.holder, Lease: e.cfg.Lease})
		}
		again = true
		tx, err = drv.BeginComplete(ctx, c.holder)
		return err
	})
	if err != nil {
		return work{}, err
	}
	rollback := true
	defer func() {
		if rollback {
			rollBack(ctx, e, tx)
		}
	}()
	w := runInTx(ctx, e, c, tx, then)
	if w.says != saysDone {
		if err := e.retryable(w.err); errors.Is(err, ErrRetryable) {
			return work{}, err // the transaction failed, and not then
		}
		w.says = saysNothing // fn has returned: that nothing happened cannot be said any more
		return w, nil
	}
	rollback = false
	err = commit(ctx, e, tx, c, w)
	switch {
	case errors.Is(err, driver.ErrOutcomeUnknown):
		err = &UnknownError{Attempt: c.attempt, Err: err}
	case err != nil && !errors.Is(err, driver.ErrNotHolder):
		err = wrap(context.WithoutCancel(ctx), "commit", err)
	}
	return w, err
}

func runInTx[T any](ctx context.Context, e *engine, c *claimed, tx driver.Tx[T], fn func(context.Context, T) work) work {
	n := &nest{Context: ctx, e: e, key: &c.holder.Key, inTx: true}
	defer n.ended.Store(true)
	return fn(n, tx.Handle())
}

// commit stores the outcome and commits, whatever becomes of the caller.
func commit[T any](ctx context.Context, e *engine, tx driver.Tx[T], c *claimed, w work) error {
	s := detached(ctx, time.Now().Add(e.cfg.SettleTimeout))
	defer s.stop()
	p := driver.CommitParams{Discard: w.final}
	p.HolderParams, p.Result, p.Retention, p.Grace = c.holder, w.outcome, e.cfg.Retention, e.cfg.Grace
	return tx.Commit(s, p)
}

func rollBack[T any](ctx context.Context, e *engine, tx driver.Tx[T]) {
	s := detached(ctx, time.Now().Add(e.cfg.SettleTimeout))
	defer s.stop()
	_ = tx.Rollback(s) // an error changes nothing: a transaction that cannot be ended is rolled back by the store
}

// retryable adds [ErrRetryable] to an error that the store explains so.
func (e *engine) retryable(err error) error {
	if e.retrier != nil && !errors.Is(err, ErrRetryable) && e.retrier.Retryable(err) {
		return fmt.Errorf("%w: %w", ErrRetryable, err)
	}
	return err
}
