package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// Errors of bad input. They are returned before fn runs and before the store is
// touched.
var (
	// ErrInvalidKey is returned when the scope or the ID of a key is not acceptable.
	ErrInvalidKey = driver.ErrInvalidKey
	// ErrInvalidFingerprint is returned when a fingerprint is the zero value or
	// outside the limits of [NewFingerprint].
	ErrInvalidFingerprint = errors.New("invalid fingerprint")
	// ErrInvalidConfig is matched by [*ConfigError].
	ErrInvalidConfig = errors.New("invalid configuration")
	// ErrInvalidArgument is returned when another argument cannot be used: a nil
	// function, an empty reason, a limit out of range.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrNested is returned when a call is made, with the context that fn was
	// given, for the key that fn holds; or for any key of a store whose only
	// writer is the transaction that fn is in. It could never proceed.
	ErrNested = errors.New("call inside a call that it would wait for")
)

// Errors that tell why fn was not run. Nothing was changed.
var (
	// ErrInFlight is matched by [*InFlightError]: another call holds the key.
	ErrInFlight = errors.New("key is in flight")
	// ErrMismatch is matched by [*MismatchError]: the key was used for another request.
	ErrMismatch = errors.New("key was used for another request")
	// ErrExpired is returned when the result of the key is gone but its grace has
	// not ended: the operation ran, and will not run again.
	ErrExpired = errors.New("result has expired, and the key is kept for its grace")
	// ErrResultNotStored is matched by [*NotStoredError]: the operation ran, and
	// its result could not be stored. It will not run again.
	ErrResultNotStored = errors.New("result was not stored")
)

// Errors that tell how a call ended.
var (
	// ErrUnknown is matched by [*UnknownError]: whether the operation was applied
	// is not known.
	ErrUnknown = errors.New("outcome is unknown")
	// ErrLeaseLost is the cause with which the context of fn is cancelled when
	// the claim may no longer be the caller's, and is matched by the error of a
	// call that lost it.
	ErrLeaseLost = errors.New("lease was lost")
	// ErrNotRecorded is matched by the error of a call whose fn succeeded but
	// whose outcome could not be stored. The value is in the [Result] beside it.
	// The claim was not released: the effect happened.
	ErrNotRecorded = errors.New("outcome could not be recorded")
	// ErrRetryable is matched when a store rolled everything back for a passing
	// reason (a serialization failure, a deadlock, a busy writer). Call again with
	// the same key.
	ErrRetryable = driver.ErrRetryable
)

// Errors of the store.
var (
	// ErrStore is matched by [*StoreError]: the store failed or could not be
	// reached. Unless [ErrNotRecorded] or [ErrUnknown] is matched too, nothing ran
	// that has not been undone.
	ErrStore = errors.New("store failed")
	// ErrUnsafeConfig is matched when the store is configured so that a promise
	// would not hold. The message says what to change.
	ErrUnsafeConfig = driver.ErrUnsafeConfig
	// ErrNewerVersion is matched when a record was written by a newer version of
	// idem or of its driver.
	ErrNewerVersion = driver.ErrNewerVersion
	// ErrUnreadableResult is matched when a stored result cannot be decoded: the
	// result type or the codec has changed.
	ErrUnreadableResult = errors.New("stored result cannot be decoded")
	// ErrNotFound is returned by [Operation.Resolve] and [Operation.Forget] when
	// the key is absent.
	ErrNotFound = errors.New("key is absent")
	// ErrHasOutcome is returned by [Operation.Resolve] when the key is complete or
	// expired.
	ErrHasOutcome = errors.New("key already has an outcome")
)

// InFlightError says that another call holds the key. It matches [ErrInFlight].
type InFlightError struct {
	// RetryAfter is the time until the lease ends as it stands; a live holder
	// finishes earlier or renews it. It is at least one millisecond.
	RetryAfter time.Duration
}

// Error returns a message with the time to wait.
func (e *InFlightError) Error() string {
	return fmt.Sprintf("idem: %v, retry after %v", ErrInFlight, e.RetryAfter)
}

