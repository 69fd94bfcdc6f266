package bolt_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
)

// bbolt remaps a file that grows only when no reader is left, and lets no other
// reader in meanwhile. Reading waits for that no longer than the context allows.
func TestReadingBehindARemap(t *testing.T) {
	d := fresh(t)
	r := mustClaim(t, d, claimParams("replayed"))
	if err := d.Complete(t.Context(), completeParams(r, []byte("result"))); err != nil {
		t.Fatal(err)
	}
	reader, err := d.DB().Begin(false) // a backup, say
	if err != nil {
		t.Fatal(err)
	}
	grown := make(chan error, 1)
	go func() {
		grown <- d.DB().Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket([]byte("big"))
			if err != nil {
				return err
			}
			return b.Put([]byte("k"), make([]byte, 64<<20))
		})
	}()
	for name, call := range map[string]func(context.Context) error{
		"Get":        func(ctx context.Context) error { _, err := d.Get(ctx, driver.GetParams{Key: r.Key}); return err },
		"Claim":      func(ctx context.Context) error { _, err := d.Claim(ctx, claimParams("replayed")); return err },
		"BeginClaim": func(ctx context.Context) error { _, _, err := d.BeginClaim(ctx, claimParams("replayed")); return err },
		"Check":      d.Check,
		"Purge":      func(ctx context.Context) error { _, err := d.Purge(ctx, driver.PurgeParams{Limit: 1}); return err },
		"List": func(ctx context.Context) error {
			_, _, err := d.List(ctx, driver.ListParams{State: driver.StateComplete, Limit: 1})
			return err
		},
	} {
		// Until the writer has got as far as the remap, the call succeeds.
		ended := make(chan error, 1)
		go func() {
			for {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				err := call(ctx)
				cancel()
				if err != nil {
					ended <- err
					return
				}
			}
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want the context's error", name, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s waits beyond its context", name)
		}
	}
	if err := reader.Rollback(); err != nil {
		t.Error(err)
	}
	if err := <-grown; err != nil {
		t.Error(err)
	}
	wantState(t, d, "replayed", driver.StateComplete)
}
