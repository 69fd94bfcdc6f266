// Package groupcommit shares one durable commit between all the small writes that
// wait for a store with a single writer.
//
// There is no goroutine and no timer. Callers queue their operation; whoever gets
// the slot leads: it opens a transaction, runs everything that was queued
// meanwhile, commits once, and hands the slot on. While it commits, the next
// group gathers. A caller alone pays for nothing but its own commit.
//
// A transaction of the application takes the same slot with [Group.Hold], and has
// the writer to itself. [Held] is the set of keys that such transactions hold.
package groupcommit

import (
	"context"
	"errors"
	"sync"
)

// ErrAborted is returned to operations whose group ended without a commit because
// the store panicked, or the leader's goroutine exited. They were not applied
// unless the panic came out of the commit itself; send them again to find out.
var ErrAborted = errors.New("group commit: the leader did not return")

// Store is the single writer: it opens and ends write transactions of type T. Its
// methods are called by one goroutine at a time.
type Store[T any] interface {
	// Begin opens a write transaction. It waits for the store's own lock, and
	// returns ctx's error when ctx ends first. ctx bounds Begin only.
	Begin(ctx context.Context) (T, error)
	// Commit ends tx durably. After an error tx is ended all the same.
	Commit(tx T) error
	// Rollback ends tx without a trace.
	Rollback(tx T)
}

// Op is one operation of a group. It reads and writes through tx and reports
// whether it wrote anything. It may run more than once, each time in a new
// transaction in which nothing of the run before is left, and on the goroutine of
// another caller. An operation that returns wrote with an error, or panics, is
// undone; its neighbours are not.
type Op[T any] func(tx T) (wrote bool, err error)

// Group runs operations on a Store. It is safe for concurrent use.
type Group[T any] struct {
	store Store[T]
	slot  chan struct{} // holds one element while somebody has the writer

	mu      sync.Mutex
	pending []*call[T]
}

// call is an operation on its way. Its results belong to the leader until done is closed.
type call[T any] struct {
	op       Op[T]
	done     chan struct{}
	err      error
	panicked bool
	value    any // what op panicked with
}

// New returns a Group over s.
func New[T any](s Store[T]) *Group[T] {
	return &Group[T]{store: s, slot: make(chan struct{}, 1)}
}

// Do runs op in a transaction that it may share, and returns once that has been
// committed, with op's own error or that of the store. When ctx ends while op is
// queued, op does not run and ctx's error is returned; once a leader has taken it,
// Do waits for the outcome, which is a commit away. A panic in op goes on in Do.
func (g *Group[T]) Do(ctx context.Context, op Op[T]) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &call[T]{op: op, done: make(chan struct{})}
	g.mu.Lock()
	g.pending = append(g.pending, c)
	g.mu.Unlock()

	select {
	case <-c.done:
	case g.slot <- struct{}{}:
		if err := g.lead(ctx, c); err != nil {
			return err
		}
	case <-ctx.Done():
		if g.withdraw(c) {
			return ctx.Err()
		}
	}
	<-c.done
	if c.panicked {
		panic(c.value)
	}
	return c.err
}

// Hold takes the writer for a transaction of the caller's own, and returns the
// function that gives it back, to be called exactly once, from any goroutine. It
// returns ctx's error when ctx ends first.
func (g *Group[T]) Hold(ctx context.Context) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case g.slot <- struct{}{}:
		return sync.OnceFunc(g.release), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TryHold is Hold when nobody has the writer; otherwise it returns false at once.
func (g *Group[T]) TryHold() (release func(), ok bool) {
	select {
	case g.slot <- struct{}{}:
		return sync.OnceFunc(g.release), true
	default:
		return nil, false
	}
}

func (g *Group[T]) release() { <-g.slot }

// lead runs a group, with c in it unless an earlier leader has done it. An error
// concerns c alone: c was withdrawn, and the others look for another leader. Until
// the transaction is open nothing has been taken from the queue, so that a leader
// whose own context ends leaves the others as they were.
func (g *Group[T]) lead(ctx context.Context, c *call[T]) (err error) {
	defer g.release()
	defer g.withdraw(c)
	select {
	case <-c.done:
		return nil
	default:
	}
	tx, err := g.store.Begin(ctx)
	if err != nil {
		return err
	}
	g.mu.Lock()
	calls := g.pending
	g.pending = nil
	g.mu.Unlock()
	g.run(context.WithoutCancel(ctx), tx, calls)
	return nil
}

// withdraw removes c from the queue, and reports whether it was there.
func (g *Group[T]) withdraw(c *call[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, p := range g.pending {
		if p == c {
			g.pending = append(g.pending[:i], g.pending[i+1:]...)
			return true
		}
	}
	return false
}
