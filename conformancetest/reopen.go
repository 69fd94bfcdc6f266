package conformancetest

import (
	"context"
	"fmt"

	"github.com/idem-go/idem/driver"
)

var reopenRules = []rule{
	{
		id:      "reopen/claim",
		promise: "a claim survives reopening the store: duplicates are in flight, and its holder can complete",
		needs:   aReopening,
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			p.Hold = true
			r, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			e.reopen()
			got, err := refuse(ctx, e.d, e.claim(p.Key, t0))
			if err != nil {
				return err
			}
			if err := unchanged(got, r); err != nil {
				return err
			}
			if err := e.d.Complete(ctx, complete(r, t0, nil)); err != nil {
				return fmt.Errorf("complete after reopening: %w", err)
			}
			return nil
		},
	},
	{
		id:      "reopen/outcome",
		promise: "an outcome survives reopening the store, byte for byte",
		needs:   aReopening,
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.completed(ctx, []byte("out\x00come\xff"))
			if err != nil {
				return err
			}
			pe, empty, err := e.completed(ctx, []byte{})
			if err != nil {
				return err
			}
			e.reopen()
			got, err := refuse(ctx, e.d, e.claim(p.Key, t0))
			if err != nil {
				return err
			}
			if err := unchanged(got, r); err != nil {
				return err
			}
			if got, err = e.get(ctx, pe.Key, t0); err != nil {
				return err
			}
			return unchanged(got, empty)
		},
	},
	{
		id:      "reopen/ends",
		promise: "what was released stays released after reopening the store, and its token stays used up",
		needs:   aReopening,
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0)}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			pf, f, err := e.completed(ctx, nil)
			if err != nil {
				return err
			}
			if err := e.d.Forget(ctx, driver.ForgetParams{HolderParams: holder(pf.Key, f, t0)}); err != nil {
				return fmt.Errorf("forget: %w", err)
			}
			e.reopen()
			if err := e.stateIs(ctx, pf.Key, t0, driver.StateAbsent); err != nil {
				return err
			}
			if _, err := refuse(ctx, e.d, p); err != nil {
				return fmt.Errorf("the released claim, delayed: %w", err)
			}
			next, err := grant(ctx, e.d, e.claim(p.Key, t0))
			if err != nil {
				return err
			}
			if next.Fence <= r.Fence {
				return fmt.Errorf("the fence is %d, and was %d before reopening", next.Fence, r.Fence)
			}
			return nil
		},
	},
}
