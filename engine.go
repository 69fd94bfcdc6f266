package idem

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/idem-go/idem/driver"
)

// engine is an operation without its types: it works on encoded outcomes.
type engine struct {
	drv     driver.Driver
	cfg     Config
	waiter  driver.Waiter  // nil: poll
	lister  driver.Lister  // nil: records cannot be listed
	retrier driver.Retrier // nil: fn's errors are returned as they are
	single  bool           // Guarantees.SingleWriter
	flights flights
}

func newEngine(drv driver.Driver, cfg Config) (*engine, error) {
	if drv == nil {
		return nil, &ConfigError{"driver", "is nil"}
	}
	if !reflect.TypeOf(drv).Comparable() {
		return nil, &ConfigError{"driver", fmt.Sprintf("of type %T is not comparable; use a pointer", drv)}
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &engine{drv: drv, cfg: cfg, single: drv.Guarantees().SingleWriter}
	e.waiter, _ = drv.(driver.Waiter)
	e.lister, _ = drv.(driver.Lister)
	e.retrier, _ = drv.(driver.Retrier)
	return e, nil
}

// answer is how a call ended well, or with an outcome that is an error.
type answer struct {
	outcome     []byte // stored form; nil for the caller whose fn ran
	replayed    bool
	attempt     int
	completedAt time.Time
	notStored   *NotStoredError
}

func replay(rec *driver.Record) answer {
	return answer{outcome: rec.Result, replayed: true, attempt: rec.Attempt, completedAt: rec.CompletedAt}
}

// mode is how a call claims its key and runs fn: under a lease, or in a transaction.
type mode interface {
	claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error)
	// own returns what the caller gets for an error of claim that says nothing about
	// the store to others, and nil for one that does.
	own(err error) error
	// run is called once, when the key is ours, as was learnt just now. It ends
	// c.flight when there is an outcome.
	run(ctx context.Context, c *claimed, now time.Time) (answer, error)
}

// claimed is a key that is ours: of the record that was granted, what is still needed.
type claimed struct {
	holder  driver.HolderParams // names the claim to the store
	attempt int
	granted time.Time // by the store's clock
	sent    time.Time // just before the claim was sent: what the lease is counted from here
	flight  *flight

	req *request

	// What record tells the followers beside.
	summary    string // of the first attempt's request
	hold       bool
	createdAt  time.Time
	leaseUntil time.Time // zero in a transaction, which has no lease

	// Of a claim outside a transaction.
	lease      lease
	run        Run      // what fn learns about it
	completing settling // the context under which its outcome is stored
}

// claimOf returns the claim that rec grants. A driver may not store its key.
func claimOf(key Key, rec *driver.Record) *claimed {
	return &claimed{
		holder:  driver.HolderParams{Key: key, Token: rec.Token, Fence: rec.Fence},
		attempt: rec.Attempt, granted: rec.Now,
		summary: rec.Summary, hold: rec.Hold, createdAt: rec.CreatedAt, leaseUntil: rec.LeaseUntil,
	}
}

// record returns the record as it was granted. Operation and fingerprint are those of
// the request: a claim is granted to no other.
func (c *claimed) record() driver.Record {
	return driver.Record{
		Key: c.holder.Key, State: driver.StateInFlight, Operation: c.req.operation, Fingerprint: c.req.fingerprint,
		Summary: c.summary, Token: c.holder.Token, Fence: c.holder.Fence, Attempt: c.attempt, Hold: c.hold,
		CreatedAt: c.createdAt, LeaseUntil: c.leaseUntil, Now: c.granted,
	}
}

// tookOver reports whether an earlier attempt may have been applied, so that
// giving the key up without having run does not make it absent.
func (c *claimed) tookOver() bool { return c.attempt > 1 }

// now estimates the store's clock, without comparing it with ours.
func (c *claimed) now() time.Time { return driver.Micro(c.granted.Add(time.Since(c.sent))) }

// completed lets the followers go with an outcome that has been stored, and returns
// the answer of the caller that ran.
func (c *claimed) completed(e *engine, w work) answer {
	a := c.answer(w)
	e.flights.end(c.holder.Key, c.flight, func() ending {
		rec := c.record()
		rec.State, rec.Result, rec.Now, rec.CompletedAt = driver.StateComplete, w.outcome, a.completedAt, a.completedAt
		rec.RetainUntil = a.completedAt.Add(e.cfg.Retention)
		rec.GraceUntil = rec.RetainUntil.Add(e.cfg.Grace)
		return ending{rec: rec}
	})
	return a
}

func (c *claimed) answer(w work) answer {
	return answer{attempt: c.attempt, completedAt: c.now(), notStored: w.notStored}
}

// request checks what a call asks for, and writes it down.
func (e *engine) request(c *call, key Key, fp Fingerprint) error {
	if err := key.Validate(); err != nil {
		return fmt.Errorf("idem: %w", err)
	}
	if err := fp.validate(); err != nil {
		return fmt.Errorf("idem: %w", err)
	}
	c.req = request{
		key: key, operation: e.cfg.Name, fingerprint: fp.encode(c.sum[:0]), summary: fp.summary, hold: e.cfg.Policy == Hold,
	}
	return nil
}

