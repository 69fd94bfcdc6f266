package conformancetest

import (
	"bytes"
	"errors"
	"time"

	"github.com/idem-go/idem/driver"
)

// Short names for the hooks' signatures.
type (
	claimFunc    = func(driver.Record, driver.ClaimParams, time.Time) (driver.Record, bool)
	completeFunc = func(driver.Record, driver.CompleteParams, time.Time) (driver.Record, error)
)

// asHolder changes the holder's token and fence before a verb sees them.
func asHolder(h *hooks, change func(r driver.Record, p *driver.HolderParams)) {
	h.renew = func(r driver.Record, p driver.RenewParams, now time.Time) (driver.Record, error) {
		change(r, &p.HolderParams)
		return r.AfterRenew(p, now)
	}
	h.complete = func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
		change(r, &p.HolderParams)
		return r.AfterComplete(p, now)
	}
	h.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
		change(r, &p.HolderParams)
		return r.AfterRelease(p, now)
	}
}

// claimAs changes the record or the params before a claim sees them.
func claimAs(change func(r *driver.Record, p *driver.ClaimParams, now time.Time)) claimFunc {
	return func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
		change(&r, &p, now)
		return r.AfterClaim(p, now)
	}
}

// claimThen changes what a claim was answered; write says whether it was granted.
func claimThen(change func(r *driver.Record, p driver.ClaimParams, write bool)) claimFunc {
	return func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
		r, write := r.AfterClaim(p, now)
		change(&r, p, write)
		return r, write
	}
}

