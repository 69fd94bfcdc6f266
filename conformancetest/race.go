package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem/driver"
)

const (
	racers = 64
	rounds = 4
)

// together runs n calls, started at once, and joins their errors.
func together(n int, call func(i int) error) error {
	var wg sync.WaitGroup
	start := make(chan struct{})
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = call(i)
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(errs...)
}

// resent calls a verb again, with the same parameters, while the store asks for it.
func resent(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !errors.Is(err, driver.ErrRetryable) || ctx.Err() != nil {
			return err
		}
	}
}

// claimOnce claims through one of the handles, and reports whether it was granted.
func claimOnce(ctx context.Context, d driver.Driver, p driver.ClaimParams) (r driver.Record, ok bool, err error) {
	err = resent(ctx, func() error {
		r, err = d.Claim(ctx, p)
		return err
	})
	if err != nil {
		return r, false, fmt.Errorf("claim: %w", err)
	}
	return r, granted(r, p), nil
}

// oneWinner lets many claims race for a key, through every handle, and checks
// that exactly one is granted and that the others learn who it was.
func oneWinner(ctx context.Context, e *env, k driver.Key, now time.Time) (driver.Record, error) {
	handles := e.handles()
	answers := make([]driver.Record, racers)
	var wins atomic.Int64
	var winner atomic.Int64
	err := together(racers, func(i int) error {
		r, ok, err := claimOnce(ctx, handles[i%len(handles)], e.claim(k, now))
		answers[i] = r
		if ok {
			wins.Add(1)
			winner.Store(int64(i))
		}
		return err
	})
	won := answers[winner.Load()]
	if err != nil {
		return won, err
	}
	if n := wins.Load(); n != 1 {
		return won, fmt.Errorf("of %d concurrent claims %d were granted, want 1", racers, n)
	}
	for _, r := range answers {
		if r.State != driver.StateInFlight || r.Token != won.Token || r.Fence != won.Fence {
			return won, fmt.Errorf("a claim that lost got %s, want the winner's claim %s", show(r), show(won))
		}
	}
	return named(won, k)
}

