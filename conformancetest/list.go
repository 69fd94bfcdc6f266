package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// listed pages through all records in a state, by token.
func (e *env) listed(ctx context.Context, state driver.State, now time.Time, limit int) (map[driver.Token]driver.Record, error) {
	found := make(map[driver.Token]driver.Record)
	after := ""
	for range 10_000 {
		page, next, err := e.d.(driver.Lister).List(ctx, driver.ListParams{State: state, Limit: limit, After: after, Now: now})
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		if len(page) > limit {
			return nil, fmt.Errorf("list with limit %d returned %d records", limit, len(page))
		}
		for _, r := range page {
			if got := r.StateAt(now); got != state {
				return nil, fmt.Errorf("list of %v returned one that is %v: %s", state, got, show(r))
			}
			found[r.Token] = r
		}
		if next == "" {
			return found, nil
		}
		if next == after && len(page) == 0 {
			return nil, fmt.Errorf("list returned nothing, and the cursor it was given")
		}
		after = next
	}
	return nil, errors.New("list did not end after 10,000 pages")
}

var listRules = []rule{
	{
		id:      "list/state",
		promise: "List returns the records in a state, judged now, and no others",
		needs:   aLister,
		check: func(ctx context.Context, e *env) error {
			pl, live, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Renew(ctx, driver.RenewParams{HolderParams: holder(pl.Key, live, t0), Lease: 100 * keep}); err != nil {
				return fmt.Errorf("renew: %w", err)
			}
			held := e.claim(e.key(), t0)
			held.Hold = true
			unknown, err := grant(ctx, e.d, held)
			if err != nil {
				return err
			}
			_, expired, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			_, done, err := e.held(ctx)
			if err != nil {
				return err
			}
			c := complete(done, t0, nil)
			c.Retention = 2 * keep
			if err := e.d.Complete(ctx, c); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			pr, released, err := e.held(ctx)
			if err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(pr.Key, released, t0)}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			want := map[driver.Token]driver.State{
				live.Token: driver.StateInFlight, unknown.Token: driver.StateUnknown,
				done.Token: driver.StateComplete, expired.Token: driver.StateExpired, released.Token: driver.StateAbsent,
			}
			for _, state := range []driver.State{driver.StateInFlight, driver.StateUnknown, driver.StateComplete, driver.StateExpired} {
				found, err := e.listed(ctx, state, t0.Add(keep), driver.MaxList)
				if err != nil {
					return err
				}
				for token, is := range want {
					if _, ok := found[token]; ok != (is == state) {
						return fmt.Errorf("list of %v: the record that is %v was listed: %t", state, is, ok)
					}
				}
			}
			return nil
		},
	},
	{
		id:      "list/record",
		promise: "a listed record says whose it is, and can be resolved with what it says",
		needs:   aLister,
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			p.Hold = true
			r, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			now := t0.Add(keep)
			found, err := e.listed(ctx, driver.StateUnknown, now, driver.MaxList)
			if err != nil {
				return err
			}
			got := found[p.Token]
			if d := diff(got, r); d != "" {
				return fmt.Errorf("the listed record: %s", d)
			}
			if !got.Now.Equal(now) {
				return fmt.Errorf("now of the listed record is %s, want %s", offset(got.Now), offset(now))
			}
			if _, err := named(got, p.Key); err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, got, now)}); err != nil {
				return fmt.Errorf("release with what was listed: %w", err)
			}
			return e.stateIs(ctx, p.Key, now, driver.StateAbsent)
		},
	},
	{
		id:      "list/paging",
		promise: "pages hold at most their limit, and together every record",
		needs:   aLister,
		check: func(ctx context.Context, e *env) error {
			// Later than every outcome of the rules before, so that the pages stay few.
			now := t0.Add(keep + grace)
			if _, err := e.drain(ctx, now); err != nil {
				return err
			}
			want := make(map[driver.Token]bool)
			for range 25 {
				p := e.claim(e.key(), now)
				if _, err := grant(ctx, e.d, p); err != nil {
					return err
				}
				want[p.Token] = true
			}
			for _, limit := range []int{1, 10, 25, driver.MaxList} {
				found, err := e.listed(ctx, driver.StateInFlight, now, limit)
				if err != nil {
					return err
				}
				missing := 0
				for token := range want {
					if _, ok := found[token]; !ok {
						missing++
					}
				}
				if missing > 0 {
					return fmt.Errorf("of 25 records %d were not listed with limit %d", missing, limit)
				}
			}
			return nil
		},
	},
}
