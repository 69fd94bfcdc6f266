package idem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idem-go/idem/driver"
)

// Status is what a store knows about a key.
type Status struct {
	Key       Key // zero when the driver was told to store only a hash of it
	State     State
	Operation string // that claimed the key
	Summary   string // of the request; see [Fingerprint.WithSummary]
	Attempt   int
	Note      string // the reason given to [Operation.Resolve]

	CreatedAt   time.Time // first claim
	LeaseUntil  time.Time // end of the holder's lease
	CompletedAt time.Time
	RetainUntil time.Time // complete: end of retention
	GraceUntil  time.Time // complete: end of grace
	// AsOf is the instant of the reading, by the clock that judges leases.
	AsOf time.Time
}

func statusOf(rec driver.Record, key Key) Status {
	s := Status{Key: key, State: rec.StateAt(rec.Now), AsOf: rec.Now}
	if s.State == StateAbsent {
		if rec.State == driver.StateReleased && rec.Now.Before(rec.RetainUntil) {
			s.Note = rec.Note
		}
		return s
	}
	s.Operation, s.Summary, s.Attempt, s.Note = rec.Operation, rec.Summary, rec.Attempt, rec.Note
	s.CreatedAt, s.LeaseUntil, s.CompletedAt = rec.CreatedAt, rec.LeaseUntil, rec.CompletedAt
	s.RetainUntil, s.GraceUntil = rec.RetainUntil, rec.GraceUntil
	return s
}

// Found is the answer of [Operation.Lookup].
type Found[R any] struct {
	Status
	// Value is the result, when the key is complete with a value.
	Value R
	// Err is the error that a repeat would get, when the key is complete without
	// one: a [*FinalError], [ErrResultNotStored] or [ErrUnreadableResult].
	Err error
}

// Lookup reads what is known about a key, and changes nothing. A key that is
// absent is no error: its State is [StateAbsent]; so is one that a transaction in
// progress (DoTx) holds, where the store does not show it. A key that was used on
// another operation is [ErrMismatch], beside its Status.
func (o *Operation[R]) Lookup(ctx context.Context, key Key) (Found[R], error) {
	rec, err := o.e.get(ctx, key)
	if err != nil {
		return Found[R]{}, err
	}
	found := Found[R]{Status: statusOf(rec, key)}
	if err := o.e.sameOperation(rec, found.State); err != nil {
		return found, err
	}
	if found.State == StateComplete {
		res, err := o.result(replay(&rec), &found.Value, nil)
		found.Value, found.Err = res.Value, err
	}
	return found, nil
}

// Resolve ends a record whose outcome is unknown, by hand: value, or err, is what
// a person found out to be the outcome, and means what it means when fn returns
// it. A value or [Final](err) is stored and replayed; [NotApplied](err) makes the
// key absent. The reason is kept with the record, in the clear, and not empty.
//
// It returns [ErrNotFound] when the key is absent, [ErrInFlight] when its holder
// may be alive, [ErrHasOutcome] when it is complete or expired, [ErrMismatch] when it
// was used on another operation, and [ErrInvalidArgument] when the reason is empty
// over 1 KiB or not valid UTF-8 without NUL, or err says neither; then nothing was changed. Of two persons who
// resolve at the same time, one gets [ErrInFlight] or [ErrHasOutcome].
func (o *Operation[R]) Resolve(ctx context.Context, key Key, reason string, value R, err error) error {
	if reason == "" || len(reason) > driver.MaxNote {
		return fmt.Errorf("idem: %w: reason has %d bytes, want 1 to %d", ErrInvalidArgument, len(reason), driver.MaxNote)
	}
	if !utf8.ValidString(reason) || strings.IndexByte(reason, 0) >= 0 {
		return fmt.Errorf("idem: %w: reason is not valid UTF-8 without NUL", ErrInvalidArgument)
	}
	w := o.judge(new(R), value, err)
	if w.says == saysNothing {
		return fmt.Errorf("idem: %w: err is neither final nor not applied: %w", ErrInvalidArgument, err)
	}
	if w.notStored != nil {
		return w.notStored // a person can shorten it
	}
	rec, err := o.e.get(ctx, key)
	if err != nil {
		return err
	}
	switch state := rec.StateAt(rec.Now); state {
	case StateAbsent:
		return fmt.Errorf("idem: %w", ErrNotFound)
	case StateComplete, StateExpired:
		return fmt.Errorf("idem: %w", ErrHasOutcome)
	case StateInFlight:
		return inFlight(&rec, rec.Now)
	default:
		if err := o.e.sameOperation(rec, state); err != nil {
			return err
		}
	}
	return o.e.resolve(ctx, key, rec, w, reason)
}

