package idem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

// The field cases of core and workers that no other test of this package names.
// See also C01, C03, C04, P22, R01, R14 and H23.

// C05: seconds are not milliseconds. A dead holder is taken over after its lease
// of 2 s, and not before.
func TestField_C05_LeaseInTheRightUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New()
		claimByHand(t, drv, 2*time.Second)
		op := newOp[int](t, drv, idem.Config{})
		var n atomic.Int64
		time.Sleep(2*time.Second - time.Microsecond)
		_, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1))
		wantErr(t, err, idem.ErrInFlight)
		time.Sleep(time.Microsecond)
		if res, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1)); err != nil || res.Attempt != 2 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// C06: with policy Hold a dead holder closes the key, it is listed, and only an
// explicit call opens it: also for a caller whose own policy is Rerun.
func TestField_C06_HoldStaysClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New()
		hold := newOp[int](t, drv, idem.Config{Policy: idem.Hold, Lease: time.Second, Retention: time.Hour})
		rerun := newOp[int](t, drv, idem.Config{Lease: time.Second, Retention: time.Hour})
		p := driver.ClaimParams{
			Key: key("k"), Operation: "op", Fingerprint: storedForm("a"), Token: driver.NewToken(),
			Lease: time.Second, Retention: time.Hour, Hold: true,
		}
		if _, err := drv.Claim(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1000 * time.Hour) // long after retention
		if _, err := hold.Purge(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		var n atomic.Int64
		for _, op := range []*idem.Operation[int]{hold, rerun} {
			_, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1))
			wantErr(t, err, idem.ErrUnknown)
		}
		listed, _, err := hold.List(t.Context(), idem.StateUnknown, 10, "")
		if err != nil || len(listed) != 1 || listed[0].Key != key("k") {
			t.Errorf("listed %+v, %v", listed, err)
		}
		if err := hold.Resolve(t.Context(), key("k"), "the bank did not book it", 0, idem.NotApplied(errors.New("not booked"))); err != nil {
			t.Fatal(err)
		}
		if _, err := hold.Do(t.Context(), key("k"), print("a"), counted(&n, 1)); err != nil || n.Load() != 1 {
			t.Errorf("after Resolve: %v, %d runs", err, n.Load())
		}
	})
}

// C08, C10, C17: a duplicate is answered as long as retention lasts, to the
// microsecond; then it runs, whether the record was purged or not; and the purge
// does not touch a live claim however old.
func TestField_C08_C10_C17_Retention(t *testing.T) {
	for _, purge := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			drv := memory.New()
			op := newOp[int](t, drv, idem.Config{Lease: time.Second, Retention: 2 * time.Second})
			var n, long atomic.Int64
			done := make(chan error)
			go func() {
				_, err := op.Do(t.Context(), key("long"), print("a"), slow(&long, time.Hour, nil))
				done <- err
			}()
			do := func() bool {
				res, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1))
				if err != nil {
					t.Fatal(err)
				}
				return res.Replayed
			}
			do()
			for _, step := range []struct {
				wait     time.Duration
				replayed bool
			}{{1900 * time.Millisecond, true}, {100*time.Millisecond - time.Microsecond, true}, {time.Microsecond, false}, {time.Second, true}} {
				time.Sleep(step.wait)
				if purge {
					if _, err := op.Purge(t.Context(), 100); err != nil {
						t.Fatal(err)
					}
				}
				if got := do(); got != step.replayed {
					t.Errorf("purge %v, after %v: replayed %v", purge, step.wait, got)
				}
			}
			if purge {
				time.Sleep(time.Minute)
				op.Purge(t.Context(), 100)
				wantState(t, drv, key("long"), idem.StateInFlight)
			}
			if err := <-done; err != nil || long.Load() != 1 {
				t.Errorf("long call: %v, %d runs", err, long.Load())
			}
		})
	}
	_, err := idem.New[int](memory.New(), idem.Config{Name: "op", Lease: 2 * time.Second, Retention: time.Second})
	wantErr(t, err, idem.ErrInvalidConfig)
}

