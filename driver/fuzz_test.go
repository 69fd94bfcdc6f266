package driver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/idem-go/idem/driver"
)

// FuzzKey: two keys, and their namespaces, have one hash exactly when they are equal,
// with a secret and without; what is valid has the shape that the documentation names;
// and the error about a key does not contain it.
func FuzzKey(f *testing.F) {
	f.Add("", "scope", "id", "", "scope", "id")
	f.Add("a", "b", "c", "ab", "", "c")
	f.Add("n", "a", "bc", "n", "ab", "c")
	f.Add("", "\x00\x00\x00\x01a", "b", "\x00", "\x00\x00\x01a", "b")
	f.Add("", "s", " ", "", "s ", "")
	f.Add("", strings.Repeat("s", 255), strings.Repeat("i", 255), "", strings.Repeat("s", 256), strings.Repeat("i", 254))
	f.Fuzz(func(t *testing.T, ns1, scope1, id1, ns2, scope2, id2 string) {
		a, b := driver.Key{Scope: scope1, ID: id1}, driver.Key{Scope: scope2, ID: id2}
		same := ns1 == ns2 && a == b
		for _, secret := range []string{"", "pepper"} {
			if got := a.Hash(ns1, []byte(secret)) == b.Hash(ns2, []byte(secret)); got != same {
				t.Errorf("%q %q and %q %q have one hash: %t", ns1, a, ns2, b, got)
			}
		}
		if a.Hash(ns1, nil) == a.Hash(ns1, []byte("pepper")) {
			t.Errorf("the hash of %q is the same with a secret", a)
		}
		err := a.Validate()
		if valid := shaped(a.Scope) && shaped(a.ID); valid != (err == nil) {
			t.Errorf("%q: error %v, valid: %t", a, err, valid)
		}
		if err == nil {
			return
		}
		if !errors.Is(err, driver.ErrInvalidKey) {
			t.Errorf("error %v, want ErrInvalidKey", err)
		}
		for _, s := range []string{a.Scope, a.ID} {
			if len(s) > 12 && strings.Contains(err.Error(), s) {
				t.Errorf("the error contains the key: %v", err)
			}
		}
	})
}

func shaped(s string) bool {
	return len(s) >= 1 && len(s) <= 255 && strings.Trim(s, " ") != "" &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7e })
}
