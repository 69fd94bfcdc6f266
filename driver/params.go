package driver

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits on what a driver must be able to store. Validate refuses more.
const (
	MaxOperation   = 128                    // bytes in an operation's name
	MaxFingerprint = 128                    // bytes in a fingerprint
	MaxSummary     = 1024                   // bytes in a request summary
	MaxNote        = 1024                   // bytes in a note
	MaxResult      = 64 << 20               // bytes in a result; the core's own limit is lower
	MaxDuration    = 36525 * 24 * time.Hour // a hundred years: instants stay exact in every store
	MaxPurge       = 100_000                // records in one purge batch
	MaxList        = 1_000                  // records in one page
)

// HolderParams names a claim: the key, and the token and fence under which it
// was granted. A key alone changes nothing.
type HolderParams struct {
	Key   Key
	Token Token
	Fence int64
	Now   time.Time // zero: the store's clock
}

// ClaimParams are the parameters of Claim and BeginClaim.
type ClaimParams struct {
	Key         Key
	Operation   string // compared on a repeat; 1 to MaxOperation bytes
	Fingerprint []byte // compared on a repeat; 1 to MaxFingerprint bytes
	Summary     string // shown on a mismatch; at most MaxSummary bytes
	Token       Token  // new and random for every claim
	Lease       time.Duration
	// Retention is how long an in-flight record is kept, once its lease has ended
	// without an outcome, counted from the claim. It is at least Lease.
	Retention time.Duration
	// Hold keeps a claim whose lease ended without an outcome from being taken
	// over. It is stored, and a record claimed under Hold stays held.
	Hold bool
	// Resolve takes over such a claim all the same: a person has decided.
	Resolve bool
	Now     time.Time // zero: the store's clock
}

// RenewParams are the parameters of Renew.
type RenewParams struct {
	HolderParams
	Lease time.Duration
}

// CompleteParams are the parameters of Complete.
type CompleteParams struct {
	HolderParams
	Result    []byte        // the core's encoding; opaque, and stored exactly
	Retention time.Duration // how long the result is kept, from now
	Grace     time.Duration // how long the key refuses to run after that
	Note      string        // why an operator ended the record by hand
}

// CommitParams are the parameters of Tx.Commit.
type CommitParams struct {
	CompleteParams
	// Discard undoes the business writes first, then stores the outcome: fn
	// returned an error that is final.
	Discard bool
}

// ReleaseParams are the parameters of Release.
type ReleaseParams struct {
	HolderParams
	// Abandon ends the lease at once but keeps the record: whether the operation
	// was applied is not known.
	Abandon bool
	Note    string // why an operator ended the record by hand
}

// GetParams are the parameters of Get.
type GetParams struct {
	Key Key
	Now time.Time // zero: the store's clock
}

// ForgetParams are the parameters of Forget.
type ForgetParams struct {
	HolderParams
}

// PurgeParams are the parameters of Purge.
type PurgeParams struct {
	Limit int       // 1 to MaxPurge
	Now   time.Time // zero: the store's clock
}

// ListParams are the parameters of List.
type ListParams struct {
	State State     // StateInFlight, StateUnknown, StateComplete or StateExpired
	Limit int       // 1 to MaxList
	After string    // the cursor of the page before; empty for the first
	Now   time.Time // zero: the store's clock
}

// WaitParams are the parameters of Wait.
type WaitParams struct {
	Key   Key
	Fence int64
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidParams, fmt.Sprintf(format, args...))
}

func validDuration(name string, d, least time.Duration) error {
	if d < least || d > MaxDuration {
		return invalid("%s is %v, want %v to %v", name, d, least, MaxDuration)
	}
	return nil
}

// Validate reports, as an error that wraps [ErrInvalidParams] or
// [ErrInvalidKey], a holder that cannot be one.
func (p HolderParams) Validate() error {
	if err := p.Key.Validate(); err != nil {
		return err
	}
	if p.Token.IsZero() {
		return invalid("token is zero")
	}
	if p.Fence <= 0 {
		return invalid("fence is %d, want a positive number", p.Fence)
	}
	return validNow(p.Now)
}

