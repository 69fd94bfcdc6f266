package idem

import "github.com/idem-go/idem/driver"

// Key names one operation of one principal: Scope says whose key it is (a
// tenant, a user, a consumer group) and ID is what the caller chose.
//
// Scope is the principal, not its credential: rotating an API key must not make
// retries run again. It is never empty; [Global] is the spelled-out opt-out. Both
// are 1 to 255 bytes of printable ASCII, and not only spaces; anything else is
// [ErrInvalidKey], on every driver alike, before fn runs and before the store is
// touched. They never collide by concatenation.
type Key = driver.Key

// Global is the scope of keys that belong to nobody in particular.
const Global = "(global)"

// State is the state of a key; see the table in the package documentation.
type State = driver.State

// The states that [Operation.Lookup] and [Operation.List] report.
const (
	StateAbsent   = driver.StateAbsent   // nobody holds the key
	StateInFlight = driver.StateInFlight // one holder, until its lease ends
	StateUnknown  = driver.StateUnknown  // the lease ended without an outcome
	StateComplete = driver.StateComplete // the outcome is stored
	StateExpired  = driver.StateExpired  // the result is gone, the key still refuses to run
)
