package idemhttp

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// claimContext is the context of a call. Until the handler starts it ends with the
// request, and when the store is too slow; from there it goes on, unless the guard is
// told otherwise. What watches for that is made when somebody asks for Done.
type claimContext struct {
	request context.Context
	base    context.Context // the request's, or one with its values that it does not end
	limit   time.Time       // for the handler to start

	mu      sync.Mutex
	built   context.Context // nil until it is asked for or has ended
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	unwatch func() bool // keeps the end of the request from ending the call
	started bool
	over    bool
}

func (c *claimContext) reset(request context.Context, limit time.Time, detached bool) {
	c.request, c.base, c.limit = request, request, limit
	if detached {
		c.base = context.WithoutCancel(request)
	}
}

// early returns why the handler may not start any more, or nil.
func (c *claimContext) early() error {
	switch {
	case c.request.Err() != nil:
		return errHungUp
	case time.Until(c.limit) <= 0:
		return errTooSlow
	}
	return nil
}

// build makes the context. It is called with mu held.
func (c *claimContext) build() {
	if c.built != nil {
		return
	}
	base := c.base
	if c.over { // what has become of the request since does not count
		base = context.WithoutCancel(base)
	}
	ctx, cancel := context.WithCancelCause(base)
	c.built, c.cancel = ctx, cancel
	switch {
	case c.over:
		cancel(nil)
	case c.started:
	default:
		if cause := c.early(); cause != nil {
			cancel(cause)
			return
		}
		c.timer = time.AfterFunc(time.Until(c.limit), func() { cancel(errTooSlow) })
		c.unwatch = context.AfterFunc(c.request, func() { cancel(errHungUp) })
	}
}

// start ends what could keep the handler from starting, and reports whether it may.
func (c *claimContext) start() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started {
		return false
	}
	if c.built == nil && c.early() != nil {
		c.build()
	}
	c.started = true
	switch {
	case c.built == nil:
		return true
	case c.timer == nil: // it had ended when it was built
		return false
	}
	inTime, there := c.timer.Stop(), c.unwatch()
	return inTime && there
}

// stop ends the context.
func (c *claimContext) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.built == nil && (c.base.Err() != nil || !c.started && c.early() != nil) {
		c.build() // the request or the store ended it first
	}
	c.over = true
	if c.built == nil {
		return
	}
	if c.timer != nil && !c.started { // the call panicked
		c.timer.Stop()
		c.unwatch()
	}
	c.cancel(nil)
}

// current returns the context that answers now: the base, while that says the same.
func (c *claimContext) current() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.built == nil && (c.over || !c.started && c.early() != nil) {
		c.build()
	}
	if c.built == nil {
		return c.base
	}
	return c.built
}

// Deadline implements [context.Context].
func (c *claimContext) Deadline() (time.Time, bool) { return c.base.Deadline() }

// Done implements [context.Context].
func (c *claimContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.build()
	return c.built.Done()
}

// Err implements [context.Context].
func (c *claimContext) Err() error { return c.current().Err() }

// Value implements [context.Context].
func (c *claimContext) Value(key any) any { return c.current().Value(key) }

// String names the context, as package context would.
func (c *claimContext) String() string { return fmt.Sprint(c.base, ".idemhttp") }
