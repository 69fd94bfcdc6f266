package fingerprint

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/idem-go/idem"
)

func TestBytes(t *testing.T) {
	seen := make(map[idem.Fingerprint]int)
	lists := [][][]byte{
		{}, {nil}, {nil, nil}, {[]byte("a")}, {[]byte("a"), nil}, {nil, []byte("a")}, {[]byte("ab")}, {[]byte("a"), []byte("b")},
		{[]byte("b"), []byte("a")}, {[]byte("ab"), []byte("c")}, {[]byte("a"), []byte("bc")}, {[]byte("abc")},
		{[]byte("\x00\x00\x00\x00\x00\x00\x00\x01a")}, {{0}}, {{0}, {0}}, {{0, 0}},
	}
	for i, parts := range lists {
		f := Bytes(parts...)
		if j, ok := seen[f]; ok {
			t.Errorf("lists %d and %d have one fingerprint", i, j)
		}
		seen[f] = i
		if f != Bytes(parts...) {
			t.Errorf("list %d has two fingerprints", i)
		}
		if f.Recipe() != "bytes.v1" {
			t.Errorf("recipe is %q", f.Recipe())
		}
	}
	if Bytes(nil) != Bytes([]byte{}) {
		t.Error("nil and an empty part differ")
	}
}

// TestBytesSplits cuts one text into parts in random ways: equal fingerprints mean
// equal cuts.
func TestBytesSplits(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	text := bytes.Repeat([]byte{0, 1}, 8)
	seen := make(map[idem.Fingerprint][][]byte)
	for range 5000 {
		var parts [][]byte
		rest := text
		for len(rest) > 0 && rng.IntN(8) > 0 {
			n := rng.IntN(len(rest) + 1)
			parts = append(parts, rest[:n])
			rest = rest[n:]
		}
		f := Bytes(append(parts, rest)...)
		cut := append(parts, rest)
		if other, ok := seen[f]; ok && !equal(other, cut) {
			t.Fatalf("seed %d: %q and %q have one fingerprint", seed, other, cut)
		}
		seen[f] = cut
	}
	if len(seen) < 100 {
		t.Fatalf("seed %d: only %d different cuts", seed, len(seen))
	}
}

func equal(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// TestSums: a fingerprint stays what it was when it was stored. A new way of
// summing needs a new version of the recipe.
func TestSums(t *testing.T) {
	j, errJ := JSON([]byte(`{ "a": 1.0 }`))
	f, errF := Fields([]byte(`{"a":1,"c":2}`), "/b", "/a")
	if err := errors.Join(errJ, errF); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		got         idem.Fingerprint
		recipe, sum string
	}{
		{Bytes([]byte("a"), nil), "bytes.v1", "0a2f18c43518886dd1533e428136c9ee003e57859291bd63a752a3d651f0e2bb"},
		{j, "json.v1", "701f2765d1edbe20c90933a8cb943b026286334465650e89956fec29aa87e669"},
		{f, "fields.v1", "932e6b9d18cf0431e71aa35d8a6eb12c5342ea712f008e5a477abc830d308b2c"},
		{None(), "none.v1", "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"},
	} {
		sum, err := hex.DecodeString(tt.sum)
		if err != nil {
			t.Fatal(err)
		}
		if want := idem.NewFingerprint(tt.recipe, sum); tt.got != want {
			t.Errorf("%s is %q, want %q", tt.recipe, tt.got, want)
		}
	}
}

// TestRecipes: what was summed in different ways never compares equal, whatever
// the input.
func TestRecipes(t *testing.T) {
	j, err := JSON("")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Fields([]byte(`""`), "")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[idem.Fingerprint]bool)
	for recipe, f := range map[string]idem.Fingerprint{
		"none.v1": None(), "bytes.v1": Bytes(), "json.v1": j, "fields.v1": f,
	} {
		if f.Recipe() != recipe {
			t.Errorf("recipe is %q, want %q", f.Recipe(), recipe)
		}
		if seen[f] {
			t.Errorf("%s has the fingerprint of another recipe", recipe)
		}
		seen[f] = true
	}
	if first, second := None(), None(); first != second {
		t.Error("None differs from itself")
	}
}

func TestFields(t *testing.T) {
	body := []byte(`{"id":9007199254740993,"a":{"b":1.0,"":"empty","m~n":8,"x/y":[10,{"z":null}]},"n":null}`)
	for _, tt := range []struct {
		pointer, value string // "": missing
	}{
		{"/a/b", "1"},
		{"/a/", `"empty"`},
		{"/a/m~0n", "8"},
		{"/a/x~1y/0", "10"},
		{"/a/x~1y/1/z", "null"},
		{"/n", "null"},
		{"/a/x~1y", `[10,{"z":null}]`},
		{"/missing", ""},
		{"/a/b/c", ""},
		{"/n/x", ""},
		{"/a/x~1y/2", ""},
		{"/a/x~1y/-", ""},
		{"/a/x~1y/00", ""},
		{"/a/x~1y/+0", ""},
		{"/a/x~1y/99999999999999999999", ""},
		{"/a/m~01", ""},
	} {
		got, err := Fields(body, tt.pointer)
		if err != nil {
			t.Errorf("%s: %v", tt.pointer, err)
			continue
		}
		if want := of(recipeFields, []byte(tt.pointer), []byte(tt.value)); got != want {
			t.Errorf("%s is not %q", tt.pointer, tt.value)
		}
	}

	same := func(a, b idem.Fingerprint, errs ...error) bool {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		return a == b
	}
	missing, err1 := Fields([]byte(`{}`), "/n")
	null, err2 := Fields([]byte(`{"n":null}`), "/n")
	if same(missing, null, err1, err2) {
		t.Error("a missing field and null have one fingerprint")
	}
	x, err1 := Fields([]byte(`{"x":1}`), "/x", "/y")
	y, err2 := Fields([]byte(`{"y":1}`), "/x", "/y")
	if same(x, y, err1, err2) {
		t.Error("a value in another field has one fingerprint")
	}
	fewer, err1 := Fields([]byte(`{"x":1}`), "/x")
	if same(x, fewer, err1) {
		t.Error("another set of pointers has one fingerprint")
	}
	turned, err1 := Fields([]byte(`{"x":1}`), "/y", "/x", "/y")
	if !same(x, turned, err1) {
		t.Error("the order of pointers matters")
	}
	other, err1 := Fields([]byte(` {"z" : 2, "x":1.0}`), "/x", "/y")
	if !same(x, other, err1) {
		t.Error("a field that is not named matters")
	}
}

func TestFieldsRefused(t *testing.T) {
	for _, pointers := range [][]string{nil, {"a"}, {"/a", "b"}, {"/a~"}, {"/a~2"}, {"/~~01"}, {"#/a"}} {
		if _, err := Fields([]byte(`{}`), pointers...); !errors.Is(err, ErrInvalidPointer) {
			t.Errorf("%q: %v", pointers, err)
		}
	}
	pointers := []string{"/b", "/a"}
	for _, body := range []string{"", "{", `{"a":1,"a":2}`, `{"c":"\ud800"}`, `{"a":9007199254740993}`, `{"a":1}x`} {
		var bad *JSONError
		if _, err := Fields([]byte(body), pointers...); !errors.As(err, &bad) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if pointers[0] != "/b" {
		t.Error("the caller's pointers were sorted")
	}
}
