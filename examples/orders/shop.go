package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
)

// Order is a row of the business table, and the answer to the request.
type Order struct {
	ID       string `json:"id"`
	Tenant   string `json:"tenant"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
}

// shop has the handlers.
type shop struct {
	store
	allowPause      bool
	orders, refunds *idemhttp.Guard
}

func newShop(st store, o options) (*shop, error) {
	s := &shop{store: st, allowPause: o.allowPause}
	cfg := idemhttp.Config{
		Operation: idem.Config{
			Name:      "orders.create",
			Retention: 24 * time.Hour, // how long a repeat gets the first answer
			Lease:     o.lease,
		},
		Scope: tenant,
		// What cannot be an order at all gives its key up: the client may mend it and
		// use the same key. Every other refusal is stored, and repeats get it too.
		Settle: func(status int) idemhttp.Settlement {
			if status == http.StatusBadRequest {
				return idemhttp.Release
			}
			return idemhttp.DefaultSettle(status)
		},
	}
	var err error
	if s.refunds, err = newRefunds(st, cfg); err != nil {
		return nil, err
	}
	if o.wait > 0 {
		cfg.InFlight, cfg.MaxWait = idemhttp.Wait, o.wait
	}
	s.orders, err = st.guard(cfg)
	return s, err
}

func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", s.orders.Handler(http.HandlerFunc(s.createOrder)))
	mux.HandleFunc("GET /orders", s.countOrders)
	mux.Handle("POST /refunds", s.refunds.Handler(http.HandlerFunc(s.createRefund)))
	mux.HandleFunc("GET /refunds/{key}", s.showRefund)
	mux.HandleFunc("POST /refunds/{key}/resolve", s.resolveRefund)
	return mux
}

// tenant says whose keys these are. An application takes it from the principal
// that it has authenticated, never from a header that anybody can set.
func tenant(r *http.Request) (string, error) {
	if t := r.Header.Get("Demo-Tenant"); t != "" {
		return t, nil
	}
	return "demo", nil
}

// createOrder is guarded: it runs once for each key.
func (s *shop) createOrder(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Item     string
		Quantity int
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Item == "" || req.Quantity < 1 {
		refuse(w, r, http.StatusBadRequest, "invalid_order", `want {"item":"tea","quantity":2}`)
		return
	}
	if req.Quantity > 100 {
		refuse(w, r, http.StatusUnprocessableEntity, "order_too_large", "an order has at most 100 pieces")
		return
	}
	ctx := r.Context()
	key, _ := idemhttp.Key(ctx)
	order := Order{ID: rand.Text(), Tenant: key.Scope, Item: req.Item, Quantity: req.Quantity}
	run, leased := idemhttp.Run(ctx)
	if leased {
		order.ID = run.DownstreamKey("order") // the same in every attempt
	}
	if err := s.insert(ctx, order); err != nil {
		log.Print(err)
		if leased { // written or not: no answer, and the next attempt will see
			panic(http.ErrAbortHandler)
		}
		unavailable(w, r) // rolled back, and a repeat runs
		return
	}
	s.pause(r, fmt.Sprintf("the order of %s is written, its answer is not", order.Item))
	answer(w, http.StatusCreated, order)
}

func (s *shop) countOrders(w http.ResponseWriter, r *http.Request) {
	n, err := s.count(r.Context(), r.URL.Query().Get("item"))
	if err != nil {
		log.Print(err)
		unavailable(w, r)
		return
	}
	answer(w, http.StatusOK, map[string]int{"count": n})
}

// pause stops a request of a demonstration where a crash would hurt most.
func (s *shop) pause(r *http.Request, what string) {
	d, err := time.ParseDuration(r.Header.Get("Demo-Pause"))
	if !s.allowPause || err != nil {
		return
	}
	log.Printf("%s: pausing for %v", what, d)
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // an error means that the client has gone
}

// refuse answers that nothing was done, in the form of the guard's own refusals.
func refuse(w http.ResponseWriter, r *http.Request, status int, code, detail string) {
	idemhttp.WriteProblem(w, r, idemhttp.Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail,
	})
}

// unavailable answers that nothing was done for a reason that passes.
func unavailable(w http.ResponseWriter, r *http.Request) {
	idemhttp.WriteProblem(w, r, idemhttp.Problem{
		Type: "about:blank", Title: "Store is unavailable", Status: http.StatusServiceUnavailable, Code: "unavailable",
		Detail: "Send the same request with the same key again.", RetrySameKey: true, RetryAfter: time.Second,
	})
}