var raceRules = []rule{
	// Field case C14.
	{
		id:      "race/claim",
		promise: "of many concurrent claims on an absent key exactly one is granted",
		check: func(ctx context.Context, e *env) error {
			for range rounds {
				if _, err := oneWinner(ctx, e, e.key(), t0); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "race/takeover",
		promise: "of many concurrent claims on an unknown outcome exactly one takes over",
		check: func(ctx context.Context, e *env) error {
			for range rounds {
				p, _, err := e.held(ctx)
				if err != nil {
					return err
				}
				r, err := oneWinner(ctx, e, p.Key, t0.Add(lease))
				if err != nil {
					return err
				}
				if r.Attempt != 2 {
					return fmt.Errorf("the takeover is attempt %d, want 2", r.Attempt)
				}
			}
			return nil
		},
	},
	{
		id:      "race/after-release",
		promise: "of many concurrent claims on a released key exactly one is granted",
		check: func(ctx context.Context, e *env) error {
			for range rounds {
				p, r, err := e.held(ctx)
				if err != nil {
					return err
				}
				if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0)}); err != nil {
					return fmt.Errorf("release: %w", err)
				}
				if _, err := oneWinner(ctx, e, p.Key, t0); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "race/same-token",
		promise: "one claim sent many times at once is granted every time, with one fence and one attempt",
		check: func(ctx context.Context, e *env) error {
			handles := e.handles()
			for range rounds {
				p := e.claim(e.key(), t0)
				answers := make([]driver.Record, racers)
				err := together(racers, func(i int) error {
					r, ok, err := claimOnce(ctx, handles[i%len(handles)], p)
					if err == nil && !ok {
						err = fmt.Errorf("not granted: %s", show(r))
					}
					answers[i] = r
					return err
				})
				if err != nil {
					return err
				}
				for _, r := range answers {
					if d := diff(r, answers[0]); d != "" {
						return fmt.Errorf("two answers differ: %s", d)
					}
				}
			}
			return nil
		},
	},
	{
		id:      "race/distinct-keys",
		promise: "concurrent work on different keys is all done, and none of it lost",
		check: func(ctx context.Context, e *env) error {
			handles := e.handles()
			keys := make([]driver.Key, racers)
			for i := range keys {
				keys[i] = e.key()
			}
			err := together(racers, func(i int) error {
				d := handles[i%len(handles)]
				r, ok, err := claimOnce(ctx, d, e.claim(keys[i], t0))
				if err != nil {
					return err
				}
				if !ok {
					return fmt.Errorf("the only claim on its key was not granted: %s", show(r))
				}
				r.Key = keys[i]
				return resent(ctx, func() error { return d.Complete(ctx, complete(r, t0, []byte(keys[i].ID))) })
			})
			if err != nil {
				return err
			}
			for _, k := range keys {
				r, err := e.get(ctx, k, t0)
				if err != nil {
					return err
				}
				if r.State != driver.StateComplete || string(r.Result) != k.ID {
					return fmt.Errorf("%s came out as %s", k.ID, show(r))
				}
			}
			return nil
		},
	},
	{
		id:      "race/complete-and-takeover",
		promise: "of a late completion and a takeover exactly one happens",
		check: func(ctx context.Context, e *env) error {
			handles := e.handles()
			for range 4 * rounds {
				p, r, err := e.held(ctx)
				if err != nil {
					return err
				}
				now := t0.Add(lease)
				next := e.claim(p.Key, now)
				var took bool
				var completeErr error
				err = together(2, func(i int) (err error) {
					if i == 0 {
						completeErr = resent(ctx, func() error { return e.d.Complete(ctx, complete(r, now, []byte("late"))) })
						return nil
					}
					_, took, err = claimOnce(ctx, handles[len(handles)-1], next)
					return err
				})
				if err != nil {
					return err
				}
				if completeErr != nil {
					if err := notHolder("Complete", completeErr); err != nil {
						return err
					}
				}
				if (completeErr == nil) == took {
					return fmt.Errorf("completed: %t, taken over: %t, want exactly one", completeErr == nil, took)
				}
				want := driver.StateComplete
				if took {
					want = driver.StateInFlight
				}
				if err := e.stateIs(ctx, p.Key, now, want); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "race/one-end",
		promise: "of a completion and a release by one holder, sent at once, exactly one happens",
		check: func(ctx context.Context, e *env) error {
			for range 4 * rounds {
				p, r, err := e.held(ctx)
				if err != nil {
					return err
				}
				var ends [2]error
				_ = together(2, func(i int) error {
					ends[i] = resent(ctx, func() error {
						if i == 0 {
							return e.d.Complete(ctx, complete(r, t0, nil))
						}
						return e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0)})
					})
					return nil
				})
				want := driver.StateComplete
				if ends[0] != nil {
					want = driver.StateAbsent
					ends[0], ends[1] = ends[1], ends[0]
				}
				if ends[0] != nil {
					return fmt.Errorf("both were refused: %w", errors.Join(ends[0], ends[1]))
				}
				if err := notHolder("the other one", ends[1]); err != nil {
					return err
				}
				if err := e.stateIs(ctx, p.Key, t0, want); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "race/purge",
		promise: "a purge beside claims deletes no claim that was granted meanwhile",
		check: func(ctx context.Context, e *env) error {
			handles := e.handles()
			now := t0.Add(keep + grace)
			if _, err := e.drain(ctx, now); err != nil {
				return err
			}
			old := make([]driver.Key, racers/2)
			for i := range old {
				p, _, err := e.completed(ctx, []byte("old"))
				if err != nil {
					return err
				}
				old[i] = p.Key
			}
			claims := make([]driver.Record, len(old))
			err := together(racers, func(i int) error {
				if i >= len(old) {
					return resent(ctx, func() error {
						_, err := handles[i%len(handles)].Purge(ctx, driver.PurgeParams{Limit: 4, Now: now})
						return err
					})
				}
				r, ok, err := claimOnce(ctx, handles[i%len(handles)], e.claim(old[i], now))
				if err == nil && !ok {
					err = fmt.Errorf("the claim on a key whose grace has ended was not granted: %s", show(r))
				}
				claims[i] = r
				return err
			})
			if err != nil {
				return err
			}
			for i, k := range old {
				r, err := e.get(ctx, k, now)
				if err != nil {
					return err
				}
				if err := unchanged(r, claims[i]); err != nil {
					return err
				}
			}
			return nil
		},
	},
}
