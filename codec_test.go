package idem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/idem-go/idem/driver/memory"
)

type celsius float64

func (c celsius) MarshalText() ([]byte, error) { return []byte(strings.Repeat("|", int(c))), nil }
func (c *celsius) UnmarshalText(b []byte) error {
	*c = celsius(len(b))
	return nil
}

type order struct {
	ID    int64
	Items []string
	Note  *string
	Extra any
	ByRow map[int]celsius
}

// Field cases C03, C04, P22: the first caller and every repeat hold equal values,
// nothing empty becomes missing, and no digit is lost.
func TestField_C03_C04_P22_FirstEqualsReplay(t *testing.T) {
	empty := ""
	sameForAll(t, "string", "", "x", "a\x00b\xff", "null")
	sameForAll(t, "bytes", nil, []byte{}, []byte{0}, []byte("a\x00\xff"), []byte("null"))
	sameForAll(t, "bool", false, true)
	sameForAll(t, "int", 0, math.MaxInt64, math.MinInt64)
	sameForAll(t, "pointer", nil, &empty)
	sameForAll(t, "slice", nil, []int{}, []int{0})
	sameForAll(t, "map", nil, map[int]string{}, map[int]string{1: "a"})
	sameForAll(t, "struct", struct{}{})
	sameForAll[any](t, "any", nil, json.Number("9007199254740993"), "x", map[string]any{"n": json.Number("1.10"), "s": []any{}})
	sameForAll(t, "raw JSON", json.RawMessage("null"), json.RawMessage(`{"a":1}`))
	sameForAll(t, "order", order{}, order{
		ID: 1<<53 + 1, Items: []string{}, Note: &empty, Extra: json.Number("9007199254740993"), ByRow: map[int]celsius{-1: 3},
	})

	// What fn returned as an integer comes to all of them as the same number.
	op, _ := New[any](memory.New(), Config{Name: "op"})
	for i := range 2 {
		res, err := op.Do(t.Context(), Key{Scope: "s", ID: "k"}, NewFingerprint("r", []byte("s")),
			func(context.Context, *Run) (any, error) { return map[string]any{"n": int64(9007199254740993)}, nil })
		if d := cmp.Diff(map[string]any{"n": json.Number("9007199254740993")}, res.Value); err != nil || d != "" {
			t.Errorf("call %d: %v\n%s", i, err, d)
		}
	}
}

func sameForAll[R any](t *testing.T, name string, values ...R) {
	t.Helper()
	op, err := New[R](memory.New(), Config{Name: "op"})
	if err != nil {
		t.Fatal(name, err)
	}
	for i, v := range values {
		k := Key{Scope: name, ID: strings.Repeat("k", i+1)}
		for _, replayed := range []bool{false, true} {
			res, err := op.Do(t.Context(), k, NewFingerprint("r", []byte("s")), func(context.Context, *Run) (R, error) { return v, nil })
			if err != nil || res.Replayed != replayed || res.NotStored != nil {
				t.Errorf("%s, %v: %+v, %v", name, v, res, err)
			}
			if d := cmp.Diff(v, res.Value); d != "" {
				t.Errorf("%s, replayed %v:\n%s", name, replayed, d)
			}
		}
	}
}

// Callers may change what they got: nobody else sees it.
func TestValuesAreNotShared(t *testing.T) {
	op, _ := New[[]byte](memory.New(), Config{Name: "op"})
	for range 3 {
		res, err := op.Do(t.Context(), Key{Scope: "s", ID: "k"}, NewFingerprint("r", []byte("s")),
			func(context.Context, *Run) ([]byte, error) { return []byte("value"), nil })
		if err != nil || string(res.Value) != "value" {
			t.Fatalf("%+v, %v", res, err)
		}
		res.Value[0] = 'X'
	}
}

func TestReplacedUTF8(t *testing.T) {
	for s, want := range map[string]bool{
		"": false, "plain": false, "a\xff": true, "\ufffd": false, `\ufffd`: false, `\\ufffd` + "\xff": true, "\\": false, `"\"`: false, "\u2028": false,
	} {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := replaced(b); got != want {
			t.Errorf("%q, encoded %s: %v, want %v", s, b, got, want)
		}
	}
}

