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

func replay(rec driver.Record) answer {
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

// claimed is a key that is ours.
type claimed struct {
	rec    driver.Record // as it was granted, with its key: followers read it
	sent   time.Time     // just before the claim was sent: what the lease is counted from here
	flight *flight

	lease lease // of a claim outside a transaction
	run   Run   // what fn learns about it
}

// holder names the claim to the store.
func (c *claimed) holder() driver.HolderParams {
	return driver.HolderParams{Key: c.rec.Key, Token: c.rec.Token, Fence: c.rec.Fence}
}

// tookOver reports whether an earlier attempt may have been applied, so that
// giving the key up without having run does not make it absent.
func (c *claimed) tookOver() bool { return c.rec.Attempt > 1 }

// now estimates the store's clock, without comparing it with ours.
func (c *claimed) now() time.Time { return driver.Micro(c.rec.Now.Add(time.Since(c.sent))) }

// completed lets the followers go with an outcome that has been stored, and returns
// the answer of the caller that ran.
func (c *claimed) completed(e *engine, w work) answer {
	a := c.answer(w)
	e.flights.end(c.rec.Key, c.flight, func() ending {
		rec := c.rec
		rec.State, rec.Result, rec.Now, rec.CompletedAt = driver.StateComplete, w.outcome, a.completedAt, a.completedAt
		rec.RetainUntil = a.completedAt.Add(e.cfg.Retention)
		rec.GraceUntil = rec.RetainUntil.Add(e.cfg.Grace)
		return ending{rec: rec}
	})
	return a
}

func (c *claimed) answer(w work) answer {
	return answer{attempt: c.rec.Attempt, completedAt: c.now(), notStored: w.notStored}
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

func (e *engine) claimParams(req request, token driver.Token) driver.ClaimParams {
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
	flight   flight   // its own, if it leads one
	patience patience
}

// do is the life of a call: lead the flight of the key, or follow it.
func (e *engine) do(ctx context.Context, c *call, key Key, fp Fingerprint, m mode, opts []CallOption) (answer, error) {
	if err := e.request(c, key, fp); err != nil {
		return answer{}, err
	}
	wait, err := e.wait(opts)
	if err != nil {
		return answer{}, err
	}
	if err := e.refuseNested(ctx, key); err != nil {
		return answer{}, err
	}
	if ctx.Err() != nil {
		return answer{}, fmt.Errorf("idem: %w", ended(ctx))
	}
	p := &c.patience
	p.limit = wait
	defer e.flights.stop(p)
	for fresh := false; ; fresh = true {
		f, leader := e.flights.join(key, &c.flight)
		if leader {
			return e.lead(ctx, &c.req, f, m, p)
		}
		switch ans, n, err := e.follow(ctx, c.req, f, p, fresh); n {
		case answered:
			return ans, err
		case askAlone:
			return e.lead(ctx, &c.req, &c.flight, m, p)
		}
	}
}

// wait returns how long the call may wait.
func (e *engine) wait(opts []CallOption) (time.Duration, error) {
	if len(opts) == 0 {
		return e.cfg.Wait, nil
	}
	o := callOptions{wait: e.cfg.Wait}
	for _, set := range opts {
		if set != nil {
			set(&o)
		}
	}
	if o.wait < 0 {
		return 0, fmt.Errorf("idem: %w: WaitAtMost(%v)", ErrInvalidArgument, o.wait)
	}
	return o.wait, nil
}

// A driver that keeps refusing a key that nobody holds is broken.
const maxClaims = 8

// lead claims the key, waiting for its holder if it may, and runs fn.
func (e *engine) lead(ctx context.Context, req *request, f *flight, m mode, p *patience) (answer, error) {
	defer e.flights.end(req.key, f, nothingLearnt) // also when fn panics
	for claims := 0; claims < maxClaims; claims++ {
		token, sent := driver.NewToken(), time.Now()
		rec, err := m.claim(ctx, e.claimParams(*req, token))
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
		next := decide(rec, *req, token, rec.Now)
		if next == actRun {
			c, now := &claimed{rec: rec, sent: sent, flight: f}, time.Now()
			c.rec.Key = req.key // which a driver may not store
			e.flights.announce(f, &c.rec, now, true)
			return m.run(ctx, c, now)
		}
		if next == actInFlight && p.limit > 0 {
			held := rec
			e.flights.announce(f, &held, time.Now(), false)
			if rec, err = e.watch(ctx, *req, rec, p); err != nil {
				return answer{}, err
			}
			claims = 0
			next = decide(rec, *req, driver.Token{}, rec.Now)
		}
		switch next {
		case actClaim, actTakeover:
			continue
		}
		e.flights.end(req.key, f, func() ending { return ending{rec: rec} })
		if next == actReplay {
			ans := replay(rec)
			ans.replayed = rec.Token != token // the outcome of this call's own batch is none
			return ans, nil
		}
		return answer{}, refuse(next, rec, *req, rec.Now)
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
