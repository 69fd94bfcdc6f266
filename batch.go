package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// BatchOperation is an [Operation] on a store that can run it whole in one round
// trip. It is declared with [NewBatch].
type BatchOperation[R, B any] struct {
	*Operation[R]
	drv driver.BatchDriver[B]
}

// NewBatch declares an operation on a store that takes batches of type B. The
// driver fixes the type: NewBatch[Order](postgres.New(pool), cfg). It shares its
// keys with operations of the same name that [New] and [NewTx] declare. See [New].
func NewBatch[R, B any](drv driver.BatchDriver[B], cfg Config) (*BatchOperation[R, B], error) {
	if drv == nil { // a nil BatchDriver would not be a nil Driver
		return nil, &ConfigError{"driver", "is nil"}
	}
	o, err := New[R](drv, cfg)
	if err != nil {
		return nil, err
	}
	return &BatchOperation[R, B]{o, drv}, nil
}

// DoBatch is [TxOperation.DoTx] for business statements and a value that are known
// in advance: claim, statements, outcome and commit are one round trip, where DoTx
// needs three. They are committed together, or not at all. Unless the operation
// named by key has run: then no statement has an effect, and DoBatch returns the
// stored outcome.
//
// There is no fn, so nothing that it could decide: a statement that must have an
// effect has to fail when it has none. The batch is not changed, and may be given
// to another call afterwards, but not to two at the same time.
//
// The commit may happen although ctx ends while the statements run; then the
// result is returned all the same. The errors are those of [Operation.Do], and
//
//   - the error of a statement, in a [*driver.StatementError]: everything was rolled back
//   - [ErrRetryable]: everything was rolled back for a passing reason
//   - [ErrUnknown]: the answer was lost, and the record could not be read; call again
//     with the same key. The value is in the Result
//   - [*NotStoredError]: the value cannot be encoded or is over [Config.MaxResult];
//     nothing was sent
func (o *BatchOperation[R, B]) DoBatch(ctx context.Context, key Key, fp Fingerprint, value R, batch B, opts ...CallOption) (Result[R], error) {
	c := &doBatchCall[R, B]{}
	w := o.judge(&c.value, value, nil)
	if w.notStored != nil {
		return Result[R]{}, fmt.Errorf("idem: %w", w.notStored)
	}
	c.mode = inBatch[B]{e: o.e, drv: o.drv, batch: batch, outcome: w.outcome}
	ans, err := o.e.do(ctx, &c.call, key, fp, &c.mode, opts)
	if c.mode.attempted && errors.Is(err, driver.ErrOutcomeUnknown) {
		return Result[R]{Value: c.value}, err
	}
	return o.result(ans, &c.value, err)
}

// doBatchCall is the memory of one call of DoBatch.
type doBatchCall[R, B any] struct {
	call
	mode  inBatch[B]
	value R
}

// inBatch claims, runs and settles in one step.
type inBatch[B any] struct {
	e         *engine
	drv       driver.BatchDriver[B]
	batch     B
	outcome   []byte
	attempted bool
}

func (m *inBatch[B]) claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	m.attempted = true
	return m.drv.RunBatch(ctx, driver.BatchParams{
		ClaimParams: p, Result: m.outcome, Keep: m.e.cfg.Retention, Grace: m.e.cfg.Grace,
	}, m.batch)
}

func (m *inBatch[B]) own(err error) error {
	var statement *driver.StatementError
	switch {
	case errors.As(err, &statement), errors.Is(err, ErrRetryable):
		return fmt.Errorf("idem: %w", err)
	case errors.Is(err, driver.ErrOutcomeUnknown):
		return &UnknownError{Err: err}
	}
	return nil
}

// run is called only when a driver has claimed the key and gone no further.
func (m *inBatch[B]) run(context.Context, *claimed, time.Time) (answer, error) {
	return answer{}, &StoreError{Verb: "batch", Err: errors.New("the driver left the claim in flight")}
}
