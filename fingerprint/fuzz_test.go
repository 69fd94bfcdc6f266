package fingerprint

import (
	"bytes"
	"encoding/json"
	"math/big"
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
