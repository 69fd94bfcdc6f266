package idem

import (
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// Policy says what the next caller gets after an attempt that ended without an
// outcome: the process died, fn panicked, was cancelled, or returned an error that
// says neither "applied" nor "not applied".
type Policy uint8

const (
	// Rerun lets the next caller take over, told by [Run.Attempt] that an earlier
	// attempt died. It is the default.
	Rerun Policy = iota
	// Hold gives everyone [ErrUnknown] until [Operation.Resolve]: for what must
	// not happen twice, whatever else.
	Hold
)

// String returns the policy's name.
func (p Policy) String() string {
	switch p {
	case Rerun:
		return "rerun"
	case Hold:
		return "hold"
	}
	return "invalid"
}

// Defaults of [Config].
const (
	DefaultLease         = 30 * time.Second
	DefaultRetention     = 24 * time.Hour
	DefaultMaxResult     = 1 << 20
	DefaultMaxWaiters    = 1024
	DefaultSettleTimeout = 10 * time.Second
	DefaultPurgeInterval = time.Minute
)

// Config is the contract of an operation. Durations are between one millisecond
// and a hundred years; the zero value of a field means its default.
type Config struct {
	// Name names the operation: 1 to 128 bytes of printable ASCII, required. It is
	// stored and compared: a key used on another operation is [ErrMismatch].
	Name string

	// Policy says what follows an attempt without an outcome. Default [Rerun].
	Policy Policy

	// Lease is how long a claim outlives a holder that died. It is renewed every
	// third of it while fn runs. Default 30 s.
	Lease time.Duration

	// Retention is how long an outcome is replayed, counted from its completion.
	// A repeat that comes later runs again. At least Lease, and longer than the
	// longest run: an attempt that dies after it has run for longer is forgotten
	// when its lease ends. Default 24 h.
	Retention time.Duration

	// Grace is how long, after Retention, the key still refuses to run
	// ([ErrExpired]) although its result is gone. Default 0: it runs again.
	Grace time.Duration

	// Wait is how long a duplicate waits for the holder of its key. Default 0: it
	// gets [ErrInFlight] at once. A context that ends earlier ends the wait earlier.
	Wait time.Duration

	// MaxWaiters bounds the duplicates of one operation that wait at the same time
	// in this process; one more gets [ErrInFlight] at once. Default 1,024.
	MaxWaiters int

	// MaxResult bounds an encoded outcome in bytes. A larger one still reaches the
	// first caller, see [Result.NotStored]. Default 1 MiB, at most 64 MiB less 1 KiB.
	MaxResult int

	// SettleTimeout bounds what happens after fn has returned, on a context of its
	// own: storing the outcome (repeated while the store fails), a release, a
	// rollback, and the second function of DoThenTx. Default 10 s.
	SettleTimeout time.Duration

	// Classify maps an application's own errors to what they say about the
	// operation. It is not asked about an error that [Final] or [NotApplied] has
	// marked, and must be safe for concurrent use. Default: [NoOutcome] for all.
	Classify func(error) Outcome

	// Codec encodes results. Default: JSON, with string and []byte kept as they
	// are. Changing it makes stored results unreadable.
	Codec Codec

	// PurgeInterval is the pause of [Operation.Maintain] once nothing more is due.
	// Default 1 min.
	PurgeInterval time.Duration
}

// withDefaults returns a copy of c that is complete, or a [*ConfigError].
func (c Config) withDefaults() (Config, error) {
	switch n := len(c.Name); {
	case n == 0:
		return c, &ConfigError{"Config.Name", "is empty"}
	case n > driver.MaxOperation:
		return c, &ConfigError{"Config.Name", fmt.Sprintf("has %d bytes, want at most %d", n, driver.MaxOperation)}
	case !printable(c.Name):
		return c, &ConfigError{"Config.Name", "is not printable ASCII"}
	case c.Policy > Hold:
		return c, &ConfigError{"Config.Policy", fmt.Sprintf("is %d, want Rerun or Hold", c.Policy)}
	}
	for _, f := range []struct {
		name     string
		value    *time.Duration
		fallback time.Duration
	}{
		{"Config.Lease", &c.Lease, DefaultLease},
		{"Config.Retention", &c.Retention, DefaultRetention},
		{"Config.Grace", &c.Grace, 0},
		{"Config.Wait", &c.Wait, 0},
		{"Config.SettleTimeout", &c.SettleTimeout, DefaultSettleTimeout},
		{"Config.PurgeInterval", &c.PurgeInterval, DefaultPurgeInterval},
	} {
		switch d := *f.value; {
		case d == 0:
			*f.value = f.fallback
		case d < time.Millisecond || d > driver.MaxDuration:
			return c, &ConfigError{f.name, fmt.Sprintf("is %v, want %v to %v", d, time.Millisecond, driver.MaxDuration)}
		}
	}
	if c.Retention < c.Lease {
		return c, &ConfigError{"Config.Retention", fmt.Sprintf("is %v, shorter than the lease of %v", c.Retention, c.Lease)}
	}
	for _, f := range []struct {
		name           string
		value          *int
		fallback, most int
	}{
		{"Config.MaxResult", &c.MaxResult, DefaultMaxResult, driver.MaxResult - 1<<10},
		{"Config.MaxWaiters", &c.MaxWaiters, DefaultMaxWaiters, 1 << 30},
	} {
		switch n := *f.value; {
		case n == 0:
			*f.value = f.fallback
		case n < 0 || n > f.most:
			return c, &ConfigError{f.name, fmt.Sprintf("is %d, want 1 to %d", n, f.most)}
		}
	}
	return c, nil
}
