package conformancetest

import (
	"context"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// statesAre checks the state of a key at several offsets from t0.
func (e *env) statesAre(ctx context.Context, k driver.Key, want map[time.Duration]driver.State) error {
	for at, state := range want {
		if err := e.stateIs(ctx, k, t0.Add(at), state); err != nil {
			return err
		}
	}
	return nil
}

var expiryRules = []rule{
	// Field case C05.
	{
		id:      "expiry/lease",
		promise: "a claim is in flight until the microsecond its lease ends, and unknown from then on",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.held(ctx)
			if err != nil {
				return err
			}
			return e.statesAre(ctx, p.Key, map[time.Duration]driver.State{
				lease - time.Microsecond:     driver.StateInFlight,
				lease:                        driver.StateUnknown,
				retention - time.Microsecond: driver.StateUnknown,
			})
		},
	},
	// Field case C08.
	{
		id:      "expiry/unknown",
		promise: "an unknown outcome that is not held is absent once its retention has ended",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.held(ctx)
			if err != nil {
				return err
			}
			now := t0.Add(retention)
			if err := e.stateIs(ctx, p.Key, now, driver.StateAbsent); err != nil {
				return err
			}
			next := asksOther(e.claim(p.Key, now))
			r, err := grant(ctx, e.d, next)
			if err != nil {
				return err
			}
			if r.Attempt != 1 || r.Operation != next.Operation || !r.CreatedAt.Equal(now) {
				return fmt.Errorf("the claim is not a new one: attempt %d of %q, created %s", r.Attempt, r.Operation, offset(r.CreatedAt))
			}
			return nil
		},
	},
	// Field cases C10 and C17.
	{
		id:      "expiry/retention",
		promise: "an outcome is replayed until its retention ends, and is a tombstone without the result from then on",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			if err := e.statesAre(ctx, p.Key, map[time.Duration]driver.State{
				keep - time.Microsecond:         driver.StateComplete,
				keep:                            driver.StateExpired,
				keep + grace - time.Microsecond: driver.StateExpired,
			}); err != nil {
				return err
			}
			for _, at := range []time.Duration{keep, keep + grace - time.Microsecond} {
				r, err := refuse(ctx, e.d, e.claim(p.Key, t0.Add(at)))
				if err != nil {
					return fmt.Errorf("%v after the completion: %w", at, err)
				}
				if r.StateAt(t0.Add(at)) != driver.StateExpired || r.Result != nil {
					return fmt.Errorf("%v after the completion the claim got %s, want expired without a result", at, show(r))
				}
			}
			return nil
		},
	},
	{
		id:      "expiry/grace",
		promise: "a key is absent again when its grace ends, and nothing of the old record is left in the new one",
		check: func(ctx context.Context, e *env) error {
			p, old, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			now := t0.Add(keep + grace)
			if err := e.stateIs(ctx, p.Key, now, driver.StateAbsent); err != nil {
				return err
			}
			next := asksOther(e.claim(p.Key, now))
			want, _ := old.AfterClaim(next, now)
			if _, err := grant(ctx, e.d, next); err != nil {
				return err
			}
			r, err := e.get(ctx, p.Key, now)
			if err != nil {
				return err
			}
			if d := diff(r, want); d != "" {
				return fmt.Errorf("the new record: %s", d)
			}
			return nil
		},
	},
	{
		id:      "expiry/no-grace",
		promise: "without grace a key is absent as soon as its retention ends",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			c := complete(r, t0, []byte("outcome"))
			c.Grace = 0
			if err := e.d.Complete(ctx, c); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			if err := e.statesAre(ctx, p.Key, map[time.Duration]driver.State{
				keep - time.Microsecond: driver.StateComplete,
				keep:                    driver.StateAbsent,
			}); err != nil {
				return err
			}
			_, err = grant(ctx, e.d, e.claim(p.Key, t0.Add(keep)))
			return err
		},
	},
	{
		id:      "expiry/from-completion",
		promise: "retention and grace of an outcome count from its completion, not from the claim",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			now := t0.Add(lease / 2)
			if err := e.d.Complete(ctx, complete(r, now, nil)); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			got, err := e.get(ctx, p.Key, now)
			if err != nil {
				return err
			}
			want, _ := r.AfterComplete(complete(r, now, nil), now)
			if d := diff(got, want); d != "" {
				return fmt.Errorf("the record: %s", d)
			}
			return nil
		},
	},
	{
		id:      "expiry/renew",
		promise: "Renew makes the lease end that long from now, later or earlier than before, and changes nothing else",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			now := t0.Add(lease / 2)
			for _, d := range []time.Duration{3 * lease, 2 * lease} {
				renew := driver.RenewParams{HolderParams: holder(p.Key, r, now), Lease: d}
				if err := e.d.Renew(ctx, renew); err != nil {
					return fmt.Errorf("renew: %w", err)
				}
				got, err := e.get(ctx, p.Key, now)
				if err != nil {
					return err
				}
				want, _ := r.AfterRenew(renew, now)
				if d := diff(got, want); d != "" {
					return fmt.Errorf("the record: %s", d)
				}
			}
			return nil
		},
	},
	{
		id:      "expiry/renew-late",
		promise: "a lease that ended, but was not taken over, can be renewed, also under Hold",
		check: func(ctx context.Context, e *env) error {
			for _, hold := range []bool{false, true} {
				p := e.claim(e.key(), t0)
				p.Hold = hold
				r, err := grant(ctx, e.d, p)
				if err != nil {
					return err
				}
				now := t0.Add(2 * lease)
				if err := e.d.Renew(ctx, driver.RenewParams{HolderParams: holder(p.Key, r, now), Lease: lease}); err != nil {
					return fmt.Errorf("renew after the lease, hold %t: %w", hold, err)
				}
				if err := e.stateIs(ctx, p.Key, now, driver.StateInFlight); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "expiry/complete-late",
		promise: "a holder that is late, but was not taken over, can complete, also under Hold",
		check: func(ctx context.Context, e *env) error {
			for _, hold := range []bool{false, true} {
				p := e.claim(e.key(), t0)
				p.Hold = hold
				r, err := grant(ctx, e.d, p)
				if err != nil {
					return err
				}
				now := t0.Add(2 * lease)
				if err := e.d.Complete(ctx, complete(r, now, []byte("late"))); err != nil {
					return fmt.Errorf("complete after the lease, hold %t: %w", hold, err)
				}
				if err := e.stateIs(ctx, p.Key, now, driver.StateComplete); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "expiry/abandon",
		promise: "an abandoned claim is unknown at once and is taken over as attempt 2; a held one stays",
		check: func(ctx context.Context, e *env) error {
			for _, hold := range []bool{false, true} {
				p := e.claim(e.key(), t0)
				p.Hold = hold
				r, err := grant(ctx, e.d, p)
				if err != nil {
					return err
				}
				abandon := driver.ReleaseParams{HolderParams: holder(p.Key, r, t0), Abandon: true, Note: "gave up"}
				if err := e.d.Release(ctx, abandon); err != nil {
					return fmt.Errorf("release with Abandon: %w", err)
				}
				got, err := e.get(ctx, p.Key, t0)
				if err != nil {
					return err
				}
				want, _ := r.AfterRelease(abandon, t0)
				if d := diff(got, want); d != "" {
					return fmt.Errorf("the abandoned record: %s", d)
				}
				next := e.claim(p.Key, t0)
				if hold {
					_, err = refuse(ctx, e.d, next)
				} else if r, err = grant(ctx, e.d, next); err == nil && r.Attempt != 2 {
					err = fmt.Errorf("the takeover is attempt %d, want 2", r.Attempt)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "expiry/abandon-late",
		promise: "abandoning a claim whose lease has ended does not move the end",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			now := t0.Add(2 * lease)
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, now), Abandon: true}); err != nil {
				return fmt.Errorf("release with Abandon: %w", err)
			}
			got, err := e.get(ctx, p.Key, now)
			if err != nil {
				return err
			}
			return unchanged(got, r)
		},
	},
	{
		id:      "expiry/microseconds",
		promise: "instants are cut to whole microseconds, and nothing of them is lost",
		check: func(ctx context.Context, e *env) error {
			now := t0.Add(123456789 * time.Nanosecond)
			p := e.claim(e.key(), now)
			p.Lease += 987654 * time.Microsecond
			r, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			want, _ := driver.Record{}.AfterClaim(p, now)
			if d := diff(r, want); d != "" {
				return fmt.Errorf("the record returned: %s", d)
			}
			if !r.Now.Equal(want.Now) {
				return fmt.Errorf("now is %s, want %s", offset(r.Now), offset(want.Now))
			}
			if r, err = e.get(ctx, p.Key, now); err != nil {
				return err
			}
			if !r.Now.Equal(want.Now) {
				return fmt.Errorf("get: Now is %s, want %s", offset(r.Now), offset(want.Now))
			}
			return unchanged(r, want)
		},
	},
	{
		id:      "expiry/a-century",
		promise: "the longest retention and grace are exact to the microsecond",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0.Add(time.Microsecond))
			p.Lease, p.Retention = driver.MaxDuration, driver.MaxDuration
			r, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			c := complete(r, p.Now, []byte("outcome"))
			c.Retention, c.Grace = driver.MaxDuration, driver.MaxDuration
			if err := e.d.Complete(ctx, c); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			got, err := e.get(ctx, p.Key, p.Now)
			if err != nil {
				return err
			}
			want, _ := r.AfterComplete(c, p.Now)
			if d := diff(got, want); d != "" {
				return fmt.Errorf("the record: %s", d)
			}
			return nil
		},
	},
}
