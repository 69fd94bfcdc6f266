package driver_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

var (
	beforeEpoch = time.UnixMicro(0)
	firstNow    = time.UnixMicro(1)
	tooLate     = time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)
	lastNow     = tooLate.Add(-time.Nanosecond)
)

type validator interface{ Validate() error }

// A limit changes one parameter, and says what Validate answers to it.
type limit[P validator] struct {
	name   string
	change func(*P)
	want   error
}

// checkLimits applies each limit to params that are valid.
func checkLimits[P validator](t *testing.T, good func() P, limits []limit[P]) {
	t.Helper()
	if err := good().Validate(); err != nil {
		t.Fatalf("the params to start from are not valid: %v", err)
	}
	for _, l := range limits {
		p := good()
		l.change(&p)
		err := p.Validate()
		if l.want == nil && err != nil || l.want != nil && !errors.Is(err, l.want) {
			t.Errorf("%T with %s: got error %v, want %v", p, l.name, err, l.want)
		}
	}
}

func goodHolder() driver.HolderParams {
	return driver.HolderParams{Key: key, Token: mine, Fence: 1}
}

// holderLimits are those of the params that name a holder.
func holderLimits[P validator](of func(*P) *driver.HolderParams) []limit[P] {
	bad, key := driver.ErrInvalidParams, driver.ErrInvalidKey
	return []limit[P]{
		{"no key", func(p *P) { of(p).Key = driver.Key{} }, key},
		{"a bad ID", func(p *P) { of(p).Key.ID = "\n" }, key},
		{"no token", func(p *P) { of(p).Token = driver.Token{} }, bad},
		{"fence 0", func(p *P) { of(p).Fence = 0 }, bad},
		{"fence -1", func(p *P) { of(p).Fence = -1 }, bad},
		{"the largest fence", func(p *P) { of(p).Fence = 1<<63 - 1 }, nil},
		{"the first now", func(p *P) { of(p).Now = firstNow }, nil},
		{"the last now", func(p *P) { of(p).Now = lastNow }, nil},
		{"now in 1970", func(p *P) { of(p).Now = beforeEpoch }, bad},
		{"now in 2050", func(p *P) { of(p).Now = tooLate }, bad},
	}
}

func TestHolderParams(t *testing.T) {
	checkLimits(t, goodHolder, holderLimits(func(p *driver.HolderParams) *driver.HolderParams { return p }))
	checkLimits(t, func() driver.ForgetParams { return driver.ForgetParams{HolderParams: goodHolder()} },
		holderLimits(func(p *driver.ForgetParams) *driver.HolderParams { return &p.HolderParams }))
}

func TestClaimParams(t *testing.T) {
	type P = driver.ClaimParams
	bad := driver.ErrInvalidParams
	checkLimits(t, claim, []limit[P]{
		{"no key", func(p *P) { p.Key = driver.Key{} }, driver.ErrInvalidKey},
		{"no token", func(p *P) { p.Token = driver.Token{} }, bad},
		{"no operation", func(p *P) { p.Operation = "" }, bad},
		{"the longest operation", func(p *P) { p.Operation = strings.Repeat("o", 128) }, nil},
		{"a long operation", func(p *P) { p.Operation = strings.Repeat("o", 129) }, bad},
		{"an operation beyond ASCII", func(p *P) { p.Operation = "\u00f6" }, bad},
		{"an operation with a newline", func(p *P) { p.Operation = "a\nb" }, bad},
		{"no fingerprint", func(p *P) { p.Fingerprint = []byte{} }, bad},
		{"the longest fingerprint", func(p *P) { p.Fingerprint = make([]byte, 128) }, nil},
		{"a long fingerprint", func(p *P) { p.Fingerprint = make([]byte, 129) }, bad},
		{"no summary", func(p *P) { p.Summary = "" }, nil},
		{"the longest summary", func(p *P) { p.Summary = strings.Repeat("s", 1024) }, nil},
		{"a long summary", func(p *P) { p.Summary = strings.Repeat("s", 1025) }, bad},
		{"a summary in UTF-8", func(p *P) { p.Summary = "m\u00fcller \U0001F511\n" }, nil},
		{"a summary that is no text", func(p *P) { p.Summary = "\xff" }, bad},
		{"a summary with NUL", func(p *P) { p.Summary = "a\x00" }, bad},
		{"the shortest lease", func(p *P) { p.Lease = time.Millisecond }, nil},
		{"a short lease", func(p *P) { p.Lease = time.Millisecond - 1 }, bad},
		{"no lease", func(p *P) { p.Lease = 0 }, bad},
		{"the longest lease", func(p *P) { p.Lease, p.Retention = driver.MaxDuration, driver.MaxDuration }, nil},
		{"a long lease", func(p *P) { p.Lease, p.Retention = driver.MaxDuration+1, driver.MaxDuration+1 }, bad},
		{"retention equal to the lease", func(p *P) { p.Retention = p.Lease }, nil},
		{"retention under the lease", func(p *P) { p.Retention = p.Lease - 1 }, bad},
		{"long retention", func(p *P) { p.Retention = driver.MaxDuration + 1 }, bad},
		{"Hold and Resolve", func(p *P) { p.Hold, p.Resolve = true, true }, nil},
		{"the last now", func(p *P) { p.Now = lastNow }, nil},
		{"now in 2050", func(p *P) { p.Now = tooLate }, bad},
		{"now in 1970", func(p *P) { p.Now = beforeEpoch }, bad},
	})
}

