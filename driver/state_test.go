package driver_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idem-go/idem/driver"
)

var (
	start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	us    = time.Microsecond
	key   = driver.Key{Scope: "tenant", ID: "order-1"}
	mine  = driver.Token{1}
	their = driver.Token{2}
)

const (
	fence     = 100
	lease     = time.Minute
	retention = time.Hour
	grace     = 24 * time.Hour
)

// inFlight is a claim of mine made at start.
func inFlight() driver.Record {
	return driver.Record{
		Key: key, State: driver.StateInFlight, Operation: "op", Fingerprint: []byte("fp"), Summary: "first",
		Token: mine, Fence: fence, Attempt: 1, CreatedAt: start, LeaseUntil: start.Add(lease), RetainUntil: start.Add(retention),
	}
}

func held() driver.Record {
	r := inFlight()
	r.Hold = true
	return r
}

func complete() driver.Record {
	r := inFlight()
	r.State, r.Result, r.CompletedAt = driver.StateComplete, []byte("out"), start
	r.GraceUntil = r.RetainUntil.Add(grace)
	return r
}

func released() driver.Record {
	r := inFlight()
	r.State, r.RetainUntil = driver.StateReleased, r.LeaseUntil
	return r
}

func claim() driver.ClaimParams {
	return driver.ClaimParams{
		Key: key, Operation: "op", Fingerprint: []byte("fp"), Summary: "second", Token: their, Lease: 2 * lease, Retention: 2 * retention,
	}
}

func TestStateAt(t *testing.T) {
	noGrace := complete()
	noGrace.GraceUntil = noGrace.RetainUntil
	for _, c := range []struct {
		name   string
		record driver.Record
		after  time.Duration
		want   driver.State
	}{
		{"no record", driver.Record{}, 0, driver.StateAbsent},
		{"released", released(), 0, driver.StateAbsent},
		{"live", inFlight(), lease - us, driver.StateInFlight},
		{"live, held", held(), lease - us, driver.StateInFlight},
		{"lease ended", inFlight(), lease, driver.StateUnknown},
		{"lease ended, held", held(), lease, driver.StateUnknown},
		{"until retention", inFlight(), retention - us, driver.StateUnknown},
		{"retention ended", inFlight(), retention, driver.StateAbsent},
		{"retention ended, held", held(), 1000 * retention, driver.StateUnknown},
		{"complete", complete(), retention - us, driver.StateComplete},
		{"tombstone", complete(), retention, driver.StateExpired},
		{"tombstone, last", complete(), retention + grace - us, driver.StateExpired},
		{"grace ended", complete(), retention + grace, driver.StateAbsent},
		{"no grace", noGrace, retention, driver.StateAbsent},
		{"invalid", driver.Record{State: 77}, 0, driver.StateAbsent},
	} {
		if got := c.record.StateAt(start.Add(c.after)); got != c.want {
			t.Errorf("%s: at %v the state is %v, want %v", c.name, c.after, got, c.want)
		}
	}
}

func TestStateString(t *testing.T) {
	want := []string{"absent", "in-flight", "complete", "released", "unknown", "expired", "invalid"}
	for i, w := range want {
		if got := driver.State(i).String(); got != w {
			t.Errorf("State(%d) is %q, want %q", i, got, w)
		}
	}
}

// claimCell is what the table of AfterClaim says about one case.
func claimCell(state driver.State, r driver.Record, p driver.ClaimParams) string {
	same := r.Operation == p.Operation && bytes.Equal(r.Fingerprint, p.Fingerprint)
	switch state {
	case driver.StateAbsent:
		if r.State == driver.StateReleased && r.Token == p.Token {
			return "unchanged"
		}
		return "new"
	case driver.StateInFlight, driver.StateUnknown:
		switch {
		case r.Token == p.Token:
			return "extended"
		case state == driver.StateInFlight, !same, (r.Hold || p.Hold) && !p.Resolve:
			return "unchanged"
		}
		return "taken over"
	case driver.StateExpired:
		return "tombstone"
	}
	return "unchanged"
}