// resolve takes the key over and settles it.
func (e *engine) resolve(ctx context.Context, key Key, seen driver.Record, w work, reason string) error {
	req := request{
		key: key, operation: seen.Operation, fingerprint: seen.Fingerprint, summary: seen.Summary, hold: seen.Hold,
	}
	token := driver.NewToken()
	p := e.claimParams(&req, token)
	p.Resolve = true
	rec, err := (&leased{e: e}).claim(ctx, p)
	if err != nil {
		return wrap(ctx, "claim", err)
	}
	switch a := decide(&rec, &req, token, rec.Now); a {
	case actRun:
	case actReplay, actExpired:
		return fmt.Errorf("idem: %w", ErrHasOutcome)
	case actClaim, actTakeover:
		return fmt.Errorf("idem: %w", ErrNotFound)
	default:
		return refuse(a, &rec, &req, rec.Now)
	}
	c := claimOf(key, &rec)
	if rec.Attempt != seen.Attempt+1 || !rec.CreatedAt.Equal(seen.CreatedAt) {
		// Somebody resolved it, or ran, since it was looked at: what the person found
		// out was about an attempt that is not the last any more.
		e.release(ctx, c, c.tookOver())
		if c.tookOver() {
			return &InFlightError{RetryAfter: time.Millisecond}
		}
		return fmt.Errorf("idem: %w", ErrNotFound)
	}
	err = e.settle(ctx, new(settling), "resolve", e.cfg.SettleTimeout, func(ctx context.Context) error {
		if w.says == saysNotApplied {
			return e.drv.Release(ctx, driver.ReleaseParams{HolderParams: c.holder, Note: reason})
		}
		return e.drv.Complete(ctx, driver.CompleteParams{
			HolderParams: c.holder, Result: w.outcome, Retention: e.cfg.Retention, Grace: e.cfg.Grace, Note: reason,
		})
	})
	if errors.Is(err, driver.ErrNotHolder) { // our own lease ended, and somebody else decides
		return &InFlightError{RetryAfter: e.cfg.Lease}
	}
	return err
}

// Forget drops a key that is complete or expired: it is absent, and a repeat
// runs. It returns [ErrNotFound] when the key is absent, [ErrInFlight] or
// [ErrUnknown] when it has no outcome, and [ErrMismatch] when it was used on another
// operation; then nothing was changed.
func (o *Operation[R]) Forget(ctx context.Context, key Key) error {
	rec, err := o.e.get(ctx, key)
	if err != nil {
		return err
	}
	state := rec.StateAt(rec.Now)
	if err := o.e.sameOperation(rec, state); err != nil {
		return err
	}
	switch state {
	case StateAbsent:
		return fmt.Errorf("idem: %w", ErrNotFound)
	case StateInFlight:
		return inFlight(&rec, rec.Now)
	case StateUnknown:
		return &UnknownError{Attempt: rec.Attempt, Since: rec.LeaseUntil}
	}
	err = o.e.drv.Forget(ctx, driver.ForgetParams{
		HolderParams: driver.HolderParams{Key: key, Token: rec.Token, Fence: rec.Fence},
	})
	if errors.Is(err, driver.ErrNotHolder) { // it expired and was claimed meanwhile
		return &InFlightError{RetryAfter: o.e.cfg.Lease}
	}
	return wrap(ctx, "forget", err)
}

