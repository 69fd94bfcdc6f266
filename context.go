package idem

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// The contexts of this file stand for those of package context. Most of what these
// cost is for somebody who asks for Done, which a short fn or a store in memory never
// does: so they are built when they are asked for.

// nest is what the context of an fn tells the calls that fn makes.
type nest struct {
	context.Context // the caller's
	e               *engine
	key             *Key
	inTx            bool
	ended           atomic.Bool // fn has returned; what it started may go on with its context
}

type nestKey struct{}

// nestOf returns the innermost call that ctx was made in, or nil.
func nestOf(ctx context.Context) *nest {
	n, _ := ctx.Value(nestKey{}).(*nest)
	return n
}

// Value implements [context.Context].
func (n *nest) Value(key any) any {
	if key == (nestKey{}) {
		return n
	}
	return n.Context.Value(key)
}

// String names the context, as package context would.
func (n *nest) String() string { return fmt.Sprint(n.Context, ".idem") }

// fnContext is context.WithCancelCause, for an fn under a lease.
type fnContext struct {
	nest

	mu     sync.Mutex
	built  context.Context // nil until somebody asks for Done, or it is cancelled
	cancel context.CancelCauseFunc
	over   bool // the call has ended
}

// current returns the context that answers now: the caller's, while that says the same.
func (c *fnContext) current() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		c.build()
	}
	if c.built == nil {
		return c.Context
	}
	return c.built
}

// build makes the context. It is called with mu held.
func (c *fnContext) build() {
	if c.built != nil {
		return
	}
	parent := c.Context
	if c.over { // what has become of the caller since does not count
		parent = context.WithoutCancel(parent)
	}
	c.built, c.cancel = context.WithCancelCause(parent)
	if c.over {
		c.cancel(nil)
	}
}

// lose cancels the context of an fn that still runs.
func (c *fnContext) lose(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.build()
	c.cancel(cause)
}

// stop cancels the context of an fn that has returned.
func (c *fnContext) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Context.Err() != nil {
		c.build() // the caller ended it first
	}
	c.over = true
	if c.built != nil {
		c.cancel(nil)
	}
}

// Done implements [context.Context].
func (c *fnContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.build()
	return c.built.Done()
}

// Err implements [context.Context].
func (c *fnContext) Err() error { return c.current().Err() }

// Value implements [context.Context].
func (c *fnContext) Value(key any) any {
	if key == (nestKey{}) {
		return &c.nest
	}
	return c.current().Value(key)
}

// settling is context.WithDeadline over context.WithoutCancel, for a verb that the
// caller cannot end.
type settling struct {
	parent context.Context
	until  time.Time

	mu     sync.Mutex
	built  context.Context // nil until somebody asks for more than whether it has ended
	cancel context.CancelFunc
	over   bool
}

// detached returns a context with the values of ctx that ends at an instant, or by stop.
func detached(ctx context.Context, until time.Time) *settling {
	return &settling{parent: ctx, until: until}
}

func (s *settling) context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.build()
	return s.built
}

// build makes the context. It is called with mu held.
func (s *settling) build() {
	switch {
	case s.built != nil:
	case s.over:
		s.built, s.cancel = context.WithCancel(context.WithoutCancel(s.parent))
		s.cancel()
	default:
		s.built, s.cancel = context.WithDeadline(context.WithoutCancel(s.parent), s.until)
	}
}

// stop ends the context.
func (s *settling) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.built == nil && time.Until(s.until) <= 0 {
		s.build() // its time ended it first
	}
	s.over = true
	if s.built != nil {
		s.cancel()
	}
}

// live reports whether nothing can have ended the context yet.
func (s *settling) live() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.built == nil && !s.over && time.Until(s.until) > 0
}

// Deadline implements [context.Context].
func (s *settling) Deadline() (time.Time, bool) { return s.until, true }

// Done implements [context.Context].
func (s *settling) Done() <-chan struct{} { return s.context().Done() }

// Err implements [context.Context].
func (s *settling) Err() error {
	if s.live() {
		return nil
	}
	return s.context().Err()
}

// Value implements [context.Context]. The cause of the caller's context, which
// package context looks up as a value, is not that of this one.
func (s *settling) Value(key any) any { return s.context().Value(key) }

// String names the context, as package context would.
func (s *settling) String() string { return fmt.Sprint(s.parent, ".idem(settling)") }
