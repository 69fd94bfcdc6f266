package idem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

// A commit whose answer was lost: the value is in the Result.
func TestUnknownKeepsTheValue(t *testing.T) {
	drv := newTxDriver()
	drv.reply = func() error { return driver.ErrOutcomeUnknown }
	op := newTxOp[int](t, drv, idem.Config{})
	res, err := op.DoTx(t.Context(), key("k"), print("a"), insert("row", 7, nil))
	wantErr(t, err, idem.ErrUnknown)
	if res.Value != 7 {
		t.Errorf("value %d, want 7", res.Value)
	}
}

// A claim whose answer took longer than its lease does not start fn: somebody else may run.
func TestClaimAnsweredAfterTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		slow := newFaulty(mem)
		slow.set("claim", nil, func() error { time.Sleep(31 * time.Second); return nil })
		a := newOp[int](t, slow, idem.Config{})
		b := newOp[int](t, mem, idem.Config{})
		var running, most atomic.Int64
		fn := func(ctx context.Context, _ *idem.Run) (int, error) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			time.Sleep(5 * time.Second)
			return 1, nil
		}
		var wg sync.WaitGroup
		wg.Go(func() { _, err := a.Do(t.Context(), key("k"), print("a"), fn); wantErr(t, err, idem.ErrLeaseLost) })
		time.Sleep(30*time.Second + time.Millisecond)
		wg.Go(func() {
			if _, err := b.Do(t.Context(), key("k"), print("a"), fn); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if most.Load() > 1 {
			t.Errorf("%d fns at once, though the first knew before it began that its lease had ended", most.Load())
		}
	})
}

// A claim that is given back before fn has run is not renewed any more.
func TestReleaseIsNotUndoneByARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		op := newOp[int](t, mem, idem.Config{})
		if _, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom }); err == nil {
			t.Fatal("no error")
		}
		f := newFaulty(mem)
		f.set("claim", nil, func() error { time.Sleep(11 * time.Second); return nil })
		f.set("release", nil, func() error { time.Sleep(2 * time.Millisecond); return nil })          // reply takes 2 ms
		f.set("renew", func(context.Context) error { time.Sleep(time.Millisecond); return nil }, nil) // request takes 1 ms
		late := newOp[int](t, f, idem.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 10500*time.Millisecond)
		defer cancel()
		_, err := late.Do(ctx, key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { t.Error("ran"); return 0, nil })
		wantErr(t, err, context.DeadlineExceeded)
		wantState(t, mem, key("k"), idem.StateUnknown)
	})
}

// With a retention as short as the lease, an attempt that died is remembered.
func TestShortRetentionRemembersTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		dead := newFaulty(mem)
		dead.set("release", fails(1000, errStore), nil)
		cfg := idem.Config{Lease: time.Second, Retention: time.Second}
		newOp[int](t, dead, cfg).Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom }) // as if the process died
		time.Sleep(700 * time.Millisecond)
		_, err := newOp[int](t, mem, cfg).Do(t.Context(), key("k"), print("a"), func(_ context.Context, run *idem.Run) (int, error) {
			if run.Attempt != 2 {
				t.Errorf("attempt %d, want 2", run.Attempt)
			}
			return 1, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

type brokenWait struct{ *faulty }

func (brokenWait) Wait(context.Context, driver.WaitParams) error { return errStore }

// A signal of the store that fails at once is not asked for again at once.
func TestFailingSignalIsNotASpin(t *testing.T) {
	mem := memory.New()
	f := newFaulty(mem)
	holder := newOp[int](t, mem, idem.Config{})
	waiter := newOp[int](t, brokenWait{f}, idem.Config{Wait: 200 * time.Millisecond})
	started, end := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		holder.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) {
			close(started)
			<-end
			return 1, nil
		})
	})
	<-started
	_, err := waiter.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 2, nil })
	close(end)
	wg.Wait()
	if n := f.count("get"); n > 200 {
		t.Errorf("%d reads in 200 ms (%v)", n, err)
	}
}

// A context that was kept beyond fn marks nothing any more.
func TestContextKeptBeyondFn(t *testing.T) {
	drv := newTxDriver()
	drv.single = true
	op := newTxOp[int](t, drv, idem.Config{})
	var kept context.Context
	op.DoTx(t.Context(), key("k"), print("a"), func(ctx context.Context, tx *rows) (int, error) {
		kept = context.WithoutCancel(ctx) // for the job that fn starts
		return 1, nil
	})
	_, err := op.DoTx(kept, key("other"), print("a"), insert("row", 1, nil))
	if err != nil {
		t.Errorf("fn has ended, yet: %v", err)
	}
}

