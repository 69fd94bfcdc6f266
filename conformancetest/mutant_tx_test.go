package conformancetest

import (
	"time"

	"github.com/idem-go/idem/driver"
)

var txMutants = []mutant{
	{"returns no attempt", func(h *hooks) {
		h.txReturned = func(r driver.Record) driver.Record {
			r.Attempt = 0
			return r
		}
	}, "tx/claim tx/takeover tx/hold tx/rollback"},
	{"runs again what is complete", func(h *hooks) {
		h.txClaim = claimAs(func(r *driver.Record, _ *driver.ClaimParams, _ time.Time) {
			if r.State == driver.StateComplete {
				*r = driver.Record{}
			}
		})
	}, "tx/replay tx/expired tx/race-claim"},
	{"opens a transaction for nobody", func(h *hooks) { h.opensBeside = true }, "tx/replay tx/leased-in-flight tx/params tx/ended-context"},
	{"lets a duplicate wait", func(h *hooks) { h.waits = true }, "tx/duplicate-at-once tx/duplicate-elsewhere"},
	{"lets a duplicate at another handle wait", func(h *hooks) { h.waitsOther = true }, "tx/duplicate-elsewhere"},
	{"does not hold the key of a transaction", func(h *hooks) { h.lockless = true }, "tx/duplicate-at-once tx/duplicate-elsewhere"},
	{"neither holds the key nor looks again", func(h *hooks) {
		h.lockless, h.rereads = true, false
		h.between = meeting()
	}, "tx/then-no-takeover tx/race-claim tx/claim-beside"},
	{"takes a live lease over", func(h *hooks) {
		h.txClaim = claimAs(func(r *driver.Record, _ *driver.ClaimParams, now time.Time) {
			if r.State == driver.StateInFlight {
				r.LeaseUntil = now
			}
		})
	}, "tx/leased-in-flight"},
	{"starts again instead of taking over", func(h *hooks) {
		h.txClaim = claimAs(func(r *driver.Record, _ *driver.ClaimParams, now time.Time) {
			if r.StateAt(now) == driver.StateUnknown {
				*r = driver.Record{}
			}
		})
	}, "tx/takeover tx/hold tx/mismatch"},
	{"deletes the claim on rollback", func(h *hooks) { h.rollsBackAll = true }, "tx/takeover-rolled-back tx/then-rollback"},
	{"takes over under another request", func(h *hooks) {
		h.txClaim = claimAs(func(r *driver.Record, p *driver.ClaimParams, _ time.Time) {
			p.Operation, p.Fingerprint = r.Operation, r.Fingerprint
		})
	}, "tx/mismatch"},
	{"ignores Resolve in transactions", func(h *hooks) {
		h.txClaim = claimAs(func(_ *driver.Record, p *driver.ClaimParams, _ time.Time) { p.Resolve = false })
	}, "tx/hold"},
	{"stores no outcome", func(h *hooks) { h.stores = false }, "tx/commit tx/results tx/discard tx/replay tx/then-commit tx/then-late tx/then-discard"},
	{"commits rows as they come", func(h *hooks) {
		h.autocommit = true
	}, "tx/rollback tx/many-rows tx/discard tx/unseen tx/commit-other-holder tx/commit-params tx/then-rollback tx/then-discard tx/rollback-ended-context tx/commit-ended-context"},
	{"loses rows", func(h *hooks) { h.racyRows = true }, "tx/race-distinct-keys"},
	{"keeps the rows when told to discard", func(h *hooks) { h.discards = false }, "tx/discard tx/then-discard"},
	{"does not check who commits", func(h *hooks) { h.txFence = false }, "tx/commit-other-holder tx/then-other-holder"},
	{"keeps the rows of a refused commit", func(h *hooks) {
		h.keepsRows = true
	}, "tx/commit-other-holder tx/then-other-holder tx/commit-ended-context tx/commit-params"},
	{"goes on after the end", func(h *hooks) { h.reusable = true }, "tx/used-up"},
	{"commits rows before it looks at the context", func(h *hooks) { h.deafCommit = true }, "tx/commit-ended-context"},
	{"ends with the caller, but for the rows", func(h *hooks) { h.callerCommit = true }, "tx/caller-gone"},
	{"does not roll back for a caller that is gone", func(h *hooks) { h.deafRollback = true }, "tx/rollback-ended-context"},
	{"has no clock in transactions", func(h *hooks) {
		h.txNow = func(now time.Time) time.Time {
			if now.IsZero() {
				now = t0.Add(-keep)
			}
			return now
		}
	}, "tx/own-clock"},
	{"does not check who begins to complete", func(h *hooks) { h.thenFence = false }, "tx/then-stale"},
	{"checks the holder neither before nor after", func(h *hooks) {
		h.thenFence, h.rereads, h.txFence = false, false, false
		h.lockless = true
	}, "tx/then-stale tx/race-takeover"},
	{"states a single writer", func(h *hooks) {
		h.stated = func(g *driver.Guarantees) { g.SingleWriter = true }
	}, "tx/other-keys"},
	{"hides its single writer", func(h *hooks) {
		h.single = true
		h.stated = func(g *driver.Guarantees) { g.SingleWriter = false }
	}, "tx/other-keys"},
	{"leaves goroutines", func(h *hooks) { h.leaks = true }, "tx/no-leak"},
}
