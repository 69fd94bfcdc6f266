package driver

import "errors"

// Errors of bad input: nothing was done, and nothing was sent to the store.
var (
	// ErrInvalidKey is returned when a scope or an ID is not acceptable.
	ErrInvalidKey = errors.New("invalid key")
	// ErrInvalidParams is returned when any other parameter is not acceptable.
	ErrInvalidParams = errors.New("invalid parameters")
)

// Errors of a claim.
var (
	// ErrNotHolder is returned when the record is not in flight under the token
	// and fence given: the claim was taken over, released or completed. Nothing
	// was changed.
	ErrNotHolder = errors.New("not the holder of the claim")
)

// Errors of a store.
var (
	// ErrRetryable is matched by errors of a store that rolled everything back
	// and would accept the same call again: a serialization failure, a deadlock,
	// a busy writer.
	ErrRetryable = errors.New("transient store error, everything was rolled back")
	// ErrOutcomeUnknown is matched when a commit may or may not have happened and
	// the driver could not find out.
	ErrOutcomeUnknown = errors.New("outcome of the commit is unknown")
	// ErrUnsafeConfig is matched when the store is configured so that a promise
	// of the driver would not hold. The message says what to change.
	ErrUnsafeConfig = errors.New("store configuration breaks a guarantee")
	// ErrNewerVersion is matched when a record, or the schema, was written by a
	// newer version of the driver than this one.
	ErrNewerVersion = errors.New("written by a newer version")
	// ErrForeignRecord is matched when the bytes under a key are not a record of
	// that key: another application's data, a damaged record, or a reply that
	// belongs to another command.
	ErrForeignRecord = errors.New("not a record of this key")
)