// Is reports whether target is [ErrInFlight].
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// MismatchReason says in what a repeat differs.
type MismatchReason string

const (
	// MismatchOperation: the key was used on another operation.
	MismatchOperation MismatchReason = "operation"
	// MismatchRecipe: the fingerprint was made in another way; the request may be
	// the same.
	MismatchRecipe MismatchReason = "recipe"
	// MismatchRequest: the request is another one.
	MismatchRequest MismatchReason = "request"
)

// MismatchError says that the key was used for another request. It matches
// [ErrMismatch]. Its message does not contain what was stored.
type MismatchError struct {
	Reason    MismatchReason
	Operation string    // the operation that the key was used on
	Summary   string    // of the stored request; see [Fingerprint.WithSummary]
	FirstSeen time.Time // when the key was first claimed
}

// Error returns a message with the reason.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("idem: %v (%s differs)", ErrMismatch, e.Reason)
}

// Is reports whether target is [ErrMismatch].
func (e *MismatchError) Is(target error) bool { return target == ErrMismatch }

// UnknownError says that whether the operation was applied is not known. It
// matches [ErrUnknown].
//
// With a nil Err the key is held (policy [Hold]) until [Operation.Resolve] ends
// it. Otherwise Err says how the answer to a commit was lost; call again with the
// same key, and the record tells.
type UnknownError struct {
	Attempt int
	Since   time.Time // end of the lease, when the key is held
	Err     error
}

// Error returns a message with the attempt.
func (e *UnknownError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("idem: %v: %v", ErrUnknown, e.Err)
	}
	return fmt.Sprintf("idem: %v since attempt %d ended, and the key is held", ErrUnknown, e.Attempt)
}

// Is reports whether target is [ErrUnknown].
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// Unwrap returns Err.
func (e *UnknownError) Unwrap() error { return e.Err }

// NotStoredError says why a result was not stored. It matches [ErrResultNotStored].
type NotStoredError struct {
	Reason string
	Err    error // of the codec, for the first caller only
}

// Error returns a message with the reason and, for the first caller, the codec's error.
func (e *NotStoredError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("idem: %v: %s: %v", ErrResultNotStored, e.Reason, e.Err)
	}
	return fmt.Sprintf("idem: %v: %s", ErrResultNotStored, e.Reason)
}

// Unwrap returns Err.
func (e *NotStoredError) Unwrap() error { return e.Err }

// Is reports whether target is [ErrResultNotStored].
func (e *NotStoredError) Is(target error) bool { return target == ErrResultNotStored }

// ConfigError says which field of a [Config] is wrong. It matches [ErrInvalidConfig].
type ConfigError struct {
	Field  string // "Config.Lease", "driver"
	Reason string
}

// Error returns a message that names the field.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("idem: %v: %s %s", ErrInvalidConfig, e.Field, e.Reason)
}

// Is reports whether target is [ErrInvalidConfig].
func (e *ConfigError) Is(target error) bool { return target == ErrInvalidConfig }

// StoreError wraps an error of the driver. It matches [ErrStore].
type StoreError struct {
	Verb string // what the core asked for: "claim", "complete", …
	Err  error
}

// Error returns a message with the verb and the driver's error.
func (e *StoreError) Error() string { return fmt.Sprintf("idem: %s: %v", e.Verb, e.Err) }

// Is reports whether target is [ErrStore].
func (e *StoreError) Is(target error) bool { return target == ErrStore }

// Unwrap returns Err.
func (e *StoreError) Unwrap() error { return e.Err }

// wrap turns the error of a driver into the core's: once, at the boundary.
func wrap(ctx context.Context, verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && isContext(err):
		return fmt.Errorf("idem: %s: %w", verb, ended(ctx))
	case errors.Is(err, driver.ErrInvalidKey), errors.Is(err, driver.ErrRetryable):
		return fmt.Errorf("idem: %s: %w", verb, err)
	}
	return &StoreError{Verb: verb, Err: err}
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ended returns the error of a context that has ended; it matches the cause too.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !isContext(cause) {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}
