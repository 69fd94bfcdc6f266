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
	c     *claimed
	ctx   fnContext
	beats sync.WaitGroup // one for each timer that is set or beat that runs

	mu      sync.Mutex
	timer   *time.Timer
	until   time.Time          // a tenth of the lease before it ends
	cancel  context.CancelFunc // of the renewal that runs
	stopped bool
	gone    bool
}

// start begins to renew, until stop. The context of fn is that of the lease.
func (l *lease) start(ctx context.Context, e *engine, c *claimed, now time.Time) {
	l.c = c
	l.ctx.Context, l.ctx.e, l.ctx.key = ctx, e, &c.holder.Key
	l.beats.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = l.safeUntil(c.sent)
	l.timer = time.AfterFunc(e.cfg.Lease/3-now.Sub(c.sent), l.beat)
}

// safeUntil returns how long the claim is ours for certain, when it was last sent then.
func (l *lease) safeUntil(sent time.Time) time.Time {
	lease := l.ctx.e.cfg.Lease
	return sent.Add(lease - lease/10)
}

// beat renews once and sets the timer of the next beat.
func (l *lease) beat() {
	defer l.beats.Done()
	e, sent := l.ctx.e, time.Now()
	p := driver.RenewParams{HolderParams: l.c.holder, Lease: e.cfg.Lease}
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}
	attempt := sent.Add(p.Lease / 3)
	if l.until.Before(attempt) {
		attempt = l.until
	}
	// Effects may go on after the caller has left, and so does the lease.
	ctx, cancel := context.WithDeadline(context.WithoutCancel(l.ctx.Context), attempt)
	l.cancel = cancel
	l.mu.Unlock()
	err := e.drv.Renew(ctx, p)
	cancel()

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	now := time.Now()
	next := p.Lease/3 - now.Sub(sent)
	switch {
	case err == nil:
		l.until = l.safeUntil(sent)
	case errors.Is(err, driver.ErrNotHolder) || !now.Before(l.until):
		l.gone = true
		l.ctx.lose(ErrLeaseLost)
		e.flights.end(p.Key, l.c.flight, nothingLearnt) // others may have the key, in this process too
		return
	default: // one failure loses nothing: try again while the lease lasts
		next = min(p.Lease/10, l.until.Sub(now))
	}
	l.beats.Add(1)
	l.timer.Reset(max(next, 0))
}

// over reports whether the lease, as it was last renewed, may have ended by then.
func (l *lease) over(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !now.Before(l.until)
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
	l.ctx.stop()
}
