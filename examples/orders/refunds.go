package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
)

// Refund is money that was paid back for an order, and the answer to the request.
type Refund struct {
	Order  string `json:"order"`
	Amount int    `json:"amount"` // in cents
}

// newRefunds declares the endpoint that pays money back. The bank is not part of any
// transaction, and money that may have been sent is not sent again: when nobody knows
// how an attempt ended, a person finds out (policy Hold).
//
// The key is the order that the refund is for, so that whoever asks for a second
// refund of an order asks with the same key.
func newRefunds(st store, cfg idemhttp.Config) (*idemhttp.Guard, error) {
	cfg.Operation.Name = "refunds.create"
	cfg.Operation.Policy = idem.Hold
	cfg.Operation.Retention = 365 * 24 * time.Hour // as long as somebody may ask for another
	cfg.Reference = func(_ *http.Request, key idem.Key) string { return "/refunds/" + url.PathEscape(key.ID) }
	return idemhttp.New(st.driver, cfg)
}

// createRefund is guarded: it runs once for each order.
func (s *shop) createRefund(w http.ResponseWriter, r *http.Request) {
	var req struct{ Amount int }
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Amount < 1 {
		refuse(w, r, http.StatusBadRequest, "invalid_refund", `want {"amount":500}, and the order as the key`)
		return
	}
	key, _ := idemhttp.Key(r.Context())
	run, _ := idemhttp.Run(r.Context())
	// This is where a bank would be called. A real one gets the reference, and an
	// error of the call that may come after the payment is no answer: panic with
	// http.ErrAbortHandler.
	s.pause(r, fmt.Sprintf("the bank has paid %d back for order %s, reference %s, and has not said so",
		req.Amount, key.ID, run.DownstreamKey("bank")))
	answer(w, http.StatusCreated, Refund{Order: key.ID, Amount: req.Amount})
}

// refundStatus is what a clerk sees of a refund.
type refundStatus struct {
	State   string    `json:"state"` // absent, in-flight, unknown, complete or expired
	Since   time.Time `json:"since,omitzero"`
	Attempt int       `json:"attempt,omitempty"`
	Note    string    `json:"note,omitempty"` // the reason of whoever resolved it
	// Answer is what the request was answered with, once it is complete.
	Answer json.RawMessage `json:"answer,omitempty"`
}

// showRefund tells a clerk whether a refund of an order is under way, or was paid, or
// has to be looked into. It changes nothing.
func (s *shop) showRefund(w http.ResponseWriter, r *http.Request) {
	found, err := s.refunds.Operation().Lookup(r.Context(), refundKey(r))
	if err != nil {
		refuseRefund(w, r, err)
		return
	}
	status := refundStatus{State: found.State.String(), Since: found.CreatedAt, Attempt: found.Attempt, Note: found.Note}
	if stored, ok := idemhttp.Stored(found); ok {
		status.Answer = stored.Body
	}
	answer(w, http.StatusOK, status)
}

// resolveRefund ends a refund whose outcome is unknown with what a person has found
// out: what the bank has paid, 0 for nothing. After 0 it can be asked for again. An
// application lets only some people in here.
func (s *shop) resolveRefund(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Paid   *int
		Reason string
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Paid == nil || *req.Paid < 0 {
		refuse(w, r, http.StatusBadRequest, "invalid_resolution", `want {"paid":500,"reason":"statement 118"}`)
		return
	}
	key := refundKey(r)
	var (
		stored  idemhttp.Response
		outcome error
	)
	if *req.Paid == 0 {
		outcome = idem.NotApplied(errors.New("the bank has paid nothing"))
	} else {
		body, err := json.Marshal(Refund{Order: key.ID, Amount: *req.Paid})
		if err != nil {
			refuseRefund(w, r, err)
			return
		}
		stored = idemhttp.Response{
			Status: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: body,
		}
	}
	if err := s.refunds.Operation().Resolve(r.Context(), key, req.Reason, stored, outcome); err != nil {
		refuseRefund(w, r, err)
		return
	}
	s.showRefund(w, r)
}

func refundKey(r *http.Request) idem.Key {
	scope, _ := tenant(r) // which always knows
	return idem.Key{Scope: scope, ID: r.PathValue("key")}
}

// refuseRefund answers an error of Lookup or Resolve.
func refuseRefund(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, idem.ErrInvalidKey), errors.Is(err, idem.ErrInvalidArgument):
		refuse(w, r, http.StatusBadRequest, "invalid_request", err.Error())
	case errors.Is(err, idem.ErrNotFound), errors.Is(err, idem.ErrMismatch): // the key of an order, for example
		refuse(w, r, http.StatusNotFound, "no_such_refund", "no refund has this key")
	case errors.Is(err, idem.ErrInFlight), errors.Is(err, idem.ErrHasOutcome):
		refuse(w, r, http.StatusConflict, "refund_not_unknown", err.Error())
	default:
		log.Print(err)
		unavailable(w, r)
	}
}
