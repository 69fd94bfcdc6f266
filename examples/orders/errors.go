package main

import (
	"context"
	"errors"
	"log"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/idem-go/idem"
)

// refuse answers an error of the core.
func refuse(w http.ResponseWriter, err error) {
	var (
		final    *idem.FinalError
		inFlight *idem.InFlightError
		unknown  *idem.UnknownError
	)
	switch {
	case errors.As(err, &final): // the outcome of the operation, also for repeats
		answer(w, http.StatusUnprocessableEntity, refusal{final.Code, final.Error()})
	case errors.Is(err, idem.ErrInvalidKey):
		answer(w, http.StatusBadRequest, refusal{"idempotency_key_invalid", err.Error()})
	case errors.Is(err, idem.ErrMismatch):
		answer(w, http.StatusUnprocessableEntity, refusal{"idempotency_key_conflict", err.Error()})
	case errors.As(err, &inFlight):
		retryAfter(w, inFlight.RetryAfter)
		answer(w, http.StatusConflict, refusal{"idempotency_key_in_flight", err.Error()})
	case errors.As(err, &unknown) && unknown.Err == nil: // held until a person resolves it
		answer(w, http.StatusConflict, refusal{"operation_unknown", "do not send this again with another key"})
	case errors.Is(err, idem.ErrExpired):
		answer(w, http.StatusGone, refusal{"idempotency_key_expired", err.Error()})
	case errors.Is(err, idem.ErrResultNotStored):
		answer(w, http.StatusConflict, refusal{"response_not_stored", err.Error()})
	case errors.Is(err, idem.ErrStore), errors.Is(err, idem.ErrRetryable), errors.Is(err, idem.ErrUnknown),
		errors.Is(err, idem.ErrNotRecorded), errors.Is(err, idem.ErrLeaseLost), errors.Is(err, context.DeadlineExceeded):
		log.Print(err)
		retryAfter(w, time.Second)
		answer(w, http.StatusServiceUnavailable, refusal{"try_again", "send the same request with the same key again"})
	default:
		log.Print(err)
		answer(w, http.StatusInternalServerError, refusal{"internal", "the request failed; send it again with the same key"})
	}
}

func retryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(d, time.Second).Seconds()))))
}