// C11, C12, C16: what a broker delivers again is replayed when it was done, and
// runs again when it failed; a failure is never answered with success.
func TestField_C11_C12_C16_Redelivery(t *testing.T) {
	op := newOp[string](t, memory.New(), idem.Config{})
	var n atomic.Int64
	handle := func(fail error) (idem.Result[string], error) {
		return op.Do(t.Context(), key("message-1"), print("a"), func(context.Context, *idem.Run) (string, error) {
			n.Add(1)
			return "done", fail
		})
	}
	if _, err := handle(errBoom); !errors.Is(err, errBoom) {
		t.Fatal(err) // the handler failed: the message comes again
	}
	if res, err := handle(nil); err != nil || res.Replayed || res.Attempt != 2 {
		t.Errorf("after a failure: %+v, %v", res, err) // done, but the acknowledgement is lost
	}
	if res, err := handle(nil); err != nil || !res.Replayed || res.Value != "done" {
		t.Errorf("after success: %+v, %v", res, err)
	}
	if n.Load() != 2 {
		t.Errorf("fn ran %d times", n.Load())
	}
}

// C13: an attempt that follows one that died can find out, and has the same key
// for the next system.
func TestField_C13_SecondAttemptKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New()
		dead := claimByHand(t, drv, time.Second)
		time.Sleep(time.Second)
		op := newOp[int](t, drv, idem.Config{})
		_, err := op.Do(t.Context(), key("k"), print("a"), func(_ context.Context, run *idem.Run) (int, error) {
			if run.Attempt != 2 || run.Fence <= dead.Fence {
				t.Errorf("run is %+v, the dead holder's fence was %d", run, dead.Fence)
			}
			return 0, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// H02, H03, H17, the core's half: keys are whose they are, of one operation each,
// and never blank.
func TestField_H02_H03_H17_Keys(t *testing.T) {
	drv := memory.New()
	op := newOp[string](t, drv, idem.Config{})
	var n atomic.Int64
	for _, k := range []idem.Key{
		{Scope: "a_b", ID: "c"}, {Scope: "a", ID: "b_c"}, {Scope: "a:b", ID: "c"}, {Scope: "a", ID: "b:c"},
		{Scope: "A", ID: "c"}, {Scope: "a", ID: "c"}, {Scope: "a", ID: "C"}, {Scope: "a ", ID: "c"}, {Scope: idem.Global, ID: "c"},
	} {
		res, err := op.Do(t.Context(), k, print("a"), counted(&n, k.Scope+k.ID))
		if err != nil || res.Replayed {
			t.Errorf("%+v: %+v, %v", k, res, err)
		}
	}
	other := newOp[string](t, drv, idem.Config{Name: "other"})
	_, err := other.Do(t.Context(), idem.Key{Scope: "a", ID: "c"}, print("a"), counted(&n, ""))
	wantErr(t, err, idem.ErrMismatch)
	for _, id := range []string{"", " ", "\t"} {
		_, err := op.Do(t.Context(), key(id), print("a"), counted(&n, ""))
		wantErr(t, err, idem.ErrInvalidKey)
	}
	if n.Load() != 9 {
		t.Errorf("fn ran %d times, want once a key", n.Load())
	}
}

// H22, the core's half: a store that is down runs nothing, and says so.
func TestField_H22_StoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		for _, verb := range []string{"claim", "get", "purge"} {
			drv.set(verb, fails(1<<30, errStore), nil)
		}
		op := newOp[int](t, drv, idem.Config{})
		var n atomic.Int64
		_, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1))
		wantErr(t, err, idem.ErrStore, errStore)
		_, err = op.Lookup(t.Context(), key("k"))
		wantErr(t, err, idem.ErrStore, errStore)
		wantErr(t, op.Forget(t.Context(), key("k")), idem.ErrStore, errStore)
		_, err = op.Purge(t.Context(), 1)
		wantErr(t, err, idem.ErrStore, errStore)
		if n.Load() != 0 {
			t.Error("fn ran")
		}
		var store *idem.StoreError
		if !errors.As(err, &store) || store.Verb != "purge" {
			t.Errorf("error is %+v", err)
		}
	})
}
