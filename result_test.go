package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

func TestResultTooLarge(t *testing.T) {
	op := newOp[string](t, memory.New(), idem.Config{MaxResult: 10})
	for _, tc := range []struct {
		id     string
		value  string
		stored bool
	}{{"at", "0123456789", true}, {"over", "0123456789a", false}} {
		var n atomic.Int64
		res, err := op.Do(t.Context(), key(tc.id), print("a"), counted(&n, tc.value))
		if err != nil || res.Value != tc.value || (res.NotStored == nil) != tc.stored {
			t.Errorf("%s: first %+v, %v", tc.id, res, err)
		}
		res, err = op.Do(t.Context(), key(tc.id), print("a"), counted(&n, tc.value))
		if tc.stored && (err != nil || res.Value != tc.value) || !tc.stored && !errors.Is(err, idem.ErrResultNotStored) || !res.Replayed {
			t.Errorf("%s: repeat %+v, %v", tc.id, res, err)
		}
		if n.Load() != 1 {
			t.Errorf("%s: fn ran %d times", tc.id, n.Load())
		}
	}
	// An error that is final has the same limit.
	fn := func(context.Context, *idem.Run) (string, error) { return "", idem.Final(errors.New("a long message")) }
	res, err := op.Do(t.Context(), key("error"), print("a"), fn)
	if err == nil || err.Error() != "a long message" || !errors.Is(res.NotStored, idem.ErrResultNotStored) {
		t.Errorf("final: %+v, %v", res, err)
	}
	_, err = op.Do(t.Context(), key("error"), print("a"), fn)
	wantErr(t, err, idem.ErrResultNotStored)
}

type oddCodec struct{ marshal, unmarshal func() }

func (c oddCodec) Marshal(any) ([]byte, error) { c.marshal(); return []byte("x"), nil }
func (c oddCodec) Unmarshal([]byte, any) error { c.unmarshal(); return errBoom }

// A result that cannot be encoded, or read back, leaves the key complete: it is
// never run again for that.
func TestResultNotEncodable(t *testing.T) {
	nothing := func() {}
	broken := func() { panic("odd value") }
	for name, do := range map[string]func(context.Context, driver.Driver) (error, error){
		"channel in an interface": func(ctx context.Context, d driver.Driver) (error, error) {
			return twice[any](ctx, t, d, nil, make(chan int))
		},
		"invalid UTF-8": func(ctx context.Context, d driver.Driver) (error, error) {
			return twice[any](ctx, t, d, nil, []string{"a\xff"})
		},
		"codec fails": func(ctx context.Context, d driver.Driver) (error, error) {
			return twice(ctx, t, d, oddCodec{nothing, nothing}, 1)
		},
		"codec panics": func(ctx context.Context, d driver.Driver) (error, error) {
			return twice(ctx, t, d, oddCodec{broken, nothing}, 1)
		},
		"codec panics, reading": func(ctx context.Context, d driver.Driver) (error, error) {
			return twice(ctx, t, d, oddCodec{nothing, broken}, 1)
		},
	} {
		notStored, err := do(t.Context(), memory.New())
		if !errors.Is(notStored, idem.ErrResultNotStored) || !errors.Is(err, idem.ErrResultNotStored) {
			t.Errorf("%s: not stored %v, repeat %v", name, notStored, err)
		}
	}
}

// twice runs v twice, and returns NotStored of the first and the error of the second.
func twice[R any](ctx context.Context, t *testing.T, drv driver.Driver, codec idem.Codec, v R) (notStored, repeat error) {
	op := newOp[R](t, drv, idem.Config{Codec: codec})
	var n atomic.Int64
	res, err := op.Do(ctx, key("k"), print("a"), counted(&n, v))
	if err != nil || fmt.Sprint(res.Value) != fmt.Sprint(v) {
		t.Errorf("first: %+v, %v", res, err)
	}
	_, err = op.Do(ctx, key("k"), print("a"), counted(&n, v))
	if n.Load() != 1 {
		t.Errorf("fn ran %d times", n.Load())
	}
	return res.NotStored, err
}

func TestUnreadableResult(t *testing.T) {
	drv := memory.New()
	var n atomic.Int64
	if _, err := newOp[string](t, drv, idem.Config{}).Do(t.Context(), key("k"), print("a"), counted(&n, "text")); err != nil {
		t.Fatal(err)
	}
	_, err := newOp[int](t, drv, idem.Config{}).Do(t.Context(), key("k"), print("a"), counted(&n, 1))
	wantErr(t, err, idem.ErrUnreadableResult)
	if n.Load() != 1 {
		t.Errorf("fn ran %d times", n.Load())
	}
}