// Validate reports what is wrong with p; see [HolderParams.Validate].
func (p ClaimParams) Validate() error {
	if err := p.Key.Validate(); err != nil {
		return err
	}
	if p.Token.IsZero() {
		return invalid("token is zero")
	}
	if n := len(p.Operation); n == 0 || n > MaxOperation {
		return invalid("operation has %d bytes, want 1 to %d", n, MaxOperation)
	}
	if !printable(p.Operation) {
		return invalid("operation is not printable ASCII")
	}
	if n := len(p.Fingerprint); n == 0 || n > MaxFingerprint {
		return invalid("fingerprint has %d bytes, want 1 to %d", n, MaxFingerprint)
	}
	if err := validText("summary", p.Summary, MaxSummary); err != nil {
		return err
	}
	if err := validDuration("lease", p.Lease, time.Millisecond); err != nil {
		return err
	}
	if err := validDuration("retention", p.Retention, p.Lease); err != nil {
		return err
	}
	return validNow(p.Now)
}

// Validate reports what is wrong with p; see [HolderParams.Validate].
func (p RenewParams) Validate() error {
	if err := p.HolderParams.Validate(); err != nil {
		return err
	}
	return validDuration("lease", p.Lease, time.Millisecond)
}

// Validate reports what is wrong with p; see [HolderParams.Validate].
func (p CompleteParams) Validate() error {
	if err := p.HolderParams.Validate(); err != nil {
		return err
	}
	if n := len(p.Result); n > MaxResult {
		return invalid("result has %d bytes, want at most %d", n, MaxResult)
	}
	if err := validDuration("retention", p.Retention, time.Millisecond); err != nil {
		return err
	}
	if err := validDuration("grace", p.Grace, 0); err != nil {
		return err
	}
	return validText("note", p.Note, MaxNote)
}

// Validate reports what is wrong with p; see [HolderParams.Validate].
func (p ReleaseParams) Validate() error {
	if err := p.HolderParams.Validate(); err != nil {
		return err
	}
	return validText("note", p.Note, MaxNote)
}

// Validate reports what is wrong with p; see [HolderParams.Validate].
func (p GetParams) Validate() error {
	if err := p.Key.Validate(); err != nil {
		return err
	}
	return validNow(p.Now)
}

// Validate reports what is wrong with p; see [HolderParams.Validate].
func (p PurgeParams) Validate() error {
	if p.Limit < 1 || p.Limit > MaxPurge {
		return invalid("limit is %d, want 1 to %d", p.Limit, MaxPurge)
	}
	return validNow(p.Now)
}

// Validate reports what is wrong with p; see [HolderParams.Validate].
func (p ListParams) Validate() error {
	if p.Limit < 1 || p.Limit > MaxList {
		return invalid("limit is %d, want 1 to %d", p.Limit, MaxList)
	}
	switch p.State {
	case StateInFlight, StateUnknown, StateComplete, StateExpired:
	default:
		return invalid("state %v cannot be listed", p.State)
	}
	return validNow(p.Now)
}

// Stores that compute with doubles (Lua) are exact up to 2^53 µs, the year 2255:
// an instant given by hand leaves room for retention and grace below that.
var maxNow = time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)

func validNow(now time.Time) error {
	if now.IsZero() || now.UnixMicro() > 0 && now.Before(maxNow) {
		return nil
	}
	return invalid("now is %v, want an instant after 1970 and before 2050", now)
}

// Text is stored in columns of every kind of database, so it is valid UTF-8
// without NUL (PostgreSQL refuses both with 22021).
func validText(name, s string, most int) error {
	if len(s) > most {
		return invalid("%s has %d bytes, want at most %d", name, len(s), most)
	}
	if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		return invalid("%s is not valid UTF-8 without NUL", name)
	}
	return nil
}
