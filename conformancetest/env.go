package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// t0 is the instant at which most rules begin. It lies ahead of every clock, so
// that a store that drops records by its own clock keeps them while a rule runs.
// The durations of rules are minutes at least, for the same reason.
var t0 = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	lease     = time.Minute
	retention = time.Hour // of an in-flight record, from its claim
	keep      = 24 * time.Hour
	grace     = 48 * time.Hour
)

// env is what the check of one rule works with.
type env struct {
	*suite
	scope string
	keys  int
}

// key returns a key that no other rule, and no earlier call, has used.
func (e *env) key() driver.Key {
	e.keys++
	return driver.Key{Scope: e.scope, ID: fmt.Sprintf("key-%d", e.keys)}
}

// claim returns the parameters of a claim at an instant, under a new token.
func (e *env) claim(k driver.Key, now time.Time) driver.ClaimParams {
	return driver.ClaimParams{
		Key: k, Operation: "conformance.run", Fingerprint: []byte("fingerprint one"), Summary: "request one",
		Token: driver.NewToken(), Lease: lease, Retention: retention, Now: now,
	}
}

// held claims a new key at t0 and returns its parameters and its record.
func (e *env) held(ctx context.Context) (driver.ClaimParams, driver.Record, error) {
	p := e.claim(e.key(), t0)
	r, err := grant(ctx, e.d, p)
	return p, r, err
}

// completed is held, followed by a completion at t0 with that result.
func (e *env) completed(ctx context.Context, result []byte) (driver.ClaimParams, driver.Record, error) {
	p, r, err := e.held(ctx)
	if err != nil {
		return p, r, err
	}
	if err := e.d.Complete(ctx, complete(r, t0, result)); err != nil {
		return p, r, fmt.Errorf("complete by the holder: %w", err)
	}
	r, err = e.get(ctx, p.Key, t0)
	return p, r, err
}

func (e *env) get(ctx context.Context, k driver.Key, now time.Time) (driver.Record, error) {
	return get(ctx, e.d, k, now)
}

func get(ctx context.Context, d driver.Driver, k driver.Key, now time.Time) (driver.Record, error) {
	r, err := d.Get(ctx, driver.GetParams{Key: k, Now: now})
	if err != nil {
		return r, fmt.Errorf("get: %w", err)
	}
	return named(r, k)
}

// named puts the key into a record whose driver stores only the hash.
func named(r driver.Record, k driver.Key) (driver.Record, error) {
	if r.Key != (driver.Key{}) && r.Key != k {
		return r, fmt.Errorf("the record of %q came back as one of %q", k, r.Key)
	}
	r.Key = k
	return r, nil
}

// stateIs checks the state of a key, judged at an instant.
func (e *env) stateIs(ctx context.Context, k driver.Key, now time.Time, want driver.State) error {
	r, err := e.get(ctx, k, now)
	if err != nil {
		return err
	}
	if got := r.StateAt(now); got != want {
		return fmt.Errorf("at %s the key is %v, want %v (record: %s)", offset(now), got, want, show(r))
	}
	return nil
}

// other returns the second handle.
func (e *env) other() driver.Driver {
	if e.second == nil {
		e.second = e.makeSecond(e.d)
	}
	return e.second
}

// reopen ends the driver and goes on with another over the same store.
func (e *env) reopen() {
	e.d = e.makeReopened(e.d)
	e.second = nil
}

// handles returns the driver and, where there is one, the second handle.
func (e *env) handles() []driver.Driver {
	if e.makeSecond == nil {
		return []driver.Driver{e.d}
	}
	return []driver.Driver{e.d, e.other()}
}

// grant claims, and fails unless the claim is granted.
func grant(ctx context.Context, d driver.Driver, p driver.ClaimParams) (driver.Record, error) {
	r, err := d.Claim(ctx, p)
	if err != nil {
		return r, fmt.Errorf("claim: %w", err)
	}
	if !granted(r, p) {
		return r, fmt.Errorf("the claim was not granted: %s", show(r))
	}
	return named(r, p.Key)
}

// refuse claims, and fails when the claim is granted.
func refuse(ctx context.Context, d driver.Driver, p driver.ClaimParams) (driver.Record, error) {
	r, err := d.Claim(ctx, p)
	if err != nil {
		return r, fmt.Errorf("claim: %w", err)
	}
	if granted(r, p) {
		return r, fmt.Errorf("the claim was granted, to token %v: %s", p.Token, show(r))
	}
	return named(r, p.Key)
}

func granted(r driver.Record, p driver.ClaimParams) bool {
	return r.State == driver.StateInFlight && r.Token == p.Token
}

func holder(k driver.Key, r driver.Record, now time.Time) driver.HolderParams {
	return driver.HolderParams{Key: k, Token: r.Token, Fence: r.Fence, Now: now}
}

func complete(r driver.Record, now time.Time, result []byte) driver.CompleteParams {
	return driver.CompleteParams{HolderParams: holder(r.Key, r, now), Result: result, Retention: keep, Grace: grace}
}

// notHolder checks that a verb was refused because the caller is not the holder.
func notHolder(verb string, err error) error {
	if !errors.Is(err, driver.ErrNotHolder) {
		return fmt.Errorf("%s: got error %v, want one that matches ErrNotHolder", verb, err)
	}
	return nil
}

// soon calls ready every few milliseconds until it returns true, for what the
// store does by a clock, or after a connection was lost, and fails when the
// suite's patience ends first.
func (e *env) soon(ctx context.Context, what string, ready func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not happen within %v", what, e.patience)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
