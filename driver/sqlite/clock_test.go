package sqlite_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

// A panic, or the end of its goroutine, in business code leaves no lock behind.
func TestField_B07_PanicInBusinessCode(t *testing.T) {
	d := fresh(t)
	for name, end := range map[string]func(){
		"panic": func() { panic("boom") }, "panic(nil)": func() { panic(nil) }, "Goexit": runtime.Goexit,
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			tx, _, err := d.BeginClaim(context.Background(), claimParams(name))
			if err != nil {
				t.Errorf("BeginClaim: %v", err)
				return
			}
			defer func() {
				if err := tx.Rollback(context.Background()); err != nil {
					t.Errorf("%s: Rollback: %v", name, err)
				}
			}()
			if err := insertRow(context.Background(), tx.Handle(), name); err != nil {
				t.Errorf("inserting: %v", err)
			}
			end()
		}()
		<-done
		mustClaim(t, d, claimParams("after "+name))
		wantState(t, d, name, driver.StateAbsent)
		wantRows(t, d, name, 0)
	}
}

// Seconds compared with milliseconds: a dead key never opens. A lease of two seconds
// ends after two seconds, to the microsecond.
func TestField_C05_LeaseEndsInTime(t *testing.T) {
	d := fresh(t)
	p := claimParams("k")
	p.Lease, p.Now = 2*time.Second, t0
	mustClaim(t, d, p)
	next := claimParams("k")
	next.Now = t0.Add(2*time.Second - time.Microsecond)
	if r, err := d.Claim(t.Context(), next); err != nil || r.Token != p.Token {
		t.Errorf("a microsecond before: %+v, %v; want the first claim", r, err)
	}
	next.Now = t0.Add(2 * time.Second)
	if r := mustClaim(t, d, next); r.Attempt != 2 {
		t.Errorf("attempt %d, want 2", r.Attempt)
	}
}

// Leases are judged by the clocks of two processes when a host's clock is set: a takeover may
// come early or late, and the one who was taken over can still not complete.
func TestField_C07_TwoClocks(t *testing.T) {
	first := fresh(t)
	second := sqlite.New(openDB(t, path(t, first)))
	for _, ahead := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		p := claimParams("ahead " + ahead.String())
		p.Now = t0
		r := mustClaim(t, first, p)
		late := p
		late.Token, late.Now = driver.NewToken(), t0.Add(ahead)
		got, err := second.Claim(t.Context(), late)
		if err != nil {
			t.Fatal(err)
		}
		if took := granted(got, late); took != (ahead > 0) {
			t.Errorf("a process %v ahead: taken over: %v", ahead, took)
		}
		c := completeParams(r, nil)
		c.Now = t0
		err = first.Complete(t.Context(), c)
		if ahead > 0 {
			wantError(t, "Complete after the takeover", err, driver.ErrNotHolder)
			if got.Fence <= r.Fence {
				t.Errorf("the fence went from %d to %d", r.Fence, got.Fence)
			}
		} else if err != nil {
			t.Errorf("Complete: %v", err)
		}
	}
}
