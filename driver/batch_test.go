package driver_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idem-go/idem/driver"
)

func TestAfterBatch(t *testing.T) {
	now := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	p := driver.BatchParams{
		ClaimParams: driver.ClaimParams{
			Key: driver.Key{Scope: "s", ID: "i"}, Operation: "op", Fingerprint: []byte("f"), Token: driver.NewToken(),
			Lease: time.Minute, Retention: time.Hour,
		},
		Result: []byte("result"), Keep: 2 * time.Hour, Grace: 3 * time.Hour,
	}
	done, granted := driver.Record{}.AfterBatch(p, now)
	want := driver.Record{
		Key: p.Key, State: driver.StateComplete, Operation: "op", Fingerprint: []byte("f"), Token: p.Token, Fence: now.UnixMicro(),
		Attempt: 1, Result: []byte("result"), CreatedAt: now, LeaseUntil: now.Add(time.Minute), CompletedAt: now,
		RetainUntil: now.Add(2 * time.Hour), GraceUntil: now.Add(5 * time.Hour), Now: now,
	}
	if diff := cmp.Diff(want, done); !granted || diff != "" {
		t.Errorf("granted %t (-want +got):\n%s", granted, diff)
	}
	other := p
	other.Token = driver.NewToken()
	claimed, _ := driver.Record{}.AfterClaim(other.ClaimParams, now)
	if r, granted := claimed.AfterBatch(p, now); granted || r.State != driver.StateInFlight || r.Token != other.Token {
		t.Errorf("beside a claim: %t, %+v", granted, r)
	}
	if r, granted := claimed.AfterBatch(p, now.Add(2*time.Minute)); !granted || r.Attempt != 2 || r.Fence <= claimed.Fence {
		t.Errorf("after an attempt that died: %t, %+v", granted, r)
	}
	if r, granted := done.AfterBatch(other, now.Add(time.Second)); granted || r.Token != p.Token {
		t.Errorf("on a complete record: %t, %+v", granted, r)
	}
}

func TestBatchParamsValidate(t *testing.T) {
	good := driver.BatchParams{
		ClaimParams: driver.ClaimParams{
			Key: driver.Key{Scope: "s", ID: "i"}, Operation: "op", Fingerprint: []byte("f"), Token: driver.NewToken(),
			Lease: time.Minute, Retention: time.Hour,
		},
		Keep: time.Hour,
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*driver.BatchParams){
		"operation": func(p *driver.BatchParams) { p.Operation = "" },
		"retention": func(p *driver.BatchParams) { p.Keep = 0 },
		"grace":     func(p *driver.BatchParams) { p.Grace = -1 },
		"result":    func(p *driver.BatchParams) { p.Result = make([]byte, driver.MaxResult+1) },
	} {
		p := good
		change(&p)
		if err := p.Validate(); !errors.Is(err, driver.ErrInvalidParams) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestStatementError(t *testing.T) {
	why := errors.New("no such table")
	for at, want := range map[int]string{2: "statement 2 of the batch: no such table", -1: "a statement of the batch: no such table"} {
		err := error(&driver.StatementError{Statement: at, Err: why})
		if err.Error() != want || !errors.Is(err, why) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
