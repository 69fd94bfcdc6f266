package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem/driver"
)

// batchAccess drives a driver.BatchDriver[B] whatever its B.
type batchAccess struct {
	// run runs a batch that inserts one row, and fails after that if it is to.
	run   func(ctx context.Context, d driver.Driver, p driver.BatchParams, row string, fails bool) (driver.Record, error)
	count func(ctx context.Context, d driver.Driver, row string) (int, error)
}

func batchAccessTo[B any](h BatchHarness[B]) *batchAccess {
	return &batchAccess{
		run: func(ctx context.Context, d driver.Driver, p driver.BatchParams, row string, fails bool) (driver.Record, error) {
			b := h.Insert(row)
			if fails {
				b = h.Fail(row)
			}
			return d.(driver.BatchDriver[B]).RunBatch(ctx, p, b)
		},
		count: func(ctx context.Context, d driver.Driver, row string) (int, error) {
			return h.Count(ctx, d.(driver.BatchDriver[B]), row)
		},
	}
}

// whole returns the parameters of a batch for a claim.
func whole(p driver.ClaimParams) driver.BatchParams {
	return driver.BatchParams{ClaimParams: p, Result: []byte("outcome"), Keep: keep, Grace: grace}
}

func rowOf(k driver.Key) string { return k.Scope + " " + k.ID }

// ran runs a batch that inserts the row of its key, and fails unless the record
// returned is what AfterBatch makes of the record before.
func (e *env) ran(ctx context.Context, p driver.BatchParams, before driver.Record) error {
	r, err := e.batch.run(ctx, e.d, p, rowOf(p.Key), false)
	if err != nil {
		return fmt.Errorf("RunBatch: %w", err)
	}
	want, _ := before.AfterBatch(p, p.Now)
	if d := diff(r, want); d != "" {
		return fmt.Errorf("the record returned: %s", d)
	}
	if r, err = e.get(ctx, p.Key, p.Now); err != nil {
		return err
	}
	if d := diff(r, want); d != "" {
		return fmt.Errorf("the record stored: %s", d)
	}
	return e.batchRowsAre(ctx, p.Key, 1)
}

// refusedBatch runs a batch on a key whose record is before, and fails when it
// was granted, had an effect or changed the record.
func (e *env) refusedBatch(ctx context.Context, p driver.BatchParams, before driver.Record, rows int) error {
	r, err := e.batch.run(ctx, e.d, p, rowOf(p.Key), false)
	if err != nil {
		return fmt.Errorf("RunBatch: %w", err)
	}
	want, _ := before.AfterClaim(p.ClaimParams, p.Now)
	if d := diff(r, want); d != "" {
		return fmt.Errorf("the record returned: %s", d)
	}
	if err := e.batchRowsAre(ctx, p.Key, rows); err != nil {
		return err
	}
	r, err = e.get(ctx, p.Key, p.Now)
	if err != nil {
		return err
	}
	return unchanged(r, before)
}

// batchRowsAre checks how many rows of a key are committed.
func (e *env) batchRowsAre(ctx context.Context, k driver.Key, want int) error {
	n, err := e.batch.count(ctx, e.d, rowOf(k))
	if err != nil {
		return fmt.Errorf("counting rows: %w", err)
	}
	if n != want {
		return fmt.Errorf("%d business rows are committed, want %d", n, want)
	}
	return nil
}

// undone checks that nothing of a batch is left, and that another one can run.
func (e *env) undone(ctx context.Context, p driver.BatchParams) error {
	if err := e.batchRowsAre(ctx, p.Key, 0); err != nil {
		return err
	}
	if err := e.stateIs(ctx, p.Key, p.Now, driver.StateAbsent); err != nil {
		return err
	}
	p.Token = driver.NewToken()
	return e.ran(ctx, p, driver.Record{})
}