// Every record, at every instant that matters, meets every kind of claim.
func TestAfterClaim(t *testing.T) {
	records := map[string]driver.Record{
		"absent": {}, "in flight": inFlight(), "held": held(), "complete": complete(), "released": released(),
	}
	cells := make(map[string]int)
	for name, r := range records {
		for _, after := range []time.Duration{0, lease - us, lease, retention - us, retention, retention + grace - us, retention + grace} {
			for bits := range 1 << 5 {
				p := claim()
				p.Hold, p.Resolve = bits&1 != 0, bits&2 != 0
				if bits&4 != 0 {
					p.Token = mine
				}
				if bits&8 != 0 {
					p.Fingerprint = []byte("another")
				}
				if bits&16 != 0 {
					p.Operation = "another"
				}
				now := start.Add(after)
				cell := claimCell(r.StateAt(now), r, p)
				cells[cell]++
				t.Run(fmt.Sprintf("%s/%v/%05b", name, after, bits), func(t *testing.T) {
					checkClaim(t, r, p, now, cell)
				})
			}
		}
	}
	if len(cells) != 5 {
		t.Errorf("the cases reach the cells %v, want all five", cells)
	}
}

func checkClaim(t *testing.T, r driver.Record, p driver.ClaimParams, now time.Time, cell string) {
	t.Helper()
	want, wantWrite := r, true
	switch cell {
	case "unchanged":
		wantWrite = false
	case "tombstone":
		want.Result, wantWrite = nil, false
	case "extended":
		want.LeaseUntil = now.Add(p.Lease)
	case "new":
		want = driver.Record{
			Key: key, State: driver.StateInFlight, Operation: p.Operation, Fingerprint: p.Fingerprint, Summary: p.Summary,
			Token: p.Token, Fence: now.UnixMicro(), Attempt: 1, Hold: p.Hold,
			CreatedAt: now, LeaseUntil: now.Add(p.Lease), RetainUntil: now.Add(p.Retention),
		}
	case "taken over":
		want.Token, want.Fence, want.Attempt = p.Token, now.UnixMicro(), r.Attempt+1
		want.LeaseUntil, want.RetainUntil = now.Add(p.Lease), now.Add(p.Retention)
		want.Hold = r.Hold || p.Hold
	}
	want.Now = now
	got, write := r.AfterClaim(p, now)
	if d := cmp.Diff(want, got); d != "" || write != wantWrite {
		t.Errorf("write is %t, want %t; the record (-want +got):\n%s", write, wantWrite, d)
	}
}

func TestAfterClaimDetails(t *testing.T) {
	now := start.Add(lease)
	t.Run("fence beyond the clock", func(t *testing.T) {
		for _, r := range []driver.Record{inFlight(), released()} {
			r.Fence = now.UnixMicro() + 7
			if got, _ := r.AfterClaim(claim(), now); got.Fence != r.Fence+1 {
				t.Errorf("the fence after %d is %d", r.Fence, got.Fence)
			}
		}
	})
	t.Run("never a shorter lease", func(t *testing.T) {
		r, p := inFlight(), claim()
		p.Token, p.Lease = mine, us
		if got, write := r.AfterClaim(p, start); write || !got.LeaseUntil.Equal(r.LeaseUntil) {
			t.Errorf("a repeated claim moved the lease from %v to %v", r.LeaseUntil, got.LeaseUntil)
		}
	})
	t.Run("note of a release", func(t *testing.T) {
		r := released()
		r.Note, r.RetainUntil = "by hand", start.Add(retention)
		if got, _ := r.AfterClaim(claim(), start); got.Note != "by hand" {
			t.Errorf("the next claim has the note %q", got.Note)
		}
		if got, _ := r.AfterClaim(claim(), start.Add(retention)); got.Note != "" {
			t.Errorf("a claim after the note's end has the note %q", got.Note)
		}
	})
	t.Run("whole microseconds", func(t *testing.T) {
		got, _ := driver.Record{}.AfterClaim(claim(), start.Add(1999*time.Nanosecond).In(time.FixedZone("", 3600)))
		if want := start.Add(us); got.CreatedAt != want || got.Now != want {
			t.Errorf("created %v, now %v, want %v", got.CreatedAt, got.Now, want)
		}
	})
	t.Run("copies the fingerprint", func(t *testing.T) {
		p := claim()
		got, _ := driver.Record{}.AfterClaim(p, start)
		clear(p.Fingerprint)
		if string(got.Fingerprint) != "fp" {
			t.Error("the record shares the caller's fingerprint")
		}
	})
}

