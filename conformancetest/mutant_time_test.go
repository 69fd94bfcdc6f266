package conformancetest

import (
	"context"
	"time"

	"github.com/idem-go/idem/driver"
)

// completeThen changes a record that was completed.
func completeThen(change func(r *driver.Record, p driver.CompleteParams)) completeFunc {
	return func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
		r, err := r.AfterComplete(p, now)
		if err == nil {
			change(&r, p)
		}
		return r, err
	}
}

var timeMutants = []mutant{
	{"has a clock that stands still", func(h *hooks) {
		still := time.Now()
		now := h.now
		h.now = func(t time.Time) time.Time {
			if t.IsZero() {
				t = still
			}
			return now(t)
		}
	}, "claim/own-clock-runs guarantees/clock"},
	{"does not say when it read", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, _ driver.ClaimParams, _ bool) { r.Now = time.Time{} })
	}, "claim/own-clock expiry/microseconds"},
	{"has a clock that is an hour late", func(h *hooks) {
		now := h.now
		h.now = func(t time.Time) time.Time {
			if t.IsZero() {
				t = time.Now().Add(-time.Hour)
			}
			return now(t)
		}
	}, "guarantees/clock"},
	{"goes by its own clock always", func(h *hooks) {
		h.now = func(time.Time) time.Time { return driver.Micro(time.Now()) }
	}, "claim/takeover expiry/lease expiry/retention guarantees/clock purge/bounded"},
	{"keeps whole seconds", func(h *hooks) {
		now := h.now
		h.now = func(t time.Time) time.Time { return now(t).Truncate(time.Second) }
	}, "expiry/microseconds"},
	{"ends leases a microsecond late", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, _ driver.ClaimParams, write bool) {
			if write {
				r.LeaseUntil = r.LeaseUntil.Add(time.Microsecond)
			}
		})
	}, "expiry/lease claim/absent claim/takeover"},
	{"never forgets an unknown outcome", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, p driver.ClaimParams, write bool) {
			if write {
				r.RetainUntil = r.RetainUntil.Add(1000 * time.Hour)
			}
		})
	}, "expiry/unknown purge/unknown claim/absent"},
	{"has no tombstones", func(h *hooks) {
		h.complete = completeThen(func(r *driver.Record, _ driver.CompleteParams) { r.GraceUntil = r.RetainUntil })
	}, "expiry/retention mismatch/expired purge/tombstone random/model tx/expired"},
	{"replays tombstones", func(h *hooks) {
		h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
			if r.StateAt(now) == driver.StateExpired {
				r.Now = now
				return r, false
			}
			return r.AfterClaim(p, now)
		}
		h.txClaim = h.claim
	}, "expiry/retention random/model tx/expired"},
	{"never ends the grace", func(h *hooks) {
		h.complete = completeThen(func(r *driver.Record, p driver.CompleteParams) { r.GraceUntil = r.GraceUntil.Add(grace) })
	}, "expiry/grace expiry/no-grace purge/bounded race/purge"},
	{"keeps the old result in a new record", func(h *hooks) {
		h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
			old := r.Result
			r, write := r.AfterClaim(p, now)
			if write {
				r.Result = old
			}
			return r, write
		}
	}, "expiry/grace"},
	{"counts retention from the claim", func(h *hooks) {
		h.complete = completeThen(func(r *driver.Record, p driver.CompleteParams) {
			r.RetainUntil = r.CreatedAt.Add(p.Retention)
			r.GraceUntil = r.RetainUntil.Add(p.Grace)
		})
	}, "expiry/from-completion random/model"},
	{"only ever lengthens a lease", func(h *hooks) {
		h.renew = func(r driver.Record, p driver.RenewParams, now time.Time) (driver.Record, error) {
			next, err := r.AfterRenew(p, now)
			if next.LeaseUntil.Before(r.LeaseUntil) {
				next = r
			}
			return next, err
		}
	}, "expiry/renew"},
	{"renews no lease that has ended", func(h *hooks) {
		h.renew = func(r driver.Record, p driver.RenewParams, now time.Time) (driver.Record, error) {
			if r.StateAt(now) != driver.StateInFlight {
				return r, driver.ErrNotHolder
			}
			return r.AfterRenew(p, now)
		}
	}, "expiry/renew-late random/model"},
	{"refuses a late completion", func(h *hooks) {
		h.complete = func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
			if r.StateAt(now) == driver.StateUnknown {
				return r, driver.ErrNotHolder
			}
			return r.AfterComplete(p, now)
		}
	}, "expiry/complete-late random/model"},
	{"releases what is abandoned", func(h *hooks) {
		h.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
			p.Abandon = false
			return r.AfterRelease(p, now)
		}
	}, "expiry/abandon expiry/abandon-late resend/abandon random/model"},
	{"moves a lease that has ended to now", func(h *hooks) {
		h.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
			r, err := r.AfterRelease(p, now)
			if err == nil && p.Abandon {
				r.LeaseUntil = now
			}
			return r, err
		}
	}, "expiry/abandon-late random/model"},
	{"keeps instants in floats", func(h *hooks) {
		round := func(t time.Time) time.Time { return time.UnixMicro(int64(float32(t.UnixMicro()))).UTC() }
		h.complete = completeThen(func(r *driver.Record, _ driver.CompleteParams) { r.GraceUntil = round(r.GraceUntil) })
	}, "expiry/a-century expiry/from-completion"},
	{"ignores the context", func(h *hooks) {
		h.ended = func(context.Context) error { return nil }
	}, "cancel/claim cancel/renew cancel/complete cancel/release cancel/forget cancel/reads cancel/purge cancel/deadline tx/ended-context"},
	{"reports an ended context as somebody else's claim", func(h *hooks) {
		h.ended = func(ctx context.Context) error {
			if ctx.Err() != nil {
				return driver.ErrNotHolder
			}
			return nil
		}
	}, "cancel/claim cancel/renew cancel/complete cancel/release cancel/forget cancel/reads cancel/purge cancel/deadline"},
	{"purges beyond the limit", func(h *hooks) {
		h.limit = func(int) int { return 1 << 30 }
	}, "purge/bounded"},
	{"purges less than it could", func(h *hooks) {
		h.limit = func(n int) int { return n - 1 }
	}, "purge/bounded"},
	{"purges claims by their retention alone", func(h *hooks) {
		h.purge = func(r driver.Record, now time.Time) (driver.Record, bool, bool) {
			if r.State == driver.StateInFlight && !r.Hold {
				r.LeaseUntil = time.Time{}
			}
			return r.AfterPurge(now)
		}
	}, "purge/live-claim"},
	{"purges unknown outcomes", func(h *hooks) {
		h.purge = func(r driver.Record, now time.Time) (driver.Record, bool, bool) {
			if r.State == driver.StateInFlight {
				r.RetainUntil = r.LeaseUntil
			}
			return r.AfterPurge(now)
		}
	}, "purge/unknown random/model"},
	{"purges what is held", func(h *hooks) {
		h.purge = func(r driver.Record, now time.Time) (driver.Record, bool, bool) {
			r.Hold = false
			return r.AfterPurge(now)
		}
	}, "purge/held"},
	{"purges outcomes early", func(h *hooks) {
		h.purge = func(r driver.Record, now time.Time) (driver.Record, bool, bool) {
			return r.AfterPurge(now.Add(lease))
		}
	}, "purge/outcome purge/unknown purge/released"},
	{"purges tombstones", func(h *hooks) {
		h.purge = func(r driver.Record, now time.Time) (driver.Record, bool, bool) {
			next, due, remove := r.AfterPurge(now)
			return next, due, due || remove
		}
	}, "purge/tombstone random/model"},
	{"purges the result of a tombstone for ever", func(h *hooks) {
		h.purge = func(r driver.Record, now time.Time) (driver.Record, bool, bool) {
			next, due, remove := r.AfterPurge(now)
			if r.StateAt(now) == driver.StateExpired && !due {
				return r, true, false
			}
			return next, due, remove
		}
		h.limit = func(n int) int { return min(n, 10) }
	}, "purge/tombstone"},
	{"never purges what was released", func(h *hooks) {
		h.purge = func(r driver.Record, now time.Time) (driver.Record, bool, bool) {
			if r.State == driver.StateReleased {
				return r, false, false
			}
			return r.AfterPurge(now)
		}
	}, "purge/released"},
	{"purges by a clock that is years ahead", func(h *hooks) {
		h.purge = func(r driver.Record, now time.Time) (driver.Record, bool, bool) {
			if now.Before(t0) {
				now = t0.Add(1000 * keep)
			}
			return r.AfterPurge(now)
		}
	}, "purge/own-clock"},
}
