package redis

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/idem-go/idem/driver"
)

// Claim implements [driver.Driver].
func (d *Driver) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	h := d.hash(p.Key)
	if r, complete, err := d.replay(ctx, h, p); complete || err != nil {
		return r, err
	}
	fresh := driver.Record{Operation: p.Operation, Summary: p.Summary, Fingerprint: p.Fingerprint}
	if len(d.secret) == 0 {
		fresh.Key = p.Key
	}
	// The texts of a record as they are stored: what follows the fixed fields.
	texts := fresh.AppendBinary(nil, driver.KeyHash{})[fixedBytes-len(mark):]
	a, err := d.call(ctx, claimScript, h, p.Now,
		string(p.Token[:]), p.Lease.Microseconds(), p.Retention.Microseconds(), flag(p.Resolve), flag(p.Hold), texts)
	if err != nil {
		return driver.Record{}, err
	}
	r, err := a.decode(h, p.Key)
	if r.StateAt(r.Now) == driver.StateComplete {
		d.finished.Add(h)
	}
	return r, err
}

// Renew implements [driver.Driver].
func (d *Driver) Renew(ctx context.Context, p driver.RenewParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	_, err := d.call(ctx, renewScript, d.hash(p.Key), p.Now, holder(p.HolderParams), p.Lease.Microseconds())
	return err
}

// Complete implements [driver.Driver].
func (d *Driver) Complete(ctx context.Context, p driver.CompleteParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	h := d.hash(p.Key)
	_, err := d.call(ctx, completeScript, h, p.Now, holder(p.HolderParams),
		p.Retention.Microseconds(), (p.Retention + p.Grace).Microseconds(), p.Note, flag(p.Result != nil), string(p.Result))
	if err == nil {
		d.finished.Add(h)
	}
	return err
}

// Release implements [driver.Driver].
func (d *Driver) Release(ctx context.Context, p driver.ReleaseParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	_, err := d.call(ctx, releaseScript, d.hash(p.Key), p.Now, holder(p.HolderParams), flag(p.Abandon), p.Note)
	return err
}

// Forget implements [driver.Driver].
func (d *Driver) Forget(ctx context.Context, p driver.ForgetParams) error {
	if err := p.Validate(); err != nil {
		return err
	}
	h := d.hash(p.Key)
	_, err := d.call(ctx, forgetScript, h, p.Now, holder(p.HolderParams))
	if err == nil {
		d.finished.Remove(h)
	}
	return err
}

// Get implements [driver.Driver]. It asks the master.
func (d *Driver) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	if err := p.Validate(); err != nil {
		return driver.Record{}, err
	}
	h := d.hash(p.Key)
	a, err := d.call(ctx, getScript, h, p.Now)
	if err != nil {
		return driver.Record{}, err
	}
	if a.record == "" {
		return driver.Record{Now: a.now}, nil
	}
	return a.decode(h, p.Key)
}

// decode reads the record of k. What stands for scope and ID in it is for people to
// read, and may have been changed: the record is that of its hash.
func (a answer) decode(h driver.KeyHash, k driver.Key) (driver.Record, error) {
	r, err := decode(a.record, h)
	if err != nil {
		return driver.Record{}, err
	}
	if r.Key != (driver.Key{}) {
		r.Key = k
	}
	r.Now = a.now
	return r, nil
}

// holder is the token and the fence, as they stand in an encoded record. The
// bytes are copied: see await.
func holder(p driver.HolderParams) string {
	var b [len(p.Token) + 8]byte
	copy(b[:], p.Token[:])
	binary.BigEndian.PutUint64(b[len(p.Token):], uint64(p.Fence))
	return string(b[:])
}

func flag(b bool) any {
	if b {
		return "1"
	}
	return "0"
}

// clock returns the instant to judge by: now, or that of the node's clock.
func (n node) clock(ctx context.Context, now time.Time) (time.Time, error) {
	if !now.IsZero() {
		return driver.Micro(now), nil
	}
	return await(ctx, func() (time.Time, error) { return n.client.Time(ctx).Result() })
}
