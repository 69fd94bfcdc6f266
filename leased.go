package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// work is what became of fn.
type work struct {
	says      says
	outcome   []byte          // stored form, when says is done
	final     bool            // the outcome is an error
	notStored *NotStoredError // why the outcome is not the value itself
	guessed   bool            // Config.Classify said so, and not fn
	err       error           // for the caller whose fn ran
}

type says uint8

const (
	saysNothing    says = iota // no outcome
	saysDone                   // an outcome: a value, or an error that is final
	saysNotApplied             // nothing happened
)

// failed is the work of an fn that returned err.
func (e *engine) failed(err error) work {
	outcome, final, guessed := e.cfg.classify(err)
	switch outcome {
	case OutcomeNotApplied:
		// The mark was for this operation, and not for one around it.
		return work{says: saysNotApplied, guessed: guessed, err: &settledError{err}}
	case OutcomeFinal:
		if guessed {
			err = final // let the first caller see it, too
		}
		stored := &FinalError{Message: err.Error(), Code: final.Code, Details: final.Details}
		w := work{says: saysDone, final: true, err: err}
		w.outcome, w.notStored = e.cfg.fit(encodeError(stored))
		return w
	}
	return work{says: saysNothing, err: err}
}

// leased runs fn under a lease, outside any transaction.
type leased struct {
	e  *engine
	fn interface {
		exec(context.Context, *Run) work
	}
	// then, if set, ends a claim whose fn returned a value: DoThenTx.
	then func(context.Context, *claimed) (work, error)
}

func (m *leased) claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	rec, err := m.e.drv.Claim(ctx, p)
	if err != nil {
		m.e.unclaim(ctx, p, err)
	}
	return rec, err
}

func (m *leased) own(error) error { return nil }

func (m *leased) run(ctx context.Context, c *claimed, now time.Time) (answer, error) {
	l := &c.lease
	l.start(ctx, m.e, c, now)
	abandon := true
	defer func() {
		l.stop()
		if abandon { // a panic or runtime.Goexit goes on after this
			m.e.release(ctx, c, true)
		}
	}()
	if l.over(now) || ctx.Err() != nil { // the answer came too late: fn does not start
		abandon = false
		l.stop() // a renewal would undo the release
		m.e.release(ctx, c, c.tookOver())
		if ctx.Err() != nil {
			return answer{}, fmt.Errorf("idem: %w", ended(ctx))
		}
		return answer{}, fmt.Errorf("idem: %w: the store took longer than the lease to answer", ErrLeaseLost)
	}
	c.run = Run{
		Key: c.holder.Key, Attempt: c.attempt, Fence: c.holder.Fence, operation: m.e.cfg.Name, fingerprint: c.req.fingerprint,
	}
	w := m.runFn(&l.ctx, &c.run)
	var err error
	switch {
	case w.says != saysDone:
	case m.then != nil && !w.final:
		l.stop() // the transaction holds the claim from here, and a renewal would wait for it
		w, err = m.then(ctx, c)
	default:
		err = m.e.complete(ctx, c, w.outcome)
	}
	abandon = false
	switch {
	case err != nil:
		return c.answer(w), notRecorded(err, w.err)
	case w.says == saysDone:
		return c.completed(m.e, w), w.err
	}
	l.stop()
	// What Classify makes of an error speaks of this attempt, not of one that died before it.
	m.e.release(ctx, c, w.says == saysNothing || w.guessed && c.tookOver())
	if l.lost() {
		return answer{}, fmt.Errorf("idem: %w: %w", ErrLeaseLost, w.err)
	}
	return answer{}, w.err
}

func (m *leased) runFn(ctx *fnContext, run *Run) work {
	defer ctx.ended.Store(true)
	return m.fn.exec(ctx, run)
}

// notRecorded is the error of a call whose fn reached an outcome that is not in
// the store, and why.
func notRecorded(why, outcome error) error {
	if errors.Is(why, driver.ErrNotHolder) {
		why = ErrLeaseLost
	}
	if outcome != nil {
		return fmt.Errorf("idem: %w: %w: %w", ErrNotRecorded, why, outcome)
	}
	return fmt.Errorf("idem: %w: %w", ErrNotRecorded, why)
}

// complete stores an outcome, and repeats that while the store fails.
func (e *engine) complete(ctx context.Context, c *claimed, outcome []byte) error {
	p := driver.CompleteParams{
		HolderParams: c.holder, Result: outcome, Retention: e.cfg.Retention, Grace: e.cfg.Grace,
	}
	return e.settle(ctx, &c.completing, "complete", e.cfg.SettleTimeout, func(ctx context.Context) error {
		return e.drv.Complete(ctx, p)
	})
}

// A release that fails is not worth a long wait: the lease ends anyway.
const releaseTimeout = time.Second

// release gives the key up: as absent, or as an attempt without an outcome.
func (e *engine) release(ctx context.Context, c *claimed, abandon bool) {
	p := driver.ReleaseParams{HolderParams: c.holder, Abandon: abandon}
	_ = e.settle(ctx, new(settling), "release", min(releaseTimeout, e.cfg.SettleTimeout), func(ctx context.Context) error {
		return e.drv.Release(ctx, p)
	})
}

// How long a caller whose claim was not answered tries to take it back. Under
// Hold nobody else could ever run.
const unclaimTimeout = 100 * time.Millisecond

// unclaim takes back a claim that may have been granted although the store
// answered with err: otherwise nobody could run until its lease ends.
func (e *engine) unclaim(ctx context.Context, p driver.ClaimParams, err error) {
	if definite(err) || errors.Is(err, driver.ErrRetryable) {
		return
	}
	timeout := unclaimTimeout
	if p.Hold {
		timeout = releaseTimeout
	}
	_ = e.settle(ctx, new(settling), "release", timeout, func(ctx context.Context) error {
		rec, err := e.drv.Get(ctx, driver.GetParams{Key: p.Key})
		if err != nil || rec.State != driver.StateInFlight || rec.Token != p.Token {
			return err
		}
		c := claimOf(p.Key, &rec)
		return e.drv.Release(ctx, driver.ReleaseParams{HolderParams: c.holder, Abandon: c.tookOver()})
	})
}

// settle runs op, and again while it fails for a reason that may pass, on a
// context that the caller cannot end. The first such context is attempt, which is
// used for nothing else.
func (e *engine) settle(ctx context.Context, attempt *settling, verb string, timeout time.Duration, op func(context.Context) error) error {
	now := time.Now()
	deadline := now.Add(timeout)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		// One attempt that hangs does not use up the time of the others.
		attempt.parent, attempt.until = ctx, now.Add(min(timeout/3, deadline.Sub(now)))
		err := op(attempt)
		attempt.stop()
		switch {
		case err == nil, errors.Is(err, driver.ErrNotHolder):
			return err
		case !definite(err) && time.Until(deadline) > wait:
			time.Sleep(wait)
			attempt, now = new(settling), time.Now()
		default:
			return &StoreError{Verb: verb, Err: err}
		}
	}
}

// definite reports whether the store would answer the same again.
func definite(err error) bool {
	for _, e := range [...]error{
		driver.ErrNotHolder, driver.ErrInvalidKey, driver.ErrInvalidParams,
		driver.ErrUnsafeConfig, driver.ErrNewerVersion, driver.ErrForeignRecord,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
