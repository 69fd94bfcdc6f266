package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

func TestDoRunsOnceAndReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New()
		op := newOp[map[string]int](t, drv, idem.Config{})
		var n atomic.Int64
		fn := func(_ context.Context, run *idem.Run) (map[string]int, error) {
			n.Add(1)
			if run.Attempt != 1 || run.Fence <= 0 || run.Key != key("k") {
				t.Errorf("run is %+v", run)
			}
			return map[string]int{"a": 1}, nil
		}
		first, err := op.Do(t.Context(), key("k"), print("a"), fn)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		second, err := op.Do(t.Context(), key("k"), print("a"), fn)
		if err != nil {
			t.Fatal(err)
		}
		if n.Load() != 1 {
			t.Errorf("fn ran %d times", n.Load())
		}
		if first.Replayed || !second.Replayed {
			t.Errorf("replayed: first %v, second %v", first.Replayed, second.Replayed)
		}
		second.Replayed = false
		if d := cmp.Diff(first, second); d != "" {
			t.Errorf("first and replay differ:\n%s", d)
		}
	})
}

func TestDoOutcomes(t *testing.T) {
	declined := &idem.FinalError{Message: "card declined", Code: "card_declined", Details: []byte("\x00{}")}
	classify := func(err error) idem.Outcome {
		switch err.Error() {
		case "permanent":
			return idem.OutcomeFinal
		case "refused":
			return idem.OutcomeNotApplied
		}
		return idem.NoOutcome
	}
	for _, tc := range []struct {
		name   string
		policy idem.Policy
		err    error
		state  idem.State // of the key afterwards
		runs   int64      // after a repeat
		repeat error
	}{
		{"value", idem.Rerun, nil, idem.StateComplete, 1, nil},
		{"final", idem.Rerun, idem.Final(errBoom), idem.StateComplete, 1, &idem.FinalError{Message: "boom"}},
		{"final, wrapped", idem.Hold, fmt.Errorf("charge: %w", declined), idem.StateComplete, 1,
			&idem.FinalError{Message: "charge: card declined", Code: "card_declined", Details: []byte("\x00{}")}},
		{"final, classified", idem.Rerun, errors.New("permanent"), idem.StateComplete, 1, &idem.FinalError{Message: "permanent"}},
		{"not applied", idem.Hold, idem.NotApplied(errBoom), idem.StateAbsent, 2, errBoom},
		{"not applied, classified", idem.Hold, errors.New("refused"), idem.StateAbsent, 2, errors.New("refused")},
		{"final around not applied", idem.Rerun, idem.Final(idem.NotApplied(errBoom)), idem.StateComplete, 1, &idem.FinalError{Message: "boom"}},
		{"not applied around final", idem.Rerun, fmt.Errorf("x: %w", idem.NotApplied(idem.Final(errBoom))), idem.StateAbsent, 2, errBoom},
		{"joined", idem.Rerun, errors.Join(errStore, idem.NotApplied(errBoom)), idem.StateAbsent, 2, errBoom},
		{"another error", idem.Rerun, errBoom, idem.StateUnknown, 2, errBoom},
		{"another error, hold", idem.Hold, errBoom, idem.StateUnknown, 1, idem.ErrUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			drv := memory.New()
			op := newOp[string](t, drv, idem.Config{Policy: tc.policy, Classify: classify})
			var n atomic.Int64
			fn := func(context.Context, *idem.Run) (string, error) { n.Add(1); return "v", tc.err }

			res, err := op.Do(t.Context(), key("k"), print("a"), fn)
			if tc.err == nil && (err != nil || res.Value != "v") {
				t.Errorf("first: %+v, %v", res, err)
			}
			if tc.err != nil {
				wantErr(t, err, tc.err)
				if err.Error() != tc.err.Error() {
					t.Errorf("message is %q, want %q", err, tc.err)
				}
			}
			wantState(t, drv, key("k"), tc.state)

			res, err = op.Do(t.Context(), key("k"), print("a"), fn)
			var want, got *idem.FinalError
			switch {
			case errors.As(tc.repeat, &want):
				if !errors.As(err, &got) || !res.Replayed {
					t.Fatalf("repeat: %+v, %v; want the stored error", res, err)
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("stored error differs:\n%s", d)
				}
			case tc.repeat == nil:
				if err != nil || res.Value != "v" || !res.Replayed {
					t.Errorf("repeat: %+v, %v", res, err)
				}
			case err == nil || !errors.Is(err, tc.repeat) && err.Error() != tc.repeat.Error():
				t.Errorf("repeat: %v, want %v", err, tc.repeat)
			}
			if n.Load() != tc.runs {
				t.Errorf("fn ran %d times, want %d", n.Load(), tc.runs)
			}
		})
	}
}