func TestMicro(t *testing.T) {
	if got := driver.Micro(time.Time{}); !got.IsZero() {
		t.Errorf("Micro of no time is %v", got)
	}
	in := time.Date(2030, 1, 1, 1, 0, 0, 1999, time.FixedZone("x", 3600))
	if got, want := driver.Micro(in), start.Add(us); got != want {
		t.Errorf("Micro(%v) is %v, want %v", in, got, want)
	}
}

// holders are all combinations of the right and a wrong token and fence.
func holders() (good driver.HolderParams, bad []driver.HolderParams) {
	good = driver.HolderParams{Key: key, Token: mine, Fence: fence}
	for _, spoil := range []func(*driver.HolderParams){
		func(h *driver.HolderParams) { h.Token = their },
		func(h *driver.HolderParams) { h.Fence++ },
		func(h *driver.HolderParams) { h.Fence-- },
		func(h *driver.HolderParams) { h.Token = their; h.Fence++ },
	} {
		h := good
		spoil(&h)
		bad = append(bad, h)
	}
	return good, bad
}

// TestHolderVerbs says, for each verb and each stored state, whether the holder
// may, and that nobody else ever may.
func TestHolderVerbs(t *testing.T) {
	records := map[string]driver.Record{
		"absent": {}, "in flight": inFlight(), "held": held(), "complete": complete(), "released": released(),
	}
	verbs := map[string]struct {
		call func(driver.Record, driver.HolderParams, time.Time) (driver.Record, error)
		may  string
	}{
		"renew": {func(r driver.Record, h driver.HolderParams, now time.Time) (driver.Record, error) {
			return r.AfterRenew(driver.RenewParams{HolderParams: h, Lease: lease}, now)
		}, "in flight, held"},
		"complete": {func(r driver.Record, h driver.HolderParams, now time.Time) (driver.Record, error) {
			return r.AfterComplete(driver.CompleteParams{HolderParams: h, Retention: retention}, now)
		}, "in flight, held, complete"},
		"release": {func(r driver.Record, h driver.HolderParams, now time.Time) (driver.Record, error) {
			return r.AfterRelease(driver.ReleaseParams{HolderParams: h}, now)
		}, "in flight, held, released"},
		"abandon": {func(r driver.Record, h driver.HolderParams, now time.Time) (driver.Record, error) {
			return r.AfterRelease(driver.ReleaseParams{HolderParams: h, Abandon: true}, now)
		}, "in flight, held, released"},
	}
	good, bad := holders()
	for verb, v := range verbs {
		for name, r := range records {
			for _, after := range []time.Duration{0, lease, 2 * retention} {
				now := start.Add(after)
				_, err := v.call(r, good, now)
				may := bytes.Contains([]byte(", "+v.may+","), []byte(", "+name+","))
				if (err == nil) != may || err != nil && !errors.Is(err, driver.ErrNotHolder) {
					t.Errorf("%s of one that is %s, %v later, by its holder: %v", verb, name, after, err)
				}
				for _, h := range bad {
					got, err := v.call(r, h, now)
					if !errors.Is(err, driver.ErrNotHolder) {
						t.Errorf("%s of one that is %s by token %v, fence %d: %v", verb, name, h.Token, h.Fence, err)
					}
					if d := cmp.Diff(r, got); d != "" {
						t.Errorf("%s that was refused changed the record:\n%s", verb, d)
					}
				}
			}
		}
	}
}

