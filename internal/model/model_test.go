package model

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

// The bounds of the search. A tick is ten microseconds, so that grants at the same
// instant do not exhaust the fences of a lease.
const (
	tick    = 10 * time.Microsecond
	lease   = 1 * tick
	keep    = 2 * tick // retention
	grace   = 1 * tick
	resends = 1 // of each message, by a client that heard no answer
)

var began = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

type phase uint8

const (
	idle       phase = iota
	claiming         // a claim was sent, and no answer has come
	holding          // the claim was granted
	completing       // a completion was sent, and no answer has come
	releasing        // the same of a release
)

// worker is one caller. It counts its lease from when it sent the claim.
type worker struct {
	phase phase
	tries int
	token byte // 0: none
	fence int64
	until int // tick at which its lease ends, by its own count
}

type verb uint8

const (
	claim verb = iota
	renew
	complete
	release
	abandon
)

// message is a command under way. It may arrive twice.
type message struct {
	verb  verb
	owner int
	token byte
	fence int64
	left  int // deliveries, beyond the next
}

// state is a state of the world.
type state struct {
	now     int
	rec     driver.Record
	workers [2]worker
	net     [2]message // under way, the first `sent` of them
	sent    int

	// What the search knows and the protocol does not.
	lastFence int64 // greatest granted
	lastToken byte  // to which
	outcome   byte  // token whose outcome is stored, until it may be gone
	until     int   // when it may be gone
}

// key returns s as bytes; states with equal keys have equal futures. Instants are
// counted from began.
func (s *state) key(b []byte) []byte {
	slices.SortFunc(s.net[:s.sent], func(x, y message) int {
		return cmp.Or(cmp.Compare(x.token, y.token), cmp.Compare(x.verb, y.verb), cmp.Compare(x.fence, y.fence), cmp.Compare(x.left, y.left))
	})
	r := &s.rec
	b = append(b, byte(s.now), byte(s.until), s.outcome, s.lastToken, fenceByte(s.lastFence))
	for _, w := range s.workers {
		b = append(b, byte(w.phase), byte(w.tries), w.token, fenceByte(w.fence), byte(w.until))
	}
	b = append(b, byte(r.State), r.Token[0], fenceByte(r.Fence), byte(r.Attempt), byte(len(r.Result)))
	for _, t := range [...]time.Time{r.LeaseUntil, r.RetainUntil, r.GraceUntil} {
		b = append(b, byte(t.Sub(began)/time.Microsecond))
	}
	for _, m := range s.net[:s.sent] {
		b = append(b, byte(m.verb), m.token, fenceByte(m.fence), byte(m.left))
	}
	return b
}

// fenceByte tells fences apart: they are microseconds since began, and a few more.
func fenceByte(f int64) byte {
	if f == 0 {
		return 0
	}
	return byte(f - began.UnixMicro() + 1)
}

func (s *state) send(m message) {
	s.net[s.sent] = m
	s.sent++
}

func at(n int) time.Time { return began.Add(time.Duration(n) * tick) }

func token(b byte) (t driver.Token) {
	t[0] = b
	return t
}

// store is the store under search: the pure functions, or something broken.
type store struct {
	hold     bool
	lastTick int    // the clock stops there
	tries    [2]int // claims that each worker may make, each under a token of its own
	claim    func(r driver.Record, p driver.ClaimParams, now time.Time) driver.Record
	complete func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error)
	release  func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error)
	purge    func(r driver.Record, now time.Time) driver.Record
}

func sound() store {
	return store{
		lastTick: 4, tries: [2]int{1, 1},
		claim: func(r driver.Record, p driver.ClaimParams, now time.Time) driver.Record {
			next, _ := r.AfterClaim(p, now)
			return next
		},
		complete: driver.Record.AfterComplete,
		release:  driver.Record.AfterRelease,
		purge: func(r driver.Record, now time.Time) driver.Record {
			next, _, remove := r.AfterPurge(now)
			if remove {
				return driver.Record{}
			}
			return next
		},
	}
}

var key = driver.Key{Scope: "s", ID: "k"}

// successors calls add with every state that can follow s, and report with every
// promise that is broken on the way there.
func (st store) successors(s state, add func(state), report func(string, ...any)) {
	if s.now < st.lastTick {
		n := s
		n.now++
		add(n)
	}
	if r := st.purge(s.rec, at(s.now)); r.State != s.rec.State || len(r.Result) != len(s.rec.Result) {
		if s.rec.StateAt(at(s.now)) == driver.StateInFlight {
			report("a purge removed a live claim")
		}
		n := s
		n.rec = r
		add(n)
	}
	for i, w := range s.workers {
		with := func(change func(n *state, w *worker)) {
			n := s
			change(&n, &n.workers[i])
			add(n)
		}
		send := func(p phase, v verb) {
			if s.sent < len(s.net) {
				with(func(n *state, w *worker) {
					w.phase = p
					n.send(message{v, i, w.token, w.fence, resends})
				})
			}
		}
		switch w.phase {
		case idle:
			if w.tries < st.tries[i] && s.sent < len(s.net) {
				with(func(n *state, w *worker) {
					w.tries++
					w.token = byte(1 + 2*i + w.tries - 1)
					w.fence, w.until, w.phase = 0, n.now+int(lease/tick), claiming
					n.send(message{claim, i, w.token, 0, resends})
				})
			}
			continue
		case holding:
			send(completing, complete)
			send(releasing, release)
			send(releasing, abandon)
			if s.now < w.until {
				send(holding, renew)
			}
		}
		with(func(_ *state, w *worker) { *w = worker{tries: w.tries} }) // it dies, or gives up
	}
	for m := range s.sent {
		st.deliver(s, m, add, report)
	}
}

