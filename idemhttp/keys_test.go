package idemhttp_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/idem-go/idem/idemhttp"
)

// Every key that the core accepts can be sent: one that a bare value cannot hold goes
// as a string.
func TestEdge_TransportQuotesWhatItMust(t *testing.T) {
	h, got := keyOf(t)
	srv := httptest.NewServer(h)
	defer srv.Close()
	c := &http.Client{Transport: &idemhttp.Transport{}}
	for _, key := range []string{"cart-1", "cart,1", `"cart"`, `a"b`, " cart", "cart ", `a\b`} {
		req, err := http.NewRequestWithContext(idemhttp.WithKey(t.Context(), key), "POST", srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := do(c, req)
		if a.status != 200 || *got != key {
			t.Errorf("key %q: status %d %s, the server has %q", key, a.status, a.body, *got)
		}
	}
}
