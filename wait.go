package idem

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/idem-go/idem/driver"
)

// Between looks at a key that another process holds, a waiter pauses for a
// twentieth of the time it has waited, within these bounds: a short operation is
// noticed in milliseconds, and a long one costs four reads a second.
const (
	minPoll = 2 * time.Millisecond
	maxPoll = 250 * time.Millisecond
)

// watch waits until rec is no longer in somebody else's hands, and returns the
// record that says so. It only reads, and holds nothing of the store meanwhile.
func (e *engine) watch(ctx context.Context, req *request, rec driver.Record, p *patience) (driver.Record, error) {
	if !e.flights.start(p, e.cfg.MaxWaiters) {
		return rec, inFlight(&rec, rec.Now)
	}
	pausing := true // a signal that comes at once, or fails, is not asked for again at once
	for {
		if left := p.left(); left <= 0 {
			return rec, inFlight(&rec, rec.Now)
		}
		// A transaction in progress may not show in the store, which then has
		// nothing to signal.
		if pausing = !pausing; pausing || e.waiter == nil || rec.LeaseUntil.IsZero() {
			pause(ctx, e.pollPause(rec, p))
		} else {
			e.wake(ctx, req.key, rec, p)
		}
		if ctx.Err() != nil {
			return rec, waitEnded(ctx)
		}
		next, err := e.drv.Get(ctx, driver.GetParams{Key: req.key})
		if err != nil {
			return rec, wrap(ctx, "get", err)
		}
		rec = next
		if decide(&rec, req, driver.Token{}, rec.Now) != actInFlight {
			return rec, nil
		}
	}
}

// wake waits for the store's signal, not beyond the end of the lease. The record
// tells what it meant.
func (e *engine) wake(ctx context.Context, key Key, rec driver.Record, p *patience) {
	limit := p.left()
	if !rec.LeaseUntil.IsZero() {
		limit = min(limit, rec.LeaseUntil.Sub(rec.Now)+time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_ = e.waiter.Wait(ctx, driver.WaitParams{Key: key, Fence: rec.Fence})
}

// pollPause returns how long to wait before the next look.
func (e *engine) pollPause(rec driver.Record, p *patience) time.Duration {
	d := min(max(time.Since(p.since)/20, minPoll), maxPoll)
	d = d*3/4 + rand.N(d/2)
	if !rec.LeaseUntil.IsZero() {
		d = min(d, rec.LeaseUntil.Sub(rec.Now)+time.Millisecond)
	}
	return max(min(d, p.left()), 0)
}

// pause returns after d, or when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func waitEnded(ctx context.Context) error {
	return fmt.Errorf("idem: waiting for the holder of the key: %w", ended(ctx))
}
