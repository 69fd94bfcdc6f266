package idem_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
)

// A reason that no store takes is refused before the key is taken over.
func TestResolveBadReasonChangesNothing(t *testing.T) {
	drv := memory.New()
	op := newOp[int](t, drv, idem.Config{Policy: idem.Hold})
	op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
	err := op.Resolve(t.Context(), key("k"), "found in caf\xe9 log", 1, nil)
	wantErr(t, err, idem.ErrInvalidArgument)
	rec := wantState(t, drv, key("k"), idem.StateUnknown)
	if rec.Attempt != 1 {
		t.Errorf("attempt %d", rec.Attempt)
	}
}

// Two persons resolve; one decides between the look and the claim of the other.
func TestResolveOfWhatWasResolved(t *testing.T) {
	mem := memory.New()
	f := newFaulty(mem)
	first := newOp[int](t, mem, idem.Config{Policy: idem.Hold})
	second := newOp[int](t, f, idem.Config{Policy: idem.Hold})
	first.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
	f.set("claim", func(ctx context.Context) error {
		return first.Resolve(ctx, key("k"), "not applied, says A", 0, idem.NotApplied(errBoom))
	}, nil)
	err := second.Resolve(t.Context(), key("k"), "applied, says B", 1, nil)
	if err == nil {
		t.Error("both persons resolved the key")
	}
	wantState(t, mem, key("k"), idem.StateAbsent)
}

// The reason of a key that was resolved as not applied is shown while it is kept.
func TestLookupShowsTheNote(t *testing.T) {
	op := newOp[int](t, memory.New(), idem.Config{Policy: idem.Hold})
	op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
	if err := op.Resolve(t.Context(), key("k"), "bank says no", 0, idem.NotApplied(errBoom)); err != nil {
		t.Fatal(err)
	}
	found, err := op.Lookup(t.Context(), key("k"))
	if err != nil || found.Note == "" {
		t.Errorf("note %q, %v", found.Note, err)
	}
}

// A claim of Resolve whose answer was lost blocks nobody.
func TestResolveTakesALostClaimBack(t *testing.T) {
	mem := memory.New()
	f := newFaulty(mem)
	op := newOp[int](t, f, idem.Config{Policy: idem.Hold})
	op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
	var once sync.Once
	f.set("claim", nil, func() (err error) { once.Do(func() { err = errStore }); return err })
	wantErr(t, op.Resolve(t.Context(), key("k"), "applied", 1, nil), idem.ErrStore)
	if err := op.Resolve(t.Context(), key("k"), "applied", 1, nil); err != nil {
		t.Errorf("second: %v", err)
	}
}

// A later release does not drop the reason.
func TestNoteOutlivesARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		op := newOp[int](t, mem, idem.Config{Policy: idem.Hold})
		op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
		op.Resolve(t.Context(), key("k"), "bank says no", 0, idem.NotApplied(errBoom))
		op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, idem.NotApplied(errBoom) })
		time.Sleep(time.Minute)
		op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 1, nil })
		found, _ := op.Lookup(t.Context(), key("k"))
		if found.Note == "" {
			t.Error("note is lost")
		}
	})
}

// Resolve whose own lease ended before it could settle.
func TestResolveOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		f := newFaulty(mem)
		cfg := idem.Config{Lease: time.Second}
		op := newOp[int](t, f, cfg)
		op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
		f.set("complete", func(context.Context) error {
			time.Sleep(2 * time.Second)
			newOp[int](t, mem, cfg).Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 5, nil })
			return nil
		}, nil)
		err := op.Resolve(t.Context(), key("k"), "reason", 1, nil)
		if !errors.Is(err, idem.ErrHasOutcome) && !errors.Is(err, idem.ErrInFlight) && !errors.Is(err, idem.ErrLeaseLost) {
			t.Errorf("an error of package driver, which the documentation does not name: %v", err)
		}
	})
}
