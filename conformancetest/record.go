package conformancetest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/idem-go/idem/driver"
)

// diff returns how two records of one key differ in what a driver must return,
// and "" when they do not. Now is not compared, nor are times that mean nothing in
// the state that is stored.
func diff(got, want driver.Record) string {
	var b strings.Builder
	field := func(name string, same bool, got, want any) {
		if !same {
			fmt.Fprintf(&b, "%s is %v, want %v; ", name, got, want)
		}
	}
	field("State", got.State == want.State, got.State, want.State)
	field("Operation", got.Operation == want.Operation, got.Operation, want.Operation)
	field("Fingerprint", bytes.Equal(got.Fingerprint, want.Fingerprint), got.Fingerprint, want.Fingerprint)
	field("Summary", got.Summary == want.Summary, got.Summary, want.Summary)
	field("Token", got.Token == want.Token, got.Token, want.Token)
	field("Fence", got.Fence == want.Fence, got.Fence, want.Fence)
	field("Attempt", got.Attempt == want.Attempt, got.Attempt, want.Attempt)
	field("Hold", got.Hold == want.Hold, got.Hold, want.Hold)
	field("Note", got.Note == want.Note, got.Note, want.Note)
	field("Result", sameResult(got.Result, want.Result), showBytes(got.Result), showBytes(want.Result))
	instant := func(name string, got, want time.Time) {
		field(name, got.Equal(want), offset(got), offset(want))
	}
	instant("CreatedAt", got.CreatedAt, want.CreatedAt)
	instant("RetainUntil", got.RetainUntil, want.RetainUntil)
	switch want.State {
	case driver.StateInFlight:
		instant("LeaseUntil", got.LeaseUntil, want.LeaseUntil)
	case driver.StateComplete:
		instant("CompletedAt", got.CompletedAt, want.CompletedAt)
		instant("GraceUntil", got.GraceUntil, want.GraceUntil)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// unchanged checks that a key's record is still what it was.
func unchanged(got, want driver.Record) error {
	if d := diff(got, want); d != "" {
		return fmt.Errorf("the record changed: %s", d)
	}
	return nil
}

// sameResult tells no result from an empty one.
func sameResult(a, b []byte) bool {
	return bytes.Equal(a, b) && (a == nil) == (b == nil)
}

func showBytes(b []byte) string {
	switch {
	case b == nil:
		return "none"
	case len(b) > 32:
		return fmt.Sprintf("%q… (%d bytes)", b[:32], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// offset shows an instant as the distance from t0, where rules begin.
func offset(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	if d := t.Sub(t0); d.Abs() < 10*365*24*time.Hour {
		if d < 0 {
			return fmt.Sprintf("t0%v", d)
		}
		return fmt.Sprintf("t0+%v", d)
	}
	return t.Format(time.RFC3339Nano)
}

// show renders a record in one line.
func show(r driver.Record) string {
	if r.State == driver.StateAbsent {
		return "absent"
	}
	s := fmt.Sprintf("%v token=%.8s fence=%d attempt=%d hold=%t", r.State, r.Token, r.Fence, r.Attempt, r.Hold)
	if r.State == driver.StateComplete {
		s += fmt.Sprintf(" result=%s completed=%s grace=%s", showBytes(r.Result), offset(r.CompletedAt), offset(r.GraceUntil))
	} else {
		s += fmt.Sprintf(" lease=%s", offset(r.LeaseUntil))
	}
	return s + fmt.Sprintf(" retain=%s now=%s", offset(r.RetainUntil), offset(r.Now))
}
