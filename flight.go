package idem

import (
	"context"
	"sync"
	"time"

	"github.com/idem-go/idem/driver"
)

// flights are the calls of one operation that are under way in this process. Of
// the calls with one key, one leads: it alone talks to the store, and the others
// follow it.
type flights struct {
	mu      sync.Mutex
	byKey   map[Key]*flight
	waiting int
}

// flight is one leader's work on one key.
type flight struct {
	// Made for the first follower; most flights have none.
	ready chan struct{} // closed when holder is known, or the flight has ended
	done  chan struct{} // closed when the flight has ended

	// Guarded by flights.mu.
	holder  driver.Record // the record in flight: the leader's claim, or somebody else's
	readAt  time.Time     // when it was read
	running bool          // the claim is the leader's, and it renews the lease
	known   bool          // holder is known

	// Set before done is closed. With neither, the key was given up, and whoever
	// follows has to claim it.
	rec driver.Record
	err error
}

// join returns the flight of a key, and whether the caller leads it.
func (s *flights) join(key Key) (f *flight, leader bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.byKey[key]; ok {
		if f.done == nil {
			f.ready, f.done = make(chan struct{}), make(chan struct{})
			if f.known {
				close(f.ready)
			}
		}
		return f, false
	}
	if s.byKey == nil {
		s.byKey = make(map[Key]*flight)
	}
	f = &flight{}
	s.byKey[key] = f
	return f, true
}

// announce tells the followers who holds the key.
func (s *flights) announce(f *flight, holder driver.Record, running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.holder, f.readAt, f.running = holder, time.Now(), running
	if !f.known && f.ready != nil {
		close(f.ready)
	}
	f.known = true
}

// end lets the followers go.
func (s *flights) end(key Key, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
	if f.done == nil {
		return
	}
	if !f.known {
		close(f.ready)
	}
	close(f.done)
}

// state returns who holds the key, and the time to wait for it as an error.
func (s *flights) state(f *flight, lease time.Duration) (holder driver.Record, busy error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed := time.Since(f.readAt)
	now := f.holder.Now.Add(elapsed)
	if f.running && !f.holder.LeaseUntil.IsZero() {
		// The lease is renewed at a third, so that two thirds remain at the least.
		return f.holder, &InFlightError{RetryAfter: max(lease-elapsed, lease*2/3)}
	}
	return f.holder, inFlight(f.holder, now)
}

// enter counts one more waiter, if there may be one.
func (s *flights) enter(most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting >= most {
		return false
	}
	s.waiting++
	return true
}

func (s *flights) leave() {
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
}

// patience is how long one call may wait in all, counted from its first wait.
type patience struct {
	limit time.Duration
	since time.Time
}

func (p *patience) start() {
	if p.since.IsZero() {
		p.since = time.Now()
	}
}

func (p *patience) left() time.Duration { return p.limit - time.Since(p.since) }

// follow waits for what the leader of f finds out. When settled is false, the
// caller has to join again. A caller that is fresh was there before the leader
// began: to it, all that the leader learnt is news; for another one, only an
// outcome is, since it does not change any more.
func (e *engine) follow(ctx context.Context, req request, f *flight, p *patience, fresh bool) (ans answer, settled bool, err error) {
	select {
	case <-f.ready:
	case <-ctx.Done():
		return answer{}, true, waitEnded(ctx)
	}
	select {
	case <-f.done:
	default:
		if again, err := e.await(ctx, req, f, p); !again {
			return answer{}, true, err
		}
	}
	switch {
	case f.err != nil:
		return answer{}, true, f.err
	case f.rec.State == driver.StateAbsent:
		return answer{}, false, nil
	}
	switch a := decide(f.rec, req, driver.Token{}, f.rec.Now); {
	case a == actReplay:
		return replay(f.rec), true, nil
	case a == actClaim || a == actTakeover:
		return answer{}, false, nil
	case a == actInFlight && p.limit > 0: // the leader did not wait, but this call does
		return answer{}, false, nil
	case fresh || f.rec.State == driver.StateComplete && a == actMismatch:
		return answer{}, true, refuse(a, f.rec, req, f.rec.Now)
	}
	return answer{}, false, nil
}

// await waits for the end of f, while somebody holds the key. It returns false
// and the error to answer when the call must not or cannot wait longer.
func (e *engine) await(ctx context.Context, req request, f *flight, p *patience) (ended bool, err error) {
	holder, busy := e.flights.state(f, e.cfg.Lease)
	if decide(holder, req, driver.Token{}, holder.Now) == actMismatch {
		return false, mismatch(holder, req)
	}
	if p.limit == 0 || !e.flights.enter(e.cfg.MaxWaiters) {
		return false, busy
	}
	defer e.flights.leave()
	p.start()
	timer := time.NewTimer(p.left())
	defer timer.Stop()
	select {
	case <-f.done:
		return true, nil
	case <-ctx.Done():
		return false, waitEnded(ctx)
	case <-timer.C:
		_, busy = e.flights.state(f, e.cfg.Lease)
		return false, busy
	}
}