// That an inner operation was not applied says nothing about the one around it.
func TestMarkDoesNotTravel(t *testing.T) {
	drv := memory.New()
	outer := newOp[int](t, drv, idem.Config{Name: "outer", Policy: idem.Hold})
	inner := newOp[int](t, drv, idem.Config{Name: "inner"})
	moved := 0
	call := func() error {
		_, err := outer.Do(t.Context(), key("k"), print("a"), func(ctx context.Context, _ *idem.Run) (int, error) {
			moved++ // money
			_, err := inner.Do(ctx, key("mail"), print("a"), func(context.Context, *idem.Run) (int, error) {
				return 0, idem.NotApplied(errBoom)
			})
			if err != nil {
				return 0, fmt.Errorf("mail: %w", err)
			}
			return 1, nil
		})
		return err
	}
	call()
	call()
	if moved != 1 {
		t.Errorf("under Hold money moved %d times", moved)
	}
}

// Of two marks the outermost decides.
func TestOutermostMarkDecides(t *testing.T) {
	drv := memory.New()
	op := newOp[int](t, drv, idem.Config{})
	_, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) {
		return 0, idem.Final(fmt.Errorf("declined: %w", idem.NotApplied(errBoom)))
	})
	wantErr(t, err, errBoom)
	wantState(t, drv, key("k"), idem.StateComplete)
}

// What Classify makes of the error of attempt 2 says nothing about attempt 1.
func TestClassifyDoesNotForgetAttempts(t *testing.T) {
	drv := memory.New()
	op := newOp[int](t, drv, idem.Config{Classify: func(err error) idem.Outcome {
		if errors.Is(err, errStore) { // connection refused
			return idem.OutcomeNotApplied
		}
		return idem.NoOutcome
	}})
	for i, err := range []error{errBoom, errStore, nil} {
		op.Do(t.Context(), key("k"), print("a"), func(_ context.Context, run *idem.Run) (int, error) {
			if run.Attempt != i+1 {
				t.Errorf("run %d is told attempt %d", i+1, run.Attempt)
			}
			return 0, err
		})
	}
}

// JSON that is held as text may contain the escape of U+FFFD.
func TestRawMessageWithReplacement(t *testing.T) {
	op := newOp[json.RawMessage](t, memory.New(), idem.Config{})
	res, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (json.RawMessage, error) {
		return json.RawMessage(`{"name":"\ufffd"}`), nil
	})
	if err != nil || res.NotStored != nil {
		t.Errorf("%v, %v", err, res.NotStored)
	}
}

type money struct{ r *big.Rat }

func (m money) MarshalJSON() ([]byte, error) { return []byte(`"` + m.r.RatString() + `"`), nil }

// A zero value that cannot be encoded says nothing about the others.
func TestZeroValueThatCannotMarshal(t *testing.T) {
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("New panicked: %v", p)
		}
	}()
	idem.New[money](memory.New(), idem.Config{Name: "op"})
}

// A caller that finds a leader that only watches another process asks the store itself.
func TestFollowerOfAWatcherIsToldTheTruth(t *testing.T) {
	for _, fp := range []string{"b", "a"} {
		synctest.Test(t, func(t *testing.T) {
			mem := memory.New()
			other := newOp[int](t, mem, idem.Config{})
			here := newOp[int](t, newFaulty(mem), idem.Config{}) // polls
			var wg sync.WaitGroup
			wg.Go(func() {
				other.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) {
					time.Sleep(20 * time.Second)
					return 0, idem.NotApplied(errBoom)
				})
			})
			time.Sleep(time.Millisecond)
			wg.Go(func() {
				here.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 1, nil }, idem.WaitAtMost(time.Minute))
			})
			time.Sleep(20 * time.Second)
			wantState(t, mem, key("k"), idem.StateAbsent)
			_, err := here.Do(t.Context(), key("k"), print(fp), func(context.Context, *idem.Run) (int, error) { return 2, nil })
			if err != nil {
				t.Errorf("fingerprint %s, key absent: %v", fp, err)
			}
			wg.Wait()
		})
	}
}

// When fn has returned, an error of then does not say that nothing happened.
func TestThenCannotUndoFn(t *testing.T) {
	drv := newTxDriver()
	op := newTxOp[int](t, drv, idem.Config{Policy: idem.Hold, Classify: func(err error) idem.Outcome {
		if errors.Is(err, errStore) {
			return idem.OutcomeNotApplied
		}
		return idem.NoOutcome
	}})
	charged := 0
	for range 2 {
		op.DoThenTx(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { charged++; return 1, nil },
			func(context.Context, *rows, int) (int, error) { return 0, errStore })
	}
	if charged != 1 {
		t.Errorf("under Hold charged %d times", charged)
	}
}

