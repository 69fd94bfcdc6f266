package idemhttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// A support desk sees what became of a refund, or that one is under way, and does not
// start a second.
func ExampleGuard_Operation() {
	scope := func(*http.Request) (string, error) { return "shop-3", nil }
	guard, err := idemhttp.New(memory.New(), idemhttp.Config{
		Operation: idem.Config{Name: "refunds.create", Policy: idem.Hold},
		Scope:     scope,
		InFlight:  idemhttp.Accepted,
		Reference: func(r *http.Request, key idem.Key) string { return "/refunds/" + key.ID },
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /refunds/{key}", func(w http.ResponseWriter, r *http.Request) {
		found, err := guard.Operation().Lookup(r.Context(), idem.Key{Scope: "shop-3", ID: r.PathValue("key")})
		if err != nil {
			http.Error(w, "no such refund", http.StatusNotFound)
			return
		}
		if answer, ok := idemhttp.Stored(found); ok {
			fmt.Fprintf(w, "%v with %d: %s", found.State, answer.Status, answer.Body)
			return
		}
		fmt.Fprint(w, found.State)
	})
	show := func(when string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", "/refunds/order-7", nil))
		fmt.Println(when, w.Body)
	}
	mux.Handle("POST /refunds", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		run, _ := idemhttp.Run(r.Context())
		_ = run.DownstreamKey("refund") // the key for the payment provider, which is asked here
		show("meanwhile:")
		fmt.Fprint(w, "paid back")
	})))

	show("before:")
	req := httptest.NewRequest("POST", "/refunds", strings.NewReader(`{"order":7}`))
	req.Header.Set("Idempotency-Key", "order-7")
	mux.ServeHTTP(httptest.NewRecorder(), req)
	show("after:")

	// Output:
	// before: absent
	// meanwhile: in-flight
	// after: complete with 200: paid back
}
