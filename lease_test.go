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

func TestLeaseIsRenewedAndEndsWithTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails if a goroutine or timer is left behind
		drv := newFaulty(memory.New())
		op := newOp[int](t, drv, idem.Config{Lease: 3 * time.Second})
		var n atomic.Int64
		if _, err := op.Do(t.Context(), key("k"), print("a"), slow(&n, time.Minute, nil)); err != nil {
			t.Fatal(err)
		}
		renewed := drv.count("renew")
		if renewed < 55 || renewed > 60 { // one a second
			t.Errorf("renewed %d times in a minute with a lease of 3 s", renewed)
		}
		time.Sleep(time.Hour)
		if again := drv.count("renew"); again != renewed {
			t.Errorf("renewed %d times after the call", again-renewed)
		}
	})
}

// Field case R14: one failed renewal loses nothing, an outage beyond the lease
// cancels fn with a cause, and no goroutine stays.
func TestField_R14_RenewalFails(t *testing.T) {
	for name, tc := range map[string]struct {
		outage time.Duration
		lost   bool
	}{"a third of the lease": {time.Second, false}, "two leases": {6 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv := newFaulty(memory.New())
				op := newOp[int](t, drv, idem.Config{Lease: 3 * time.Second})
				began := time.Now()
				drv.set("renew", func(ctx context.Context) error {
					if at := time.Since(began); at > 2*time.Second && at < 2*time.Second+tc.outage {
						<-ctx.Done() // the store does not answer
						return ctx.Err()
					}
					return nil
				}, nil)
				var cause error
				_, err := op.Do(t.Context(), key("k"), print("a"), func(ctx context.Context, _ *idem.Run) (int, error) {
					select {
					case <-ctx.Done():
						cause = context.Cause(ctx)
						return 0, ctx.Err()
					case <-time.After(20 * time.Second):
						return 1, nil
					}
				})
				switch {
				case !tc.lost && (err != nil || cause != nil):
					t.Errorf("error %v, cause %v", err, cause)
				case tc.lost:
					wantErr(t, err, idem.ErrLeaseLost, context.Canceled)
					wantErr(t, cause, idem.ErrLeaseLost)
					if took := time.Since(began); took > 5*time.Second {
						t.Errorf("cancelled after %v, later than the lease ended", took)
					}
				}
			})
		})
	}
}

// A holder that was taken over can neither renew nor complete, learns it, and its
// value still reaches its caller.
func TestLeaseTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		frozen := make(chan struct{})
		drv.set("renew", func(context.Context) error { <-frozen; return nil }, nil)
		op := newOp[int](t, drv, idem.Config{Lease: 3 * time.Second})
		other := newOp[int](t, drv.Driver, idem.Config{})
		var n atomic.Int64
		res, err := op.Do(t.Context(), key("k"), print("a"), func(ctx context.Context, run *idem.Run) (int, error) {
			time.Sleep(4 * time.Second) // stopped for longer than its lease
			res, err := other.Do(context.WithoutCancel(t.Context()), key("k"), print("a"), counted(&n, 2))
			if err != nil || res.Attempt != 2 {
				t.Errorf("takeover: %+v, %v", res, err)
			}
			close(frozen)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), idem.ErrLeaseLost)
			return 1, nil
		})
		wantErr(t, err, idem.ErrNotRecorded, idem.ErrLeaseLost)
		if res.Value != 1 {
			t.Errorf("value is %d", res.Value)
		}
		if res, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 3)); err != nil || res.Value != 2 {
			t.Errorf("repeat: %+v, %v; want the value of the takeover", res, err)
		}
	})
}

// A lease that ended, but was not taken over, does not lose a result.
func TestLateCompletionIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		drv.set("renew", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil)
		op := newOp[int](t, drv, idem.Config{Lease: 3 * time.Second})
		var n atomic.Int64
		fn := func(context.Context, *idem.Run) (int, error) { time.Sleep(time.Minute); return 1, nil }
		if _, err := op.Do(t.Context(), key("k"), print("a"), fn); err != nil {
			t.Fatal(err)
		}
		if res, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 2)); err != nil || res.Value != 1 {
			t.Errorf("repeat: %+v, %v", res, err)
		}
	})
}

func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New()
		op := newOp[int](t, drv, idem.Config{})
		ctx, leave := context.WithCancel(t.Context())
		res, err := op.Do(ctx, key("ignores"), print("a"), func(context.Context, *idem.Run) (int, error) { leave(); return 1, nil })
		if err != nil || res.Value != 1 {
			t.Errorf("%+v, %v: a client that hangs up loses nothing", res, err)
		}
		wantState(t, drv, key("ignores"), idem.StateComplete)

		ctx, leave = context.WithCancel(t.Context())
		_, err = op.Do(ctx, key("heeds"), print("a"), func(ctx context.Context, _ *idem.Run) (int, error) {
			leave()
			<-ctx.Done()
			return 0, ctx.Err()
		})
		if wantErr(t, err, context.Canceled); errors.Is(err, idem.ErrLeaseLost) {
			t.Error("the lease was not lost")
		}
		wantState(t, drv, key("heeds"), idem.StateUnknown)
	})
}

