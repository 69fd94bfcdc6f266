// Package memory is a driver that keeps records in the process: for unit tests of
// applications, and as the smallest worked example of a driver. Everything is
// lost when the process ends.
package memory

import (
	"bytes"
	"context"
	"sort"
	"sync"
	"time"

	"github.com/idem-go/idem/driver"
)

// Driver keeps records in a map. It is safe for concurrent use. Two operations
// share keys when they share the Driver.
type Driver struct {
	mu      sync.Mutex
	records map[driver.Key]*driver.Record
	waiting map[driver.Key]chan struct{} // closed when the key's claim ends
}

var (
	_ driver.Driver = (*Driver)(nil)
	_ driver.Lister = (*Driver)(nil)
	_ driver.Waiter = (*Driver)(nil)
)

// New returns a Driver without records.
func New() *Driver {
	return &Driver{
		records: make(map[driver.Key]*driver.Record),
		waiting: make(map[driver.Key]chan struct{}),
	}
}

// of returns the record of a key, which may be absent.
func (d *Driver) of(k driver.Key) driver.Record {
	if r := d.records[k]; r != nil {
		return *r
	}
	return driver.Record{}
}

func at(now time.Time) time.Time {
	if now.IsZero() {
		now = time.Now()
	}
	return driver.Micro(now)
}

// clone gives the caller a record whose result it may keep and change.
func clone(r driver.Record) driver.Record {
	r.Fingerprint, r.Result = bytes.Clone(r.Fingerprint), bytes.Clone(r.Result)
	return r
}

// Claim implements [driver.Driver].
func (d *Driver) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Record{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	stored := d.records[p.Key]
	if stored == nil {
		stored = new(driver.Record)
	}
	r, write := stored.AfterClaim(p, at(p.Now))
	if write {
		if stored.State == driver.StateAbsent {
			d.records[p.Key] = stored
		}
		*stored = r
	}
	if r.Same(p) {
		r.Fingerprint = p.Fingerprint // the caller's own copy of it
	} else {
		r.Fingerprint = bytes.Clone(r.Fingerprint)
	}
	r.Result = bytes.Clone(r.Result)
	return r, nil
}

// Renew implements [driver.Driver].
func (d *Driver) Renew(ctx context.Context, p driver.RenewParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return d.change(ctx, p.HolderParams, false, func(r *driver.Record, now time.Time) (driver.Record, error) {
		return r.AfterRenew(p, now)
	})
}

// Complete implements [driver.Driver].
func (d *Driver) Complete(ctx context.Context, p driver.CompleteParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return d.change(ctx, p.HolderParams, true, func(r *driver.Record, now time.Time) (driver.Record, error) {
		return r.AfterComplete(p, now)
	})
}

// Release implements [driver.Driver].
func (d *Driver) Release(ctx context.Context, p driver.ReleaseParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return d.change(ctx, p.HolderParams, true, func(r *driver.Record, now time.Time) (driver.Record, error) {
		return r.AfterRelease(p, now)
	})
}

func (d *Driver) change(ctx context.Context, p driver.HolderParams, ends bool, after func(*driver.Record, time.Time) (driver.Record, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	stored := d.records[p.Key]
	if stored == nil {
		return driver.ErrNotHolder
	}
	r, err := after(stored, at(p.Now))
	if err != nil {
		return err
	}
	*stored = r
	if ch, ok := d.waiting[p.Key]; ok && ends {
		close(ch)
		delete(d.waiting, p.Key)
	}
	return nil
}

// Get implements [driver.Driver].
func (d *Driver) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Record{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r := clone(d.of(p.Key))
	r.Now = at(p.Now)
	return r, nil
}

// Forget implements [driver.Driver].
func (d *Driver) Forget(ctx context.Context, p driver.ForgetParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	remove, err := d.of(p.Key).AfterForget(p)
	if remove {
		delete(d.records, p.Key)
	}
	return err
}

// Purge implements [driver.Driver]. It looks at every record.
func (d *Driver) Purge(ctx context.Context, p driver.PurgeParams) (int, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n, now := 0, at(p.Now)
	for k, r := range d.records {
		if n == p.Limit {
			break
		}
		next, due, remove := r.AfterPurge(now)
		switch {
		case !due:
			continue
		case remove:
			delete(d.records, k)
		default:
			*r = next
		}
		n++
	}
	return n, nil
}

// List implements [driver.Lister], in the order of scope and ID.
func (d *Driver) List(ctx context.Context, p driver.ListParams) ([]driver.Record, string, error) {
	if err := p.Validate(); err != nil {
		return nil, "", err
	}
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := at(p.Now)
	found := make(map[string]driver.Record)
	var order []string
	for k, r := range d.records {
		// NUL sorts before every byte of a scope, and stands in none.
		if name := k.Scope + "\x00" + k.ID; r.StateAt(now) == p.State && name > p.After {
			found[name] = clone(*r)
			order = append(order, name)
		}
	}
	sort.Strings(order)
	next := ""
	if len(order) > p.Limit {
		order = order[:p.Limit]
		next = order[p.Limit-1]
	}
	records := make([]driver.Record, len(order))
	for i, name := range order {
		records[i] = found[name]
		records[i].Now = now
	}
	return records, next, nil
}

// Wait implements [driver.Waiter].
func (d *Driver) Wait(ctx context.Context, p driver.WaitParams) error {
	d.mu.Lock()
	r := d.of(p.Key)
	// By time, not as stored: an abandoned claim is stored in flight, and nothing
	// would wake one who waits for it.
	if r.StateAt(at(time.Time{})) != driver.StateInFlight || r.Fence != p.Fence {
		d.mu.Unlock()
		return nil
	}
	ch, ok := d.waiting[p.Key]
	if !ok {
		ch = make(chan struct{})
		d.waiting[p.Key] = ch
	}
	d.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Guarantees implements [driver.Driver].
func (d *Driver) Guarantees() driver.Guarantees {
	return driver.Guarantees{
		Backend:      "memory",
		DurableClaim: driver.DurableNever,
		Clock:        driver.HostClock,
		Sharing:      driver.SharedByGoroutines,
		TxDuplicate:  driver.TxDuplicateNone,
		Failover:     "everything is lost with the process",
		WhenFull:     "the process runs out of memory",
	}
}