// deliver applies a message, with and without its answer reaching the worker, and
// with and without it arriving again.
func (st store) deliver(s state, m int, add func(state), report func(string, ...any)) {
	msg, now := s.net[m], at(s.now)
	holder := driver.HolderParams{Key: key, Token: token(msg.token), Fence: msg.fence}
	n := s
	var err error
	granted := false
	switch msg.verb {
	case claim:
		p := driver.ClaimParams{
			Key: key, Operation: "op", Fingerprint: []byte("f"), Token: token(msg.token), Lease: lease, Retention: keep, Hold: st.hold,
		}
		n.rec = st.claim(s.rec, p, now)
		granted = n.rec.State == driver.StateInFlight && n.rec.Token == p.Token
		if granted && !(s.rec.State == driver.StateInFlight && s.rec.Token == p.Token) {
			if n.rec.Fence <= s.lastFence {
				report("fence %d was granted after %d", n.rec.Fence, s.lastFence)
			}
			if s.rec.StateAt(now) == driver.StateInFlight {
				report("a live claim was taken over")
			}
			if s.outcome != 0 && s.now < s.until {
				report("a key was granted whose outcome is kept")
			}
			if st.hold && s.rec.StateAt(now) == driver.StateUnknown {
				report("a held claim was taken over")
			}
			n.lastFence, n.lastToken = n.rec.Fence, msg.token
		}
	case renew:
		n.rec, err = s.rec.AfterRenew(driver.RenewParams{HolderParams: holder, Lease: lease}, now)
	case complete:
		n.rec, err = st.complete(s.rec, driver.CompleteParams{HolderParams: holder, Result: []byte{msg.token}, Retention: keep, Grace: grace}, now)
		if err == nil {
			if msg.token != s.lastToken {
				report("a holder that was overtaken completed")
			}
			if s.outcome != 0 && s.outcome != msg.token && s.now < s.until {
				report("an outcome was replaced")
			}
			if s.outcome != msg.token {
				n.outcome, n.until = msg.token, s.now+int(keep/tick)
			}
		} else if s.outcome == msg.token && s.now < s.until {
			report("a holder whose outcome is stored was told that it is not")
		}
	case release, abandon:
		n.rec, err = st.release(s.rec, driver.ReleaseParams{HolderParams: holder, Abandon: msg.verb == abandon}, now)
		if err == nil && s.outcome != 0 && s.now < s.until {
			report("a release was granted on an outcome")
		}
	}
	if err != nil {
		n.rec = s.rec
	}
	n.rec.Now = time.Time{}
	if n.outcome != 0 && n.now < n.until && (n.rec.State != driver.StateComplete || len(n.rec.Result) != 1 || n.rec.Result[0] != n.outcome) {
		report("an outcome was lost before its retention ended")
	}

	for _, again := range []bool{false, true} {
		if again && msg.left == 0 {
			continue
		}
		a := n
		if again {
			a.net[m].left--
		} else {
			a.sent--
			a.net[m], a.net[a.sent] = a.net[a.sent], message{}
		}
		add(a) // the answer is lost
		w := &a.workers[msg.owner]
		if w.token != msg.token {
			continue // nobody listens any more
		}
		switch {
		case msg.verb == claim && w.phase == claiming && granted:
			w.phase, w.fence = holding, n.rec.Fence
			st.believers(a, report)
		case msg.verb == claim && w.phase == claiming, w.phase == completing && msg.verb == complete, w.phase == releasing && msg.verb >= release:
			*w = worker{tries: w.tries}
		case msg.verb == renew && w.phase == holding && err == nil:
			w.until = max(w.until, a.now) // counted from the answer would be wrong; the next renewal tells
		default:
			continue
		}
		add(a)
	}
}

// believers checks that no two workers believe at once to hold the key.
func (st store) believers(s state, report func(string, ...any)) {
	n := 0
	for _, w := range s.workers {
		if w.phase == holding && s.now < w.until {
			n++
		}
	}
	if n > 1 {
		report("two workers hold the key")
	}
}

// blocked checks that a claim is granted at last, whoever has died.
func (st store) blocked(s state) error {
	if st.hold && s.rec.State == driver.StateInFlight {
		return nil
	}
	p := driver.ClaimParams{Key: key, Operation: "op", Fingerprint: []byte("f"), Token: token(200), Lease: lease, Retention: keep}
	if r := st.claim(s.rec, p, at(st.lastTick+20)); r.Token != p.Token || r.State != driver.StateInFlight {
		return fmt.Errorf("a dead holder blocks the key for ever")
	}
	return nil
}

// search visits every state that can be reached, and returns the first promise
// that is broken and how many states it has seen.
func (st store) search() (seen int, err error) {
	visited := map[string]struct{}{}
	var left []state
	report := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	buf := make([]byte, 0, 128)
	add := func(n state) {
		k := n.key(buf)
		if _, ok := visited[string(k)]; !ok {
			visited[string(k)] = struct{}{}
			left = append(left, n)
		}
	}
	for add(state{}); len(left) > 0 && err == nil; {
		s := left[len(left)-1]
		left = left[:len(left)-1]
		if e := st.blocked(s); e != nil {
			return len(visited), e
		}
		st.successors(s, add, report)
	}
	return len(visited), err
}

var deep = flag.Bool("model.deep", false, "search further: about 8 million states")

func TestProtocol(t *testing.T) {
	for _, hold := range []bool{false, true} {
		st := sound()
		st.hold = hold
		if *deep {
			st.tries[0]++
		}
		seen, err := st.search()
		t.Logf("hold %v: %d states", hold, seen)
		if err != nil {
			t.Errorf("hold %v: %v", hold, err)
		}
	}
}
