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
	holder *driver.Record // somebody else's record in flight; not changed any more
	claim  *claimed       // the leader's, which runs
	readAt time.Time      // when it was learnt who holds the key
	joined bool           // it is the one that others find
	ended  bool

	last *ending // set before the flight ends; nil when it has taught nobody anything
}

// ending is what a flight taught its followers: a record, or a failure of the store.
// With neither, the key was given up, and whoever follows has to claim it.
type ending struct {
	rec driver.Record
	err error
}

func nothingLearnt() ending { return ending{} }

// join returns the flight of a key, and whether the caller leads it: then it is own.
func (s *flights) join(key Key, own *flight) (f *flight, leader bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.byKey[key]; ok {
		if f.done == nil {
			f.ready, f.done = make(chan struct{}), make(chan struct{})
			if f.known() {
				close(f.ready)
			}
		}
		return f, false
	}
	if s.byKey == nil {
		s.byKey = make(map[Key]*flight)
	}
	s.byKey[key] = own
	own.joined = true
	return own, true
}

// announce tells the followers who holds the key: somebody else, or the leader.
func (s *flights) announce(f *flight, holder *driver.Record, claim *claimed, readAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !f.known() && f.ready != nil && !f.ended {
		close(f.ready)
	}
	f.holder, f.claim, f.readAt = holder, claim, readAt
}

// known reports whether it is known who holds the key.
func (f *flight) known() bool { return f.holder != nil || f.claim != nil }

// end lets the followers go, with what they are told by last, which is asked only if
// there are any. The second call does nothing.
func (s *flights) end(key Key, f *flight, last func() ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.ended {
		return
	}
	f.ended = true
	if f.joined {
		delete(s.byKey, key)
	}
	if f.done == nil {
		return
	}
	e := last()
	f.last = &e
	if !f.known() {
		close(f.ready)
	}
	close(f.done)
}

// state returns who holds the key, whether that is the leader, and the time to
// wait for it as an error.
func (s *flights) state(f *flight, lease time.Duration) (holder driver.Record, running bool, busy error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if running = f.claim != nil; running {
		holder = f.claim.record()
	} else if f.holder != nil {
		holder = *f.holder
	}
	elapsed := time.Since(f.readAt)
	if running && !holder.LeaseUntil.IsZero() {
		// The lease is renewed at a third, so that two thirds remain at the least.
		return holder, true, &InFlightError{RetryAfter: max(lease-elapsed, lease*2/3)}
	}
	return holder, running, inFlight(&holder, holder.Now.Add(elapsed))
}

// patience is how long one call may wait in all, counted from its first wait.
type patience struct {
	limit time.Duration
	since time.Time // zero: it has not waited
}

// start begins to wait. It returns false when the call may not, or when as many
// wait as may.
func (s *flights) start(p *patience, most int) bool {
	if p.limit == 0 || !p.since.IsZero() {
		return p.limit > 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting >= most {
		return false
	}
	s.waiting++
	p.since = time.Now()
	return true
}

// stop is called when a call has ended that may have waited.
func (s *flights) stop(p *patience) {
	if p.since.IsZero() {
		return
	}
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
}

func (p *patience) left() time.Duration { return p.limit - time.Since(p.since) }

// next is what a follower does after it has followed.
type next uint8

const (
	answered next = iota
	joinAgain
	askAlone // the leader's knowledge is not good enough: ask the store
)

// follow waits for what the leader of f finds out. A caller that is fresh was there
// before the leader began: to it, all that the leader learnt is news; for another
// one, only an outcome is, since it does not change any more.
func (e *engine) follow(ctx context.Context, req *request, f *flight, p *patience, fresh bool) (answer, next, error) {
	select {
	case <-f.ready:
	case <-ctx.Done():
		return answer{}, answered, waitEnded(ctx)
	}
	select {
	case <-f.done:
	default:
		if n, err := e.await(ctx, req, f, p); err != nil || n == askAlone {
			return answer{}, n, err
		}
	}
	rec, err := f.last.rec, f.last.err
	switch {
	case err != nil:
		return answer{}, answered, err
	case rec.State == driver.StateAbsent:
		return answer{}, joinAgain, nil
	}
	switch a := decide(&rec, req, driver.Token{}, rec.Now); {
	case a == actReplay:
		return replay(&rec), answered, nil
	case a == actClaim || a == actTakeover:
		return answer{}, joinAgain, nil
	case a == actInFlight && p.limit > 0: // the leader did not wait, but this call does
		return answer{}, joinAgain, nil
	case fresh || rec.State == driver.StateComplete && a == actMismatch:
		return answer{}, answered, refuse(a, &rec, req, rec.Now)
	}
	return answer{}, joinAgain, nil
}

// await waits for the end of f, while somebody holds the key. A caller that is not
// to wait is answered at once when the holder is the leader, which knows; one that
// only watches another process does not know what has become of it since.
func (e *engine) await(ctx context.Context, req *request, f *flight, p *patience) (next, error) {
	holder, running, busy := e.flights.state(f, e.cfg.Lease)
	if decide(&holder, req, driver.Token{}, holder.Now) == actMismatch {
		if running {
			return answered, mismatch(&holder, req)
		}
		return askAlone, nil
	}
	if !e.flights.start(p, e.cfg.MaxWaiters) {
		if running {
			return answered, busy
		}
		p.limit = 0
		return askAlone, nil
	}
	timer := time.NewTimer(p.left())
	defer timer.Stop()
	select {
	case <-f.done:
		return joinAgain, nil
	case <-ctx.Done():
		return answered, waitEnded(ctx)
	case <-timer.C:
		_, _, busy = e.flights.state(f, e.cfg.Lease)
		return answered, busy
	}
}
