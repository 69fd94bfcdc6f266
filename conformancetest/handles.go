package conformancetest

import (
	"context"
	"fmt"

	"github.com/idem-go/idem/driver"
)

// handleRules are about two handles on one store.
var handleRules = []rule{
	{
		id:      "handles/claim",
		promise: "a claim made through one handle is in flight at once through another",
		needs:   aSecondHandle,
		check: func(ctx context.Context, e *env) error {
			other := e.other()
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			got, err := refuse(ctx, other, e.claim(p.Key, t0))
			if err != nil {
				return err
			}
			return unchanged(got, r)
		},
	},
	{
		id:      "handles/outcome",
		promise: "an outcome stored through one handle is replayed at once through another",
		needs:   aSecondHandle,
		check: func(ctx context.Context, e *env) error {
			other := e.other()
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			// The claim may be ended through another handle too: it belongs to the token.
			if err := other.Complete(ctx, complete(r, t0, []byte("outcome"))); err != nil {
				return fmt.Errorf("complete through the other handle: %w", err)
			}
			for _, d := range e.handles() {
				got, err := refuse(ctx, d, e.claim(p.Key, t0))
				if err != nil {
					return err
				}
				if string(got.Result) != "outcome" {
					return fmt.Errorf("the claim got %s, want the outcome", show(got))
				}
			}
			return nil
		},
	},
	{
		id:      "handles/takeover",
		promise: "a takeover through one handle stops the earlier holder at another",
		needs:   aSecondHandle,
		check: func(ctx context.Context, e *env) error {
			other := e.other()
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			now := t0.Add(lease)
			if _, err := grant(ctx, other, e.claim(p.Key, now)); err != nil {
				return err
			}
			for _, v := range holderVerbs {
				if err := notHolder(v.name, v.call(ctx, e.d, holder(p.Key, r, now))); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "handles/release",
		promise: "what one handle released or forgot is absent at once through another",
		needs:   aSecondHandle,
		check: func(ctx context.Context, e *env) error {
			other := e.other()
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0)}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			if _, err := grant(ctx, other, e.claim(p.Key, t0)); err != nil {
				return err
			}
			p, r, err = e.completed(ctx, nil)
			if err != nil {
				return err
			}
			if err := e.d.Forget(ctx, driver.ForgetParams{HolderParams: holder(p.Key, r, t0)}); err != nil {
				return fmt.Errorf("forget: %w", err)
			}
			_, err = grant(ctx, other, e.claim(p.Key, t0))
			return err
		},
	},
}
