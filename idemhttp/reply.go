package idemhttp

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
)

// reply answers the request with what became of the call.
func (a *attempt) reply(ctx context.Context, res idem.Result[Response], err error, prefer preferences, wait time.Duration) {
	if err == nil && res.Replayed {
		a.sendReplay(res.Value, prefer, wait)
		return
	}
	if err == nil {
		a.sendStored(res)
		return
	}
	var final *idem.FinalError
	switch {
	case errors.Is(err, errReleased) && a.ran:
		a.sendOwn()
	case errors.Is(err, idem.ErrNotRecorded) && !errors.Is(err, idem.ErrLeaseLost):
		// The effect has happened, and nobody else will learn of it.
		a.g.log(a.r, "the answer could not be stored", err)
		a.sendOwn()
	case errors.As(err, &final) && !errors.Is(err, idem.ErrNotRecorded):
		a.replyFinal(res, final, prefer, wait)
	case !a.ran && a.g.cfg.FailOpen && unreachable(ctx, err):
		a.g.log(a.r, "the store is unavailable, the request runs unguarded", err)
		a.failOpen()
	default:
		a.g.refuse(a.w, a.r, a.refusal(ctx, err, prefer, wait))
	}
}

// replyFinal answers with an outcome that is an error: the answer of a handler whose
// transaction was rolled back, or what a person has resolved the key with.
func (a *attempt) replyFinal(res idem.Result[Response], final *idem.FinalError, prefer preferences, wait time.Duration) {
	var stored Response
	switch {
	case !res.Replayed:
		a.sendStored(res)
	case final.Code == CodeNotStored:
		a.g.refuse(a.w, a.r, problem(CodeNotStored))
	case final.Code != codeAnswer:
		p := problem(CodeFailed)
		p.Detail, p.Err = final.Message, final
		a.g.refuse(a.w, a.r, p)
	default:
		if err := stored.UnmarshalBinary(final.Details); err != nil {
			a.g.log(a.r, "the request is refused", err)
			p := problem(CodeUnreadable)
			p.Err = err
			a.g.refuse(a.w, a.r, p)
			return
		}
		a.sendReplay(stored, prefer, wait)
	}
}

// sendStored is sendOwn for an answer that ends the operation.
func (a *attempt) sendStored(res idem.Result[Response]) {
	if res.NotStored != nil {
		a.g.log(a.r, "the answer is not stored", res.NotStored)
	}
	a.sendOwn()
}

// sendOwn sends the handler's answer to the caller whose handler ran.
func (a *attempt) sendOwn() {
	h := a.w.Header()
	for name := range a.rec.outer {
		if name == "Trailer" {
			continue // announces trailers of handlers around the guard
		}
		if _, kept := a.answer.Header[name]; !kept {
			delete(h, name)
		}
	}
	send(a.w, a.answer)
}

func (a *attempt) sendReplay(r Response, prefer preferences, wait time.Duration) {
	h := a.w.Header()
	h[a.g.cfg.ReplayedHeader] = []string{"true"}
	if applied := applied(prefer, wait, false); applied != "" {
		h["Preference-Applied"] = []string{applied}
	}
	send(a.w, r)
}

// unreachable reports whether a key could not be claimed because the store did not
// answer. A store that did answer, if only that it is not to be used, or that holds
// a record which cannot be read, does not let a handler run; neither does one that
// went down after it had said that somebody holds the key.
func unreachable(ctx context.Context, err error) bool {
	for _, answer := range [...]error{
		driver.ErrNewerVersion, driver.ErrForeignRecord, driver.ErrUnsafeConfig, driver.ErrInvalidParams, driver.ErrInvalidKey,
	} {
		if errors.Is(err, answer) {
			return false
		}
	}
	store := new(idem.StoreError)
	return errors.As(err, &store) && store.Verb == "claim" || context.Cause(ctx) == errTooSlow
}

// failOpen runs the handler without the guard.
func (a *attempt) failOpen() {
	r := a.r.WithContext(a.r.Context())
	a.replay(r)
	a.next.ServeHTTP(a.w, r)
	a.keepFiles(r)
}

// applied returns the value of Preference-Applied for the answer to a repeat.
func applied(prefer preferences, wait time.Duration, async bool) (s string) {
	if prefer.hasWait {
		s = "wait=" + strconv.FormatInt(int64(wait/time.Second), 10)
	}
	if prefer.async && async {
		if s != "" {
			s += ", "
		}
		s += "respond-async"
	}
	return s
}

// refusals maps errors of the core to codes; the first that matches decides.
var refusals = []struct {
	is   error
	code string
}{
	{errTooSlow, CodeUnavailable},
	{idem.ErrInvalidFingerprint, CodeFingerprintInvalid},
	{idem.ErrLeaseLost, CodeInFlight},
	{idem.ErrInFlight, CodeInFlight},
	{idem.ErrMismatch, CodeConflict},
	{idem.ErrExpired, CodeExpired},
	{idem.ErrResultNotStored, CodeNotStored},
	{idem.ErrUnreadableResult, CodeUnreadable},
	{idem.ErrNested, CodeNested},
	{idem.ErrRetryable, CodeRolledBack},
	{idem.ErrStore, CodeUnavailable},
	{idem.ErrNewerVersion, CodeUnavailable},
}

// refusal returns the problem that an error is.
func (a *attempt) refusal(ctx context.Context, err error, prefer preferences, wait time.Duration) Problem {
	p := problem(code(ctx, err, a.ran))
	p.Err = err
	switch p.Code {
	case CodeInFlight:
		p.RetryAfter = time.Second
		if busy := new(idem.InFlightError); errors.As(err, &busy) {
			p.RetryAfter = busy.RetryAfter
		}
		async := prefer.async || a.g.cfg.InFlight == Accepted
		p.Applied = applied(prefer, wait, async)
		if async {
			p.Status = http.StatusAccepted
			if a.g.cfg.Reference != nil {
				p.Reference = a.g.cfg.Reference(a.r, a.call.key)
			}
		}
	case CodeConflict:
		if other := new(idem.MismatchError); errors.As(err, &other) {
			p.StoredRequest = storedRequest(other)
			switch other.Reason {
			case idem.MismatchOperation:
				p.Detail = "The key was used on another endpoint. " + p.Detail
			case idem.MismatchRecipe:
				p.Detail = "The key was first seen when requests were compared in another way. " + p.Detail
			}
		}
	case CodeUnavailable, CodeRolledBack, CodeUnreadable, CodeUnconfirmed, CodeNested, CodeFingerprintInvalid:
		a.g.log(a.r, "the request is refused", err)
	case CodeInterrupted:
		if a.r.Context().Err() == nil { // not by its client
			a.g.log(a.r, "the request is refused", err)
		}
	}
	return p
}

func code(ctx context.Context, err error, ran bool) string {
	var unknown *idem.UnknownError
	switch {
	case errors.As(err, &unknown) && unknown.Err != nil:
		return CodeUnconfirmed
	case errors.Is(err, idem.ErrUnknown):
		return CodeUnknown
	case !ran && context.Cause(ctx) == errTooSlow:
		return CodeUnavailable
	}
	for _, r := range refusals {
		if errors.Is(err, r.is) {
			return r.code
		}
	}
	return CodeInterrupted
}
