package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// wakes checks that waiters return nil once end has ended the claim they wait for.
func wakes(ctx context.Context, e *env, end func(ctx context.Context, k driver.Key, r driver.Record) error) error {
	p := e.claim(e.key(), time.Time{})
	r, err := grant(ctx, e.d, p)
	if err != nil {
		return err
	}
	const waiters = 8
	results := make(chan error, waiters)
	for range waiters {
		go func() {
			results <- e.d.(driver.Waiter).Wait(ctx, driver.WaitParams{Key: p.Key, Fence: r.Fence})
		}()
	}
	if err := end(ctx, p.Key, r); err != nil {
		return err
	}
	for range waiters {
		if err := <-results; err != nil {
			return fmt.Errorf("wait: got error %v, want nil once the claim has ended", err)
		}
	}
	return nil
}

var waitRules = []rule{
	{
		id:      "wait/complete",
		promise: "waiters are told when a claim is completed",
		needs:   aWaiter,
		check: func(ctx context.Context, e *env) error {
			return wakes(ctx, e, func(ctx context.Context, k driver.Key, r driver.Record) error {
				return e.d.Complete(ctx, complete(r, time.Time{}, nil))
			})
		},
	},
	{
		id:      "wait/release",
		promise: "waiters are told when a claim is released, or abandoned",
		needs:   aWaiter,
		check: func(ctx context.Context, e *env) error {
			for _, abandon := range []bool{false, true} {
				if err := wakes(ctx, e, func(ctx context.Context, k driver.Key, r driver.Record) error {
					return e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(k, r, time.Time{}), Abandon: abandon})
				}); err != nil {
					return fmt.Errorf("abandon %t: %w", abandon, err)
				}
			}
			return nil
		},
	},
	{
		id:      "wait/over",
		promise: "Wait returns at once for a claim that has ended, or never was",
		needs:   aWaiter,
		check: func(ctx context.Context, e *env) error {
			ctx, cancel := context.WithTimeout(ctx, e.patience)
			defer cancel()
			done, r, err := e.completed(ctx, nil)
			if err != nil {
				return err
			}
			p, live, err := e.held(ctx)
			if err != nil {
				return err
			}
			for _, w := range []driver.WaitParams{
				{Key: done.Key, Fence: r.Fence}, {Key: p.Key, Fence: live.Fence - 1}, {Key: e.key(), Fence: 1},
			} {
				if err := e.d.(driver.Waiter).Wait(ctx, w); err != nil {
					return fmt.Errorf("wait: %w", err)
				}
			}
			return nil
		},
	},
	{
		id:      "wait/context",
		promise: "Wait ends when its context ends",
		needs:   aWaiter,
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), time.Time{})
			r, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			waiting, cancel := context.WithCancel(ctx)
			result := make(chan error, 1)
			go func() { result <- e.d.(driver.Waiter).Wait(waiting, driver.WaitParams{Key: p.Key, Fence: r.Fence}) }()
			cancel()
			select {
			case err := <-result:
				if err != nil && !errors.Is(err, context.Canceled) {
					return fmt.Errorf("wait: got error %v, want the context's", err)
				}
				return nil
			case <-time.After(e.patience):
				return fmt.Errorf("wait did not return within %v", e.patience)
			}
		},
	},
}
