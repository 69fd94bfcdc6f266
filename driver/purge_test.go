package driver_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idem-go/idem/driver"
)

func TestAfterPurge(t *testing.T) {
	noResult, noGrace, renewed, noted := complete(), complete(), inFlight(), released()
	noResult.Result = nil
	noGrace.GraceUntil = noGrace.RetainUntil
	renewed.LeaseUntil = start.Add(2 * retention)
	noted.RetainUntil = start.Add(retention)
	never := time.Duration(-1)
	for name, c := range map[string]struct {
		record       driver.Record
		drop, remove time.Duration // when the result, and the record, are due
	}{
		"in flight":        {inFlight(), never, retention},
		"renewed":          {renewed, never, 2 * retention},
		"held":             {held(), never, never},
		"released":         {released(), never, lease},
		"released, noted":  {noted, never, retention},
		"complete":         {complete(), retention, retention + grace},
		"without result":   {noResult, never, retention + grace},
		"without grace":    {noGrace, never, retention},
		"an empty result":  {func() driver.Record { r := complete(); r.Result = []byte{}; return r }(), retention, retention + grace},
		"no record at all": {driver.Record{}, never, never},
	} {
		for _, after := range []time.Duration{0, lease - us, lease, retention - us, retention, 2*retention - us, 2 * retention, retention + grace - us, retention + grace} {
			removed := c.remove != never && after >= c.remove
			dropped := !removed && c.drop != never && after >= c.drop
			want := c.record
			if dropped {
				want.Result = nil
			}
			next, due, remove := c.record.AfterPurge(start.Add(after))
			if due != (removed || dropped) || remove != removed {
				t.Errorf("%s, %v later: due %t, remove %t, want %t, %t", name, after, due, remove, removed || dropped, removed)
			}
			if d := cmp.Diff(want, next); d != "" {
				t.Errorf("%s, %v later:\n%s", name, after, d)
			}
		}
		first := c.drop
		if first == never {
			first = c.remove
		}
		at, ok := c.record.DueAt()
		if c.record.State != driver.StateAbsent && (ok != (first != never) || ok && !at.Equal(start.Add(first))) {
			t.Errorf("%s: due at %v, %t, want %v after the start", name, at, ok, first)
		}
	}
}

// Purging is never seen by a claim: what it removes was absent, and what it drops
// would not have been replayed.
func TestPurgeIsNotSeen(t *testing.T) {
	for name, r := range map[string]driver.Record{"in flight": inFlight(), "held": held(), "complete": complete()} {
		for _, after := range []time.Duration{0, lease, retention - us, retention, retention + grace - us, retention + grace} {
			now := start.Add(after)
			next, due, remove := r.AfterPurge(now)
			if remove {
				next = driver.Record{}
			}
			if got, want := next.StateAt(now), r.StateAt(now); due && got != want {
				t.Errorf("%s, %v later: %v before the purge and %v after it", name, after, want, got)
			}
			before, _ := r.AfterClaim(claim(), now)
			purged, _ := next.AfterClaim(claim(), now)
			if d := cmp.Diff(before, purged); d != "" {
				t.Errorf("%s, %v later: the claim differs after a purge:\n%s", name, after, d)
			}
		}
	}
}