var claimMutants = []mutant{
	{"forgets Hold", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, _ driver.ClaimParams, _ bool) { r.Hold = false })
	}, "claim/absent claim/hold claim/resolve purge/held random/model"},
	{"lets everybody take over", func(h *hooks) {
		h.claim = claimAs(func(r *driver.Record, _ *driver.ClaimParams, now time.Time) {
			if r.State == driver.StateInFlight {
				r.LeaseUntil = now
			}
		})
	}, "claim/duplicate-in-flight claim/own-clock resend/claim-after-takeover race/claim random/model handles/claim"},
	{"loses the result on replay", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, _ driver.ClaimParams, _ bool) { r.Result = nil })
	}, "claim/replay result/every-byte handles/outcome random/model"},
	{"keeps a released key until its lease ends", func(h *hooks) {
		h.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
			p.Abandon = false
			next, err := r.AfterRelease(p, now)
			next.State = r.State
			return next, err
		}
	}, "claim/after-release resend/claim-after-release resend/release expiry/abandon reopen/ends handles/release random/model race/after-release"},
	{"does not count attempts", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, _ driver.ClaimParams, _ bool) { r.Attempt = 1 })
	}, "claim/takeover claim/attempt-counts claim/own-clock-runs race/takeover random/model"},
	{"takes over under Hold", func(h *hooks) {
		h.claim = claimAs(func(_ *driver.Record, p *driver.ClaimParams, _ time.Time) { p.Hold = false })
	}, "claim/absent claim/hold-by-the-next random/model"},
	{"takes over what is held", func(h *hooks) {
		h.claim = claimAs(func(_ *driver.Record, p *driver.ClaimParams, _ time.Time) { p.Resolve = true })
	}, "claim/hold claim/hold-by-the-next expiry/abandon random/model"},
	{"ignores Resolve", func(h *hooks) {
		h.claim = claimAs(func(_ *driver.Record, p *driver.ClaimParams, _ time.Time) { p.Resolve = false })
	}, "claim/resolve random/model"},
	{"drops Hold when it is resolved", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, p driver.ClaimParams, _ bool) { r.Hold = r.Hold && !p.Resolve })
	}, "claim/resolve"},
	{"keeps one record a scope", func(h *hooks) {
		h.key = func(k driver.Key) string { return k.Scope }
	}, "claim/one-key-only key/looks-alike key/printable result/kept-apart race/distinct-keys"},
	{"answers in flight when it is busy", func(h *hooks) {
		h.busyIsInFlight = true
		h.between = func() { time.Sleep(100 * time.Microsecond) }
	}, "race/distinct-keys race/claim"},
	{"is not atomic", func(h *hooks) {
		h.between = func() { time.Sleep(100 * time.Microsecond) }
	}, "race/claim race/takeover race/after-release race/complete-and-takeover race/one-end race/purge"},
	{"counts a repeated claim as an attempt", func(h *hooks) {
		h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
			again := r.State == driver.StateInFlight && r.Token == p.Token
			r, write := r.AfterClaim(p, now)
			if again {
				r.Attempt++
			}
			return r, write || again
		}
	}, "resend/claim resend/claim-unknown race/same-token random/model"},
	{"refuses its own token", func(h *hooks) {
		h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
			if r.StateAt(now) == driver.StateInFlight || r.StateAt(now) == driver.StateUnknown && r.Token == p.Token {
				r.Token[0] ^= 1
				return r, false
			}
			return r.AfterClaim(p, now)
		}
	}, "resend/claim resend/claim-unknown race/same-token random/model"},
	{"shortens the lease on a delayed claim", func(h *hooks) {
		h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
			next, write := r.AfterClaim(p, now)
			if next.State == driver.StateInFlight && next.Token == p.Token {
				next.LeaseUntil = driver.Micro(now.Add(p.Lease))
				write = true
			}
			return next, write
		}
	}, "resend/claim"},
	{"forgets released tokens", func(h *hooks) {
		h.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
			next, err := r.AfterRelease(p, now)
			if err == nil && next.State == driver.StateReleased {
				next.Token = driver.NewToken()
			}
			return next, err
		}
	}, "resend/claim-after-release resend/release purge/released reopen/ends random/model"},
	{"runs again under a token that has completed", func(h *hooks) {
		h.claim = claimAs(func(r *driver.Record, p *driver.ClaimParams, _ time.Time) {
			if r.State == driver.StateComplete && r.Token == p.Token {
				*r = driver.Record{}
			}
		})
	}, "resend/claim-after-complete random/model"},
	{"lets a completion sent again win", func(h *hooks) {
		h.complete = func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
			if r.State == driver.StateComplete && r.Token == p.Token && r.Fence == p.Fence {
				r.State = driver.StateInFlight
			}
			return r.AfterComplete(p, now)
		}
	}, "resend/complete random/model"},
	{"refuses a completion sent again", func(h *hooks) {
		h.complete = func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
			if r.State == driver.StateComplete {
				return r, driver.ErrNotHolder
			}
			return r.AfterComplete(p, now)
		}
	}, "resend/complete random/model"},
	{"refuses a release sent again", func(h *hooks) {
		h.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
			if r.State == driver.StateReleased || r.StateAt(now) == driver.StateUnknown {
				return r, driver.ErrNotHolder
			}
			return r.AfterRelease(p, now)
		}
	}, "resend/release resend/abandon expiry/abandon-late random/model"},
	{"does not check the fence", func(h *hooks) {
		asHolder(h, func(r driver.Record, p *driver.HolderParams) { p.Fence = r.Fence })
		h.forget = func(r driver.Record, p driver.ForgetParams) (bool, error) {
			p.Fence = r.Fence
			return r.AfterForget(p)
		}
	}, "fence/stale-renew fence/stale-complete fence/stale-release fence/stale-abandon fence/exact forget/another random/model"},
	{"does not check the token", func(h *hooks) {
		asHolder(h, func(r driver.Record, p *driver.HolderParams) { p.Token = r.Token })
		h.forget = func(r driver.Record, p driver.ForgetParams) (bool, error) {
			p.Token = r.Token
			return r.AfterForget(p)
		}
	}, "fence/stale-renew fence/stale-complete fence/stale-release fence/stale-abandon fence/exact forget/another"},
	{"checks neither", func(h *hooks) {
		asHolder(h, func(r driver.Record, p *driver.HolderParams) { p.Token, p.Fence = r.Token, r.Fence })
	}, "handles/takeover fence/stale-complete race/complete-and-takeover"},
	{"tolerates a fence that is one off", func(h *hooks) {
		asHolder(h, func(r driver.Record, p *driver.HolderParams) {
			if d := p.Fence - r.Fence; d == 1 || d == -1 {
				p.Fence = r.Fence
			}
		})
	}, "fence/exact"},
	{"lets a holder go on after the end", func(h *hooks) {
		asHolder(h, func(r driver.Record, p *driver.HolderParams) {})
		revive := func(r driver.Record) driver.Record {
			if r.State == driver.StateComplete || r.State == driver.StateReleased {
				r.State = driver.StateInFlight
			}
			return r
		}
		h.renew = func(r driver.Record, p driver.RenewParams, now time.Time) (driver.Record, error) {
			return revive(r).AfterRenew(p, now)
		}
		h.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
			return revive(r).AfterRelease(p, now)
		}
	}, "fence/after-end random/model"},
	{"makes a record for whoever completes", func(h *hooks) {
		asHolder(h, func(r driver.Record, p *driver.HolderParams) {})
		h.complete = func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
			if r.State == driver.StateAbsent {
				r = driver.Record{Key: p.Key, State: driver.StateInFlight, Token: p.Token, Fence: p.Fence}
			}
			return r.AfterComplete(p, now)
		}
	}, "fence/no-record random/model"},
	{"counts fences from one", func(h *hooks) {
		h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
			fence := r.Fence
			r, write := r.AfterClaim(p, now)
			if write {
				r.Fence = fence + 1
			}
			return r, write
		}
	}, "fence/follows-the-clock fence/grows claim/absent claim/own-clock"},
	{"takes fences from the clock alone", func(h *hooks) {
		h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
			r, write := r.AfterClaim(p, now)
			if write {
				r.Fence = now.UnixMicro()
			}
			return r, write
		}
	}, "fence/grows reopen/ends"},
	{"answers a mismatch with the request it got", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, p driver.ClaimParams, write bool) {
			if !write {
				r.Operation, r.Fingerprint, r.Summary = p.Operation, p.Fingerprint, p.Summary
			}
		})
	}, "mismatch/in-flight mismatch/complete mismatch/expired mismatch/unknown-fingerprint mismatch/unknown-operation random/model"},
	{"forgets what a tombstone was for", func(h *hooks) {
		h.claim = claimThen(func(r *driver.Record, _ driver.ClaimParams, _ bool) {
			if r.StateAt(r.Now) == driver.StateExpired {
				r.Operation, r.Fingerprint = "", nil
			}
		})
	}, "mismatch/expired random/model"},
	{"takes over whatever the fingerprint", func(h *hooks) {
		h.claim = claimAs(func(r *driver.Record, p *driver.ClaimParams, now time.Time) {
			if r.StateAt(now) == driver.StateUnknown {
				p.Fingerprint = r.Fingerprint
			}
		})
	}, "mismatch/unknown-fingerprint mismatch/fingerprint-exact"},
	{"takes over whatever the operation", func(h *hooks) {
		h.claim = claimAs(func(r *driver.Record, p *driver.ClaimParams, now time.Time) {
			if r.StateAt(now) == driver.StateUnknown {
				p.Operation = r.Operation
			}
		})
	}, "mismatch/unknown-operation"},
	{"resolves whatever the request", func(h *hooks) {
		h.claim = claimAs(func(r *driver.Record, p *driver.ClaimParams, now time.Time) {
			if r.StateAt(now) == driver.StateUnknown && p.Resolve {
				p.Operation, p.Fingerprint = r.Operation, r.Fingerprint
			}
		})
	}, "mismatch/resolve random/model"},
	{"compares fingerprints as text", func(h *hooks) {
		h.claim = claimAs(func(r *driver.Record, p *driver.ClaimParams, now time.Time) {
			if bytes.EqualFold(r.Fingerprint, p.Fingerprint) {
				p.Fingerprint = r.Fingerprint
			}
		})
	}, "mismatch/fingerprint-exact"},
	{"cuts summaries", func(h *hooks) {
		h.claim = claimAs(func(_ *driver.Record, p *driver.ClaimParams, _ time.Time) {
			p.Summary = p.Summary[:min(255, len(p.Summary))]
		})
	}, "mismatch/text-exact"},
	{"does not check parameters", func(h *hooks) {
		h.valid = func(error) error { return nil }
	}, "params/key params/claim params/holder params/limits params/error-is-discreet tx/params tx/commit-params"},
	{"calls every bad parameter a bad key", func(h *hooks) {
		h.valid = func(err error) error {
			if err != nil {
				err = driver.ErrInvalidKey
			}
			return err
		}
	}, "params/claim params/holder params/limits"},
	{"calls a bad key a bad parameter", func(h *hooks) {
		h.valid = func(err error) error {
			if errors.Is(err, driver.ErrInvalidKey) {
				err = driver.ErrInvalidParams
			}
			return err
		}
	}, "params/key tx/params"},
}