func TestRenewParams(t *testing.T) {
	type P = driver.RenewParams
	good := func() P { return P{HolderParams: goodHolder(), Lease: time.Second} }
	checkLimits(t, good, append(holderLimits(func(p *P) *driver.HolderParams { return &p.HolderParams }), []limit[P]{
		{"the shortest lease", func(p *P) { p.Lease = time.Millisecond }, nil},
		{"a short lease", func(p *P) { p.Lease = time.Millisecond - 1 }, driver.ErrInvalidParams},
		{"the longest lease", func(p *P) { p.Lease = driver.MaxDuration }, nil},
		{"a long lease", func(p *P) { p.Lease = driver.MaxDuration + 1 }, driver.ErrInvalidParams},
	}...))
}

func TestCompleteParams(t *testing.T) {
	type P = driver.CompleteParams
	bad := driver.ErrInvalidParams
	good := func() P { return P{HolderParams: goodHolder(), Retention: time.Hour} }
	large := make([]byte, driver.MaxResult+1)
	checkLimits(t, good, append(holderLimits(func(p *P) *driver.HolderParams { return &p.HolderParams }), []limit[P]{
		{"the largest result", func(p *P) { p.Result = large[:driver.MaxResult] }, nil},
		{"a large result", func(p *P) { p.Result = large }, bad},
		{"the shortest retention", func(p *P) { p.Retention = time.Millisecond }, nil},
		{"short retention", func(p *P) { p.Retention = time.Millisecond - 1 }, bad},
		{"the longest retention", func(p *P) { p.Retention = driver.MaxDuration }, nil},
		{"long retention", func(p *P) { p.Retention = driver.MaxDuration + 1 }, bad},
		{"a negative grace", func(p *P) { p.Grace = -1 }, bad},
		{"the longest grace", func(p *P) { p.Grace = driver.MaxDuration }, nil},
		{"a long grace", func(p *P) { p.Grace = driver.MaxDuration + 1 }, bad},
		{"the longest note", func(p *P) { p.Note = strings.Repeat("n", 1024) }, nil},
		{"a long note", func(p *P) { p.Note = strings.Repeat("n", 1025) }, bad},
		{"a note with NUL", func(p *P) { p.Note = "\x00" }, bad},
		{"a note that is no text", func(p *P) { p.Note = "\xc3" }, bad},
	}...))
}

func TestReleaseParams(t *testing.T) {
	type P = driver.ReleaseParams
	good := func() P { return P{HolderParams: goodHolder(), Note: "n", Abandon: true} }
	checkLimits(t, good, append(holderLimits(func(p *P) *driver.HolderParams { return &p.HolderParams }), []limit[P]{
		{"the longest note", func(p *P) { p.Note = strings.Repeat("n", 1024) }, nil},
		{"a long note", func(p *P) { p.Note = strings.Repeat("n", 1025) }, driver.ErrInvalidParams},
		{"a note with NUL", func(p *P) { p.Note = "a\x00b" }, driver.ErrInvalidParams},
	}...))
}

func TestOtherParams(t *testing.T) {
	bad := driver.ErrInvalidParams
	checkLimits(t, func() driver.GetParams { return driver.GetParams{Key: key} }, []limit[driver.GetParams]{
		{"no key", func(p *driver.GetParams) { p.Key = driver.Key{} }, driver.ErrInvalidKey},
		{"the last now", func(p *driver.GetParams) { p.Now = lastNow }, nil},
		{"now in 2050", func(p *driver.GetParams) { p.Now = tooLate }, bad},
	})
	checkLimits(t, func() driver.PurgeParams { return driver.PurgeParams{Limit: 1} }, []limit[driver.PurgeParams]{
		{"limit 0", func(p *driver.PurgeParams) { p.Limit = 0 }, bad},
		{"a negative limit", func(p *driver.PurgeParams) { p.Limit = -1 }, bad},
		{"the largest limit", func(p *driver.PurgeParams) { p.Limit = driver.MaxPurge }, nil},
		{"a large limit", func(p *driver.PurgeParams) { p.Limit = driver.MaxPurge + 1 }, bad},
		{"now in 2050", func(p *driver.PurgeParams) { p.Now = tooLate }, bad},
	})
	good := func() driver.ListParams { return driver.ListParams{State: driver.StateUnknown, Limit: 1} }
	limits := []limit[driver.ListParams]{
		{"limit 0", func(p *driver.ListParams) { p.Limit = 0 }, bad},
		{"the largest limit", func(p *driver.ListParams) { p.Limit = driver.MaxList }, nil},
		{"a large limit", func(p *driver.ListParams) { p.Limit = driver.MaxList + 1 }, bad},
		{"now in 2050", func(p *driver.ListParams) { p.Now = tooLate }, bad},
	}
	listable := map[driver.State]bool{
		driver.StateInFlight: true, driver.StateUnknown: true, driver.StateComplete: true, driver.StateExpired: true,
	}
	for s := range driver.State(10) {
		want := bad
		if listable[s] {
			want = nil
		}
		limits = append(limits, limit[driver.ListParams]{"state " + s.String(), func(p *driver.ListParams) { p.State = s }, want})
	}
	checkLimits(t, good, limits)
}
