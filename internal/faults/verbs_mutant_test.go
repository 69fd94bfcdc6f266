//go:build linux

package faults

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

// wrong is a driver that is broken in one way.
type wrong struct {
	driver.Driver
	how string

	mu   sync.Mutex
	seen map[driver.Key]driver.Record
}

func (w *wrong) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	switch w.how {
	case "a hold that is not stored":
		p.Hold = false
	case "a lease longer than asked for":
		p.Lease += time.Millisecond
		p.Retention += time.Millisecond
	case "a claim that is not atomic":
		// Reads, then writes whatever has happened meanwhile.
		r, err := w.Driver.Get(ctx, driver.GetParams{Key: p.Key, Now: p.Now})
		if err != nil || r.StateAt(p.Now) != driver.StateAbsent {
			return w.Driver.Claim(ctx, p)
		}
		time.Sleep(50 * time.Microsecond)
		if r, err := w.Driver.Get(ctx, driver.GetParams{Key: p.Key, Now: p.Now}); err == nil && r.HeldBy(r.Token, r.Fence) {
			_ = w.Driver.Release(ctx, driver.ReleaseParams{HolderParams: driver.HolderParams{Key: p.Key, Token: r.Token, Fence: r.Fence, Now: p.Now}})
		}
	}
	r, err := w.Driver.Claim(ctx, p)
	if w.how == "a fence that begins anew" && r.Attempt == 1 && r.Token == p.Token {
		r.Fence = p.Now.UnixMicro() - 1
	}
	return r, err
}

func (w *wrong) Complete(ctx context.Context, p driver.CompleteParams) error {
	err := w.Driver.Complete(ctx, p)
	if w.how == "a completion by anybody" && err != nil {
		return nil
	}
	return err
}

func (w *wrong) Release(ctx context.Context, p driver.ReleaseParams) error {
	if w.how == "an abandoned claim that is released" {
		p.Abandon = false
	}
	return w.Driver.Release(ctx, p)
}

func (w *wrong) Renew(ctx context.Context, p driver.RenewParams) error {
	if w.how == "a renewal that is not stored" {
		r, err := w.Driver.Get(ctx, driver.GetParams{Key: p.Key, Now: p.Now})
		if err == nil && r.HeldBy(p.Token, p.Fence) {
			return nil
		}
	}
	return w.Driver.Renew(ctx, p)
}

func (w *wrong) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	r, err := w.Driver.Get(ctx, p)
	if w.how != "a read from a replica" || err != nil {
		return r, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.seen[p.Key]
	w.seen[p.Key] = r
	last.Now = r.Now
	return last, nil
}

func (w *wrong) Purge(ctx context.Context, p driver.PurgeParams) (int, error) {
	if w.how == "a purge of what is kept" {
		p.Now = p.Now.Add(verbKeep + verbGrace + verbLease)
	}
	return w.Driver.Purge(ctx, p)
}

// Each of these drivers answers one verb at a time plausibly.
func TestVerbMutants(t *testing.T) {
	for _, how := range []string{
		"", "a hold that is not stored", "a lease longer than asked for", "a claim that is not atomic", "a fence that begins anew",
		"a completion by anybody", "an abandoned claim that is released", "a renewal that is not stored", "a read from a replica",
		"a purge of what is kept",
	} {
		t.Run(strings.ReplaceAll(how, " ", "-"), func(t *testing.T) {
			w := newVerbs([]driver.Driver{&wrong{Driver: memory.New(), how: how, seen: make(map[driver.Key]driver.Record)}}, file{}, *seed)
			w.run(t, 3000)
			if found := len(w.problems) > 0; found != (how != "") {
				t.Errorf("%d histories of %d are wrong: %.3000s", len(w.problems), len(w.all), strings.Join(w.problems, "\n"))
			}
		})
	}
}
