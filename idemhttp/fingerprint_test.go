package idemhttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// A query may hold bytes that are no UTF-8, which JSON cannot tell apart.
func TestEdge_QueriesThatAreNotUTF8(t *testing.T) {
	for name, of := range map[string]idemhttp.Fingerprint{"JSON": idemhttp.JSON, "Fields": idemhttp.Fields("/a")} {
		sum := func(query string) idem.Fingerprint {
			r := httptest.NewRequest("POST", "/orders", nil)
			r.URL.RawQuery = query
			fp, err := of(r, []byte(`{"a":1}`))
			if err != nil {
				t.Fatal(err)
			}
			return fp
		}
		if sum("q=\xff") == sum("q=\xfe") || sum("q=\xff") == sum("q=\ufffd") {
			t.Errorf("%s: two queries have one fingerprint", name)
		}
		if sum("q=\xff&r=é") != sum("q=%FF&r=é") {
			t.Errorf("%s: the same query, escaped, has another fingerprint", name)
		}
	}
}

// The reason why a body has no fingerprint counts bytes in the body.
func TestEdge_OffsetInTheBody(t *testing.T) {
	for _, of := range []idemhttp.Fingerprint{idemhttp.JSON, idemhttp.Fields("/id")} {
		r := httptest.NewRequest("POST", "/orders?dry=1", nil)
		_, err := of(r, []byte(` {"id":9007199254740993}`))
		if err == nil || !strings.HasSuffix(err.Error(), "at offset 7") {
			t.Errorf("error is %v", err)
		}
	}
}

// A fingerprint of the application's that cannot be used is the server's mistake,
// and says so.
func TestEdge_FingerprintInvalid(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) {
		c.Fingerprint = func(*http.Request, []byte) (idem.Fingerprint, error) { return idem.Fingerprint{}, nil }
	})
	e.post("k", "b").wantProblem(t, 500, idemhttp.CodeFingerprintInvalid)
	e.wantRuns(0)
	if !strings.Contains(e.log.String(), "fingerprint") {
		t.Errorf("the log is %q", e.log.String())
	}
}

// The fingerprint that a mismatch shows is of what was compared.
func TestEdge_FingerprintShown(t *testing.T) {
	for name, of := range map[string]idemhttp.Fingerprint{"raw": nil, "JSON": idemhttp.JSON} {
		e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) { c.Fingerprint = of })
		e.post("k1", `{"a":1}`)
		e.post("k2", `{"a": 1}`)
		s1, s2 := e.post("k1", "{}").problem.StoredRequest, e.post("k2", "{}").problem.StoredRequest
		if s1 == nil || s2 == nil || (s1.Fingerprint == s2.Fingerprint) != (name == "JSON") {
			t.Errorf("%s: %+v, %+v", name, s1, s2)
		}
	}
	// A sum that is no hash is not shown.
	e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) {
		c.Fingerprint = func(_ *http.Request, body []byte) (idem.Fingerprint, error) {
			return idem.NewFingerprint("own.v1", body), nil
		}
	})
	e.post("k", "4111111111111111")
	if a := e.post("k", "x"); a.problem.StoredRequest == nil || len(a.problem.StoredRequest.Fingerprint) != 16 || strings.Contains(a.body, fmt.Sprintf("%x", "4111")) {
		t.Errorf("answer is %s", a.body)
	}
}
