package conformancetest

import (
	"context"
	"fmt"

	"github.com/idem-go/idem/driver"
)

var resendRules = []rule{
	{
		id:      "resend/claim",
		promise: "a claim sent twice is granted twice, with one fence and one attempt, and its lease extended",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.held(ctx)
			if err != nil {
				return err
			}
			p.Now = t0.Add(lease / 2)
			second, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			want, _ := first.AfterClaim(p, p.Now)
			if d := diff(second, want); d != "" {
				return fmt.Errorf("the second answer: %s", d)
			}
			// One that was delayed does not shorten the lease again.
			p.Now = t0
			third, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			if d := diff(third, want); d != "" {
				return fmt.Errorf("the answer to a delayed one: %s", d)
			}
			return nil
		},
	},
	{
		id:      "resend/claim-unknown",
		promise: "a claim sent again after its lease, but before a takeover, still holds the key, also under Hold",
		check: func(ctx context.Context, e *env) error {
			for _, hold := range []bool{false, true} {
				p := e.claim(e.key(), t0)
				p.Hold = hold
				first, err := grant(ctx, e.d, p)
				if err != nil {
					return err
				}
				p.Now = t0.Add(2 * lease)
				r, err := grant(ctx, e.d, p)
				if err != nil {
					return err
				}
				want, _ := first.AfterClaim(p, p.Now)
				if d := diff(r, want); d != "" {
					return fmt.Errorf("hold %t: %s", hold, d)
				}
			}
			return nil
		},
	},
	{
		id:      "resend/claim-after-release",
		promise: "a claim that arrives after its own release is not granted: nobody would work under it",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0)}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			delayed, err := refuse(ctx, e.d, p)
			if err != nil {
				return err
			}
			if delayed.State != driver.StateReleased || delayed.Token != p.Token {
				return fmt.Errorf("the delayed claim got %s, want its released record", show(delayed))
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateAbsent)
		},
	},
	{
		id:      "resend/claim-after-takeover",
		promise: "a claim that arrives after another took over is answered in flight",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.held(ctx)
			if err != nil {
				return err
			}
			p.Now = t0.Add(lease)
			live, err := grant(ctx, e.d, e.claim(p.Key, p.Now))
			if err != nil {
				return err
			}
			r, err := refuse(ctx, e.d, p)
			if err != nil {
				return err
			}
			return unchanged(r, live)
		},
	},
	{
		id:      "resend/claim-after-complete",
		promise: "a claim that arrives after its own completion gets the outcome",
		check: func(ctx context.Context, e *env) error {
			p, done, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			r, err := refuse(ctx, e.d, p)
			if err != nil {
				return err
			}
			return unchanged(r, done)
		},
	},
	{
		id:      "resend/complete",
		promise: "a completion sent again succeeds, and the first one stays",
		check: func(ctx context.Context, e *env) error {
			p, done, err := e.completed(ctx, []byte("first"))
			if err != nil {
				return err
			}
			again := complete(done, t0.Add(lease), []byte("second"))
			again.Note = "again"
			if err := e.d.Complete(ctx, again); err != nil {
				return fmt.Errorf("complete sent again: %w", err)
			}
			r, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(r, done)
		},
	},
	{
		id:      "resend/release",
		promise: "a release sent again succeeds, and frees nobody else's claim",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			release := driver.ReleaseParams{HolderParams: holder(p.Key, r, t0)}
			for range 2 {
				if err := e.d.Release(ctx, release); err != nil {
					return fmt.Errorf("release: %w", err)
				}
			}
			next, err := grant(ctx, e.d, e.claim(p.Key, t0))
			if err != nil {
				return err
			}
			if err := notHolder("Release, once more", e.d.Release(ctx, release)); err != nil {
				return err
			}
			got, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(got, next)
		},
	},
	{
		id:      "resend/abandon",
		promise: "an abandoning sent again succeeds, and the outcome stays unknown",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			for range 2 {
				if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0), Abandon: true}); err != nil {
					return fmt.Errorf("release with Abandon: %w", err)
				}
				if err := e.stateIs(ctx, p.Key, t0, driver.StateUnknown); err != nil {
					return err
				}
			}
			return nil
		},
	},
}