func (e *engine) claimParams(req *request, token driver.Token) driver.ClaimParams {
	return driver.ClaimParams{
		Key: req.key, Operation: req.operation, Fingerprint: req.fingerprint, Summary: req.summary,
		Token: token, Lease: e.cfg.Lease, Hold: req.hold,
		// An attempt that died is remembered for retention, counted from the end of its lease.
		Retention: min(e.cfg.Lease+e.cfg.Retention, driver.MaxDuration),
	}
}

// call is the memory of one call, allocated with what knows its types.
type call struct {
	req      request
	sum      [48]byte // of the fingerprint, unless it is longer
	options  callOptions
	flight   flight // its own, if it leads one
	patience patience
}

// do is the life of a call: lead the flight of the key, or follow it.
func (e *engine) do(ctx context.Context, c *call, key Key, fp Fingerprint, m mode, opts []CallOption) (answer, error) {
	if err := e.request(c, key, fp); err != nil {
		return answer{}, err
	}
	if err := e.options(c, opts); err != nil {
		return answer{}, err
	}
	if err := e.refuseNested(ctx, key); err != nil {
		return answer{}, err
	}
	if ctx.Err() != nil {
		return answer{}, fmt.Errorf("idem: %w", ended(ctx))
	}
	p := &c.patience
	p.limit = c.options.wait
	defer e.flights.stop(p)
	for fresh := false; ; fresh = true {
		f, leader := e.flights.join(key, &c.flight)
		if leader {
			return e.lead(ctx, &c.req, f, m, p)
		}
		switch ans, n, err := e.follow(ctx, &c.req, f, p, fresh); n {
		case answered:
			return ans, err
		case askAlone:
			return e.lead(ctx, &c.req, &c.flight, m, p)
		}
	}
}

// options writes down how the call differs from others.
func (e *engine) options(c *call, opts []CallOption) error {
	c.options.wait = e.cfg.Wait
	for _, set := range opts {
		if set != nil {
			set(&c.options)
		}
	}
	if c.options.wait < 0 {
		return fmt.Errorf("idem: %w: WaitAtMost(%v)", ErrInvalidArgument, c.options.wait)
	}
	return nil
}

// A driver that keeps refusing a key that nobody holds is broken.
const maxClaims = 8

// lead claims the key, waiting for its holder if it may, and runs fn.
func (e *engine) lead(ctx context.Context, req *request, f *flight, m mode, p *patience) (answer, error) {
	defer e.flights.end(req.key, f, nothingLearnt) // also when fn panics
	for claims := 0; claims < maxClaims; claims++ {
		token, sent := driver.NewToken(), time.Now()
		rec, err := m.claim(ctx, e.claimParams(req, token))
		if err != nil {
			if own := m.own(err); own != nil {
				return answer{}, own
			}
			err = wrap(ctx, "claim", err)
			if deadline, ok := ctx.Deadline(); ctx.Err() == nil && !(ok && !time.Now().Before(deadline)) {
				// The store's failure, and not only ours.
				e.flights.end(req.key, f, func() ending { return ending{err: err} })
			}
			return answer{}, err
		}
		next := decide(&rec, req, token, rec.Now)
		if next == actRun {
			c := claimOf(req.key, &rec)
			c.req, c.sent, c.flight = req, sent, f
			now := sent.Add(time.Since(sent)) // by the monotonic clock alone
			e.flights.announce(f, nil, c, now)
			return m.run(ctx, c, now)
		}
		if next == actInFlight && p.limit > 0 {
			held := rec
			e.flights.announce(f, &held, nil, time.Now())
			if rec, err = e.watch(ctx, req, rec, p); err != nil {
				return answer{}, err
			}
			claims = 0
			next = decide(&rec, req, driver.Token{}, rec.Now)
		}
		switch next {
		case actClaim, actTakeover:
			continue
		}
		e.flights.end(req.key, f, func() ending { return ending{rec: rec} })
		if next == actReplay {
			ans := replay(&rec)
			ans.replayed = rec.Token != token // the outcome of this call's own batch is none
			return ans, nil
		}
		return answer{}, refuse(next, &rec, req, rec.Now)
	}
	return answer{}, &StoreError{Verb: "claim", Err: errors.New("the driver does not grant a key that nobody holds")}
}

// refuseNested refuses a call that would wait for the call it is made in.
func (e *engine) refuseNested(ctx context.Context, key Key) error {
	for n := nestOf(ctx); n != nil; n = nestOf(n.Context) {
		if n.e.drv != e.drv || n.ended.Load() {
			continue
		}
		if *n.key == key {
			return fmt.Errorf("idem: %w: fn already holds this key", ErrNested)
		}
		if n.inTx && e.single {
			return fmt.Errorf("idem: %w: fn is in the only transaction that can write to the store", ErrNested)
		}
	}
	return nil
}
