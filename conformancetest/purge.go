package conformancetest

import (
	"context"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// drain purges until nothing is due at an instant, whichever rule left it, and
// returns how much there was.
func (e *env) drain(ctx context.Context, now time.Time) (int, error) {
	const limit = 1000
	for total := 0; ; {
		n, err := e.d.Purge(ctx, driver.PurgeParams{Limit: limit, Now: now})
		if err != nil {
			return total, fmt.Errorf("purge: %w", err)
		}
		if n < 0 || n > limit {
			return total, fmt.Errorf("purge with limit %d returned %d", limit, n)
		}
		if total += n; n < limit {
			return total, nil
		}
	}
}

// purges drains what is due at now, and checks how much of it there was.
func (e *env) purges(ctx context.Context, now time.Time, want int) error {
	n, err := e.drain(ctx, now)
	if err != nil {
		return err
	}
	if n != want {
		return fmt.Errorf("purging at %s returned %d in all, want %d", offset(now), n, want)
	}
	return nil
}

// purgeKeeps checks that a purge at an instant does nothing to the record r of a key.
func purgeKeeps(ctx context.Context, e *env, k driver.Key, r driver.Record, now time.Time) error {
	if _, err := e.drain(ctx, now); err != nil {
		return err
	}
	got, err := e.get(ctx, k, t0)
	if err != nil {
		return err
	}
	return unchanged(got, r)
}

var purgeRules = []rule{
	{
		id:      "purge/bounded",
		promise: "Purge handles at most its limit, and returns less only when nothing more is due",
		check: func(ctx context.Context, e *env) error {
			now := t0.Add(keep + grace)
			if _, err := e.drain(ctx, now); err != nil {
				return err
			}
			var keys []driver.Key
			for range 25 {
				p, _, err := e.completed(ctx, []byte("outcome"))
				if err != nil {
					return err
				}
				keys = append(keys, p.Key)
			}
			for i, want := range []int{10, 10, 5, 0} {
				n, err := e.d.Purge(ctx, driver.PurgeParams{Limit: 10, Now: now})
				if err != nil {
					return fmt.Errorf("purge: %w", err)
				}
				if n != want {
					return fmt.Errorf("of 25 due records purge number %d with limit 10 returned %d, want %d", i+1, n, want)
				}
			}
			for _, k := range keys {
				// Seen from before its end a record that is still there would show.
				if err := e.stateIs(ctx, k, t0, driver.StateAbsent); err != nil {
					return err
				}
			}
			return nil
		},
	},
	// Field case C08.
	{
		id:      "purge/live-claim",
		promise: "Purge never deletes a live claim, also one renewed beyond its retention",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := purgeKeeps(ctx, e, p.Key, r, t0.Add(lease/2)); err != nil {
				return err
			}
			renew := driver.RenewParams{HolderParams: holder(p.Key, r, t0), Lease: 3 * retention}
			if err := e.d.Renew(ctx, renew); err != nil {
				return fmt.Errorf("renew: %w", err)
			}
			want, _ := r.AfterRenew(renew, t0)
			if err := purgeKeeps(ctx, e, p.Key, want, t0.Add(2*retention)); err != nil {
				return err
			}
			if _, err := e.drain(ctx, t0.Add(3*retention)); err != nil {
				return err
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateAbsent)
		},
	},
	{
		id:      "purge/unknown",
		promise: "Purge keeps an unknown outcome for its retention, and deletes it then",
		check: func(ctx context.Context, e *env) error {
			now := t0.Add(retention)
			if _, err := e.drain(ctx, now); err != nil {
				return err
			}
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := purgeKeeps(ctx, e, p.Key, r, now.Add(-time.Microsecond)); err != nil {
				return err
			}
			if err := e.purges(ctx, now, 1); err != nil {
				return err
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateAbsent)
		},
	},
	{
		id:      "purge/held",
		promise: "Purge never deletes what is held until someone resolves it",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			p.Hold = true
			r, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			if err := purgeKeeps(ctx, e, p.Key, r, t0.Add(1000*retention)); err != nil {
				return err
			}
			// Once resolved it is purged like any other.
			if err := e.d.Complete(ctx, complete(r, t0, nil)); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			if _, err := e.drain(ctx, t0.Add(keep+grace)); err != nil {
				return err
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateAbsent)
		},
	},
	{
		id:      "purge/outcome",
		promise: "Purge keeps an outcome, with its result, for its retention",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			return purgeKeeps(ctx, e, p.Key, r, t0.Add(keep-time.Microsecond))
		},
	},
	{
		id:      "purge/tombstone",
		promise: "Purge drops the result of an expired record, once, and keeps its tombstone for the grace",
		check: func(ctx context.Context, e *env) error {
			now, end := t0.Add(keep), t0.Add(keep+grace)
			if _, err := e.drain(ctx, end); err != nil {
				return err
			}
			p, r, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			for _, want := range []int{1, 0} {
				if err := e.purges(ctx, now, want); err != nil {
					return err
				}
				got, err := e.get(ctx, p.Key, t0)
				if err != nil {
					return err
				}
				r.Result = nil
				if err := unchanged(got, r); err != nil {
					return err
				}
			}
			if err := e.stateIs(ctx, p.Key, end.Add(-time.Microsecond), driver.StateExpired); err != nil {
				return err
			}
			if _, err := e.drain(ctx, end.Add(-time.Microsecond)); err != nil {
				return err
			}
			if err := e.purges(ctx, end, 1); err != nil {
				return err
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateAbsent)
		},
	},
	{
		id:      "purge/released",
		promise: "a released token is remembered until the lease it gave up would have ended, and is purged then",
		check: func(ctx context.Context, e *env) error {
			end := t0.Add(lease)
			if _, err := e.drain(ctx, end); err != nil {
				return err
			}
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0)}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			if _, err := e.drain(ctx, end.Add(-time.Microsecond)); err != nil {
				return err
			}
			p.Now = end.Add(-time.Microsecond)
			if _, err := refuse(ctx, e.d, p); err != nil {
				return fmt.Errorf("a delayed claim after a purge: %w", err)
			}
			return e.purges(ctx, end, 1)
		},
	},
	{
		id:      "purge/own-clock",
		promise: "without Now Purge goes by the driver's clock, and leaves what ends later",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			live := e.claim(e.key(), time.Time{})
			live.Lease = retention
			l, err := grant(ctx, e.d, live)
			if err != nil {
				return err
			}
			if _, err := e.drain(ctx, time.Time{}); err != nil {
				return err
			}
			got, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			if err := unchanged(got, r); err != nil {
				return err
			}
			if got, err = e.get(ctx, live.Key, time.Time{}); err != nil {
				return err
			}
			return unchanged(got, l)
		},
	},
}
