package conformancetest

import (
	"context"
	"fmt"

	"github.com/idem-go/idem/driver"
)

var forgetRules = []rule{
	{
		id:      "forget/outcome",
		promise: "Forget deletes the outcome it names, also an expired one, and sent again it succeeds",
		check: func(ctx context.Context, e *env) error {
			for _, state := range []driver.State{driver.StateComplete, driver.StateExpired} {
				p, r, err := e.completed(ctx, []byte("outcome"))
				if err != nil {
					return err
				}
				forget := driver.ForgetParams{HolderParams: holder(p.Key, r, t0)}
				if state == driver.StateExpired {
					forget.Now = t0.Add(keep)
				}
				for range 2 {
					if err := e.d.Forget(ctx, forget); err != nil {
						return fmt.Errorf("forget of one that is %v: %w", state, err)
					}
				}
				if err := e.stateIs(ctx, p.Key, t0, driver.StateAbsent); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "forget/claim",
		promise: "Forget leaves a claim alone, live or unknown",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			h := holder(p.Key, r, t0)
			if err := notHolder("Forget of a live claim", e.d.Forget(ctx, driver.ForgetParams{HolderParams: h})); err != nil {
				return err
			}
			h.Now = t0.Add(lease)
			if err := notHolder("Forget of an unknown outcome", e.d.Forget(ctx, driver.ForgetParams{HolderParams: h})); err != nil {
				return err
			}
			got, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(got, r)
		},
	},
	{
		id:      "forget/another",
		promise: "Forget leaves alone an outcome that was stored under another token or fence",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			token, fence := holder(p.Key, r, t0), holder(p.Key, r, t0)
			token.Token[0] ^= 1
			fence.Fence++
			for _, h := range []driver.HolderParams{token, fence} {
				if err := notHolder("Forget", e.d.Forget(ctx, driver.ForgetParams{HolderParams: h})); err != nil {
					return err
				}
			}
			got, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(got, r)
		},
	},
}
