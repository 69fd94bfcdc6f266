package idem_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

var (
	errBoom  = errors.New("boom")
	errStore = errors.New("connection refused")
)

func key(id string) idem.Key { return idem.Key{Scope: "tenant", ID: id} }

func print(s string) idem.Fingerprint { return idem.NewFingerprint("test.v1", []byte(s)) }

func newOp[R any](t testing.TB, drv driver.Driver, cfg idem.Config) *idem.Operation[R] {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "op"
	}
	op, err := idem.New[R](drv, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func newTxOp[R any](t testing.TB, drv driver.TxDriver[*rows], cfg idem.Config) *idem.TxOperation[R, *rows] {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "op"
	}
	op, err := idem.NewTx[R](drv, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// counted returns an fn that returns v and counts its runs.
func counted[R any](n *atomic.Int64, v R) func(context.Context, *idem.Run) (R, error) {
	return func(context.Context, *idem.Run) (R, error) {
		n.Add(1)
		return v, nil
	}
}

func wantErr(t testing.TB, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(got, w) {
			t.Errorf("error is %v, want one that matches %v", got, w)
		}
	}
}

func wantState(t testing.TB, drv driver.Driver, k idem.Key, want idem.State) driver.Record {
	t.Helper()
	rec, err := drv.Get(context.Background(), driver.GetParams{Key: k})
	if err != nil {
		t.Fatal(err)
	}
	if got := rec.StateAt(rec.Now); got != want {
		t.Errorf("key is %v, want %v", got, want)
	}
	return rec
}

// faulty is a driver whose verbs fail on demand. A func that is nil does nothing.
type faulty struct {
	driver.Driver
	mu     sync.Mutex
	before map[string]func(context.Context) error // an error: the store never sees the call
	after  map[string]func() error                // an error: the answer is lost
	calls  map[string]int
}

func newFaulty(d driver.Driver) *faulty {
	return &faulty{
		Driver: d, calls: map[string]int{},
		before: map[string]func(context.Context) error{}, after: map[string]func() error{},
	}
}

func (f *faulty) count(verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[verb]
}

func (f *faulty) set(verb string, before func(context.Context) error, after func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before[verb], f.after[verb] = before, after
}

func (f *faulty) do(ctx context.Context, verb string, call func() error) error {
	f.mu.Lock()
	f.calls[verb]++
	before, after := f.before[verb], f.after[verb]
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return err
		}
	}
	err := call()
	if err == nil && after != nil {
		err = after()
	}
	return err
}

func (f *faulty) Claim(ctx context.Context, p driver.ClaimParams) (rec driver.Record, err error) {
	err = f.do(ctx, "claim", func() error { rec, err = f.Driver.Claim(ctx, p); return err })
	return rec, err
}

func (f *faulty) Get(ctx context.Context, p driver.GetParams) (rec driver.Record, err error) {
	err = f.do(ctx, "get", func() error { rec, err = f.Driver.Get(ctx, p); return err })
	return rec, err
}

func (f *faulty) Renew(ctx context.Context, p driver.RenewParams) error {
	return f.do(ctx, "renew", func() error { return f.Driver.Renew(ctx, p) })
}

func (f *faulty) Complete(ctx context.Context, p driver.CompleteParams) error {
	return f.do(ctx, "complete", func() error { return f.Driver.Complete(ctx, p) })
}

func (f *faulty) Release(ctx context.Context, p driver.ReleaseParams) error {
	return f.do(ctx, "release", func() error { return f.Driver.Release(ctx, p) })
}

func (f *faulty) Purge(ctx context.Context, p driver.PurgeParams) (n int, err error) {
	err = f.do(ctx, "purge", func() error { n, err = f.Driver.Purge(ctx, p); return err })
	return n, err
}

// fails returns a fault that happens n times.
func fails(n int, err error) func(context.Context) error {
	var seen atomic.Int64
	return func(context.Context) error {
		if seen.Add(1) <= int64(n) {
			return err
		}
		return nil
	}
}

// txDriver puts transactions over the memory driver: a transaction claims its key
// in a map of its own and writes the record, with its rows, when it commits.
type txDriver struct {
	*memory.Driver
	mu       sync.Mutex
	open     map[driver.Key]bool
	table    map[string]int // committed business rows
	commit   func() error   // called before a commit; an error rolls back
	reply    func() error   // called after a commit; an error is returned
	begin    func() error
	single   bool
	rollback int // number of rollbacks
}

func newTxDriver() *txDriver {
	return &txDriver{Driver: memory.New(), open: map[driver.Key]bool{}, table: map[string]int{}}
}

func (d *txDriver) rows(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table[name]
}

func (d *txDriver) Guarantees() driver.Guarantees {
	g := d.Driver.Guarantees()
	g.SingleWriter = d.single
	return g
}

func (d *txDriver) Retryable(err error) bool { return errors.Is(err, errSerialization) }

var errSerialization = errors.New("serialization failure")

// rows is the transaction that fn gets.
type rows struct {
	d       *txDriver
	claim   *driver.ClaimParams // nil: a leased claim exists
	holder  driver.HolderParams
	written []string
}

func (r *rows) Handle() *rows { return r }

func (r *rows) Insert(name string) { r.written = append(r.written, name) }

func (d *txDriver) BeginClaim(ctx context.Context, p driver.ClaimParams) (driver.Tx[*rows], driver.Record, error) {
	if d.begin != nil {
		if err := d.begin(); err != nil {
			return nil, driver.Record{}, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	rec, err := d.Get(ctx, driver.GetParams{Key: p.Key})
	if err != nil {
		return nil, rec, err
	}
	if d.open[p.Key] {
		return nil, driver.Record{State: driver.StateInFlight, Now: rec.Now}, nil
	}
	rec, granted := rec.AfterClaim(p, time.Now())
	if !granted {
		return nil, rec, nil
	}
	d.open[p.Key] = true
	return &rows{d: d, claim: &p, holder: driver.HolderParams{Key: p.Key, Token: p.Token, Fence: rec.Fence}}, rec, nil
}

func (d *txDriver) BeginComplete(ctx context.Context, p driver.HolderParams) (driver.Tx[*rows], error) {
	if d.begin != nil {
		if err := d.begin(); err != nil {
			return nil, err
		}
	}
	rec, err := d.Get(ctx, driver.GetParams{Key: p.Key})
	if err != nil {
		return nil, err
	}
	if !rec.HeldBy(p.Token, p.Fence) {
		return nil, driver.ErrNotHolder
	}
	return &rows{d: d, holder: p}, nil
}

func (r *rows) Commit(ctx context.Context, p driver.CommitParams) error {
	d := r.d
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, p.Key)
	if d.commit != nil {
		if err := d.commit(); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.claim != nil {
		rec, err := d.Claim(ctx, *r.claim)
		if err != nil {
			return err
		}
		p.Fence = rec.Fence
	}
	if err := d.Complete(ctx, p.CompleteParams); err != nil {
		return err
	}
	if !p.Discard {
		for _, name := range r.written {
			d.table[name]++
		}
	}
	if d.reply != nil {
		return d.reply()
	}
	return nil
}

func (r *rows) Rollback(context.Context) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	delete(r.d.open, r.holder.Key)
	r.d.rollback++
	return nil
}