// Field case R01, the core's half: fn does not start after the deadline, and the
// key is given back.
func TestField_R01_ClaimAnsweredAfterTheDeadline(t *testing.T) {
	for name, died := range map[string]bool{"absent": false, "taken over": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv := newFaulty(memory.New())
				want := idem.StateAbsent
				if died {
					claimByHand(t, drv, time.Second)
					time.Sleep(2 * time.Second)
					want = idem.StateUnknown // attempt 1 may have been applied
				}
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				drv.set("claim", nil, func() error { time.Sleep(2 * time.Second); return nil })
				var n atomic.Int64
				_, err := newOp[int](t, drv, idem.Config{}).Do(ctx, key("k"), print("a"), counted(&n, 1))
				wantErr(t, err, context.DeadlineExceeded)
				if n.Load() != 0 {
					t.Error("fn ran")
				}
				wantState(t, drv, key("k"), want)
			})
		})
	}
}

// A claim that was granted, but not answered, is taken back.
func TestClaimAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		op := newOp[int](t, drv, idem.Config{})
		drv.set("claim", nil, func() error { return errStore })
		var n atomic.Int64
		_, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1))
		wantErr(t, err, idem.ErrStore, errStore)
		wantState(t, drv, key("k"), idem.StateAbsent)
		drv.set("claim", nil, nil)
		if _, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1)); err != nil || n.Load() != 1 {
			t.Errorf("repeat: %v, %d runs", err, n.Load())
		}
	})
}

// Field case H23, the core's half: the store fails after fn has run.
func TestField_H23_CompleteFails(t *testing.T) {
	t.Run("once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			drv := newFaulty(memory.New())
			drv.set("complete", fails(1, errStore), nil)
			op := newOp[int](t, drv, idem.Config{})
			var n atomic.Int64
			if res, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1)); err != nil || res.Value != 1 {
				t.Errorf("%+v, %v", res, err)
			}
			wantState(t, drv, key("k"), idem.StateComplete)
		})
	})
	t.Run("answer lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			drv := newFaulty(memory.New())
			lost := fails(1, errStore)
			drv.set("complete", nil, func() error { return lost(t.Context()) })
			op := newOp[int](t, drv, idem.Config{})
			var n atomic.Int64
			if res, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1)); err != nil || res.Value != 1 {
				t.Errorf("%+v, %v", res, err)
			}
		})
	})
	for _, outcome := range []error{nil, idem.Final(errBoom)} {
		t.Run("for a minute", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv := newFaulty(memory.New())
				drv.set("complete", fails(1<<30, errStore), nil)
				op := newOp[int](t, drv, idem.Config{Lease: 30 * time.Second})
				began := time.Now()
				var n atomic.Int64
				res, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { n.Add(1); return 1, outcome })
				wantErr(t, err, idem.ErrNotRecorded, idem.ErrStore, errStore)
				if outcome != nil {
					wantErr(t, err, errBoom)
				} else if res.Value != 1 {
					t.Errorf("value is %d", res.Value)
				}
				if took := time.Since(began); took > idem.DefaultSettleTimeout {
					t.Errorf("settling took %v", took)
				}
				if calls := drv.count("complete"); calls < 5 || calls > 30 {
					t.Errorf("completed %d times", calls)
				}
				// The claim was not released: nobody runs while the lease lasts.
				_, err = op.Do(t.Context(), key("k"), print("a"), counted(&n, 2))
				wantErr(t, err, idem.ErrInFlight)
				if n.Load() != 1 {
					t.Errorf("fn ran %d times", n.Load())
				}
			})
		})
	}
	t.Run("for good", func(t *testing.T) { // an error that would come again is not waited for
		synctest.Test(t, func(t *testing.T) {
			drv := newFaulty(memory.New())
			drv.set("complete", fails(1<<30, driver.ErrUnsafeConfig), nil)
			op := newOp[int](t, drv, idem.Config{})
			var n atomic.Int64
			_, err := op.Do(t.Context(), key("k"), print("a"), counted(&n, 1))
			wantErr(t, err, idem.ErrNotRecorded, idem.ErrUnsafeConfig)
			if calls := drv.count("complete"); calls != 1 {
				t.Errorf("completed %d times", calls)
			}
		})
	})
}

// A release that fails leaves the lease to end the claim; fn's error is returned
// as it is, and soon.
func TestReleaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := newFaulty(memory.New())
		drv.set("release", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil)
		op := newOp[int](t, drv, idem.Config{})
		began := time.Now()
		_, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, idem.NotApplied(errBoom) })
		if wantErr(t, err, errBoom); errors.Is(err, idem.ErrStore) || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A driver that never grants a key is not asked for ever.
func TestDriverNeverGrants(t *testing.T) {
	var n atomic.Int64
	_, err := newOp[int](t, refusing{memory.New()}, idem.Config{}).Do(t.Context(), key("k"), print("a"), counted(&n, 1))
	wantErr(t, err, idem.ErrStore)
	if n.Load() != 0 {
		t.Error("fn ran")
	}
}

type refusing struct{ *memory.Driver }

func (refusing) Claim(context.Context, driver.ClaimParams) (driver.Record, error) {
	return driver.Record{Now: time.Now()}, nil
}
