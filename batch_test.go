package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

// batches is a BatchDriver whose batches are functions. It is not atomic, which
// package idem does not notice.
type batches struct {
	driver.Driver
	sent int
}

func newBatches() *batches { return &batches{Driver: memory.New()} }

func (d *batches) RunBatch(ctx context.Context, p driver.BatchParams, batch func() error) (driver.Record, error) {
	d.sent++
	rec, err := d.Claim(ctx, p.ClaimParams)
	if err != nil || rec.Token != p.Token {
		return rec, err
	}
	holder := driver.HolderParams{Key: p.Key, Token: p.Token, Fence: rec.Fence}
	if err := batch(); err != nil {
		return driver.Record{}, errors.Join(err, d.Release(ctx, driver.ReleaseParams{HolderParams: holder}))
	}
	if err := d.Complete(ctx, driver.CompleteParams{HolderParams: holder, Result: p.Result, Retention: p.Keep, Grace: p.Grace}); err != nil {
		return driver.Record{}, err
	}
	return d.Get(ctx, driver.GetParams{Key: p.Key})
}

func newBatchOp[R any](t testing.TB, drv driver.BatchDriver[func() error], cfg idem.Config) *idem.BatchOperation[R, func() error] {
	t.Helper()
	cfg.Name = "op"
	op, err := idem.NewBatch[R](drv, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func TestDoBatch(t *testing.T) {
	drv := newBatches()
	op := newBatchOp[[]int](t, drv, idem.Config{})
	runs := 0
	batch := func() error { runs++; return nil }
	first, err := op.DoBatch(t.Context(), key("k"), print("a"), []int{1, 2}, batch)
	if err != nil || first.Replayed || first.Attempt != 1 || first.CompletedAt.IsZero() {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := op.DoBatch(t.Context(), key("k"), print("a"), []int{3}, batch)
	if err != nil || !again.Replayed || runs != 1 {
		t.Fatalf("%+v, %v, %d runs", again, err, runs)
	}
	if diff := cmp.Diff(first, again, cmpopts.IgnoreFields(first, "Replayed")); diff != "" {
		t.Errorf("a repeat differs (-first +again):\n%s", diff)
	}
	if diff := cmp.Diff([]int{1, 2}, again.Value); diff != "" {
		t.Errorf("value (-want +got):\n%s", diff)
	}
	_, err = op.DoBatch(t.Context(), key("k"), print("b"), nil, batch)
	wantErr(t, err, idem.ErrMismatch)
	// The other forms of the operation have the same keys.
	res, err := op.Do(t.Context(), key("k"), print("a"), func(context.Context, *idem.Run) ([]int, error) {
		t.Error("fn runs although the batch has run")
		return nil, nil
	})
	if err != nil || !res.Replayed {
		t.Errorf("Do: %+v, %v", res, err)
	}
}

func TestDoBatchErrors(t *testing.T) {
	unknown := fmt.Errorf("%w: no answer", driver.ErrOutcomeUnknown)
	tests := []struct {
		name  string
		err   error
		want  []error
		value string
	}{
		{"statement", &driver.StatementError{Statement: 1, Err: errBoom}, []error{errBoom}, ""},
		{"passing", fmt.Errorf("%w: %w", driver.ErrRetryable, errBoom), []error{idem.ErrRetryable, errBoom}, ""},
		{"unknown", unknown, []error{idem.ErrUnknown, driver.ErrOutcomeUnknown}, "value"},
		{"store", errStore, []error{idem.ErrStore, errStore}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			op := newBatchOp[string](t, newBatches(), idem.Config{})
			res, err := op.DoBatch(t.Context(), key("k"), print("a"), "value", func() error { return tt.err })
			wantErr(t, err, tt.want...)
			if res.Value != tt.value {
				t.Errorf("value %q, want %q", res.Value, tt.value)
			}
			if tt.name != "store" && errors.Is(err, idem.ErrStore) {
				t.Errorf("%v says that the store failed", err)
			}
		})
	}
}

// What cannot be stored, or declared, is refused before anything is sent.
func TestDoBatchRefuses(t *testing.T) {
	drv := newBatches()
	op := newBatchOp[any](t, drv, idem.Config{MaxResult: 8})
	for name, value := range map[string]any{"too large": "123456789", "not encodable": func() {}} {
		_, err := op.DoBatch(t.Context(), key("k"), print("a"), value, nil)
		var refused *idem.NotStoredError
		if !errors.As(err, &refused) {
			t.Errorf("%s: error %v, want a NotStoredError", name, err)
		}
	}
	_, err := op.DoBatch(t.Context(), idem.Key{}, print("a"), 1, nil)
	wantErr(t, err, idem.ErrInvalidKey)
	if drv.sent != 0 {
		t.Errorf("%d batches were sent", drv.sent)
	}
	var config *idem.ConfigError
	if _, err := idem.NewBatch[int, int](nil, idem.Config{Name: "op"}); !errors.As(err, &config) {
		t.Errorf("nil driver: %v", err)
	}
	if _, err := idem.NewBatch[int](drv, idem.Config{}); !errors.As(err, &config) {
		t.Errorf("no name: %v", err)
	}
}

// A duplicate gets the outcome of the call that is under way, and tries its own
// batch when that one failed on a statement.
func TestDoBatchFollowers(t *testing.T) {
	for _, failing := range []bool{false, true} {
		t.Run(fmt.Sprint("failing=", failing), func(t *testing.T) {
			op := newBatchOp[string](t, newBatches(), idem.Config{})
			entered, leave := make(chan struct{}), make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := op.DoBatch(t.Context(), key("k"), print("a"), "first", func() error {
					close(entered)
					<-leave
					if failing {
						return &driver.StatementError{Err: errBoom}
					}
					return nil
				})
				if failing != errors.Is(err, errBoom) {
					t.Errorf("first: %v", err)
				}
			})
			<-entered
			wg.Go(func() {
				res, err := op.DoBatch(t.Context(), key("k"), print("a"), "second", func() error { return nil })
				want := "first"
				if failing {
					want = "second"
				}
				if err != nil || res.Value != want || res.Replayed == failing {
					t.Errorf("second: %+v, %v", res, err)
				}
			})
			close(leave)
			wg.Wait()
		})
	}
}

// A driver that claims and stops is broken, and is said to be.
func TestDoBatchLeftInFlight(t *testing.T) {
	op := newBatchOp[string](t, halfway{newBatches()}, idem.Config{})
	_, err := op.DoBatch(t.Context(), key("k"), print("a"), "value", nil)
	wantErr(t, err, idem.ErrStore)
}

type halfway struct{ *batches }

func (d halfway) RunBatch(ctx context.Context, p driver.BatchParams, _ func() error) (driver.Record, error) {
	return d.Claim(ctx, p.ClaimParams)
}
