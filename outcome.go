package idem

import (
	"encoding/binary"
	"fmt"
)

// Outcome is what an error of fn says about the operation.
type Outcome uint8

const (
	// NoOutcome: the operation may or may not have been applied. The policy
	// decides what follows; inside DoTx everything is rolled back.
	NoOutcome Outcome = iota
	// OutcomeFinal: the operation ended with this error, as if [Final] had marked it.
	OutcomeFinal
	// OutcomeNotApplied: nothing happened, as if [NotApplied] had marked it.
	OutcomeNotApplied
)

// FinalError is an outcome that is an error: stored once, and given to every
// repeat with the same message, code and details. Returning one from fn, also
// wrapped, makes it the outcome.
type FinalError struct {
	Message string // default: the message of Err
	Code    string // for programs: "card_declined"
	Details []byte // anything more, stored exactly; often JSON
	// Err is the error that was declared final. It is not stored: it is nil in a
	// replay.
	Err error
}

// Error returns the message.
func (e *FinalError) Error() string {
	if e.Message == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.Message
}

// Unwrap returns Err.
func (e *FinalError) Unwrap() error { return e.Err }

// settledError is an error whose mark has done its work.
type settledError struct{ err error }

func (e *settledError) Error() string { return e.err.Error() }
func (e *settledError) Unwrap() error { return e.err }

// Final declares that err is the outcome of the operation: it is stored, and a
// repeat gets an error with the same message. The result matches err, and is a
// [*FinalError]. Final of nil is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &FinalError{Err: err}
}

// notAppliedError marks an error after which nothing has happened.
type notAppliedError struct{ err error }

func (e *notAppliedError) Error() string { return e.err.Error() }
func (e *notAppliedError) Unwrap() error { return e.err }

// NotApplied declares that nothing happened, neither in this attempt nor in an
// earlier one: the key is released, and a repeat runs. The result matches err.
// NotApplied of nil is nil.
//
// The mark speaks of the operation whose fn returns it. When fn calls another
// operation, and that one was not applied, the error of the call marks nothing.
func NotApplied(err error) error {
	if err == nil {
		return nil
	}
	return &notAppliedError{err}
}

// classify says what an error of fn says, and whether Classify had to guess. Of
// several marks the outermost decides.
func (c *Config) classify(err error) (o Outcome, final *FinalError, guessed bool) {
	switch m := outermost(err).(type) {
	case *notAppliedError:
		return OutcomeNotApplied, nil, false
	case *FinalError:
		return OutcomeFinal, m, false
	}
	if c.Classify == nil {
		return NoOutcome, nil, true
	}
	switch o := c.Classify(err); o {
	case OutcomeFinal:
		return o, &FinalError{Err: err}, true
	case OutcomeNotApplied:
		return o, nil, true
	}
	return NoOutcome, nil, true
}

// outermost returns the first mark in the tree of err, in the order of errors.As.
func outermost(err error) error {
	switch err.(type) {
	case nil, *notAppliedError, *FinalError:
		return err
	case *settledError:
		return nil
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		return outermost(x.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range x.Unwrap() {
			if m := outermost(e); m != nil {
				return m
			}
		}
	}
	return nil
}

// The stored form of an outcome: version, kind, payload.
const outcomeVersion = 1

type kind byte

const (
	kindValue     kind = 1 // payload: the codec's
	kindError     kind = 2 // payload: message, code and details, each after its length
	kindNotStored kind = 3 // payload: the reason
)

func outcomeOf(k kind, payload []byte) []byte {
	return append(append(make([]byte, 0, 2+len(payload)), outcomeVersion, byte(k)), payload...)
}

func encodeError(e *FinalError) []byte {
	b := []byte{outcomeVersion, byte(kindError)}
	for _, s := range [...]string{e.Error(), e.Code, string(e.Details)} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}

// decodeOutcome returns the payload of a value, or the error that a repeat gets:
// a [*FinalError], a [*NotStoredError], or what is wrong with the bytes.
func decodeOutcome(b []byte) ([]byte, error) {
	switch {
	case len(b) < 2:
		return nil, fmt.Errorf("idem: %w: %d bytes", ErrUnreadableResult, len(b))
	case b[0] > outcomeVersion:
		return nil, fmt.Errorf("idem: stored outcome: %w: version %d, this is %d", ErrNewerVersion, b[0], outcomeVersion)
	}
	payload := b[2:]
	switch kind(b[1]) {
	case kindValue:
		return payload, nil
	case kindNotStored:
		return nil, &NotStoredError{Reason: string(payload)}
	case kindError:
		if e, ok := decodeError(payload); ok {
			return nil, e
		}
	}
	return nil, fmt.Errorf("idem: %w: kind %d", ErrUnreadableResult, b[1])
}

func decodeError(b []byte) (*FinalError, bool) {
	var parts [3][]byte
	for i := range parts {
		if len(b) < 4 {
			return nil, false
		}
		n := binary.BigEndian.Uint32(b)
		b = b[4:]
		if uint64(n) > uint64(len(b)) {
			return nil, false
		}
		parts[i], b = b[:n], b[n:]
	}
	e := &FinalError{Message: string(parts[0]), Code: string(parts[1])}
	if len(parts[2]) > 0 {
		e.Details = append([]byte(nil), parts[2]...)
	}
	return e, len(b) == 0
}