func TestMarkingNilIsNil(t *testing.T) {
	if err := idem.Final(nil); err != nil {
		t.Errorf("Final(nil) = %v", err)
	}
	if err := idem.NotApplied(nil); err != nil {
		t.Errorf("NotApplied(nil) = %v", err)
	}
}

// A Classify that marks an error final lets the first caller see that, too.
func TestClassifyFinalReachesFirstCaller(t *testing.T) {
	op := newOp[int](t, memory.New(), idem.Config{Classify: func(error) idem.Outcome { return idem.OutcomeFinal }})
	_, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
	var final *idem.FinalError
	if !errors.As(err, &final) || !errors.Is(err, errBoom) {
		t.Errorf("error is %v, want a *FinalError that matches fn's", err)
	}
}

func TestPanicAndGoexitSettle(t *testing.T) {
	for name, end := range map[string]func(){
		"panic": func() { panic("value") }, "panic nil": func() { panic(nil) }, "goexit": runtime.Goexit, //nolint
	} {
		for _, policy := range []idem.Policy{idem.Rerun, idem.Hold} {
			t.Run(fmt.Sprint(name, " ", policy), func(t *testing.T) {
				drv := memory.New()
				op := newOp[int](t, drv, idem.Config{Policy: policy})
				ended := make(chan any)
				go func() {
					defer close(ended)
					defer func() {
						if p := recover(); p != nil {
							ended <- p
						}
					}()
					op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) (int, error) { end(); return 0, nil })
					t.Error("Do returned")
				}()
				p, panicked := <-ended
				if panicked != strings.HasPrefix(name, "panic") || name == "panic" && p != "value" {
					t.Errorf("panic value is %v", p)
				}
				wantState(t, drv, key("k"), idem.StateUnknown)
				res, err := op.Do(t.Context(), key("k"), print("a"), func(_ context.Context, run *idem.Run) (int, error) { return run.Attempt, nil })
				if policy == idem.Hold {
					wantErr(t, err, idem.ErrUnknown)
				} else if err != nil || res.Value != 2 {
					t.Errorf("repeat: %+v, %v; want attempt 2", res, err)
				}
			})
		}
	}
}

