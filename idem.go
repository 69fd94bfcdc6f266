package idem

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// Operation is an idempotent operation with results of type R. It is declared
// once, with [New], and called many times, concurrently.
type Operation[R any] struct {
	e *engine
}

// New declares an operation on a store. It does no I/O, and returns a
// [*ConfigError] when the configuration cannot be used or a value of R could
// never be encoded.
func New[R any](drv driver.Driver, cfg Config) (*Operation[R], error) {
	e, err := newEngine(drv, cfg)
	if err != nil {
		return nil, err
	}
	if e.cfg.Codec == nil {
		if e.cfg.Codec, err = defaultCodec[R](); err != nil {
			return nil, &ConfigError{"result type", err.Error()}
		}
	}
	return &Operation[R]{e}, nil
}

// Run is what fn learns about the claim under which it runs.
type Run struct {
	Key Key
	// Attempt is 1 unless an earlier attempt died without an outcome. From 2 on,
	// find out whether that attempt was applied before you repeat it.
	Attempt int
	// Fence grows with every claim of the key. A system that remembers the highest
	// it has seen can refuse a holder that was overtaken.
	Fence int64

	operation   string
	fingerprint []byte
}

// DownstreamKey derives an idempotency key to hand to the next system. It is the
// same for every attempt of the same operation, key, request (as the fingerprint
// tells) and step, and 32 hexadecimal digits long. Steps are any strings; use one
// for each call that fn makes.
func (r *Run) DownstreamKey(step string) string {
	var b []byte
	for _, s := range [...]string{"idem.downstream.v1", r.operation, r.Key.Scope, r.Key.ID, string(r.fingerprint), step} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Result is how an operation ended. The caller whose fn ran, those that waited
// for it, and those that repeat it see equal values.
type Result[R any] struct {
	Value R
	// Replayed says that fn was not run by this call.
	Replayed bool
	// Attempt is the attempt that reached the outcome; see [Run.Attempt].
	Attempt int
	// CompletedAt is when the outcome was stored, by the clock that judges leases.
	// For the caller whose fn ran it is an estimate, exact to the time that the
	// claim took.
	CompletedAt time.Time
	// NotStored, a [*NotStoredError], says that the operation is complete but its
	// outcome was too large or could not be encoded. Only the caller whose fn ran
	// has it, beside Value; repeats get [ErrResultNotStored].
	NotStored error
}

// CallOption changes one call of an operation.
type CallOption func(*callOptions)

type callOptions struct {
	wait time.Duration
}

// WaitAtMost is [Config.Wait] for one call: how long it waits, as a duplicate, for
// the holder of its key. 0 means not to wait; a negative duration is
// [ErrInvalidArgument].
func WaitAtMost(d time.Duration) CallOption {
	return func(o *callOptions) { o.wait = d }
}

// Do runs fn, unless the operation named by key has run: then it returns the
// stored outcome. fn runs under a lease, outside any transaction of the store;
// the lease is renewed until fn has returned and its outcome is stored.
//
//	fn                            becomes                                  a repeat
//	returns a value               stored                                   gets the value
//	returns [Final](err)          stored                                   gets the error
//	returns [NotApplied](err)     released                                 runs
//	returns another error,        no outcome: [Config.Policy]              runs as the next
//	panics, its context ends                                               attempt, or [ErrUnknown]
//
// The context of fn is ctx with a cause: [ErrLeaseLost] when the claim may no
// longer be ours. When ctx ends after fn has returned, the outcome is stored all
// the same. A panic or runtime.Goexit of fn settles the key by the table and goes on.
//
// The error is, besides that of fn as it is:
//
//   - [ErrInvalidKey], [ErrInvalidFingerprint], [ErrInvalidArgument], [ErrNested]: bad input
//   - [ErrInFlight], [ErrMismatch], [ErrUnknown], [ErrExpired], [ErrResultNotStored]: fn was not run
//   - [ErrStore], [ErrRetryable]: the store failed, and fn was not run
//   - [ErrNotRecorded]: fn returned an outcome that could not be stored; it is in the Result
//   - [ErrLeaseLost]: fn was cancelled, or was not started because the claim was answered too
//     late; it is also matched beside ErrNotRecorded
//   - [ErrUnreadableResult], [ErrNewerVersion]: the operation has run, and its outcome cannot be read
//   - [ErrUnsafeConfig]: the store is configured so that a promise would not hold; fn was not run
//   - the error of ctx, when it ended before fn was run
func (o *Operation[R]) Do(ctx context.Context, key Key, fp Fingerprint, fn func(context.Context, *Run) (R, error), opts ...CallOption) (Result[R], error) {
	if fn == nil {
		return Result[R]{}, fmt.Errorf("idem: %w: fn is nil", ErrInvalidArgument)
	}
	c := &doCall[R]{o: o, fn: fn}
	c.mode = leased{e: o.e, fn: c}
	ans, err := o.e.do(ctx, &c.call, key, fp, &c.mode, opts)
	return o.result(ans, &c.value, err)
}

// doCall is the memory of one call of Do.
type doCall[R any] struct {
	call
	mode  leased
	o     *Operation[R]
	fn    func(context.Context, *Run) (R, error)
	value R
}

func (c *doCall[R]) exec(ctx context.Context, run *Run) work {
	v, err := c.fn(ctx, run)
	return c.o.judge(&c.value, v, err)
}

// judge turns what fn returned into what is stored, and puts the value that every
// caller will see into seen.
func (o *Operation[R]) judge(seen *R, v R, err error) work {
	if err != nil {
		return o.e.failed(err)
	}
	*seen = v
	outcome, refused := o.encode(seen)
	if refused == nil {
		if err = o.decode(outcome[2:], seen); err == nil {
			return work{says: saysDone, outcome: outcome}
		}
		*seen = v
		outcome, refused = notStored(fmt.Sprintf("a %T cannot be decoded again", v))
		refused.Err = err
	}
	return work{says: saysDone, outcome: outcome, notStored: refused}
}

// encode returns the outcome to store for the value that v points to; see [Config.encode].
func (o *Operation[R]) encode(v *R) ([]byte, *NotStoredError) {
	if raw, ok := o.e.cfg.Codec.(rawCodec); ok {
		return o.e.cfg.fit(raw.encode([]byte{outcomeVersion, byte(kindValue)}, v))
	}
	return o.e.cfg.encode(*v)
}

// decode reads a value into what v points to, which may have been used.
func (o *Operation[R]) decode(payload []byte, v *R) (err error) {
	var zero R
	*v = zero
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the codec panicked: %v", p)
		}
	}()
	return o.e.cfg.Codec.Unmarshal(payload, v)
}

// result gives an answer its type. Value is that of the caller whose fn ran; for
// another one it is overwritten.
func (o *Operation[R]) result(ans answer, value *R, err error) (Result[R], error) {
	res := Result[R]{Replayed: ans.replayed, Attempt: ans.attempt, CompletedAt: ans.completedAt}
	if !ans.replayed {
		if ans.attempt > 0 { // fn reached an outcome, recorded or not
			res.Value = *value
		}
		if ans.notStored != nil {
			res.NotStored = ans.notStored
		}
		return res, err
	}
	payload, err := decodeOutcome(ans.outcome)
	if err != nil {
		return res, err
	}
	if err = o.decode(payload, value); err != nil {
		return res, fmt.Errorf("idem: %w as %T: %w", ErrUnreadableResult, res.Value, err)
	}
	res.Value = *value
	return res, nil
}
