package idem

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idem-go/idem/driver"
)

// lease keeps a claim alive while fn runs, and cancels fn when it may have been
// lost. Its clock is this process's monotonic one, counted from just before the
// claim or renewal was sent: it ends before the store's, whatever the wall clocks say.
type lease struct {
	e      *engine
	flight *flight
	params driver.RenewParams
	lose   context.CancelCauseFunc // of fn's context
	base   context.Context         // of the renewals
	beats  sync.WaitGroup          // one for each timer that is set or beat that runs

	mu      sync.Mutex
	timer   *time.Timer
	until   time.Time          // a tenth of the lease before it ends
	cancel  context.CancelFunc // of the renewal that runs
	stopped bool
	gone    bool
}

// startLease begins to renew, until stop. The context returned is fn's.
func (e *engine) startLease(ctx context.Context, c *claimed) (*lease, context.Context) {
	l := &c.lease
	l.e, l.flight = e, c.flight
	l.params = driver.RenewParams{HolderParams: c.holder, Lease: e.cfg.Lease}
	l.until = c.sent.Add(l.params.Lease - l.params.Lease/10)
	// Effects may go on after the caller has left, and so does the lease.
	l.base = context.WithoutCancel(ctx)
	fnCtx, lose := context.WithCancelCause(ctx)
	l.lose = lose
	l.beats.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(l.params.Lease/3-time.Since(c.sent), l.beat)
	return l, fnCtx
}

// beat renews once and sets the timer of the next beat.
func (l *lease) beat() {
	defer l.beats.Done()
	sent := time.Now()
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}
	attempt := sent.Add(l.params.Lease / 3)
	if l.until.Before(attempt) {
		attempt = l.until
	}
	ctx, cancel := context.WithDeadline(l.base, attempt)
	l.cancel = cancel
	l.mu.Unlock()
	err := l.e.drv.Renew(ctx, l.params)
	cancel()

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	now := time.Now()
	next := l.params.Lease/3 - now.Sub(sent)
	switch {
	case err == nil:
		l.until = sent.Add(l.params.Lease - l.params.Lease/10)
	case errors.Is(err, driver.ErrNotHolder) || !now.Before(l.until):
		l.gone = true
		l.lose(ErrLeaseLost)
		l.e.flights.end(l.params.Key, l.flight) // others may have the key, in this process too
		return
	default: // one failure loses nothing: try again while the lease lasts
		next = min(l.params.Lease/10, l.until.Sub(now))
	}
	l.beats.Add(1)
	l.timer.Reset(max(next, 0))
}

// over reports whether the lease, as it was last renewed, may have ended.
func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.until)
}

// lost reports whether fn was cancelled because of the lease.
func (l *lease) lost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// stop ends the renewals, and fn's context. Nothing runs on when it has returned.
func (l *lease) stop() {
	l.mu.Lock()
	first := !l.stopped
	l.stopped = true
	if first && l.timer.Stop() {
		l.beats.Done() // it will not beat
	}
	if l.cancel != nil {
		l.cancel()
	}
	l.mu.Unlock()
	l.beats.Wait()
	l.lose(nil)
}
