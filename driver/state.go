package driver

import (
	"bytes"
	"time"
)

// The methods of this file are the machine of a stored record, as pure functions
// over (record, params, now). Drivers that can read and write a record in one
// atomic step call them; the others say the same in SQL or Lua, and the
// conformance suite holds them to it.

// Micro returns t in UTC, cut to whole microseconds: the precision every store keeps.
func Micro(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.UnixMicro(t.UnixMicro()).UTC()
}

// AfterClaim returns the record after a claim at now, and whether it differs
// from r and has to be written:
//
//	state      condition                                      record
//	absent     released under p.Token                         unchanged: the token is used up
//	absent                                                    new claim, attempt 1
//	in-flight  held by p.Token                                lease extended
//	in-flight                                                 unchanged
//	unknown    held by p.Token                                lease extended
//	unknown    another operation or fingerprint               unchanged
//	unknown    r.Hold or p.Hold, and not p.Resolve            unchanged
//	unknown                                                   taken over: p.Token, attempt+1
//	complete                                                  unchanged
//	expired                                                   unchanged, without the result
//
// The fence of a new claim or a takeover is the greater of the old fence plus
// one and now in microseconds, so that it grows also when the old record is gone.
// The record returned carries Now.
func (r Record) AfterClaim(p ClaimParams, now time.Time) (Record, bool) {
	now = Micro(now)
	r.Now = now
	switch state := r.StateAt(now); state {
	case StateAbsent:
		if r.State == StateReleased && r.Token == p.Token {
			return r, false
		}
		next := Record{
			Key: p.Key, Operation: p.Operation, Fingerprint: bytes.Clone(p.Fingerprint), Summary: p.Summary,
			CreatedAt: now, Hold: p.Hold, Now: now, Fence: r.Fence,
		}
		if r.State == StateReleased && now.Before(r.RetainUntil) {
			next.Note = r.Note
		}
		next.grant(&p, now)
		return next, true
	case StateInFlight, StateUnknown:
		if r.Token == p.Token {
			if until := now.Add(p.Lease); until.After(r.LeaseUntil) {
				r.LeaseUntil = until
				return r, true
			}
			return r, false
		}
		if state == StateUnknown && r.Same(p) && (p.Resolve || !r.Hold && !p.Hold) {
			r.Hold = r.Hold || p.Hold
			r.grant(&p, now)
			return r, true
		}
	case StateExpired:
		r.Result = nil
	}
	return r, false
}

// Same reports whether a claim is for the operation and the request of r.
func (r Record) Same(p ClaimParams) bool {
	return r.Operation == p.Operation && bytes.Equal(r.Fingerprint, p.Fingerprint)
}

func (r *Record) grant(p *ClaimParams, now time.Time) {
	r.State = StateInFlight
	r.Token = p.Token
	r.Fence = max(r.Fence+1, now.UnixMicro())
	r.Attempt++
	r.LeaseUntil = now.Add(p.Lease)
	r.RetainUntil = now.Add(p.Retention)
}

// AfterRenew returns the record after a renewal at now, or [ErrNotHolder].
func (r Record) AfterRenew(p RenewParams, now time.Time) (Record, error) {
	if !r.HeldBy(p.Token, p.Fence) {
		return r, ErrNotHolder
	}
	r.LeaseUntil = Micro(now).Add(p.Lease)
	return r, nil
}

// AfterComplete returns the record after a completion at now, or [ErrNotHolder].
// A record that is complete under the same token and fence is returned unchanged.
// The lease need not be live: a holder that was late, but was not taken over,
// knows the outcome, and nobody else does.
func (r Record) AfterComplete(p CompleteParams, now time.Time) (Record, error) {
	if r.State == StateComplete && r.Token == p.Token && r.Fence == p.Fence {
		return r, nil
	}
	if !r.HeldBy(p.Token, p.Fence) {
		return r, ErrNotHolder
	}
	now = Micro(now)
	r.State = StateComplete
	r.Result = bytes.Clone(p.Result)
	r.CompletedAt = now
	r.RetainUntil = now.Add(p.Retention)
	r.GraceUntil = r.RetainUntil.Add(p.Grace)
	if p.Note != "" {
		r.Note = p.Note
	}
	return r, nil
}

// AfterRelease returns the record after a release at now, or [ErrNotHolder]. A
// released record remembers its token until the lease it gave up would have
// ended, so that a claim delayed on the network is not granted to a holder that
// has gone; one with a note is kept as long as the claim would have been.
func (r Record) AfterRelease(p ReleaseParams, now time.Time) (Record, error) {
	if r.State == StateReleased && r.Token == p.Token && r.Fence == p.Fence {
		return r, nil
	}
	if !r.HeldBy(p.Token, p.Fence) {
		return r, ErrNotHolder
	}
	if p.Note != "" {
		r.Note = p.Note
	}
	if p.Abandon {
		if now = Micro(now); now.Before(r.LeaseUntil) {
			r.LeaseUntil = now
		}
		return r, nil
	}
	r.State = StateReleased
	if r.Note == "" {
		r.RetainUntil = r.LeaseUntil
	}
	return r, nil
}

// AfterForget reports whether the record has to be deleted, or returns [ErrNotHolder].
func (r Record) AfterForget(p ForgetParams) (remove bool, err error) {
	switch {
	case r.State == StateAbsent:
		return false, nil
	case r.State == StateComplete && r.Token == p.Token && r.Fence == p.Fence:
		return true, nil
	}
	return false, ErrNotHolder
}

// DueAt returns when Purge next has something to do with the record, and false
// when it never has: a claim that is held until someone resolves it.
func (r Record) DueAt() (time.Time, bool) {
	switch r.State {
	case StateComplete:
		if r.Result != nil && r.RetainUntil.Before(r.GraceUntil) {
			return r.RetainUntil, true
		}
		return r.GraceUntil, true
	case StateInFlight:
		if r.Hold {
			return time.Time{}, false
		}
		if r.LeaseUntil.After(r.RetainUntil) {
			return r.LeaseUntil, true
		}
	}
	return r.RetainUntil, true
}

// AfterPurge returns what is left of a record that is due at now: the record
// without its result while its grace lasts, or nothing (remove is true). A record
// that is not due comes back as it was, with due false.
func (r Record) AfterPurge(now time.Time) (next Record, due, remove bool) {
	at, ok := r.DueAt()
	if r.State == StateAbsent || !ok || now.Before(at) {
		return r, false, false
	}
	if r.State == StateComplete && now.Before(r.GraceUntil) {
		r.Result = nil
		return r, true, false
	}
	return r, true, true
}
