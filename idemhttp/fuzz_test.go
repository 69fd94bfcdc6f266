package idemhttp

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

// FuzzKey: a field value is a key, or there is a reason why not; and a key written
// as a string of RFC 8941 is read back as itself.
func FuzzKey(f *testing.F) {
	for _, s := range []string{
		"", " ", "abc", `"abc"`, `"a\"b\\c"`, `"abc";p=1`, `"a", "b"`, `"`, `""`, `"a`, `"a\`, `a"b`, "a,b", "a\tb", "\xff", "clé",
		strings.Repeat("k", 255), `"` + strings.Repeat(`\"`, 256) + `"`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		id, reason := parseKey(value)
		valid := (driver.Key{Scope: "s", ID: id}).Validate() == nil
		if valid != (reason == "") {
			t.Fatalf("parseKey(%q) = %q, %q", value, id, reason)
		}
		if !valid {
			if id != "" {
				t.Fatalf("parseKey(%q) is refused with the key %q", value, id)
			}
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id) + `"`
		if again, reason := parseKey(quoted); again != id || reason != "" {
			t.Fatalf("parseKey(%q) = %q, %q, want %q", quoted, again, reason, id)
		}
		if bare := strings.Trim(value, " \t"); !strings.HasPrefix(bare, `"`) && id != bare {
			t.Fatalf("parseKey(%q) = %q", value, id)
		}
	})
}

// FuzzPrefer: no field makes a wait that is negative or longer than the bound, and a
// field that follows changes nothing that an earlier one has set.
func FuzzPrefer(f *testing.F) {
	for _, s := range []string{
		"", "wait=10", "respond-async, wait=10", `WAIT = "5"; x=y`, `handling="lenient, wait=1"`, "wait=-1", "wait=99999999999999999999",
		"wait", `wait="`, `a="\`, ",,;;==", "respond-async=1", "wait=1, wait=2",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		p := preferencesIn(http.Header{"Prefer": {value}})
		if p.wait < 0 || p.wait > maxPreferred*time.Second || !p.hasWait && p.wait != 0 {
			t.Fatalf("%q gives %+v", value, p)
		}
		q := preferencesIn(http.Header{"Prefer": {value, "wait=3, respond-async"}})
		if p.hasWait && q.wait != p.wait || p.async && !q.async {
			t.Fatalf("%q gives %+v, and %+v with another field", value, p, q)
		}
	})
}

// FuzzResponse: bytes are refused, or are a response whose encoding is read back as
// the same.
func FuzzResponse(f *testing.F) {
	for _, r := range []Response{
		{Status: 200},
		{Status: 201, Header: http.Header{"Location": {"/1"}, "Link": {"a", "b", ""}, "Date": nil}, Body: []byte("body")},
		{Status: 999, Trailer: http.Header{"X-Sum": {"1"}}, Body: []byte{0}},
	} {
		b, err := r.MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Add([]byte{})
	f.Add([]byte{2, 200, 1})
	f.Add([]byte{1, 200, 1, 4, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again Response
		if r.UnmarshalBinary(b) != nil {
			if !reflect.DeepEqual(r, Response{}) {
				t.Fatalf("refused bytes left %+v", r)
			}
			return
		}
		if r.Status < 200 || r.Status > 999 {
			t.Fatalf("status %d", r.Status)
		}
		encoded, err := r.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if err := again.UnmarshalBinary(encoded); err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v is read back as %+v, %v", r, again, err)
		}
	})
}
