package conformancetest

import (
	"context"
	"errors"
	"time"

	"github.com/idem-go/idem/driver"
)

// batchHooks are the places where mutants break batches.
type batchHooks struct {
	batch       func(driver.Record, driver.BatchParams, time.Time) (driver.Record, bool)
	batchResent bool // a batch whose token is stored is not run again
	batchFails  func(error) error
	batchAtomic bool // a statement that fails undoes the others
	batchClaims bool // and the claim
	batchRows   bool // a batch that is refused does not run
	batchStores bool
}

func goodBatchHooks() batchHooks {
	return batchHooks{
		batch: driver.Record.AfterBatch, batchResent: true, batchAtomic: true, batchClaims: true, batchRows: true, batchStores: true,
		batchFails: func(err error) error { return &driver.StatementError{Statement: 1, Err: err} },
	}
}

// mapBatch inserts a row and then fails, if it is to.
type mapBatch struct {
	row   string
	fails bool
}

func (h *handle) RunBatch(ctx context.Context, p driver.BatchParams, b mapBatch) (driver.Record, error) {
	if err := h.begin(ctx, p.Validate()); err != nil {
		return driver.Record{}, err
	}
	var answer driver.Record
	err := h.write(ctx, func() error {
		k := h.key(p.Key)
		old := h.records[k]
		if h.batchResent && old.State == driver.StateComplete && old.Token == p.Token {
			answer = h.copied(old)
			return nil
		}
		next, granted := h.batch(old, p, h.now(p.Now))
		h.pause()
		answer = h.copied(next)
		if !granted {
			if !h.batchRows {
				h.rows[b.row]++
			}
			return nil
		}
		if !b.fails || !h.batchAtomic {
			h.rows[b.row]++
		}
		if b.fails {
			if !h.batchClaims {
				h.records[k] = next
			}
			return h.batchFails(errors.New("the statement fails"))
		}
		if h.batchStores {
			h.records[k] = next
		}
		return nil
	})
	return answer, err
}

var batchHarness = BatchHarness[mapBatch]{
	Insert: func(row string) mapBatch { return mapBatch{row, false} },
	Fail:   func(row string) mapBatch { return mapBatch{row, true} },
	Count: func(_ context.Context, d driver.BatchDriver[mapBatch], row string) (int, error) {
		h := d.(*handle)
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.rows[row], nil
	},
}

// batchAs changes the record and the parameters before the rules are applied.
func batchAs(change func(r *driver.Record, p *driver.BatchParams, now time.Time)) func(driver.Record, driver.BatchParams, time.Time) (driver.Record, bool) {
	return func(r driver.Record, p driver.BatchParams, now time.Time) (driver.Record, bool) {
		change(&r, &p, now)
		return r.AfterBatch(p, now)
	}
}

var batchMutants = []mutant{
	{"stores no outcome of a batch", func(h *hooks) { h.batchStores = false }, "batch/run batch/replay batch/resend batch/race"},
	{"keeps outcomes of batches for a claim's retention", func(h *hooks) {
		h.batch = batchAs(func(_ *driver.Record, p *driver.BatchParams, _ time.Time) { p.Keep = p.Retention })
	}, "batch/run"},
	{"runs statements for nobody", func(h *hooks) { h.batchRows = false }, "batch/replay batch/in-flight batch/unknown batch/expired batch/race"},
	{"runs a batch again that is sent again", func(h *hooks) {
		h.batchResent = false
		h.batch = batchAs(func(r *driver.Record, p *driver.BatchParams, _ time.Time) {
			if r.Token == p.Token {
				*r = driver.Record{}
			}
		})
	}, "batch/resend"},
	{"runs a batch beside a lease", func(h *hooks) {
		h.batch = batchAs(func(r *driver.Record, _ *driver.BatchParams, now time.Time) {
			if r.State == driver.StateInFlight {
				r.LeaseUntil = now
			}
		})
	}, "batch/in-flight"},
	{"starts again where a batch takes over", func(h *hooks) {
		h.batch = batchAs(func(r *driver.Record, _ *driver.BatchParams, now time.Time) {
			if r.StateAt(now) == driver.StateUnknown {
				*r = driver.Record{}
			}
		})
	}, "batch/takeover batch/unknown"},
	{"lets a batch end any attempt", func(h *hooks) {
		h.batch = batchAs(func(r *driver.Record, p *driver.BatchParams, _ time.Time) {
			p.Operation, p.Fingerprint, p.Resolve = r.Operation, r.Fingerprint, true
		})
	}, "batch/unknown"},
	{"forgets graves before a batch", func(h *hooks) {
		h.batch = batchAs(func(r *driver.Record, _ *driver.BatchParams, now time.Time) {
			if r.StateAt(now) == driver.StateExpired {
				*r = driver.Record{}
			}
		})
	}, "batch/expired"},
	{"keeps the rows before a statement that fails", func(h *hooks) { h.batchAtomic = false }, "batch/statement"},
	{"keeps the claim of a batch that fails", func(h *hooks) { h.batchClaims = false }, "batch/statement"},
	{"does not name the statement", func(h *hooks) { h.batchFails = func(err error) error { return err } }, "batch/statement"},
	{"takes any parameters of a batch", func(h *hooks) { h.valid = func(error) error { return nil } }, "batch/params"},
	{"runs a batch for a caller that has gone", func(h *hooks) { h.ended = func(context.Context) error { return nil } }, "batch/ended-context"},
	{"looks and runs in two steps", func(h *hooks) { h.between = meeting() }, "batch/race"},
}
