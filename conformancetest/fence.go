package conformancetest

import (
	"context"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// holderVerbs are the verbs of a holder that end or extend its claim.
var holderVerbs = []struct {
	name string
	call func(ctx context.Context, d driver.Driver, h driver.HolderParams) error
}{
	{"Renew", func(ctx context.Context, d driver.Driver, h driver.HolderParams) error {
		return d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: lease})
	}},
	{"Complete", func(ctx context.Context, d driver.Driver, h driver.HolderParams) error {
		return d.Complete(ctx, driver.CompleteParams{HolderParams: h, Result: []byte("stale"), Retention: keep})
	}},
	{"Release", func(ctx context.Context, d driver.Driver, h driver.HolderParams) error {
		return d.Release(ctx, driver.ReleaseParams{HolderParams: h})
	}},
	{"Release with Abandon", func(ctx context.Context, d driver.Driver, h driver.HolderParams) error {
		return d.Release(ctx, driver.ReleaseParams{HolderParams: h, Abandon: true})
	}},
}

// staleRefused checks that one verb, sent under h, is refused and changes nothing.
func staleRefused(ctx context.Context, e *env, verb string, h driver.HolderParams) error {
	before, err := e.get(ctx, h.Key, h.Now)
	if err != nil {
		return err
	}
	for _, v := range holderVerbs {
		if v.name != verb {
			continue
		}
		if err := notHolder(verb, v.call(ctx, e.d, h)); err != nil {
			return err
		}
	}
	after, err := e.get(ctx, h.Key, h.Now)
	if err != nil {
		return err
	}
	return unchanged(after, before)
}

// takenOver returns the claim of a holder that lost it to another, and the other's.
func takenOver(ctx context.Context, e *env) (stale, live driver.Record, err error) {
	p, stale, err := e.held(ctx)
	if err != nil {
		return stale, live, err
	}
	live, err = grant(ctx, e.d, e.claim(p.Key, t0.Add(lease)))
	return stale, live, err
}

// staleRule is about one verb of a holder that was taken over.
func staleRule(id, verb, promise string) rule {
	return rule{id: id, promise: promise, check: func(ctx context.Context, e *env) error {
		stale, live, err := takenOver(ctx, e)
		if err != nil {
			return err
		}
		now := t0.Add(lease)
		if err := staleRefused(ctx, e, verb, holder(stale.Key, stale, now)); err != nil {
			return err
		}
		// Ownership is both: the old fence under the new token, and the reverse.
		mixed := holder(live.Key, live, now)
		mixed.Fence = stale.Fence
		if err := staleRefused(ctx, e, verb, mixed); err != nil {
			return fmt.Errorf("with the holder's token and an old fence: %w", err)
		}
		mixed = holder(live.Key, live, now)
		mixed.Token = stale.Token
		if err := staleRefused(ctx, e, verb, mixed); err != nil {
			return fmt.Errorf("with an old token and the holder's fence: %w", err)
		}
		return nil
	}}
}

var fenceRules = []rule{
	staleRule("fence/stale-renew", "Renew", "a holder that was taken over cannot renew"),
	staleRule("fence/stale-complete", "Complete", "a holder that was taken over cannot complete"),
	staleRule("fence/stale-release", "Release", "a holder that was taken over cannot release"),
	staleRule("fence/stale-abandon", "Release with Abandon", "a holder that was taken over cannot abandon"),
	{
		id:      "fence/after-end",
		promise: "once a claim has ended nobody renews it, nor ends it in another way",
		check: func(ctx context.Context, e *env) error {
			_, done, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			for _, verb := range []string{"Renew", "Release", "Release with Abandon"} {
				if err := staleRefused(ctx, e, verb, holder(done.Key, done, t0)); err != nil {
					return fmt.Errorf("after Complete: %w", err)
				}
			}
			p, released, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, released, t0)}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			for _, v := range holderVerbs[:2] {
				if err := notHolder(v.name+" after Release", v.call(ctx, e.d, holder(p.Key, released, t0))); err != nil {
					return err
				}
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateAbsent)
		},
	},
	{
		id:      "fence/no-record",
		promise: "the holder's verbs on a key without a record are refused, and make none",
		check: func(ctx context.Context, e *env) error {
			for _, v := range holderVerbs {
				k := e.key()
				h := driver.HolderParams{Key: k, Token: driver.NewToken(), Fence: 1, Now: t0}
				if err := notHolder(v.name, v.call(ctx, e.d, h)); err != nil {
					return err
				}
				if err := e.stateIs(ctx, k, t0, driver.StateAbsent); err != nil {
					return fmt.Errorf("after %s: %w", v.name, err)
				}
			}
			return nil
		},
	},
	{
		id:      "fence/grows",
		promise: "the fence of a key grows with every grant: by takeover, and after a release or a forgotten outcome",
		check: func(ctx context.Context, e *env) error {
			k := e.key()
			var last int64
			next := func(what string, now time.Time) (driver.Record, error) {
				r, err := grant(ctx, e.d, e.claim(k, now))
				if err == nil && r.Fence <= last {
					err = fmt.Errorf("the fence after %s is %d, and was %d before", what, r.Fence, last)
				}
				last = r.Fence
				return r, err
			}
			if _, err := next("nothing", t0); err != nil {
				return err
			}
			r, err := next("a takeover", t0.Add(lease))
			if err != nil {
				return err
			}
			// The instant stays the same, so the clock alone does not make it grow.
			now := t0.Add(lease)
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(k, r, now)}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			if r, err = next("a release", now); err != nil {
				return err
			}
			if err := e.d.Complete(ctx, complete(r, now, nil)); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			if err := e.d.Forget(ctx, driver.ForgetParams{HolderParams: holder(k, r, now)}); err != nil {
				return fmt.Errorf("forget: %w", err)
			}
			_, err = next("a forgotten outcome", now.Add(time.Millisecond))
			return err
		},
	},
	{
		id:      "fence/follows-the-clock",
		promise: "a new fence is not below the clock in microseconds, so that it grows also when the record is gone",
		check: func(ctx context.Context, e *env) error {
			k := e.key()
			for _, now := range []time.Time{t0, t0.Add(3 * retention)} {
				r, err := grant(ctx, e.d, e.claim(k, now))
				if err != nil {
					return err
				}
				if r.Fence < now.UnixMicro() {
					return fmt.Errorf("at %s the fence is %d, below %d µs", offset(now), r.Fence, now.UnixMicro())
				}
			}
			return nil
		},
	},
	{
		id:      "fence/exact",
		promise: "a fence and a token are compared exactly: one off is another holder",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			for _, v := range holderVerbs {
				for _, off := range []int64{-1, 1} {
					h := holder(p.Key, r, t0)
					h.Fence += off
					if err := staleRefused(ctx, e, v.name, h); err != nil {
						return err
					}
				}
				h := holder(p.Key, r, t0)
				h.Token[len(h.Token)-1] ^= 1
				if err := staleRefused(ctx, e, v.name, h); err != nil {
					return err
				}
			}
			return nil
		},
	},
}
