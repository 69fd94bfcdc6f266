package idem

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/idem-go/idem/driver"
)

// This file is what a call makes of a record, as pure functions over (record,
// request, now). How verbs change a record is driver/state.go's part.

// request is what a call asks for.
type request struct {
	key         Key
	operation   string
	fingerprint []byte // stored form
	summary     string
	hold        bool // policy Hold
}

// action is what a call does next.
type action uint8

const (
	actClaim    action = iota // nobody holds the key: claim it
	actTakeover               // an attempt died: claim the key, and take it over
	actRun                    // the key is ours: run fn
	actReplay                 // hand out the stored outcome
	actInFlight               // somebody else holds the key
	actMismatch               // the key belongs to another request
	actUnknown                // an attempt died, and the key is held
	actExpired                // the result is gone, and the key is kept
)

// String returns the action's name.
func (a action) String() string {
	return [...]string{"claim", "take over", "run", "replay", "ErrInFlight", "ErrMismatch", "ErrUnknown", "ErrExpired"}[a]
}

// likeness says how a request compares with the one stored in a record.
type likeness uint8

const (
	sameRequest  likeness = iota
	otherRequest          // another operation, recipe or sum
	notKnown              // the record says nothing: a transaction in progress
)

// String returns the likeness's name.
func (l likeness) String() string {
	return [...]string{"same", "other", "not known"}[l]
}

// holding says in which hands a key is.
type holding uint8

const (
	takeable holding = iota // policy Rerun, in the record and in the request
	held                    // policy Hold, in the record or in the request
	ours                    // our own token
)

// String returns the name.
func (h holding) String() string {
	return [...]string{"rerun", "hold", "ours"}[h]
}

// rule is one row of the table. A nil set means any.
type rule struct {
	state   driver.State
	request []likeness
	holding []holding
	action  action
}

// rules is the table of the package documentation; the first row that fits
// decides, and every case fits one.
var rules = []rule{
	{driver.StateAbsent, nil, nil, actClaim},
	{driver.StateInFlight, nil, []holding{ours}, actRun},
	{driver.StateInFlight, []likeness{otherRequest}, nil, actMismatch},
	{driver.StateInFlight, nil, nil, actInFlight},
	{driver.StateUnknown, nil, []holding{ours}, actRun},
	{driver.StateUnknown, []likeness{otherRequest}, nil, actMismatch},
	{driver.StateUnknown, nil, []holding{held}, actUnknown},
	{driver.StateUnknown, nil, nil, actTakeover},
	{driver.StateComplete, []likeness{otherRequest}, nil, actMismatch},
	{driver.StateComplete, nil, nil, actReplay},
	{driver.StateExpired, nil, nil, actExpired},
}

// cases is the table with its sets spelled out, and one more than the action in each
// cell: 0 stands for a case without a rule.
var cases = func() (all [driver.StateExpired + 1][notKnown + 1][ours + 1]action) {
	for _, r := range slices.Backward(rules) { // the first that fits stays
		for l := range all[r.state] {
			for h := range all[r.state][l] {
				if has(r.request, likeness(l)) && has(r.holding, holding(h)) {
					all[r.state][l][h] = r.action + 1
				}
			}
		}
	}
	return all
}()

func lookUp(state driver.State, l likeness, h holding) action {
	if a := cases[state][l][h]; a > 0 {
		return a - 1
	}
	panic(fmt.Sprintf("idem: no rule for %v, %v, %v", state, l, h))
}

func has[T comparable](set []T, v T) bool {
	for _, e := range set {
		if e == v {
			return true
		}
	}
	return set == nil
}

// decide says what a call with this token does about a record at an instant. A
// zero token is nobody's.
func decide(rec *driver.Record, req *request, token driver.Token, now time.Time) action {
	h := takeable
	switch {
	case !token.IsZero() && rec.Token == token:
		h = ours
	case rec.Hold || req.hold:
		h = held
	}
	return lookUp(rec.StateAt(now), compare(rec, req), h)
}

func compare(rec *driver.Record, req *request) likeness {
	switch {
	case len(rec.Fingerprint) == 0:
		return notKnown
	case rec.Operation != req.operation || !bytes.Equal(rec.Fingerprint, req.fingerprint):
		return otherRequest
	}
	return sameRequest
}

// mismatch describes how a request differs from the stored one.
func mismatch(rec *driver.Record, req *request) error {
	e := &MismatchError{
		Reason: MismatchRequest, Operation: rec.Operation, Summary: rec.Summary, FirstSeen: rec.CreatedAt,
	}
	switch {
	case rec.Operation != req.operation:
		e.Reason = MismatchOperation
	case storedRecipe(rec.Fingerprint) != storedRecipe(req.fingerprint):
		e.Reason = MismatchRecipe
	}
	return e
}

// inFlight describes a key that somebody else holds.
func inFlight(rec *driver.Record, now time.Time) error {
	wait := time.Second // the driver cannot know: a transaction in progress has no lease
	if !rec.LeaseUntil.IsZero() {
		wait = rec.LeaseUntil.Sub(now)
	}
	return &InFlightError{RetryAfter: max(wait, time.Millisecond)}
}

// refuse returns the error of an action that neither runs, claims nor replays.
func refuse(a action, rec *driver.Record, req *request, now time.Time) error {
	switch a {
	case actInFlight:
		return inFlight(rec, now)
	case actMismatch:
		return mismatch(rec, req)
	case actUnknown:
		return &UnknownError{Attempt: rec.Attempt, Since: rec.LeaseUntil}
	case actExpired:
		return fmt.Errorf("idem: %w", ErrExpired)
	}
	panic(fmt.Sprintf("idem: %v is no refusal", a))
}
