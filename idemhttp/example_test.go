package idemhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// A request that is sent twice makes one order.
func Example() {
	guard, err := idemhttp.New(memory.New(), idemhttp.Config{
		Operation: idem.Config{Name: "orders.create"},
		Scope:     func(r *http.Request) (string, error) { return "user-17", nil }, // from the authentication
	})
	if err != nil {
		panic(err)
	}
	orders := 0
	mux := http.NewServeMux()
	mux.Handle("POST /orders", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		orders++
		w.Header().Set("Location", fmt.Sprint("/orders/", orders))
		w.WriteHeader(http.StatusCreated)
	})))
	srv := httptest.NewServer(mux)
	defer srv.Close()

	key := idemhttp.NewKey()
	send := func(body string) {
		req, err := http.NewRequest("POST", srv.URL+"/orders", strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		req.Header.Set("Idempotency-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		fmt.Printf("%d %q, replayed %q\n", resp.StatusCode, resp.Header.Get("Location"), resp.Header.Get("Idempotent-Replayed"))
	}
	send("tea")
	send("tea")
	send("coffee") // another request with the same key

	// Output:
	// 201 "/orders/1", replayed ""
	// 201 "/orders/1", replayed "true"
	// 422 "", replayed ""
}
