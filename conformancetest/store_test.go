package conformancetest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

// store keeps records and business rows in memory, for any number of handles.
type store struct {
	mu      sync.Mutex
	records map[string]driver.Record
	rows    map[string]int
	open    map[string]*mapTx // the transaction that holds a key
	waiting map[string]chan struct{}
	writer  chan struct{} // the slot of the single writer, where there is one
}

func newStore() *store {
	return &store{
		records: map[string]driver.Record{}, rows: map[string]int{}, open: map[string]*mapTx{},
		waiting: map[string]chan struct{}{}, writer: make(chan struct{}, 1),
	}
}

// hooks are the places where mutants break a handle. Those that are functions are
// never nil.
type hooks struct {
	key      func(driver.Key) string
	now      func(time.Time) time.Time
	valid    func(error) error
	ended    func(context.Context) error
	claim    func(driver.Record, driver.ClaimParams, time.Time) (driver.Record, bool)
	renew    func(driver.Record, driver.RenewParams, time.Time) (driver.Record, error)
	complete func(driver.Record, driver.CompleteParams, time.Time) (driver.Record, error)
	release  func(driver.Record, driver.ReleaseParams, time.Time) (driver.Record, error)
	forget   func(driver.Record, driver.ForgetParams) (bool, error)
	purge    func(driver.Record, time.Time) (driver.Record, bool, bool)
	copied   func(driver.Record) driver.Record // what callers get
	listed   func(driver.Record) driver.Record
	state    func(driver.Record, time.Time) driver.State // as List judges it
	limit    func(int) int                               // of a purge
	stated   func(*driver.Guarantees)
	second   func(*store) *store
	reopened func(*store) *store
	between  func() // called, unlocked, between reading and writing; nil: one atomic step

	busyIsInFlight bool
	skipAfter      string // appended to the cursor
	muteComplete   bool
	muteRelease    bool
	waitForEver    bool
	waitDeaf       bool
	txHooks
	batchHooks
}

// goodHooks break nothing.
func goodHooks() hooks {
	return hooks{
		key: func(k driver.Key) string { return k.Scope + "\x00" + k.ID },
		now: func(now time.Time) time.Time {
			if now.IsZero() {
				now = time.Now()
			}
			return driver.Micro(now)
		},
		valid:    func(err error) error { return err },
		ended:    context.Context.Err,
		claim:    driver.Record.AfterClaim,
		renew:    driver.Record.AfterRenew,
		complete: driver.Record.AfterComplete,
		release:  driver.Record.AfterRelease,
		forget:   driver.Record.AfterForget,
		purge:    driver.Record.AfterPurge,
		copied: func(r driver.Record) driver.Record {
			r.Fingerprint, r.Result = bytes.Clone(r.Fingerprint), bytes.Clone(r.Result)
			return r
		},
		listed:   func(r driver.Record) driver.Record { return r },
		state:    driver.Record.StateAt,
		limit:    func(n int) int { return n },
		stated:   func(*driver.Guarantees) {},
		second:   func(s *store) *store { return s },
		reopened: func(s *store) *store { return s },
		txHooks:  goodTxHooks(), batchHooks: goodBatchHooks(),
	}
}

// handle is a driver over a store, a TxDriver[*mapTx] and a BatchDriver[mapBatch].
type handle struct {
	*store
	hooks
}

var (
	_ driver.TxDriver[*mapTx]      = (*handle)(nil)
	_ driver.BatchDriver[mapBatch] = (*handle)(nil)
	_ driver.Lister                = (*handle)(nil)
	_ driver.Waiter                = (*handle)(nil)
)

// begin checks what every verb checks first.
func (h *handle) begin(ctx context.Context, valid error) error {
	if err := h.valid(valid); err != nil {
		return err
	}
	return h.ended(ctx)
}