func (e *engine) get(ctx context.Context, key Key) (driver.Record, error) {
	if err := key.Validate(); err != nil {
		return driver.Record{}, fmt.Errorf("idem: %w", err)
	}
	// A read, too, waits for the transaction of a bolt file that it is made in.
	if err := e.refuseNested(ctx, Key{}); err != nil {
		return driver.Record{}, err
	}
	rec, err := e.drv.Get(ctx, driver.GetParams{Key: key})
	return rec, wrap(ctx, "get", err)
}

func (e *engine) sameOperation(rec driver.Record, state State) error {
	if state != StateAbsent && rec.Operation != e.cfg.Name {
		return mismatch(&rec, &request{operation: e.cfg.Name, fingerprint: rec.Fingerprint})
	}
	return nil
}

// List returns up to limit (1 to 1,000) keys of the store, of every operation, that
// are in a state: [StateUnknown], for a person who looks after them, [StateInFlight],
// [StateComplete] or [StateExpired]. After is the cursor that the page before
// returned, and empty for the first; next is empty when there are no more.
//
// It returns [errors.ErrUnsupported] when the driver cannot list, and
// [ErrInvalidArgument] when the state or the limit cannot be used.
func (o *Operation[R]) List(ctx context.Context, state State, limit int, after string) (keys []Status, next string, err error) {
	if o.e.lister == nil {
		return nil, "", fmt.Errorf("idem: this driver cannot list records: %w", errors.ErrUnsupported)
	}
	p := driver.ListParams{State: state, Limit: limit, After: after}
	if err := p.Validate(); err != nil {
		return nil, "", fmt.Errorf("idem: %w: %w", ErrInvalidArgument, err)
	}
	if err := o.e.refuseNested(ctx, Key{}); err != nil {
		return nil, "", err
	}
	recs, next, err := o.e.lister.List(ctx, p)
	if err != nil {
		return nil, "", wrap(ctx, "list", err)
	}
	for _, rec := range recs {
		keys = append(keys, statusOf(rec, rec.Key))
	}
	return keys, next, nil
}

// Purge deletes up to limit (1 to 100,000) records of the store, of every
// operation, that are over: retention and grace have ended, or an attempt without
// an outcome was left alone for its retention. It never touches a live claim, nor
// one that is held. It returns how many it deleted; fewer than limit means that
// nothing more was due. Expired keys are absent whether purged or not.
func (o *Operation[R]) Purge(ctx context.Context, limit int) (int, error) {
	p := driver.PurgeParams{Limit: limit}
	if err := p.Validate(); err != nil {
		return 0, fmt.Errorf("idem: %w: %w", ErrInvalidArgument, err)
	}
	if err := o.e.refuseNested(ctx, Key{}); err != nil {
		return 0, err
	}
	n, err := o.e.drv.Purge(ctx, p)
	return n, wrap(ctx, "purge", err)
}

const (
	purgeBatch    = 1000
	purgeFailures = 5           // in a row, that end Maintain
	clockSlack    = time.Minute // between wall and monotonic time, over which a round is skipped
)

// Maintain purges the store, in batches of 1,000, whenever [Config.PurgeInterval]
// has passed, until ctx ends: run it in a goroutine of the application's, in one
// or in every process. It returns the error of ctx, or the last error when five
// rounds in a row have failed.
//
// A round is skipped when the wall clock has jumped since the round before, so
// that a clock that is set forward for a moment does not forget keys.
func (o *Operation[R]) Maintain(ctx context.Context) error {
	failures := 0
	wall := time.Now()
	for {
		now := time.Now()
		jump := now.Round(0).Sub(wall.Round(0)) - now.Sub(wall)
		wall = now
		if jump.Abs() < clockSlack {
			err := o.purgeAll(ctx)
			switch {
			case ctx.Err() != nil:
			case err == nil:
				failures = 0
			default:
				if failures++; failures == purgeFailures {
					return err
				}
			}
		}
		pause(ctx, o.e.cfg.PurgeInterval)
		if ctx.Err() != nil {
			return ended(ctx)
		}
	}
}

func (o *Operation[R]) purgeAll(ctx context.Context) error {
	for {
		if n, err := o.Purge(ctx, purgeBatch); err != nil || n < purgeBatch {
			return err
		}
	}
}