// batchRules is the table of RunBatch.
func batchRules() []rule {
	return []rule{
		{
			id:      "batch/run",
			promise: "RunBatch on an absent key stores the outcome, commits the statements and returns the complete record",
			check: func(ctx context.Context, e *env) error {
				return e.ran(ctx, whole(e.claim(e.key(), t0)), driver.Record{})
			},
		},
		{
			id:      "batch/replay",
			promise: "RunBatch on a complete key returns the outcome, also for another request, and no statement has an effect",
			check: func(ctx context.Context, e *env) error {
				p := whole(e.claim(e.key(), t0))
				if err := e.ran(ctx, p, driver.Record{}); err != nil {
					return err
				}
				before, _ := driver.Record{}.AfterBatch(p, t0)
				for _, c := range []driver.ClaimParams{e.claim(p.Key, t0), asksOther(e.claim(p.Key, t0))} {
					if err := e.refusedBatch(ctx, whole(c), before, 1); err != nil {
						return err
					}
				}
				return nil
			},
		},
		{
			id:      "batch/resend",
			promise: "RunBatch sent again with its token has run once, and returns its own record",
			check: func(ctx context.Context, e *env) error {
				p := whole(e.claim(e.key(), t0))
				for range 2 {
					if err := e.ran(ctx, p, driver.Record{}); err != nil {
						return err
					}
				}
				return nil
			},
		},
		{
			id:      "batch/in-flight",
			promise: "RunBatch beside a live lease has no effect, and returns the claim in flight",
			check: func(ctx context.Context, e *env) error {
				p, first, err := e.held(ctx)
				if err != nil {
					return err
				}
				return e.refusedBatch(ctx, whole(e.claim(p.Key, t0.Add(lease-time.Microsecond))), first, 0)
			},
		},
		{
			id:      "batch/takeover",
			promise: "RunBatch takes an unknown claim over as attempt 2, and the stale holder is refused afterwards",
			check: func(ctx context.Context, e *env) error {
				p, first, err := e.held(ctx)
				if err != nil {
					return err
				}
				if err := e.ran(ctx, whole(e.claim(p.Key, t0.Add(lease))), first); err != nil {
					return err
				}
				return notHolder("complete by the stale holder", e.d.Complete(ctx, complete(first, t0.Add(lease), []byte("stale"))))
			},
		},
		{
			id:      "batch/unknown",
			promise: "RunBatch does not take an unknown claim over that is held, or that another request made",
			check: func(ctx context.Context, e *env) error {
				p, first, err := e.held(ctx)
				if err != nil {
					return err
				}
				if err := e.refusedBatch(ctx, whole(asksOther(e.claim(p.Key, t0.Add(lease)))), first, 0); err != nil {
					return err
				}
				next := e.claim(p.Key, t0.Add(lease))
				next.Hold = true
				return e.refusedBatch(ctx, whole(next), first, 0)
			},
		},
		{
			id:      "batch/expired",
			promise: "RunBatch on a tombstone has no effect and returns no result, and runs when the grace has ended",
			check: func(ctx context.Context, e *env) error {
				p, first, err := e.completed(ctx, []byte("outcome"))
				if err != nil {
					return err
				}
				r, err := e.batch.run(ctx, e.d, whole(e.claim(p.Key, t0.Add(keep))), rowOf(p.Key), false)
				if err != nil {
					return fmt.Errorf("RunBatch: %w", err)
				}
				if r.Token != first.Token || r.Result != nil {
					return fmt.Errorf("got %s, want the tombstone without a result", show(r))
				}
				if err := e.batchRowsAre(ctx, p.Key, 0); err != nil {
					return err
				}
				return e.ran(ctx, whole(e.claim(p.Key, t0.Add(keep+grace))), first)
			},
		},
		{
			id:      "batch/statement",
			promise: "a statement that fails is a StatementError, and undoes the statements before it and the claim",
			check: func(ctx context.Context, e *env) error {
				p := whole(e.claim(e.key(), t0))
				_, err := e.batch.run(ctx, e.d, p, rowOf(p.Key), true)
				var statement *driver.StatementError
				if !errors.As(err, &statement) {
					return fmt.Errorf("got error %v, want a StatementError", err)
				}
				return e.undone(ctx, p)
			},
		},
		{
			id:      "batch/params",
			promise: "RunBatch refuses bad parameters, and has no effect",
			check: func(ctx context.Context, e *env) error {
				good := whole(e.claim(e.key(), t0))
				for name, change := range map[string]func(*driver.BatchParams){
					"no token":     func(p *driver.BatchParams) { p.Token = driver.Token{} },
					"no operation": func(p *driver.BatchParams) { p.Operation = "" },
					"no retention": func(p *driver.BatchParams) { p.Keep = 0 },
					"past grace":   func(p *driver.BatchParams) { p.Grace = -time.Second },
				} {
					p := good
					change(&p)
					if _, err := e.batch.run(ctx, e.d, p, rowOf(p.Key), false); !errors.Is(err, driver.ErrInvalidParams) {
						return fmt.Errorf("%s: got error %v, want one that matches ErrInvalidParams", name, err)
					}
				}
				return e.undone(ctx, good)
			},
		},
		{
			id:      "batch/ended-context",
			promise: "RunBatch with a context that has ended returns its error, and has no effect",
			check: func(ctx context.Context, e *env) error {
				ended, cancel := context.WithCancel(ctx)
				cancel()
				p := whole(e.claim(e.key(), t0))
				if _, err := e.batch.run(ended, e.d, p, rowOf(p.Key), false); !errors.Is(err, context.Canceled) {
					return fmt.Errorf("got error %v, want one that matches context.Canceled", err)
				}
				return e.undone(ctx, p)
			},
		},
		{
			id:      "batch/race",
			promise: "of many concurrent batches on a key one runs, its row is there once, and all get its outcome",
			check: func(ctx context.Context, e *env) error {
				handles := e.handles()
				k := e.key()
				var runs atomic.Int64
				err := together(racers, func(i int) error {
					ran, err := e.batchToEnd(ctx, handles[i%len(handles)], whole(e.claim(k, t0)))
					if ran {
						runs.Add(1)
					}
					return err
				})
				if err != nil {
					return err
				}
				if n := runs.Load(); n != 1 {
					return fmt.Errorf("%d of %d batches ran, want 1", n, racers)
				}
				return e.batchRowsAre(ctx, k, 1)
			},
		},
	}
}

// batchToEnd sends a batch until its key is complete, and reports whether it was
// this one that ran.
func (e *env) batchToEnd(ctx context.Context, d driver.Driver, p driver.BatchParams) (ran bool, err error) {
	for {
		r, err := e.batch.run(ctx, d, p, rowOf(p.Key), false)
		switch {
		case err == nil && r.State == driver.StateComplete:
			if string(r.Result) != "outcome" {
				return false, fmt.Errorf("got %s, want the outcome", show(r))
			}
			return r.Token == p.Token, nil
		case err == nil && r.State != driver.StateInFlight:
			return false, fmt.Errorf("RunBatch answered %s, want the outcome or a claim in flight", show(r))
		case err != nil && !errors.Is(err, driver.ErrRetryable):
			return false, fmt.Errorf("RunBatch: %w", err)
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}
