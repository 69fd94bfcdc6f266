package idem_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/idemhttp"
)

// Example_http is the one in the README's section on HTTP: a request is sent twice,
// and then another one with its key.
func Example_http() {
	store, closeStore := openShop()
	defer closeStore()
	mux := http.NewServeMux()
	if err := readmeHTTP(mux, store); err != nil {
		log.Fatal(err)
	}
	for _, body := range []string{`{"item":"tea"}`, `{"item":"tea"}`, `{"item":"coffee"}`} {
		r := httptest.NewRequest("POST", "/orders", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "8e03978e")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, "user-17")))
		fmt.Printf("%d, replayed: %t\n", w.Code, w.Header().Get("Idempotent-Replayed") == "true")
	}
	fmt.Println(countOrders(store), "order")
	// Output:
	// 201, replayed: false
	// 201, replayed: true
	// 422, replayed: false
	// 1 order
}

type userKey struct{}

// signedIn stands for the authentication in front of the guard.
func signedIn(r *http.Request) (string, error) {
	user, ok := r.Context().Value(userKey{}).(string)
	if !ok {
		return "", errors.New("not signed in")
	}
	return user, nil
}

// readmeHTTP is shown in the README; TestReadme holds the two together.
func readmeHTTP(mux *http.ServeMux, store *sqlite.Driver) error {
	guard, err := idemhttp.NewTx(store, idemhttp.Config{
		Operation: idem.Config{Name: "orders.create", Retention: 7 * 24 * time.Hour},
		Scope:     signedIn, // func(*http.Request) (string, error): whose key it is
	})
	if err != nil {
		return err
	}
	createOrder := func(w http.ResponseWriter, r *http.Request) {
		tx := idemhttp.Tx[*sql.Tx](r.Context()) // commits the order, the key and the answer, before that is sent
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders (item) VALUES ('tea')`); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable) // rolled back, and a repeat runs
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	mux.Handle("POST /orders", guard.Handler(http.HandlerFunc(createOrder)))
	return nil
}
