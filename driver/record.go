package driver

import "time"

// State is the state of a key.
type State uint8

// The first four are stored; the others are what time makes of them.
const (
	StateAbsent   State = 0 // no record: a claim is granted
	StateInFlight State = 1 // one holder, until its lease ends
	StateComplete State = 2 // the outcome is stored
	StateReleased State = 3 // absent, but the released token is remembered

	StateUnknown State = 4 // in flight, but the lease ended without an outcome
	StateExpired State = 5 // complete, but retention ended: a tombstone until grace ends
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case StateAbsent:
		return "absent"
	case StateInFlight:
		return "in-flight"
	case StateComplete:
		return "complete"
	case StateReleased:
		return "released"
	case StateUnknown:
		return "unknown"
	case StateExpired:
		return "expired"
	}
	return "invalid"
}

// Record is what a store holds for one key. Times are whole microseconds.
type Record struct {
	Key         Key    // zero when the driver stores only the hash
	State       State  // as stored: absent, in flight, complete or released
	Operation   string // the operation that claimed the key
	Fingerprint []byte
	Summary     string
	Token       Token // the holder, or the last one
	Fence       int64 // grows with every grant of the key, also across release and purge
	Attempt     int   // 1, and one more for every takeover
	Hold        bool  // not to be taken over
	Result      []byte
	Note        string // why an operator ended the record by hand

	CreatedAt   time.Time // first claim
	LeaseUntil  time.Time // in flight: the end of the lease
	CompletedAt time.Time
	// RetainUntil is, of a complete record, when its result is dropped; of the
	// others, when the record may be deleted if nothing else keeps it.
	RetainUntil time.Time
	GraceUntil  time.Time // complete: when the key is absent again; not before RetainUntil

	// Now is the instant, by the clock that judges leases, at which the record
	// was read. It is not stored.
	Now time.Time
}

// StateAt returns the state of the key at an instant:
//
//	stored     now                                  state
//	absent                                          absent
//	released                                        absent
//	in flight  LeaseUntil is zero                   in-flight
//	in flight  before LeaseUntil                    in-flight
//	in flight  later, Hold                          unknown
//	in flight  later, before RetainUntil            unknown
//	in flight  later still                          absent
//	complete   before RetainUntil                   complete
//	complete   later, before GraceUntil             expired
//	complete   later still                          absent
//
// An instant equal to a limit is after it. LeaseUntil is zero only in what
// BeginClaim answers while a transaction, which has no lease, holds the key.
func (r Record) StateAt(now time.Time) State {
	switch r.State {
	case StateInFlight:
		switch {
		case r.LeaseUntil.IsZero() || now.Before(r.LeaseUntil):
			return StateInFlight
		case r.Hold || now.Before(r.RetainUntil):
			return StateUnknown
		}
	case StateComplete:
		switch {
		case now.Before(r.RetainUntil):
			return StateComplete
		case now.Before(r.GraceUntil):
			return StateExpired
		}
	}
	return StateAbsent
}

// HeldBy reports whether the record is a claim, live or not, of this token and fence.
func (r Record) HeldBy(t Token, fence int64) bool {
	return r.State == StateInFlight && r.Token == t && r.Fence == fence
}
