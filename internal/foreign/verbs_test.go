package foreign

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	key   = driver.Key{Scope: "tenant", ID: "key"}
	hash  = key.Hash("", nil)
	token = driver.Token{1, 2, 3}
	now   = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
)

const fence = 7

// typed are the errors by which a driver may say what it found.
var typed = []error{driver.ErrNotHolder, driver.ErrForeignRecord, driver.ErrNewerVersion}

// check puts a record into the store and tries every verb on it. None panics, none
// fails but by a kind that the caller can decide on, and one that finds no record of the
// key leaves what it found as it was. Stored is nil where that is not looked at.
func check(t *testing.T, d driver.Driver, put func() error, stored func() string) {
	t.Helper()
	ctx := t.Context()
	h := driver.HolderParams{Key: key, Token: token, Fence: fence, Now: now}
	claim := driver.ClaimParams{
		Key: key, Operation: "operation", Fingerprint: []byte("fingerprint"), Token: driver.Token{9}, Lease: time.Minute,
		Retention: time.Hour, Now: now,
	}
	resolve := claim
	resolve.Resolve = true
	for _, verb := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"Get", func(ctx context.Context) error {
			r, err := d.Get(ctx, driver.GetParams{Key: key, Now: now})
			if err == nil && (r.State > driver.StateReleased || r.State != driver.StateAbsent && r.Key != key) {
				t.Errorf("Get returned %+v", r)
			}
			return err
		}},
		{"Claim", func(ctx context.Context) error { _, err := d.Claim(ctx, claim); return err }},
		{"Claim with Resolve", func(ctx context.Context) error { _, err := d.Claim(ctx, resolve); return err }},
		{"Renew", func(ctx context.Context) error {
			return d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: time.Minute})
		}},
		{"Complete", func(ctx context.Context) error {
			return d.Complete(ctx, driver.CompleteParams{HolderParams: h, Result: []byte("result"), Retention: time.Hour})
		}},
		{"Release", func(ctx context.Context) error { return d.Release(ctx, driver.ReleaseParams{HolderParams: h}) }},
		{"Abandon", func(ctx context.Context) error {
			return d.Release(ctx, driver.ReleaseParams{HolderParams: h, Abandon: true})
		}},
		{"Forget", func(ctx context.Context) error { return d.Forget(ctx, driver.ForgetParams{HolderParams: h}) }},
		{"List", func(ctx context.Context) error {
			for _, s := range []driver.State{driver.StateInFlight, driver.StateUnknown, driver.StateComplete, driver.StateExpired} {
				if _, _, err := d.(driver.Lister).List(ctx, driver.ListParams{State: s, Limit: 10, Now: now}); err != nil {
					return err
				}
			}
			return nil
		}},
		{"Purge", func(ctx context.Context) error {
			_, err := d.Purge(ctx, driver.PurgeParams{Limit: 10, Now: now})
			return err
		}},
	} {
		if err := put(); err != nil {
			t.Skip(err) // the store itself refuses it
		}
		before := ""
		if stored != nil {
			before = stored()
		}
		err := verb.do(ctx)
		known := err == nil
		for _, k := range typed {
			known = known || errors.Is(err, k)
		}
		if !known {
			t.Errorf("%s: got error %v, of no known kind", verb.name, err)
		}
		if stored != nil && err != nil && stored() != before {
			t.Errorf("%s: %v, and the record was changed", verb.name, err)
		}
	}
}

// records are encodings to start from.
func records() (all [][]byte) {
	claimed, _ := driver.Record{}.AfterClaim(driver.ClaimParams{
		Key: key, Operation: "operation", Fingerprint: []byte("fingerprint"), Summary: "summary", Token: token,
		Lease: time.Minute, Retention: time.Hour, Now: now,
	}, now)
	claimed.Fence = fence
	h := driver.HolderParams{Key: key, Token: token, Fence: fence}
	done, _ := claimed.AfterComplete(driver.CompleteParams{HolderParams: h, Result: []byte("result"), Retention: time.Hour, Grace: time.Hour}, now)
	released, _ := claimed.AfterRelease(driver.ReleaseParams{HolderParams: h}, now)
	held := claimed
	held.Hold = true
	for _, r := range []driver.Record{claimed, done, released, held} {
		whole := r.AppendBinary(nil, hash)
		newer := append([]byte{2}, whole[1:]...)
		other := r.AppendBinary(nil, driver.KeyHash{})
		renamed := r
		renamed.Key.Scope = "another"
		all = append(all, whole, whole[:len(whole)-1], whole[:20], newer, other, renamed.AppendBinary(nil, hash))
	}
	return append(all, nil, []byte("locked by 42"))
}
