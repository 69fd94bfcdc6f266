package conformancetest

import (
	"context"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

var claimRules = []rule{
	{
		id:      "claim/absent",
		promise: "a claim on a key without a record is granted, as attempt 1, with everything it asked for",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			p.Hold = true
			r, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			want, _ := driver.Record{}.AfterClaim(p, t0)
			if d := diff(r, want); d != "" {
				return fmt.Errorf("the record returned: %s", d)
			}
			stored, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			if d := diff(stored, want); d != "" {
				return fmt.Errorf("the record stored: %s", d)
			}
			return nil
		},
	},
	{
		id:      "claim/duplicate-in-flight",
		promise: "while a lease is live every other claim is answered in flight, and changes nothing",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.held(ctx)
			if err != nil {
				return err
			}
			last := t0.Add(lease - time.Microsecond)
			r, err := refuse(ctx, e.d, e.claim(p.Key, last))
			if err != nil {
				return err
			}
			if d := diff(r, first); d != "" {
				return fmt.Errorf("the record returned: %s", d)
			}
			r, err = e.get(ctx, p.Key, last)
			if err != nil {
				return err
			}
			return unchanged(r, first)
		},
	},
	{
		id:      "claim/replay",
		promise: "a claim on a complete key returns the stored outcome, and changes nothing",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			for _, at := range []time.Duration{0, lease, keep - time.Microsecond} {
				r, err := refuse(ctx, e.d, e.claim(p.Key, t0.Add(at)))
				if err != nil {
					return err
				}
				if d := diff(r, first); d != "" {
					return fmt.Errorf("%v after the completion: %s", at, d)
				}
			}
			r, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(r, first)
		},
	},
	{
		id:      "claim/after-release",
		promise: "a released key is granted at once to the next claim, as attempt 1",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, first, t0)}); err != nil {
				return fmt.Errorf("release by the holder: %w", err)
			}
			if err := e.stateIs(ctx, p.Key, t0, driver.StateAbsent); err != nil {
				return err
			}
			next := e.claim(p.Key, t0)
			next.Fingerprint = []byte("another request")
			r, err := grant(ctx, e.d, next)
			if err != nil {
				return err
			}
			if r.Attempt != 1 || string(r.Fingerprint) != "another request" {
				return fmt.Errorf("the new claim is attempt %d with fingerprint %q, want attempt 1 with its own", r.Attempt, r.Fingerprint)
			}
			return nil
		},
	},
	{
		id:      "claim/takeover",
		promise: "a claim whose lease ended without an outcome is taken over, as attempt 2 under a new fence",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.held(ctx)
			if err != nil {
				return err
			}
			now := t0.Add(lease)
			next := e.claim(p.Key, now)
			next.Summary = "sent again"
			want, _ := first.AfterClaim(next, now)
			r, err := grant(ctx, e.d, next)
			if err != nil {
				return err
			}
			if d := diff(r, want); d != "" {
				return fmt.Errorf("the record returned: %s", d)
			}
			r, err = e.get(ctx, p.Key, now)
			if err != nil {
				return err
			}
			return unchanged(r, want)
		},
	},
	{
		id:      "claim/attempt-counts",
		promise: "every takeover is one attempt more than the last",
		check: func(ctx context.Context, e *env) error {
			k, now := e.key(), t0
			for want := 1; want <= 5; want++ {
				r, err := grant(ctx, e.d, e.claim(k, now))
				if err != nil {
					return err
				}
				if r.Attempt != want {
					return fmt.Errorf("takeover %d is attempt %d", want-1, r.Attempt)
				}
				now = now.Add(lease)
			}
			return nil
		},
	},
	// Field case C06.
	{
		id:      "claim/hold",
		promise: "a claim made under Hold is never taken over, however long ago its lease and its retention ended",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			p.Hold = true
			first, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			for _, at := range []time.Duration{lease, retention, 100 * retention} {
				now := t0.Add(at)
				if _, err := refuse(ctx, e.d, e.claim(p.Key, now)); err != nil {
					return fmt.Errorf("%v later: %w", at, err)
				}
				if err := e.stateIs(ctx, p.Key, now, driver.StateUnknown); err != nil {
					return err
				}
			}
			r, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(r, first)
		},
	},
	{
		id:      "claim/hold-by-the-next",
		promise: "a claimer under Hold does not take over what an earlier one left unknown",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.held(ctx)
			if err != nil {
				return err
			}
			next := e.claim(p.Key, t0.Add(lease))
			next.Hold = true
			_, err = refuse(ctx, e.d, next)
			return err
		},
	},
	{
		id:      "claim/resolve",
		promise: "a claim with Resolve takes over what is held, and the record stays held",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			p.Hold = true
			first, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			live := e.claim(p.Key, t0)
			live.Resolve = true
			if _, err := refuse(ctx, e.d, live); err != nil {
				return fmt.Errorf("resolve while the lease is live: %w", err)
			}
			now := t0.Add(lease)
			next := e.claim(p.Key, now)
			next.Resolve = true
			want, _ := first.AfterClaim(next, now)
			r, err := grant(ctx, e.d, next)
			if err != nil {
				return err
			}
			if d := diff(r, want); d != "" {
				return fmt.Errorf("the record returned: %s", d)
			}
			if !r.Hold {
				return fmt.Errorf("the record is no longer held: %s", show(r))
			}
			return nil
		},
	},
	{
		id:      "claim/one-key-only",
		promise: "verbs on one key leave every other key alone",
		check: func(ctx context.Context, e *env) error {
			pa, _, err := e.held(ctx)
			if err != nil {
				return err
			}
			pb, b, err := e.held(ctx)
			if err != nil {
				return err
			}
			_, c, err := e.completed(ctx, []byte("c"))
			if err != nil {
				return err
			}
			if err := e.d.Complete(ctx, complete(b, t0, []byte("b"))); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			if err := e.d.Forget(ctx, driver.ForgetParams{HolderParams: holder(c.Key, c, t0)}); err != nil {
				return fmt.Errorf("forget: %w", err)
			}
			if err := e.stateIs(ctx, pa.Key, t0, driver.StateInFlight); err != nil {
				return err
			}
			if err := e.stateIs(ctx, pb.Key, t0, driver.StateComplete); err != nil {
				return err
			}
			return e.stateIs(ctx, c.Key, t0, driver.StateAbsent)
		},
	},
	{
		id:      "claim/own-clock",
		promise: "without Now the driver judges leases by its clock, and says which instant that was",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), time.Time{})
			r, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			if r.Now.IsZero() || r.CreatedAt.IsZero() {
				return fmt.Errorf("the record does not say when it was read or made: %s", show(r))
			}
			if off := r.LeaseUntil.Sub(r.Now) - lease; off.Abs() > 2*time.Second {
				return fmt.Errorf("the lease ends %v after Now, want %v", r.LeaseUntil.Sub(r.Now), lease)
			}
			if off := r.RetainUntil.Sub(r.Now) - retention; off.Abs() > 2*time.Second {
				return fmt.Errorf("retention ends %v after Now, want %v", r.RetainUntil.Sub(r.Now), retention)
			}
			if r.Fence < r.CreatedAt.UnixMicro() {
				return fmt.Errorf("the fence %d is below the clock, %d µs", r.Fence, r.CreatedAt.UnixMicro())
			}
			if _, err := refuse(ctx, e.d, e.claim(p.Key, time.Time{})); err != nil {
				return err
			}
			return nil
		},
	},
	{
		id:      "claim/own-clock-runs",
		promise: "without Now a lease ends by itself, and the claim is taken over",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), time.Time{})
			p.Lease = 20 * time.Millisecond
			if _, err := grant(ctx, e.d, p); err != nil {
				return err
			}
			next := e.claim(p.Key, time.Time{})
			return e.soon(ctx, "the takeover", func() (bool, error) {
				r, err := e.d.Claim(ctx, next)
				if err != nil {
					return false, fmt.Errorf("claim: %w", err)
				}
				if granted(r, next) && r.Attempt != 2 {
					return false, fmt.Errorf("the takeover is attempt %d, want 2", r.Attempt)
				}
				return granted(r, next), nil
			})
		},
	},
}
