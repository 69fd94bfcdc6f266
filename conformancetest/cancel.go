package conformancetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/idem-go/idem/driver"
)

// ended returns a context that was cancelled.
func ended(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// answersContext checks that a call with an ended context returned the context's error.
func answersContext(verb string, err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("%s with an ended context: got error %v, want one that matches %v", verb, err, want)
	}
	return nil
}

// cancelRule calls one verb of the holder with a cancelled context.
func cancelRule(id, verb string, call func(ctx context.Context, e *env, r driver.Record) error) rule {
	return rule{
		id:      id,
		promise: verb + " with an ended context returns the context's error, and changes nothing",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := answersContext(verb, call(ended(ctx), e, r), context.Canceled); err != nil {
				return err
			}
			after, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(after, r)
		},
	}
}

var cancelRules = []rule{
	{
		id:      "cancel/claim",
		promise: "Claim with an ended context returns the context's error, and claims nothing",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			_, err := e.d.Claim(ended(ctx), p)
			if err := answersContext("Claim", err, context.Canceled); err != nil {
				return err
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateAbsent)
		},
	},
	cancelRule("cancel/renew", "Renew", func(ctx context.Context, e *env, r driver.Record) error {
		return e.d.Renew(ctx, driver.RenewParams{HolderParams: holder(r.Key, r, t0), Lease: 2 * lease})
	}),
	cancelRule("cancel/complete", "Complete", func(ctx context.Context, e *env, r driver.Record) error {
		return e.d.Complete(ctx, complete(r, t0, nil))
	}),
	cancelRule("cancel/release", "Release", func(ctx context.Context, e *env, r driver.Record) error {
		return e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(r.Key, r, t0)})
	}),
	{
		id:      "cancel/forget",
		promise: "Forget with an ended context returns the context's error, and deletes nothing",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.completed(ctx, nil)
			if err != nil {
				return err
			}
			err = e.d.Forget(ended(ctx), driver.ForgetParams{HolderParams: holder(p.Key, r, t0)})
			if err := answersContext("Forget", err, context.Canceled); err != nil {
				return err
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateComplete)
		},
	},
	{
		id:      "cancel/reads",
		promise: "Get and List with an ended context return the context's error",
		check: func(ctx context.Context, e *env) error {
			_, err := e.d.Get(ended(ctx), driver.GetParams{Key: e.key(), Now: t0})
			if err := answersContext("Get", err, context.Canceled); err != nil {
				return err
			}
			if l, ok := e.d.(driver.Lister); ok {
				_, _, err = l.List(ended(ctx), driver.ListParams{State: driver.StateUnknown, Limit: 1, Now: t0})
				return answersContext("List", err, context.Canceled)
			}
			return nil
		},
	},
	{
		id:      "cancel/purge",
		promise: "Purge with an ended context returns the context's error, and deletes nothing",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.completed(ctx, nil)
			if err != nil {
				return err
			}
			_, err = e.d.Purge(ended(ctx), driver.PurgeParams{Limit: driver.MaxPurge, Now: t0.Add(keep + grace)})
			if err := answersContext("Purge", err, context.Canceled); err != nil {
				return err
			}
			return e.stateIs(ctx, p.Key, t0, driver.StateComplete)
		},
	},
	{
		id:      "cancel/deadline",
		promise: "a deadline that has passed is reported as such, never as somebody else's claim",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.held(ctx)
			if err != nil {
				return err
			}
			late, cancel := context.WithDeadline(ctx, t0.AddDate(-40, 0, 0))
			defer cancel()
			_, err = e.d.Claim(late, e.claim(p.Key, t0))
			if err := answersContext("Claim", err, context.DeadlineExceeded); err != nil {
				return err
			}
			_, err = e.d.Get(late, driver.GetParams{Key: p.Key, Now: t0})
			return answersContext("Get", err, context.DeadlineExceeded)
		},
	},
}