// An outcome that is damaged has a kind.
func TestDamagedOutcome(t *testing.T) {
	mem := memory.New()
	tok := driver.NewToken()
	op := newOp[int](t, mem, idem.Config{})
	op.Do(t.Context(), key("x"), print("a"), func(context.Context, *idem.Run) (int, error) { return 1, nil })
	r, _ := mem.Get(t.Context(), driver.GetParams{Key: key("x")})
	rec, _ := mem.Claim(t.Context(), driver.ClaimParams{Key: key("k"), Operation: "op", Fingerprint: r.Fingerprint, Token: tok, Lease: time.Second, Retention: time.Hour})
	mem.Complete(t.Context(), driver.CompleteParams{HolderParams: driver.HolderParams{Key: key("k"), Token: tok, Fence: rec.Fence}, Result: []byte{1, 9}, Retention: time.Hour})
	_, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 1, nil })
	wantErr(t, err, idem.ErrUnreadableResult)
}

// A nil option is none.
func TestNilOption(t *testing.T) {
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("panic: %v", p)
		}
	}()
	op := newOp[int](t, memory.New(), idem.Config{})
	op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 1, nil }, nil)
}

// A waiter keeps its place between two looks at a transaction elsewhere.
func TestWaiterKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		td := newTxDriver()
		a := newTxOp[int](t, td, idem.Config{})
		b := newTxOp[int](t, td, idem.Config{Wait: time.Minute, MaxWaiters: 1})
		hold := func(k string) {
			a.DoTx(t.Context(), key(k), print("a"), func(context.Context, *rows) (int, error) { time.Sleep(10 * time.Second); return 1, nil })
		}
		var wg sync.WaitGroup
		var looks atomic.Int64
		td.begin = func() error { // the fourth time, the waiter is between two looks
			if looks.Add(1) == 4 {
				wg.Go(func() {
					b.DoTx(t.Context(), key("k2"), print("a"), func(context.Context, *rows) (int, error) { return 2, nil })
				})
				time.Sleep(time.Millisecond)
			}
			return nil
		}
		wg.Go(func() { hold("k1") })
		wg.Go(func() { hold("k2") })
		time.Sleep(time.Millisecond)
		var first error
		wg.Go(func() {
			_, first = b.DoTx(t.Context(), key("k1"), print("a"), func(context.Context, *rows) (int, error) { return 2, nil })
		})
		wg.Wait()
		if first != nil {
			t.Errorf("it was waiting, and had a minute: %v", first)
		}
	})
}

// A transaction of then that was lost for a passing reason: the claim stays held.
func TestThenLosesItsTransaction(t *testing.T) {
	td := newTxDriver()
	op := newTxOp[int](t, td, idem.Config{})
	charged := 0
	var attempts []int
	for i := range 2 {
		_, err := op.DoThenTx(t.Context(), key("k"), print("a"), func(_ context.Context, run *idem.Run) (int, error) {
			charged++
			attempts = append(attempts, run.Attempt)
			return 1, nil
		}, func(context.Context, *rows, int) (int, error) {
			if i == 0 {
				return 0, errSerialization
			}
			return 1, nil
		})
		if i == 0 { // documented: "When the transaction [...] fails, the error matches ErrNotRecorded and the claim stays held"
			wantErr(t, err, idem.ErrRetryable, idem.ErrNotRecorded)
		}
	}
	if charged != 1 {
		t.Errorf("charged %d times, attempts %v", charged, attempts)
	}
}

// After NotApplied, a corrected request has another key for the next system.
func TestDownstreamKeyOfACorrectedRequest(t *testing.T) {
	op := newOp[int](t, memory.New(), idem.Config{})
	var keys []string
	for i, fp := range []string{"amount=10", "amount=20"} {
		op.Do(t.Context(), key("k"), print(fp), func(_ context.Context, run *idem.Run) (int, error) {
			keys = append(keys, run.DownstreamKey("charge"))
			if i == 0 {
				return 0, idem.NotApplied(errBoom)
			}
			return 1, nil
		})
	}
	if keys[0] == keys[1] {
		t.Error("two requests that differ give the next system one key: it will refuse the second, or replay the first")
	}
}

// When the lease is lost, the key is open in this process too, though fn goes on.
func TestLostLeaseOpensTheKeyHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		f := newFaulty(mem)
		op := newOp[int](t, f, idem.Config{Lease: 3 * time.Second})
		f.set("renew", func(context.Context) error { return errStore }, nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { time.Sleep(time.Hour); return 1, nil })
			wantErr(t, err, idem.ErrNotRecorded, idem.ErrLeaseLost)
		})
		time.Sleep(10 * time.Second) // the lease is over
		_, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 2, nil }, idem.WaitAtMost(time.Minute))
		if err != nil {
			t.Errorf("in this process the key stays closed while an fn that ignores its cancellation hangs; in another one it would run: %v", err)
		}
		wg.Wait()
	})
}