func TestAfterRenew(t *testing.T) {
	h, _ := holders()
	for _, after := range []time.Duration{0, lease, 2 * lease} {
		want := inFlight()
		want.LeaseUntil = start.Add(after + 3*lease)
		got, err := inFlight().AfterRenew(driver.RenewParams{HolderParams: h, Lease: 3 * lease}, start.Add(after))
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("renewed %v later: %v\n%s", after, err, d)
		}
	}
}

func TestAfterComplete(t *testing.T) {
	h, _ := holders()
	for _, result := range [][]byte{nil, {}, []byte("out")} {
		for _, note := range []string{"", "new"} {
			for _, after := range []time.Duration{0, 2 * lease} {
				p := driver.CompleteParams{HolderParams: h, Result: result, Retention: retention, Grace: grace, Note: note}
				now := start.Add(after)
				r := inFlight()
				r.Note = "old"
				want := r
				want.State, want.Result, want.CompletedAt = driver.StateComplete, bytes.Clone(result), now
				want.RetainUntil, want.GraceUntil = now.Add(retention), now.Add(retention+grace)
				if note != "" {
					want.Note = note
				}
				got, err := r.AfterComplete(p, now)
				if d := cmp.Diff(want, got); d != "" || err != nil {
					t.Errorf("result %v, note %q, %v later: %v\n%s", result, note, after, err, d)
				}
			}
		}
	}
	again, err := complete().AfterComplete(driver.CompleteParams{HolderParams: h, Result: []byte("other"), Retention: 1, Note: "x"}, start.Add(lease))
	if d := cmp.Diff(complete(), again); d != "" || err != nil {
		t.Errorf("completed again: %v\n%s", err, d)
	}
	result := []byte("out")
	got, _ := inFlight().AfterComplete(driver.CompleteParams{HolderParams: h, Result: result, Retention: 1}, start)
	clear(result)
	if string(got.Result) != "out" {
		t.Error("the record shares the caller's result")
	}
}

func TestAfterRelease(t *testing.T) {
	h, _ := holders()
	for _, c := range []struct {
		name    string
		abandon bool
		note    string
		after   time.Duration
		change  func(*driver.Record)
	}{
		{"released", false, "", 0, func(r *driver.Record) { r.State, r.RetainUntil = driver.StateReleased, r.LeaseUntil }},
		{"released with a note", false, "n", 0, func(r *driver.Record) { r.State, r.Note = driver.StateReleased, "n" }},
		{"abandoned", true, "", lease / 2, func(r *driver.Record) { r.LeaseUntil = start.Add(lease / 2) }},
		{"abandoned with a note", true, "n", lease / 2, func(r *driver.Record) { r.LeaseUntil, r.Note = start.Add(lease/2), "n" }},
		{"abandoned late", true, "", 2 * lease, func(*driver.Record) {}},
	} {
		want := inFlight()
		c.change(&want)
		p := driver.ReleaseParams{HolderParams: h, Abandon: c.abandon, Note: c.note}
		got, err := inFlight().AfterRelease(p, start.Add(c.after))
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, d)
		}
		again, err := got.AfterRelease(p, start.Add(c.after))
		if d := cmp.Diff(got, again); d != "" || err != nil {
			t.Errorf("%s, sent again: %v\n%s", c.name, err, d)
		}
	}
}

func TestAfterForget(t *testing.T) {
	good, bad := holders()
	for name, c := range map[string]struct {
		record driver.Record
		remove bool
		ok     bool
	}{
		"absent":    {driver.Record{}, false, true},
		"in flight": {inFlight(), false, false},
		"held":      {held(), false, false},
		"complete":  {complete(), true, true},
		"released":  {released(), false, false},
	} {
		remove, err := c.record.AfterForget(driver.ForgetParams{HolderParams: good})
		if remove != c.remove || (err == nil) != c.ok || err != nil && !errors.Is(err, driver.ErrNotHolder) {
			t.Errorf("%s: remove %t, %v", name, remove, err)
		}
		for _, h := range bad {
			if remove, err := c.record.AfterForget(driver.ForgetParams{HolderParams: h}); remove || name != "absent" && !errors.Is(err, driver.ErrNotHolder) {
				t.Errorf("%s, by another holder: remove %t, %v", name, remove, err)
			}
		}
	}
}
