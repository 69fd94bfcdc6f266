package driver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/idem-go/idem/driver"
)

func TestKeyValidate(t *testing.T) {
	long := strings.Repeat("x", 255)
	for name, c := range map[string]struct {
		key driver.Key
		ok  bool
	}{
		"ordinary":          {driver.Key{Scope: "tenant-1", ID: "order 4711"}, true},
		"one byte each":     {driver.Key{Scope: "a", ID: "b"}, true},
		"the longest":       {driver.Key{Scope: long, ID: long}, true},
		"first and last":    {driver.Key{Scope: " ~", ID: "~ "}, true},
		"no scope":          {driver.Key{ID: "b"}, false},
		"no ID":             {driver.Key{Scope: "a"}, false},
		"a long scope":      {driver.Key{Scope: long + "x", ID: "b"}, false},
		"a long ID":         {driver.Key{Scope: "a", ID: long + "x"}, false},
		"a blank scope":     {driver.Key{Scope: "  ", ID: "b"}, false},
		"a blank ID":        {driver.Key{Scope: "a", ID: " "}, false},
		"invalid UTF-8":     {driver.Key{Scope: "a", ID: "a\xffb"}, false},
		"beyond ASCII":      {driver.Key{Scope: "m\u00fcller", ID: "b"}, false},
		"a full-width byte": {driver.Key{Scope: "a", ID: "\uff11"}, false},
	} {
		err := c.key.Validate()
		if c.ok && err != nil || !c.ok && !errors.Is(err, driver.ErrInvalidKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for c := range 256 {
		ok := c >= 0x20 && c <= 0x7e
		for _, k := range []driver.Key{{Scope: "s", ID: "a" + string([]byte{byte(c)})}, {Scope: string([]byte{byte(c)}) + "a", ID: "i"}} {
			if err := k.Validate(); (err == nil) != ok {
				t.Errorf("byte %#02x: %v", c, err)
			}
		}
	}
}

func TestKeyErrorsAreDiscreet(t *testing.T) {
	for _, k := range []driver.Key{
		{Scope: "secret\n", ID: "b"}, {Scope: "a", ID: "secret\x00"}, {Scope: strings.Repeat("secret", 50), ID: "b"},
	} {
		if err := k.Validate(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("got error %v, want one without the key", err)
		}
	}
}

// The hash is what stores keep: another one would make every record absent.
func TestHashIsStable(t *testing.T) {
	k := driver.Key{Scope: "tenant", ID: "order-1"}
	for _, c := range []struct {
		namespace, secret, want string
	}{
		{"", "", "75330d5a3686ed29fbc780ae6220b252"},
		{"app", "", "862193906f0951a72a5a43712fa01dc2"},
		{"app", "s3cret", "772d3c8bf5ac222199d0b02435416a41"},
	} {
		if got := k.Hash(c.namespace, []byte(c.secret)).String(); got != c.want {
			t.Errorf("Hash(%q, %q) is %s, want %s", c.namespace, c.secret, got, c.want)
		}
	}
}

// Two triples never hash alike because their concatenations do.
func TestHashDoesNotCollideByConcatenation(t *testing.T) {
	parts := []string{"", "a", "b", "ab", "ba", "aa", "a:b", ":", "a:", ":b", "\x00", "a\x00", "\x00\x00\x00\x01a"}
	for _, secret := range [][]byte{nil, []byte("k")} {
		seen := make(map[driver.KeyHash]string)
		for _, namespace := range parts {
			for _, scope := range parts {
				for _, id := range parts {
					h := driver.Key{Scope: scope, ID: id}.Hash(namespace, secret)
					triple := fmt.Sprintf("%q %q %q", namespace, scope, id)
					if other, ok := seen[h]; ok {
						t.Errorf("%s and %s hash alike", triple, other)
					}
					seen[h] = triple
				}
			}
		}
	}
	k := driver.Key{Scope: "a", ID: "b"}
	if k.Hash("", []byte("one")) == k.Hash("", []byte("two")) || k.Hash("", nil) == k.Hash("", []byte("one")) {
		t.Error("the secret does not count")
	}
	if k.Hash("", nil) != k.Hash("", []byte{}) {
		t.Error("an empty secret is not the same as none")
	}
}

func TestHashTakesNoMemory(t *testing.T) {
	k := driver.Key{Scope: strings.Repeat("s", driver.MaxScope), ID: strings.Repeat("i", driver.MaxID)}
	if n := testing.AllocsPerRun(100, func() { k.Hash("namespace", nil) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestToken(t *testing.T) {
	seen := make(map[driver.Token]bool)
	for range 1000 {
		tok := driver.NewToken()
		if tok.IsZero() || seen[tok] {
			t.Fatalf("NewToken returned %v, zero or a second time", tok)
		}
		seen[tok] = true
	}
	if !(driver.Token{}).IsZero() {
		t.Error("the zero token is not zero")
	}
	if got, want := (driver.Token{0xab, 15: 1}).String(), "ab000000000000000000000000000001"; got != want {
		t.Errorf("the token is shown as %s, want %s", got, want)
	}
}
