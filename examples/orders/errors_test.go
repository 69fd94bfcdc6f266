package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

func TestRefuse(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("context: %w", err) }
	for _, tt := range []struct {
		err        error
		status     int
		retryAfter string
	}{
		{idem.Final(errors.New("sold out")), 422, ""},
		{idem.ErrInvalidKey, 400, ""},
		{&idem.MismatchError{Reason: idem.MismatchRequest}, 422, ""},
		{&idem.InFlightError{RetryAfter: time.Millisecond}, 409, "1"},
		{&idem.InFlightError{RetryAfter: 1001 * time.Millisecond}, 409, "2"},
		{&idem.UnknownError{Attempt: 1}, 409, ""},
		{&idem.UnknownError{Attempt: 1, Err: errors.New("cut off")}, 503, "1"},
		{idem.ErrExpired, 410, ""},
		{&idem.NotStoredError{Reason: "too large"}, 409, ""},
		{&idem.StoreError{Verb: "claim", Err: errors.New("down")}, 503, "1"},
		{idem.ErrRetryable, 503, "1"},
		{idem.ErrNotRecorded, 503, "1"},
		{context.DeadlineExceeded, 503, "1"},
		{errors.New("a mistake"), 500, ""},
	} {
		w := httptest.NewRecorder()
		refuse(w, wrapped(tt.err))
		if w.Code != tt.status || w.Header().Get("Retry-After") != tt.retryAfter {
			t.Errorf("%v: status %d, Retry-After %q, want %d, %q", tt.err, w.Code, w.Header().Get("Retry-After"), tt.status, tt.retryAfter)
		}
	}
}
