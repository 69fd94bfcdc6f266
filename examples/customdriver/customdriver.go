// Package customdriver is a whole driver on one page: a directory with a file for
// each record. It is made to be read; one process may use a directory.
package customdriver

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/idem-go/idem/driver"
)

// Driver keeps records in a directory. It is safe for concurrent use.
type Driver struct {
	dir string
	mu  sync.Mutex // makes reading a record and writing it back one step
}

// New returns a driver over a directory, which must exist.
func New(dir string) *Driver { return &Driver{dir: dir} }

// change says what becomes of a record. One that becomes absent is deleted.
type change func(r driver.Record, now time.Time) (next driver.Record, write bool, err error)

// verb reads a record, asks f, and writes what f says: one atomic step.
func (d *Driver) verb(ctx context.Context, invalid error, h driver.KeyHash, now time.Time, f change) (r driver.Record, err error) {
	if err := errors.Join(invalid, ctx.Err()); err != nil {
		return r, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name := filepath.Join(d.dir, h.String())
	switch b, err := os.ReadFile(name); {
	case err == nil:
		if r, err = driver.DecodeRecord(b, h); err != nil {
			return r, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return r, err
	}
	if now.IsZero() {
		now = time.Now() // one clock judges everything: that of the host
	}
	r, write, err := f(r, driver.Micro(now))
	switch {
	case err != nil || !write:
		return r, err
	case r.State == driver.StateAbsent:
		return r, os.Remove(name)
	}
	return r, d.replace(name, r.AppendBinary(nil, h))
}

// replace writes a file in one step: after a crash it is the old one or the new one.
func (d *Driver) replace(name string, b []byte) error {
	f, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	dir, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	return errors.Join(os.Rename(f.Name(), name), dir.Sync(), dir.Close())
}

func (d *Driver) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	return d.verb(ctx, p.Validate(), p.Key.Hash("", nil), p.Now, func(r driver.Record, now time.Time) (driver.Record, bool, error) {
		next, write := r.AfterClaim(p, now)
		return next, write, nil
	})
}

func (d *Driver) Renew(ctx context.Context, p driver.RenewParams) error {
	return d.holder(ctx, p.Validate(), p.HolderParams, func(r driver.Record, now time.Time) (driver.Record, error) { return r.AfterRenew(p, now) })
}

func (d *Driver) Complete(ctx context.Context, p driver.CompleteParams) error {
	return d.holder(ctx, p.Validate(), p.HolderParams, func(r driver.Record, now time.Time) (driver.Record, error) { return r.AfterComplete(p, now) })
}

func (d *Driver) Release(ctx context.Context, p driver.ReleaseParams) error {
	return d.holder(ctx, p.Validate(), p.HolderParams, func(r driver.Record, now time.Time) (driver.Record, error) { return r.AfterRelease(p, now) })
}

// holder is a verb of the holder of a claim.
func (d *Driver) holder(ctx context.Context, invalid error, p driver.HolderParams, f func(driver.Record, time.Time) (driver.Record, error)) error {
	_, err := d.verb(ctx, invalid, p.Key.Hash("", nil), p.Now, func(r driver.Record, now time.Time) (driver.Record, bool, error) {
		next, err := f(r, now)
		return next, true, err
	})
	return err
}

func (d *Driver) Forget(ctx context.Context, p driver.ForgetParams) error {
	_, err := d.verb(ctx, p.Validate(), p.Key.Hash("", nil), p.Now, func(r driver.Record, _ time.Time) (driver.Record, bool, error) {
		remove, err := r.AfterForget(p)
		return driver.Record{}, remove, err
	})
	return err
}

func (d *Driver) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	return d.verb(ctx, p.Validate(), p.Key.Hash("", nil), p.Now, func(r driver.Record, now time.Time) (driver.Record, bool, error) {
		r.Now = now
		return r, false, nil
	})
}

func (d *Driver) Purge(ctx context.Context, p driver.PurgeParams) (n int, err error) {
	if err := errors.Join(p.Validate(), ctx.Err()); err != nil {
		return 0, err
	}
	files, err := os.ReadDir(d.dir)
	for i := 0; err == nil && i < len(files) && n < p.Limit; i++ {
		b, _ := hex.DecodeString(files[i].Name())
		if len(b) != len(driver.KeyHash{}) {
			continue // a file that a crash left half written
		}
		_, err = d.verb(ctx, nil, driver.KeyHash(b), p.Now, func(r driver.Record, now time.Time) (driver.Record, bool, error) {
			next, due, remove := r.AfterPurge(now)
			if due {
				n++
			}
			if remove {
				next = driver.Record{}
			}
			return next, due, nil
		})
	}
	return n, err
}

func (d *Driver) Guarantees() driver.Guarantees {
	return driver.Guarantees{
		Backend: "directory", DurableClaim: driver.DurableAlways, Clock: driver.HostClock, Sharing: driver.SharedByGoroutines,
		TxDuplicate: driver.TxDuplicateNone, Failover: "one directory on one host: there is none", WhenFull: "claims and completions fail",
	}
}