// Bad input is refused alike, before fn runs and before the store is touched.
func TestBadInput(t *testing.T) {
	drv := newFaulty(memory.New())
	op := newOp[int](t, drv, idem.Config{})
	fn := func(context.Context, *idem.Run) (int, error) { t.Error("fn ran"); return 0, nil }
	for name, tc := range map[string]struct {
		key  idem.Key
		fp   idem.Fingerprint
		fn   func(context.Context, *idem.Run) (int, error)
		want error
	}{
		"empty id":        {idem.Key{Scope: "s"}, print("a"), fn, idem.ErrInvalidKey},
		"empty scope":     {idem.Key{ID: "k"}, print("a"), fn, idem.ErrInvalidKey},
		"256 bytes":       {key(strings.Repeat("k", 256)), print("a"), fn, idem.ErrInvalidKey},
		"NUL":             {key("a\x00b"), print("a"), fn, idem.ErrInvalidKey},
		"bad UTF-8":       {key("a\xffb"), print("a"), fn, idem.ErrInvalidKey},
		"non-ASCII":       {key("ä"), print("a"), fn, idem.ErrInvalidKey},
		"newline":         {key("a\nb"), print("a"), fn, idem.ErrInvalidKey},
		"spaces":          {key("   "), print("a"), fn, idem.ErrInvalidKey},
		"no fingerprint":  {key("k"), idem.Fingerprint{}, fn, idem.ErrInvalidFingerprint},
		"bad fingerprint": {key("k"), idem.NewFingerprint("r", nil), fn, idem.ErrInvalidFingerprint},
		"nil fn":          {key("k"), print("a"), nil, idem.ErrInvalidArgument},
	} {
		if _, err := op.Do(t.Context(), tc.key, tc.fp, tc.fn); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBoom)
	_, err := op.Do(ctx, key("k"), print("a"), fn)
	wantErr(t, err, context.Canceled, errBoom)
	if n := drv.count("claim"); n != 0 {
		t.Errorf("the store was asked %d times", n)
	}
	if _, err := op.Do(t.Context(), key(strings.Repeat("~", 255)), print("a"), counted(new(atomic.Int64), 1)); err != nil {
		t.Errorf("255 bytes: %v", err)
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	ok := idem.Config{Name: "op"}
	for field, change := range map[string]func(*idem.Config){
		"Config.Name":          func(c *idem.Config) { c.Name = "" },
		"Config.Name ":         func(c *idem.Config) { c.Name = strings.Repeat("n", 129) },
		"Config.Name  ":        func(c *idem.Config) { c.Name = "ö" },
		"Config.Policy":        func(c *idem.Config) { c.Policy = 2 },
		"Config.Lease":         func(c *idem.Config) { c.Lease = -1 },
		"Config.Lease ":        func(c *idem.Config) { c.Lease = 999 * time.Microsecond },
		"Config.Retention":     func(c *idem.Config) { c.Retention = -time.Hour },
		"Config.Retention ":    func(c *idem.Config) { c.Retention = time.Second },
		"Config.Retention  ":   func(c *idem.Config) { c.Retention = driver.MaxDuration + 1 },
		"Config.Grace":         func(c *idem.Config) { c.Grace = -1 },
		"Config.Wait":          func(c *idem.Config) { c.Wait = 1 },
		"Config.SettleTimeout": func(c *idem.Config) { c.SettleTimeout = -1 },
		"Config.PurgeInterval": func(c *idem.Config) { c.PurgeInterval = -1 },
		"Config.MaxResult":     func(c *idem.Config) { c.MaxResult = -1 },
		"Config.MaxResult ":    func(c *idem.Config) { c.MaxResult = 64 << 20 },
		"Config.MaxWaiters":    func(c *idem.Config) { c.MaxWaiters = -1 },
	} {
		cfg := ok
		change(&cfg)
		_, err := idem.New[int](memory.New(), cfg)
		var e *idem.ConfigError
		if !errors.As(err, &e) || !errors.Is(err, idem.ErrInvalidConfig) || e.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := idem.New[int](nil, ok); !errors.Is(err, idem.ErrInvalidConfig) {
		t.Errorf("nil driver: %v", err)
	}
	if _, err := idem.NewTx[int, *rows](nil, ok); !errors.Is(err, idem.ErrInvalidConfig) {
		t.Errorf("nil driver: %v", err)
	}
	if _, err := idem.New[int](struct {
		driver.Driver
		_ []int
	}{Driver: memory.New()}, ok); !errors.Is(err, idem.ErrInvalidConfig) {
		t.Errorf("driver that cannot be compared: %v", err)
	}
	if _, err := idem.New[func()](memory.New(), ok); !errors.Is(err, idem.ErrInvalidConfig) {
		t.Errorf("result type func(): %v", err)
	}
	if _, err := idem.New[any](memory.New(), ok); err != nil {
		t.Errorf("result type any: %v", err)
	}
}

func TestMismatch(t *testing.T) {
	drv := memory.New()
	op := newOp[int](t, drv, idem.Config{Name: "orders.create"})
	other := newOp[int](t, drv, idem.Config{Name: "orders.cancel"})
	var n atomic.Int64
	if _, err := op.Do(t.Context(), key("k"), print("a").WithSummary("POST /orders"), counted(&n, 1)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		op   *idem.Operation[int]
		fp   idem.Fingerprint
		want idem.MismatchReason
	}{
		{op, print("b"), idem.MismatchRequest},
		{op, idem.NewFingerprint("test.v2", []byte("a")), idem.MismatchRecipe},
		{other, print("a"), idem.MismatchOperation},
	} {
		_, err := tc.op.Do(t.Context(), key("k"), tc.fp, counted(&n, 2))
		var e *idem.MismatchError
		if !errors.As(err, &e) || !errors.Is(err, idem.ErrMismatch) {
			t.Fatalf("error is %v", err)
		}
		if e.Reason != tc.want || e.Summary != "POST /orders" || e.Operation != "orders.create" || e.FirstSeen.IsZero() {
			t.Errorf("mismatch is %+v, want reason %s", e, tc.want)
		}
		if strings.Contains(err.Error(), "/orders") {
			t.Errorf("the message %q tells what is stored", err)
		}
	}
	if n.Load() != 1 {
		t.Errorf("fn ran %d times", n.Load())
	}
}

func TestRetentionAndGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := newOp[int](t, memory.New(), idem.Config{Retention: time.Hour, Grace: time.Hour})
		var n atomic.Int64
		do := func() (idem.Result[int], error) {
			return op.Do(t.Context(), key("k"), print("a"), counted(&n, 7))
		}
		if _, err := do(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - 1)
		if res, err := do(); err != nil || !res.Replayed {
			t.Errorf("at the end of retention: %+v, %v", res, err)
		}
		time.Sleep(time.Nanosecond)
		_, err := do()
		wantErr(t, err, idem.ErrExpired)
		_, err = op.Do(t.Context(), key("k"), print("b"), counted(&n, 7))
		wantErr(t, err, idem.ErrExpired) // the tombstone answers whatever is asked
		time.Sleep(time.Hour)
		if res, err := do(); err != nil || res.Replayed || n.Load() != 2 {
			t.Errorf("after grace: %+v, %v, %d runs", res, err, n.Load())
		}
	})
}

