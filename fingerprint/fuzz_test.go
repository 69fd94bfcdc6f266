package fingerprint

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// FuzzJSON: two texts that have fingerprints have one exactly when encoding/json
// reads the same value from both.
func FuzzJSON(f *testing.F) {
	texts := []string{
		`null`, `0`, `-0.0`, `1`, `1.0`, `10e-1`, `9007199254740992`, `9007199254740993`, `0.1`, `1e400`, `5e-324`, `""`, `"\ud83d\ude00"`,
		`"😀"`, `"\ud800"`, "\"\xff\"", `"\ufffd"`, `{"a":1,"b":2}`, `{"b":2,"a":1}`, `{"a":1,"a":2}`, `[1,2]`, `[12]`, `[[],{}]`, `{"":null}`, `[1]x`,
		"\"\\\\u0000\"", "\"\\u0000\"", ` [ true , false ] `, `333333333.33333329`, `1E+2`, `0E10000000000000000000`, `{"\u20ac":1,"\r":2}`,
	}
	for i, a := range texts {
		f.Add([]byte(a), []byte(a))
		f.Add([]byte(a), []byte(texts[(i+1)%len(texts)]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		fa, errA := JSON(a)
		fb, errB := JSON(b)
		if errA != nil || errB != nil {
			return
		}
		va, vb := read(t, a), read(t, b)
		if got, want := fa == fb, same(va, vb); got != want {
			t.Errorf("%q and %q: one fingerprint %t, one value %t", a, b, got, want)
		}
		again, err := json.MarshalIndent(va, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if fc, err := JSON(again); err != nil || fc != fa {
			t.Errorf("%q has another fingerprint than %q, from which it was made (%v)", again, a, err)
		}
	})
}

func read(t *testing.T, text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil || !json.Valid(text) {
		t.Fatalf("%q has a fingerprint, and is no JSON: %v", text, err)
	}
	return v
}

// rat reads a number; package big refuses zero with a huge exponent.
func rat(n json.Number) (*big.Rat, bool) {
	mantissa := strings.FieldsFunc(string(n), func(r rune) bool { return r == 'e' || r == 'E' })[0]
	if strings.Trim(mantissa, "-0.") == "" {
		return new(big.Rat), true
	}
	return new(big.Rat).SetString(string(n))
}

// same compares numbers exactly.
func same(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		if !ok {
			return false
		}
		x, okX := rat(a)
		y, okY := rat(b)
		return okX && okY && x.Cmp(y) == 0
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !same(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			w, ok := b[k]
			if !ok || !same(v, w) {
				return false
			}
		}
		return true
	}
	return a == b
}

// FuzzBytes: two lists of parts have one fingerprint exactly when they are equal. The
// lists are cut from two texts at a byte.
func FuzzBytes(f *testing.F) {
	f.Add([]byte("a,b"), []byte("ab"), byte(','))
	f.Add([]byte(",,"), []byte(","), byte(','))
	f.Add([]byte("a\x00b"), []byte("a\x00\x00b"), byte(0))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x01a,"), []byte(",a"), byte(','))
	f.Fuzz(func(t *testing.T, a, b []byte, at byte) {
		x, y := bytes.Split(a, []byte{at}), bytes.Split(b, []byte{at})
		if got, want := Bytes(x...) == Bytes(y...), slices.EqualFunc(x, y, bytes.Equal); got != want {
			t.Errorf("%q and %q: one fingerprint %t, equal %t", x, y, got, want)
		}
		if len(a) > 0 && Bytes(a) == Bytes(append([][]byte{nil}, a)...) {
			t.Errorf("%q: an empty part more is the same", a)
		}
	})
}

// FuzzFields: two texts have one fingerprint of a field exactly when encoding/json reads
// the same value there, or nothing there in both.
func FuzzFields(f *testing.F) {
	for _, pointer := range []string{"", "/a", "/a/b", "/0", "/a~1b", "/~0", "/", "/a/-", "/00", "a", "/~2"} {
		f.Add([]byte(`{"a":{"b":1},"c":2}`), []byte(`{"c":3,"a":{"b":1.0}}`), pointer)
		f.Add([]byte(`[null]`), []byte(`[]`), pointer)
		f.Add([]byte(`{"a/b":1,"~":2,"":3}`), []byte(`{"a":[0],"0":1}`), pointer)
	}
	f.Fuzz(func(t *testing.T, a, b []byte, pointer string) {
		fa, errA := Fields(a, pointer)
		fb, errB := Fields(b, pointer)
		if errors.Is(errA, ErrInvalidPointer) != errors.Is(errB, ErrInvalidPointer) {
			t.Errorf("%q: %v and %v", pointer, errA, errB)
		}
		if errA != nil || errB != nil {
			return
		}
		va, okA := field(read(t, a), pointer)
		vb, okB := field(read(t, b), pointer)
		if got, want := fa == fb, okA == okB && same(va, vb); got != want {
			t.Errorf("%q of %q and %q: one fingerprint %t, one value %t", pointer, a, b, got, want)
		}
		if c, err := Fields(a, pointer, "/another"); err == nil && pointer != "/another" && c == fa {
			t.Errorf("%q: another set of pointers has the same fingerprint", pointer)
		}
	})
}

// field is RFC 6901 over what encoding/json reads.
func field(v any, pointer string) (any, bool) {
	if pointer == "" {
		return v, true
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[token]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || strconv.Itoa(i) != token || i < 0 || i >= len(at) {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}