func TestJSONTrailingData(t *testing.T) {
	var v int
	for _, b := range []string{"1 2", "1]", "", "x"} {
		if err := (jsonCodec{}).Unmarshal([]byte(b), &v); err == nil {
			t.Errorf("%q was decoded as %d", b, v)
		}
	}
}

func TestDecodeOutcome(t *testing.T) {
	final := &FinalError{Message: "m\xff", Code: "c", Details: []byte{0, 1}}
	good := encodeError(final)
	_, err := decodeOutcome(good)
	var got *FinalError
	if !errors.As(err, &got) {
		t.Fatal(err)
	}
	if d := cmp.Diff(final, got); d != "" {
		t.Error(d)
	}
	for n := range good {
		if _, err := decodeOutcome(good[:n]); err == nil || errors.As(err, &got) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := decodeOutcome(append(bytes.Clone(good), 0)); err == nil || errors.As(err, &got) {
		t.Errorf("one byte too many: %v", err)
	}
	if _, err := decodeOutcome([]byte{outcomeVersion + 1, 1}); !errors.Is(err, ErrNewerVersion) {
		t.Errorf("newer: %v", err)
	}
	for _, b := range [][]byte{{0, 0}, {1, 0}, {1, 4}, {1, 255, 1}} {
		if v, err := decodeOutcome(b); err == nil {
			t.Errorf("%v was decoded as %v", b, v)
		}
	}
}

func FuzzDecodeOutcome(f *testing.F) {
	f.Add(encodeError(&FinalError{Message: "m", Code: "c", Details: []byte("d")}))
	f.Add(outcomeOf(kindValue, []byte("v")))
	f.Add(outcomeOf(kindNotStored, []byte("reason")))
	f.Fuzz(func(t *testing.T, b []byte) {
		payload, err := decodeOutcome(b)
		var final *FinalError
		var notStored *NotStoredError
		switch {
		case err == nil:
			if !bytes.Equal(outcomeOf(kindValue, payload)[1:], b[1:]) {
				t.Errorf("%q does not round-trip", b)
			}
		case errors.As(err, &final):
			if again := encodeError(final); final.Message != "" && !bytes.Equal(again[1:], b[1:]) {
				t.Errorf("%q does not round-trip", b)
			}
		case errors.As(err, &notStored):
		}
	})
}

// Messages never contain what a caller stored or sent.
func TestErrorsKeepSecrets(t *testing.T) {
	const secret = "s3cret"
	for _, err := range []error{
		&MismatchError{Reason: MismatchRequest, Operation: "op", Summary: secret},
		Key{Scope: secret, ID: "\x00" + secret}.Validate(),
		NewFingerprint("r", []byte(strings.Repeat(secret, 20))).validate(),
	} {
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("message is %q", err)
		}
	}
}

func TestErrorMessagesAndMatching(t *testing.T) {
	for _, tc := range []struct {
		err    error
		target error
		text   string
	}{
		{&InFlightError{RetryAfter: 5}, ErrInFlight, "retry after 5ns"},
		{&MismatchError{Reason: MismatchOperation}, ErrMismatch, "operation differs"},
		{&UnknownError{Attempt: 3}, ErrUnknown, "attempt 3"},
		{&UnknownError{Err: errors.New("why")}, ErrUnknown, "why"},
		{&NotStoredError{Reason: "too long"}, ErrResultNotStored, "too long"},
		{&NotStoredError{Reason: "odd", Err: errors.New("why")}, ErrResultNotStored, "odd: why"},
		{&ConfigError{"Config.X", "is odd"}, ErrInvalidConfig, "Config.X is odd"},
		{&StoreError{"claim", errors.New("why")}, ErrStore, "claim: why"},
		{&FinalError{Err: errors.New("why")}, nil, "why"},
	} {
		if tc.target != nil && !errors.Is(tc.err, tc.target) {
			t.Errorf("%T does not match %v", tc.err, tc.target)
		}
		if errors.Is(tc.err, ErrNotFound) || !strings.Contains(tc.err.Error(), tc.text) {
			t.Errorf("%T says %q, want %q in it", tc.err, tc.err, tc.text)
		}
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		Rerun.String(): "rerun", Hold.String(): "hold", Policy(9).String(): "invalid",
		NewFingerprint("r.v1", nil).Recipe(): "r.v1",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