func TestDownstreamKey(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		op := newOp[string](t, memory.New(), idem.Config{Name: name})
		for _, k := range []idem.Key{{Scope: "s", ID: "tk"}, {Scope: "st", ID: "k"}} {
			for _, step := range []string{"", "send", "charge"} {
				var attempts []string
				for _, err := range []error{errBoom, nil} {
					op.Do(t.Context(), idem.Key{Scope: k.Scope, ID: k.ID}, print("s"+step), func(_ context.Context, run *idem.Run) (string, error) {
						attempts = append(attempts, run.DownstreamKey(step))
						return "", err
					})
				}
				if op.Forget(t.Context(), k); len(attempts) != 2 || attempts[0] != attempts[1] || len(attempts[0]) != 32 {
					t.Fatalf("keys of two attempts are %q", attempts)
				}
				if seen[attempts[0]] {
					t.Errorf("key %s of %s, %v, %q is not its own", attempts[0], name, k, step)
				}
				seen[attempts[0]] = true
			}
		}
	}
}

func TestNested(t *testing.T) {
	drv := newTxDriver()
	op := newTxOp[int](t, drv, idem.Config{Wait: time.Hour})
	var n atomic.Int64
	_, err := op.Do(t.Context(), key("k"), print("a"), func(ctx context.Context, _ *idem.Run) (int, error) {
		_, err := op.Do(ctx, key("k"), print("a"), counted(&n, 1))
		wantErr(t, err, idem.ErrNested)
		_, err = op.DoTx(ctx, key("k"), print("a"), func(context.Context, *rows) (int, error) { n.Add(1); return 0, nil })
		wantErr(t, err, idem.ErrNested)
		_, err = op.Do(ctx, key("other"), print("a"), counted(&n, 1))
		return 0, err
	})
	if err != nil || n.Load() != 1 {
		t.Errorf("error %v, %d inner runs, want 1", err, n.Load())
	}

	// A store with one writer: nothing can proceed beside the transaction.
	drv = newTxDriver()
	drv.single = true
	op = newTxOp[int](t, drv, idem.Config{})
	elsewhere := newOp[int](t, memory.New(), idem.Config{})
	_, err = op.DoTx(t.Context(), key("k"), print("a"), func(ctx context.Context, _ *rows) (int, error) {
		_, err := op.Do(ctx, key("other"), print("a"), counted(&n, 1))
		wantErr(t, err, idem.ErrNested)
		_, err = op.Lookup(ctx, key("other"))
		wantErr(t, err, idem.ErrNested)
		_, err = op.Purge(ctx, 1)
		wantErr(t, err, idem.ErrNested)
		_, _, err = op.List(ctx, idem.StateUnknown, 1, "")
		wantErr(t, err, idem.ErrNested)
		_, err = elsewhere.Do(ctx, key("k"), print("a"), counted(&n, 1))
		return 0, err
	})
	if err != nil || n.Load() != 2 {
		t.Errorf("error %v, %d inner runs, want 2", err, n.Load())
	}
}
