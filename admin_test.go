package idem_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

// keysInEveryState fills a store with one key for each state, named after it.
func keysInEveryState(t *testing.T, drv driver.Driver) *idem.Operation[int] {
	t.Helper()
	op := newOp[int](t, drv, idem.Config{Policy: idem.Hold})
	do := func(id string, cfg idem.Config, fn func(context.Context, *idem.Run) (int, error)) {
		newOp[int](t, drv, cfg).Do(t.Context(), key(id), print("a").WithSummary("the summary"), fn)
	}
	ok := func(context.Context, *idem.Run) (int, error) { return 7, nil }
	fail := func(err error) func(context.Context, *idem.Run) (int, error) {
		return func(context.Context, *idem.Run) (int, error) { return 0, err }
	}
	do("expired", idem.Config{Lease: time.Millisecond, Retention: time.Millisecond, Grace: time.Hour}, ok)
	time.Sleep(time.Second)
	do("complete", idem.Config{}, ok)
	do("final", idem.Config{}, fail(idem.Final(errBoom)))
	do("unknown", idem.Config{Policy: idem.Hold}, fail(errBoom))
	do("other", idem.Config{Name: "other"}, ok)
	p := driver.ClaimParams{
		Key: key("in-flight"), Operation: "op", Fingerprint: storedForm("a"), Token: driver.NewToken(), Lease: time.Minute, Retention: time.Hour,
	}
	if _, err := drv.Claim(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return op
}

func TestLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New()
		op := keysInEveryState(t, drv)
		for id, want := range map[string]struct {
			state idem.State
			value int
			err   string
		}{
			"absent": {idem.StateAbsent, 0, ""}, "in-flight": {idem.StateInFlight, 0, ""}, "unknown": {idem.StateUnknown, 0, ""},
			"complete": {idem.StateComplete, 7, ""}, "final": {idem.StateComplete, 0, "boom"}, "expired": {idem.StateExpired, 0, ""},
		} {
			before := wantState(t, drv, key(id), want.state)
			got, err := op.Lookup(t.Context(), key(id))
			if err != nil || got.State != want.state || got.Value != want.value || (got.Err == nil) != (want.err == "") {
				t.Errorf("%s: %+v, %v", id, got, err)
			}
			if got.Key != key(id) || got.AsOf.IsZero() || want.err != "" && got.Err.Error() != want.err {
				t.Errorf("%s: %+v", id, got)
			}
			if id != "absent" && id != "in-flight" && (got.Summary != "the summary" || got.Attempt != 1 || got.Operation != "op" || got.CreatedAt.IsZero()) {
				t.Errorf("%s: %+v", id, got.Status)
			}
			if after := wantState(t, drv, key(id), want.state); after.Fence != before.Fence || !after.LeaseUntil.Equal(before.LeaseUntil) {
				t.Errorf("%s: Lookup changed the record", id)
			}
		}
		got, err := op.Lookup(t.Context(), key("other"))
		wantErr(t, err, idem.ErrMismatch)
		if got.Operation != "other" || got.Value != 0 {
			t.Errorf("other operation: %+v", got)
		}
		_, err = op.Lookup(t.Context(), key(""))
		wantErr(t, err, idem.ErrInvalidKey)
		_, err = op.Lookup(t.Context(), idem.Key{Scope: "another tenant", ID: "complete"})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestResolve(t *testing.T) {
	for name, tc := range map[string]struct {
		value int
		err   error
		state idem.State
		check func(t *testing.T, res idem.Result[int], err error, runs int64)
	}{
		"value": {7, nil, idem.StateComplete, func(t *testing.T, res idem.Result[int], err error, runs int64) {
			if err != nil || res.Value != 7 || !res.Replayed || runs != 0 {
				t.Errorf("%+v, %v, %d runs", res, err, runs)
			}
		}},
		"final": {0, idem.Final(errBoom), idem.StateComplete, func(t *testing.T, res idem.Result[int], err error, runs int64) {
			var final *idem.FinalError
			if !errors.As(err, &final) || final.Message != "boom" || runs != 0 {
				t.Errorf("%+v, %v, %d runs", res, err, runs)
			}
		}},
		"not applied": {0, idem.NotApplied(errBoom), idem.StateAbsent, func(t *testing.T, res idem.Result[int], err error, runs int64) {
			if err != nil || res.Replayed || res.Attempt != 1 || runs != 1 {
				t.Errorf("%+v, %v, %d runs", res, err, runs)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv := memory.New()
				op := keysInEveryState(t, drv)
				if err := op.Resolve(t.Context(), key("unknown"), "seen on the statement", tc.value, tc.err); err != nil {
					t.Fatal(err)
				}
				if rec := wantState(t, drv, key("unknown"), tc.state); rec.Note != "seen on the statement" {
					t.Errorf("note is %q", rec.Note)
				}
				var n atomic.Int64
				res, err := op.Do(t.Context(), key("unknown"), print("a"), counted(&n, 1))
				tc.check(t, res, err, n.Load())
				found, err := op.Lookup(t.Context(), key("unknown"))
				if err != nil || found.Note != "seen on the statement" {
					t.Errorf("lookup: %+v, %v", found, err)
				}
			})
		})
	}
}

func TestResolveRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		op := keysInEveryState(t, drv)
		for id, want := range map[string]error{
			"absent": idem.ErrNotFound, "in-flight": idem.ErrInFlight, "complete": idem.ErrHasOutcome,
			"expired": idem.ErrHasOutcome, "": idem.ErrInvalidKey,
		} {
			wantErr(t, op.Resolve(t.Context(), key(id), "reason", 1, nil), want)
		}
		wantErr(t, op.Resolve(t.Context(), key("unknown"), "", 1, nil), idem.ErrInvalidArgument)
		wantErr(t, op.Resolve(t.Context(), key("unknown"), strings.Repeat("r", driver.MaxNote+1), 1, nil), idem.ErrInvalidArgument)
		wantErr(t, op.Resolve(t.Context(), key("unknown"), "reason", 1, errBoom), idem.ErrInvalidArgument, errBoom)
		small := newOp[string](t, drv, idem.Config{MaxResult: 1})
		wantErr(t, small.Resolve(t.Context(), key("unknown"), "reason", "long", nil), idem.ErrResultNotStored)
		other := newOp[int](t, drv, idem.Config{Name: "other"})
		wantErr(t, other.Resolve(t.Context(), key("unknown"), "reason", 1, nil), idem.ErrMismatch)
		wantState(t, drv, key("unknown"), idem.StateUnknown)

		drv.set("claim", fails(1, errStore), nil)
		wantErr(t, op.Resolve(t.Context(), key("unknown"), "reason", 1, nil), idem.ErrStore)
		drv.set("get", fails(1, errStore), nil)
		wantErr(t, op.Resolve(t.Context(), key("unknown"), "reason", 1, nil), idem.ErrStore)
		drv.set("complete", fails(1<<30, errStore), nil)
		wantErr(t, op.Resolve(t.Context(), key("unknown"), "reason", 1, nil), idem.ErrStore)
		drv.set("complete", nil, nil)
		time.Sleep(time.Minute) // a person who failed half way is followed by another
		if err := op.Resolve(t.Context(), key("unknown"), "reason", 1, nil); err != nil {
			t.Error(err)
		}
	})
}