// write runs do while no other write does, and waits for the writer where there
// is one.
func (h *handle) write(ctx context.Context, do func() error) error {
	if h.single {
		select {
		case h.writer <- struct{}{}:
			defer func() { <-h.writer }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return do()
}

// pause lets other calls in between reading and writing, when the handle is not atomic.
func (h *handle) pause() {
	if h.between != nil {
		h.mu.Unlock()
		h.between()
		h.mu.Lock()
	}
}

func (h *handle) Claim(ctx context.Context, p driver.ClaimParams) (r driver.Record, err error) {
	if err := h.begin(ctx, p.Validate()); err != nil {
		return r, err
	}
	if h.busyIsInFlight {
		if !h.mu.TryLock() {
			return driver.Record{State: driver.StateInFlight, Now: h.now(p.Now)}, nil
		}
		h.between()
		h.mu.Unlock()
	}
	err = h.write(ctx, func() error {
		k := h.key(p.Key)
		if h.open[k] != nil && !h.lockless {
			r = h.inFlight(p)
			return nil
		}
		old := h.records[k]
		h.pause()
		next, write := h.claim(old, p, h.now(p.Now))
		if write {
			h.records[k] = next
		}
		r = h.copied(next)
		return nil
	})
	return r, err
}

// change applies one verb of a holder to a record.
func (h *handle) change(ctx context.Context, valid error, p driver.HolderParams, mute bool, after func(driver.Record, time.Time) (driver.Record, error)) error {
	if err := h.begin(ctx, valid); err != nil {
		return err
	}
	return h.write(ctx, func() error {
		k := h.key(p.Key)
		old := h.records[k]
		h.pause()
		next, err := after(old, h.now(p.Now))
		if err != nil {
			return err
		}
		h.records[k] = next
		if ch := h.waiting[k]; ch != nil && !mute && next.StateAt(h.now(p.Now)) != driver.StateInFlight {
			close(ch)
			delete(h.waiting, k)
		}
		return nil
	})
}

func (h *handle) Renew(ctx context.Context, p driver.RenewParams) error {
	return h.change(ctx, p.Validate(), p.HolderParams, true, func(r driver.Record, now time.Time) (driver.Record, error) {
		return h.renew(r, p, now)
	})
}

func (h *handle) Complete(ctx context.Context, p driver.CompleteParams) error {
	return h.change(ctx, p.Validate(), p.HolderParams, h.muteComplete, func(r driver.Record, now time.Time) (driver.Record, error) {
		return h.complete(r, p, now)
	})
}

func (h *handle) Release(ctx context.Context, p driver.ReleaseParams) error {
	return h.change(ctx, p.Validate(), p.HolderParams, h.muteRelease, func(r driver.Record, now time.Time) (driver.Record, error) {
		return h.release(r, p, now)
	})
}

func (h *handle) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	if err := h.begin(ctx, p.Validate()); err != nil {
		return driver.Record{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.copied(h.records[h.key(p.Key)])
	r.Now = h.now(p.Now)
	return r, nil
}

func (h *handle) Forget(ctx context.Context, p driver.ForgetParams) error {
	if err := h.begin(ctx, p.Validate()); err != nil {
		return err
	}
	return h.write(ctx, func() error {
		remove, err := h.forget(h.records[h.key(p.Key)], p)
		if remove {
			delete(h.records, h.key(p.Key))
		}
		return err
	})
}

func (h *handle) Purge(ctx context.Context, p driver.PurgeParams) (n int, err error) {
	if err := h.begin(ctx, p.Validate()); err != nil {
		return 0, err
	}
	err = h.write(ctx, func() error {
		for k, r := range maps.Clone(h.records) {
			if n >= h.limit(p.Limit) {
				break
			}
			next, due, remove := h.purge(r, h.now(p.Now))
			if !due || h.open[k] != nil {
				continue
			}
			h.pause()
			if remove {
				delete(h.records, k)
			} else {
				h.records[k] = next
			}
			n++
		}
		return nil
	})
	return n, err
}

func (h *handle) List(ctx context.Context, p driver.ListParams) (page []driver.Record, next string, err error) {
	if err := h.begin(ctx, p.Validate()); err != nil {
		return nil, "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now(p.Now)
	for _, k := range slices.Sorted(maps.Keys(h.records)) {
		r := h.records[k]
		if h.state(r, now) != p.State || k <= p.After {
			continue
		}
		if len(page) == p.Limit {
			return page, next + h.skipAfter, nil
		}
		r = h.listed(h.copied(r))
		r.Now = now
		page, next = append(page, r), k
	}
	return page, "", nil
}

func (h *handle) Wait(ctx context.Context, p driver.WaitParams) error {
	h.mu.Lock()
	r := h.records[h.key(p.Key)]
	if (r.StateAt(h.now(time.Time{})) != driver.StateInFlight || r.Fence != p.Fence) && !h.waitForEver {
		h.mu.Unlock()
		return nil
	}
	ch := h.waiting[h.key(p.Key)]
	if ch == nil {
		ch = make(chan struct{})
		h.waiting[h.key(p.Key)] = ch
	}
	h.mu.Unlock()
	if h.waitDeaf {
		ctx = context.Background()
	}
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *handle) Guarantees() driver.Guarantees {
	g := driver.Guarantees{
		Backend: "map", DurableClaim: driver.DurableAlways, AtomicWithBusinessData: true, Clock: driver.HostClock,
		Sharing: driver.SharedByHosts, TxDuplicate: driver.TxDuplicateFailFast, SingleWriter: h.single,
		Failover: "nothing", WhenFull: "claims fail",
	}
	if h.single {
		g.TxDuplicate = driver.TxDuplicateFailFastLocal
	}
	h.stated(&g)
	return g
}

// suiteFor returns the suite over a new store with these hooks, quick to give up.
func suiteFor(h hooks, table func() []rule) *suite {
	s := newSuite(&handle{newStore(), h}, table)
	s.tx, s.batch = accessTo(insertRow, countRows), batchAccessTo(batchHarness)
	s.makeSecond = func(d driver.Driver) driver.Driver { return &handle{h.second(d.(*handle).store), h} }
	s.makeReopened = func(d driver.Driver) driver.Driver { return &handle{h.reopened(d.(*handle).store), h} }
	return s
}

func insertRow(_ context.Context, tx *mapTx, row string) error { return tx.insert(row) }

func countRows(_ context.Context, d driver.TxDriver[*mapTx], row string) (int, error) {
	h := d.(*handle)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rows[row], nil
}

func TestUnbroken(t *testing.T) {
	for name, h := range map[string]hooks{
		"map": goodHooks(),
		"single writer": func() hooks {
			h := goodHooks()
			h.single = true
			return h
		}(),
		"drops what is due by itself": func() hooks {
			h := goodHooks()
			h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
				if _, _, remove := r.AfterPurge(now); remove {
					r = driver.Record{}
				}
				return r.AfterClaim(p, now)
			}
			return h
		}(),
		"stores only the hash": func() hooks {
			h := goodHooks()
			h.copied = func(r driver.Record) driver.Record {
				r.Fingerprint, r.Result, r.Key = bytes.Clone(r.Fingerprint), bytes.Clone(r.Result), driver.Key{}
				return r
			}
			return h
		}(),
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Run("Run", func(t *testing.T) { suiteFor(h, rules).runAll(t, name, nil) })
			t.Run("RunTx", func(t *testing.T) { suiteFor(h, txRules).runAll(t, name, nil) })
			t.Run("RunBatch", func(t *testing.T) { suiteFor(h, batchRules).runAll(t, name, nil) })
		})
	}
}
