package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// refund is what the bank is asked to pay back, once for each order.
type refund struct {
	order  string
	amount int
	pause  time.Duration
}

// post asks for the refund. Demo-Pause is no part of the request that is compared.
func (f refund) post(p *process, header ...string) (reply, error) {
	header = append(header, "Idempotency-Key", f.order, "Demo-Pause", f.pause.String())
	return send("POST", p.url+"/refunds", fmt.Sprintf(`{"amount":%d}`, f.amount), header...)
}

// want asks for the refund and fails unless the answer is as told.
func (f refund) want(t *testing.T, p *process, status int, code string, header ...string) reply {
	t.Helper()
	r, err := f.post(p, header...)
	if err != nil || r.status != status || r.code != code {
		t.Errorf("refund of %s: %+v, %v, want %d %s", f.order, r, err, status, code)
	}
	return r
}

func (f refund) resolve(t *testing.T, p *process, paid, status int) {
	t.Helper()
	r, err := send("POST", p.url+"/refunds/"+f.order+"/resolve", fmt.Sprintf(`{"paid":%d,"reason":"statement 118"}`, paid))
	if err != nil || r.status != status {
		t.Errorf("resolving %s with %d: %+v, %v, want %d", f.order, paid, r, err, status)
	}
}

// status is what a clerk is shown.
func (f refund) status(t *testing.T, p *process) refundStatus {
	t.Helper()
	var s refundStatus
	r, err := send("GET", p.url+"/refunds/"+f.order, "")
	if err == nil && r.status == http.StatusOK {
		err = json.Unmarshal([]byte(r.body), &s)
	}
	if err != nil || r.status != http.StatusOK {
		t.Fatalf("GET of refund %s: %+v, %v", f.order, r, err)
	}
	return s
}

// refunds kills the server when the bank has paid and has not said so. It returns the
// server that was started after it.
func refunds(t *testing.T, p *process, restart func() *process) *process {
	paid := refund{order: rand.Text(), amount: 500, pause: time.Hour}
	unpaid := refund{order: rand.Text(), amount: 700, pause: time.Hour}
	if s := paid.status(t, p); s.State != "absent" {
		t.Errorf("before: %+v, want absent", s)
	}
	hung := make(chan error, 2)
	for _, f := range []refund{paid, unpaid} {
		go func() {
			_, err := f.post(p)
			hung <- err
		}()
		p.printed(t, "back for order "+f.order)
	}

	// A second clerk sees that one is under way, and cannot start another.
	if s := paid.status(t, p); s.State != "in-flight" || s.Attempt != 1 {
		t.Errorf("meanwhile: %+v, want in-flight", s)
	}
	if r := paid.want(t, p, http.StatusConflict, "idempotency_key_in_flight"); r.retryAfter == 0 {
		t.Errorf("a refund under way: %+v, want Retry-After", r)
	}
	if r := paid.want(t, p, http.StatusAccepted, "idempotency_key_in_flight", "Prefer", "respond-async"); r.location != "/refunds/"+paid.order {
		t.Errorf("respond-async: %+v, want the refund as Location", r)
	}
	more := paid
	more.amount++
	more.want(t, p, http.StatusUnprocessableEntity, "idempotency_key_conflict")
	paid.resolve(t, p, paid.amount, http.StatusConflict) // it may still end by itself

	p.kill(t)
	for range cap(hung) {
		if err := <-hung; err == nil {
			t.Error("a refund was answered by a process that was killed in the middle of it")
		}
	}
	p = restart()
	paid.pause, unpaid.pause = 0, 0
	for _, f := range []refund{paid, unpaid} {
		for deadline := time.Now().Add(patience); f.status(t, p).State != "unknown"; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after the crash: %+v, want unknown", f.status(t, p))
			}
		}
		if r := f.want(t, p, http.StatusConflict, "operation_unknown"); r.retryAfter != 0 {
			t.Errorf("an unknown refund: %+v, want no Retry-After", r)
		}
	}

	paid.resolve(t, p, paid.amount, http.StatusOK)
	if r := paid.want(t, p, http.StatusCreated, ""); !r.replayed {
		t.Errorf("a refund that the bank had paid: %+v, want a replay", r)
	}
	if s := paid.status(t, p); s.State != "complete" || s.Note != "statement 118" || string(s.Answer) != fmt.Sprintf(`{"order":%q,"amount":500}`, paid.order) {
		t.Errorf("after the resolution: %+v", s)
	}
	paid.resolve(t, p, 0, http.StatusConflict) // it has an outcome

	unpaid.resolve(t, p, 0, http.StatusOK)
	if s := unpaid.status(t, p); s.State != "absent" {
		t.Errorf("a refund that the bank had not paid: %+v, want absent", s)
	}
	if r := unpaid.want(t, p, http.StatusCreated, ""); r.replayed {
		t.Errorf("a refund that the bank had not paid, again: %+v, want a run", r)
	}
	return p
}
