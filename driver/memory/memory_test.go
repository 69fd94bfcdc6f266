package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

var key = driver.Key{Scope: "tenant", ID: "order-1"}

func claim(k driver.Key) driver.ClaimParams {
	return driver.ClaimParams{
		Key: k, Operation: "op", Fingerprint: []byte("fp"), Token: driver.NewToken(), Lease: time.Hour, Retention: time.Hour,
	}
}

// Waiters of one claim are woken by its end, and by no other claim's.
func TestWait(t *testing.T) {
	ctx := t.Context()
	d := memory.New()
	r, err := d.Claim(ctx, claim(key))
	if err != nil {
		t.Fatal(err)
	}
	other := driver.Key{Scope: "tenant", ID: "order-2"}
	o, err := d.Claim(ctx, claim(other))
	if err != nil {
		t.Fatal(err)
	}
	wait := func(ctx context.Context) error { return d.Wait(ctx, driver.WaitParams{Key: key, Fence: r.Fence}) }

	woken := make(chan error, 3)
	for range cap(woken) {
		go func() { woken <- wait(ctx) }()
	}
	if err := d.Release(ctx, driver.ReleaseParams{HolderParams: driver.HolderParams{Key: other, Token: o.Token, Fence: o.Fence}}); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := wait(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait while the claim is live: %v", err)
	}
	if n := len(woken); n > 0 {
		t.Errorf("%d waiters were woken by the end of another claim", n)
	}
	h := driver.HolderParams{Key: key, Token: r.Token, Fence: r.Fence}
	if err := d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := d.Complete(ctx, driver.CompleteParams{HolderParams: h, Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for range cap(woken) {
		if err := <-woken; err != nil {
			t.Errorf("Wait: %v", err)
		}
	}
	if err := wait(ctx); err != nil {
		t.Errorf("Wait after the end: %v", err)
	}
}

func TestListIsOrdered(t *testing.T) {
	ctx := t.Context()
	d := memory.New()
	var want []string
	for _, scope := range []string{"a", "a b", "b"} {
		for i := range 3 {
			k := driver.Key{Scope: scope, ID: fmt.Sprint(i)}
			want = append(want, k.Scope+"/"+k.ID)
			if _, err := d.Claim(ctx, claim(k)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got []string
	for after, pages := "", 0; pages == 0 || after != ""; pages++ {
		page, next, err := d.List(ctx, driver.ListParams{State: driver.StateInFlight, Limit: 2, After: after})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page {
			got = append(got, r.Key.Scope+"/"+r.Key.ID)
		}
		after = next
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("listed %v, want %v", got, want)
	}
}

// Every Driver has a store of its own.
func TestDriversShareNothing(t *testing.T) {
	a, b := memory.New(), memory.New()
	if _, err := a.Claim(t.Context(), claim(key)); err != nil {
		t.Fatal(err)
	}
	r, err := b.Get(t.Context(), driver.GetParams{Key: key})
	if err != nil || r.State != driver.StateAbsent {
		t.Errorf("the other driver has %v, %v", r.State, err)
	}
}
