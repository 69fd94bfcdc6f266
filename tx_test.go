package idem_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
)

func insert(name string, v int, err error) func(context.Context, *rows) (int, error) {
	return func(_ context.Context, tx *rows) (int, error) {
		tx.Insert(name)
		return v, err
	}
}

func TestDoTxOutcomes(t *testing.T) {
	for _, tc := range []struct {
		name   string
		err    error
		state  idem.State
		rows   int // after one repeat
		repeat error
	}{
		{"value", nil, idem.StateComplete, 1, nil},
		{"final", idem.Final(errBoom), idem.StateComplete, 0, &idem.FinalError{}},
		{"not applied", idem.NotApplied(errBoom), idem.StateAbsent, 0, errBoom},
		{"another error", errBoom, idem.StateAbsent, 0, errBoom},
	} {
		t.Run(tc.name, func(t *testing.T) {
			drv := newTxDriver()
			op := newTxOp[int](t, drv, idem.Config{Policy: idem.Hold})
			res, err := op.DoTx(t.Context(), key("k"), print("a"), insert("row", 1, tc.err))
			if tc.err == nil {
				if err != nil || res.Value != 1 || res.Replayed || res.Attempt != 1 || res.CompletedAt.IsZero() {
					t.Errorf("first: %+v, %v", res, err)
				}
			} else if wantErr(t, err, tc.err); err.Error() != tc.err.Error() {
				t.Errorf("message is %q", err)
			}
			wantState(t, drv, key("k"), tc.state)
			res, err = op.DoTx(t.Context(), key("k"), print("a"), insert("row", 2, tc.err))
			var final *idem.FinalError
			switch {
			case tc.repeat == nil:
				if err != nil || res.Value != 1 || !res.Replayed {
					t.Errorf("repeat: %+v, %v", res, err)
				}
			case errors.As(tc.repeat, &final):
				if !errors.As(err, &final) || err.Error() != "boom" || !res.Replayed {
					t.Errorf("repeat: %+v, %v", res, err)
				}
			default:
				wantErr(t, err, tc.repeat)
			}
			if n := drv.rows("row"); n != tc.rows {
				t.Errorf("%d rows, want %d", n, tc.rows)
			}
		})
	}
}

func TestDoTxPanicAndGoexit(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("value") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			drv := newTxDriver()
			op := newTxOp[int](t, drv, idem.Config{})
			ended := make(chan any, 1)
			go func() {
				defer func() { ended <- recover() }()
				op.DoTx(t.Context(), key("k"), print("a"), func(_ context.Context, tx *rows) (int, error) {
					tx.Insert("row")
					end()
					return 0, nil
				})
			}()
			if p := <-ended; (p == "value") != (name == "panic") {
				t.Errorf("panic value is %v", p)
			}
			if drv.rollback != 1 {
				t.Errorf("%d rollbacks", drv.rollback)
			}
			if res, err := op.DoTx(t.Context(), key("k"), print("a"), insert("row", 1, nil)); err != nil || res.Replayed || drv.rows("row") != 1 {
				t.Errorf("repeat: %+v, %v, %d rows", res, err, drv.rows("row"))
			}
		})
	}
}

func TestDoTxErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		begin, commit, reply error
		want                 []error
		value                int
		runs                 int
	}{
		"begin":                {begin: errStore, want: []error{idem.ErrStore, errStore}},
		"begin, busy":          {begin: driver.ErrRetryable, want: []error{idem.ErrRetryable}},
		"commit":               {commit: errStore, want: []error{idem.ErrStore, errStore}, runs: 1},
		"commit, passing":      {commit: driver.ErrRetryable, want: []error{idem.ErrRetryable}, runs: 1},
		"commit, not ours":     {commit: driver.ErrNotHolder, want: []error{idem.ErrLeaseLost}, runs: 1},
		"commit, reply lost":   {reply: driver.ErrOutcomeUnknown, want: []error{idem.ErrUnknown, driver.ErrOutcomeUnknown}, value: 1, runs: 1},
		"commit, and its lost": {commit: driver.ErrOutcomeUnknown, want: []error{idem.ErrUnknown}, value: 1, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			drv := newTxDriver()
			drv.begin = func() error { return tc.begin }
			drv.commit = func() error { return tc.commit }
			drv.reply = func() error { return tc.reply }
			op := newTxOp[int](t, drv, idem.Config{})
			runs := 0
			res, err := op.DoTx(t.Context(), key("k"), print("a"), func(ctx context.Context, tx *rows) (int, error) {
				runs++
				return insert("row", 1, nil)(ctx, tx)
			})
			wantErr(t, err, tc.want...)
			if runs != tc.runs {
				t.Errorf("fn ran %d times, want %d", runs, tc.runs)
			}
			if res.Value != tc.value && !errors.Is(err, idem.ErrUnknown) {
				t.Errorf("value is %d, want %d", res.Value, tc.value)
			}
			// The same call again finds out, or runs: never a second row.
			drv.begin, drv.commit, drv.reply = nil, nil, nil
			if res, err := op.DoTx(t.Context(), key("k"), print("a"), insert("row", 1, nil)); err != nil || res.Value != 1 {
				t.Errorf("repeat: %+v, %v", res, err)
			}
			if n := drv.rows("row"); n != 1 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

// The error of a statement that lost its transaction for a passing reason is
// typed, and is still fn's.
func TestDoTxTransientStatement(t *testing.T) {
	drv := newTxDriver()
	op := newTxOp[int](t, drv, idem.Config{})
	_, err := op.DoTx(t.Context(), key("k"), print("a"), insert("row", 1, errSerialization))
	wantErr(t, err, idem.ErrRetryable, errSerialization)
	_, err = op.DoThenTx(t.Context(), key("k"), print("a"), counted(new(atomic.Int64), 1), func(_ context.Context, tx *rows, v int) (int, error) {
		return 0, errSerialization
	})
	wantErr(t, err, idem.ErrRetryable, errSerialization)
	if n := drv.rows("row"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestDoTxContext(t *testing.T) {
	drv := newTxDriver()
	op := newTxOp[int](t, drv, idem.Config{})

	ctx, leave := context.WithCancel(t.Context())
	res, err := op.DoTx(ctx, key("ignores"), print("a"), func(_ context.Context, tx *rows) (int, error) {
		tx.Insert("ignores")
		leave()
		return 1, nil
	})
	if err != nil || res.Value != 1 || drv.rows("ignores") != 1 {
		t.Errorf("%+v, %v: the commit does not depend on the caller", res, err)
	}

	ctx, leave = context.WithCancel(t.Context())
	_, err = op.DoTx(ctx, key("heeds"), print("a"), func(ctx context.Context, tx *rows) (int, error) {
		leave()
		<-ctx.Done()
		return 0, ctx.Err()
	})
	wantErr(t, err, context.Canceled)
	wantState(t, drv, key("heeds"), idem.StateAbsent)

	ctx, leave = context.WithCancel(t.Context())
	drv.begin = func() error { leave(); return nil }
	_, err = op.DoTx(ctx, key("late"), print("a"), func(context.Context, *rows) (int, error) { t.Error("fn ran"); return 0, nil })
	wantErr(t, err, context.Canceled)
	drv.begin = nil
	if len(drv.open) != 0 {
		t.Error("a transaction was left open")
	}
}

// A duplicate of a transaction in progress is answered at once, or waits.
func TestDoTxDuplicates(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			drv := newTxDriver()
			cfg := idem.Config{Wait: wait}
			here, elsewhere := newTxOp[int](t, drv, cfg), newTxOp[int](t, drv, cfg)
			var n, ok, busy atomic.Int64
			fn := func(ctx context.Context, tx *rows) (int, error) {
				n.Add(1)
				time.Sleep(5 * time.Second)
				return insert("row", 1, nil)(ctx, tx)
			}
			var callers sync.WaitGroup
			for i := range 64 {
				op := here
				if i%2 == 1 {
					op = elsewhere
				}
				callers.Go(func() {
					began := time.Now()
					res, err := op.DoTx(t.Context(), key("k"), print("a"), fn)
					var inFlight *idem.InFlightError
					switch {
					case errors.As(err, &inFlight):
						busy.Add(1)
						if inFlight.RetryAfter != time.Second { // a transaction has no lease
							t.Errorf("RetryAfter is %v", inFlight.RetryAfter)
						}
						if time.Since(began) != 0 {
							t.Errorf("refused after %v", time.Since(began))
						}
					case err != nil || res.Value != 1:
						t.Errorf("%+v, %v", res, err)
					default:
						ok.Add(1)
					}
				})
			}
			callers.Wait()
			want := int64(1)
			if wait > 0 {
				want = 64
			}
			if n.Load() != 1 || drv.rows("row") != 1 || ok.Load() != want || busy.Load() != 64-want {
				t.Errorf("wait %v: %d runs, %d rows, %d results, %d in flight", wait, n.Load(), drv.rows("row"), ok.Load(), busy.Load())
			}
		})
	}
}

// The modes share keys: what Do completed, DoTx replays, and the reverse.
func TestModesShareKeys(t *testing.T) {
	drv := newTxDriver()
	op := newTxOp[int](t, drv, idem.Config{})
	var n atomic.Int64
	if _, err := op.Do(t.Context(), key("a"), print("a"), counted(&n, 7)); err != nil {
		t.Fatal(err)
	}
	if res, err := op.DoTx(t.Context(), key("a"), print("a"), insert("row", 1, nil)); err != nil || res.Value != 7 {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := op.DoTx(t.Context(), key("b"), print("a"), insert("row", 8, nil)); err != nil {
		t.Fatal(err)
	}
	if res, err := op.Do(t.Context(), key("b"), print("a"), counted(&n, 1)); err != nil || res.Value != 8 {
		t.Errorf("%+v, %v", res, err)
	}
	// An attempt that died outside a transaction is taken over in one.
	op.Do(t.Context(), key("c"), print("a"), func(context.Context, *idem.Run) (int, error) { return 0, errBoom })
	if res, err := op.DoTx(t.Context(), key("c"), print("a"), insert("row", 9, nil)); err != nil || res.Attempt != 2 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestDoTxResultNotStored(t *testing.T) {
	drv := newTxDriver()
	op, err := idem.NewTx[string](drv, idem.Config{Name: "op", MaxResult: 3})
	if err != nil {
		t.Fatal(err)
	}
	fn := func(_ context.Context, tx *rows) (string, error) { tx.Insert("row"); return "long", nil }
	res, err := op.DoTx(t.Context(), key("k"), print("a"), fn)
	if err != nil || res.Value != "long" || !errors.Is(res.NotStored, idem.ErrResultNotStored) {
		t.Errorf("first: %+v, %v", res, err)
	}
	_, err = op.DoTx(t.Context(), key("k"), print("a"), fn)
	wantErr(t, err, idem.ErrResultNotStored)
	if n := drv.rows("row"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestDoThenTx(t *testing.T) {
	type end struct {
		state idem.State
		rows  int
		err   error
	}
	for name, tc := range map[string]struct {
		fn, then error
		panics   bool
		want     end
	}{
		"value":                      {want: end{idem.StateComplete, 1, nil}},
		"fn final":                   {fn: idem.Final(errBoom), want: end{idem.StateComplete, 0, errBoom}},
		"fn not applied":             {fn: idem.NotApplied(errBoom), want: end{idem.StateAbsent, 0, errBoom}},
		"fn fails":                   {fn: errBoom, want: end{idem.StateUnknown, 0, errBoom}},
		"then final":                 {then: idem.Final(errBoom), want: end{idem.StateComplete, 0, errBoom}},
		"then not applied":           {then: idem.NotApplied(errBoom), want: end{idem.StateUnknown, 0, errBoom}}, // fn was
		"then fails":                 {then: errBoom, want: end{idem.StateUnknown, 0, errBoom}},
		"then panics after the call": {panics: true, want: end{idem.StateUnknown, 0, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			drv := newTxDriver()
			op := newTxOp[int](t, drv, idem.Config{Policy: idem.Hold})
			ctx, leave := context.WithCancel(t.Context())
			var res idem.Result[int]
			var err error
			func() {
				defer func() {
					if p := recover(); (p != nil) != tc.panics {
						t.Errorf("panic value is %v", p)
					}
				}()
				res, err = op.DoThenTx(ctx, key("k"), print("a"),
					func(_ context.Context, run *idem.Run) (int, error) {
						leave() // the call was made: what follows does not depend on the caller
						return 20, tc.fn
					},
					func(ctx context.Context, tx *rows, v int) (int, error) {
						if ctx.Err() != nil || v != 20 {
							t.Errorf("then has %v, %v", v, ctx.Err())
						}
						if _, ok := ctx.Deadline(); !ok {
							t.Error("then is not bounded")
						}
						tx.Insert("row")
						if tc.panics {
							panic("value")
						}
						return v + 1, tc.then
					})
			}()
			if tc.want.err != nil {
				wantErr(t, err, tc.want.err)
			} else if !tc.panics && (err != nil || res.Value != 21) {
				t.Errorf("%+v, %v", res, err)
			}
			wantState(t, drv, key("k"), tc.want.state)
			if n := drv.rows("row"); n != tc.want.rows {
				t.Errorf("%d rows, want %d", n, tc.want.rows)
			}
		})
	}
	op := newTxOp[int](t, newTxDriver(), idem.Config{})
	_, err := op.DoThenTx(t.Context(), key("k"), print("a"), counted(new(atomic.Int64), 1), nil)
	wantErr(t, err, idem.ErrInvalidArgument)
	_, err = op.DoTx(t.Context(), key("k"), print("a"), nil)
	wantErr(t, err, idem.ErrInvalidArgument)
}

// What fn did outside is never forgotten because the transaction failed.
func TestDoThenTxNotRecorded(t *testing.T) {
	for name, tc := range map[string]struct {
		begin, commit, reply error
		want                 []error
	}{
		"begin":       {begin: errStore, want: []error{idem.ErrNotRecorded, idem.ErrStore, errStore}},
		"not ours":    {begin: driver.ErrNotHolder, want: []error{idem.ErrNotRecorded, idem.ErrLeaseLost}},
		"commit":      {commit: errStore, want: []error{idem.ErrNotRecorded, idem.ErrStore, errStore}},
		"overtaken":   {commit: driver.ErrNotHolder, want: []error{idem.ErrNotRecorded, idem.ErrLeaseLost}},
		"reply lost":  {reply: driver.ErrOutcomeUnknown, want: []error{idem.ErrNotRecorded, idem.ErrUnknown}},
		"busy commit": {commit: driver.ErrRetryable, want: []error{idem.ErrNotRecorded, idem.ErrRetryable}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv := newTxDriver()
				drv.begin, drv.commit, drv.reply = func() error { return tc.begin }, func() error { return tc.commit }, func() error { return tc.reply }
				op := newTxOp[int](t, drv, idem.Config{})
				var n atomic.Int64
				then := func(_ context.Context, tx *rows, v int) (int, error) { tx.Insert("row"); return v, nil }
				res, err := op.DoThenTx(t.Context(), key("k"), print("a"), counted(&n, 20), then)
				wantErr(t, err, tc.want...)
				if res.Value != 20 {
					t.Errorf("value is %d", res.Value)
				}
				drv.begin, drv.commit, drv.reply = nil, nil, nil
				_, err = op.DoThenTx(t.Context(), key("k"), print("a"), counted(&n, 20), then)
				if tc.reply == nil {
					wantErr(t, err, idem.ErrInFlight) // the claim stays held
				} else if err != nil {
					t.Errorf("repeat: %v, want the result", err)
				}
				if n.Load() != 1 {
					t.Errorf("fn ran %d times", n.Load())
				}
			})
		})
	}
}

// A begin that fails once is repeated: nothing of then has run.
func TestDoThenTxBeginAgain(t *testing.T) {
	drv := newTxDriver()
	begin := fails(1, errStore)
	drv.begin = func() error { return begin(t.Context()) }
	op := newTxOp[int](t, drv, idem.Config{})
	res, err := op.DoThenTx(t.Context(), key("k"), print("a"), counted(new(atomic.Int64), 20), func(_ context.Context, tx *rows, v int) (int, error) {
		tx.Insert("row")
		return v, nil
	})
	if err != nil || res.Value != 20 || drv.rows("row") != 1 {
		t.Errorf("%+v, %v, %d rows", res, err, drv.rows("row"))
	}
}