// Of two persons, one decides.
func TestResolveRace(t *testing.T) {
	for range 200 {
		drv := memory.New()
		op := newOp[int](t, drv, idem.Config{Policy: idem.Hold})
		op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
		errs := make(chan error)
		for i := range 2 {
			go func() { errs <- op.Resolve(t.Context(), key("k"), "reason", i, nil) }()
		}
		won := 0
		for range 2 {
			err := <-errs
			if err == nil {
				won++
			} else if !errors.Is(err, idem.ErrInFlight) && !errors.Is(err, idem.ErrHasOutcome) {
				t.Fatal(err)
			}
		}
		if won != 1 {
			t.Fatalf("%d persons decided", won)
		}
	}
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		op := keysInEveryState(t, drv)
		for id, want := range map[string]error{
			"absent": idem.ErrNotFound, "in-flight": idem.ErrInFlight, "unknown": idem.ErrUnknown, "other": idem.ErrMismatch,
			"": idem.ErrInvalidKey, "complete": nil, "final": nil, "expired": nil,
		} {
			if err := op.Forget(t.Context(), key(id)); want == nil && err != nil || !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", id, err, want)
			}
		}
		var n atomic.Int64
		for _, id := range []string{"complete", "final", "expired"} {
			if res, err := op.Do(t.Context(), key(id), print("another"), counted(&n, 1)); err != nil || res.Replayed {
				t.Errorf("%s: %+v, %v", id, res, err)
			}
		}
		// A key that was forgotten and claimed again meanwhile is not dropped.
		drv.set("get", nil, func() error {
			rec, _ := drv.Driver.Get(t.Context(), driver.GetParams{Key: key("complete")})
			drv.Driver.Forget(t.Context(), driver.ForgetParams{HolderParams: driver.HolderParams{Key: key("complete"), Token: rec.Token, Fence: rec.Fence}})
			drv.Driver.Claim(t.Context(), driver.ClaimParams{
				Key: key("complete"), Operation: "op", Fingerprint: storedForm("a"), Token: driver.NewToken(), Lease: time.Minute, Retention: time.Hour,
			})
			return nil
		})
		wantErr(t, op.Forget(t.Context(), key("complete")), idem.ErrInFlight)
		drv.set("get", nil, nil)
		wantState(t, drv, key("complete"), idem.StateInFlight)
	})
}

func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New()
		op := keysInEveryState(t, drv)
		for state, want := range map[idem.State]string{
			idem.StateComplete: "complete final other", idem.StateUnknown: "unknown", idem.StateInFlight: "in-flight", idem.StateExpired: "expired",
		} {
			var ids []string
			for after := ""; ; {
				page, next, err := op.List(t.Context(), state, 2, after)
				if err != nil || len(page) > 2 {
					t.Fatal(page, err)
				}
				for _, s := range page {
					ids = append(ids, s.Key.ID)
					if s.State != state || s.AsOf.IsZero() {
						t.Errorf("%+v", s)
					}
				}
				if after = next; after == "" {
					break
				}
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("%v: %q, want %q", state, got, want)
			}
		}
		_, _, err := op.List(t.Context(), idem.StateAbsent, 1, "")
		wantErr(t, err, idem.ErrInvalidArgument)
		_, _, err = op.List(t.Context(), idem.StateUnknown, 0, "")
		wantErr(t, err, idem.ErrInvalidArgument)
		_, _, err = newOp[int](t, &polled{drv}, idem.Config{}).List(t.Context(), idem.StateUnknown, 1, "")
		wantErr(t, err, errors.ErrUnsupported)
	})
}

func TestPurgeAndMaintain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		op := newOp[int](t, drv, idem.Config{Retention: time.Hour, PurgeInterval: time.Minute})
		fill := func() {
			for i := range 25 {
				if _, err := op.Do(t.Context(), key(string(rune('a'+i))), print("a"), counted(new(atomic.Int64), 1)); err != nil {
					t.Fatal(err)
				}
			}
		}
		fill()
		time.Sleep(time.Hour)
		for _, want := range []int{10, 10, 5, 0} {
			if n, err := op.Purge(t.Context(), 10); err != nil || n != want {
				t.Errorf("purged %d, %v; want %d", n, err, want)
			}
		}
		_, err := op.Purge(t.Context(), 0)
		wantErr(t, err, idem.ErrInvalidArgument)

		fill()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- op.Maintain(ctx) }()
		time.Sleep(time.Hour + 2*time.Minute)
		if n, err := op.Purge(t.Context(), 10); err != nil || n != 0 {
			t.Errorf("Maintain left %d, %v", n, err)
		}
		drv.set("purge", fails(4, errStore), nil)
		time.Sleep(10 * time.Minute)
		stop()
		wantErr(t, <-ended, context.Canceled)

		drv.set("purge", fails(5, errStore), nil)
		wantErr(t, op.Maintain(t.Context()), idem.ErrStore, errStore)
	})
}
