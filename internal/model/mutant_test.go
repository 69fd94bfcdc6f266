package model

import (
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

// TestBrokenProtocols shows that each promise can be found broken.
func TestBrokenProtocols(t *testing.T) {
	for _, m := range []struct {
		name  string
		wreck func(*store)
		want  string
	}{
		{"completes for anybody", func(st *store) {
			st.complete = func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
				if r.State == driver.StateInFlight {
					r.Token, r.Fence = p.Token, p.Fence
				}
				return r.AfterComplete(p, now)
			}
		}, "overtaken"},
		{"a completion sent again is refused", func(st *store) {
			st.complete = func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
				if r.State == driver.StateComplete {
					return r, driver.ErrNotHolder
				}
				return r.AfterComplete(p, now)
			}
		}, "was told that it is not"},
		{"a completion replaces the outcome", func(st *store) {
			st.complete = func(r driver.Record, p driver.CompleteParams, now time.Time) (driver.Record, error) {
				if r.State == driver.StateComplete {
					r.State, r.Token, r.Fence = driver.StateInFlight, p.Token, p.Fence
				}
				return r.AfterComplete(p, now)
			}
		}, "overtaken"},
		{"fences are counted", func(st *store) {
			st.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) driver.Record {
				next, write := r.AfterClaim(p, now)
				if write && next.Token != r.Token {
					next.Fence = r.Fence + 1
				}
				return next
			}
		}, "was granted after"},
		{"a live claim is taken over", func(st *store) {
			st.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) driver.Record {
				if r.State == driver.StateInFlight && r.Token != p.Token {
					r.LeaseUntil = now
				}
				next, _ := r.AfterClaim(p, now)
				return next
			}
		}, "live claim"},
		{"a held claim is taken over", func(st *store) {
			st.hold = true
			st.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) driver.Record {
				p.Resolve = true
				next, _ := r.AfterClaim(p, now)
				return next
			}
		}, "held claim"},
		{"an outcome is forgotten early", func(st *store) {
			st.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) driver.Record {
				if r.State == driver.StateComplete && now.After(r.CompletedAt) {
					r = driver.Record{Fence: r.Fence}
				}
				next, _ := r.AfterClaim(p, now)
				return next
			}
		}, "outcome is kept"},
		{"a release deletes the record", func(st *store) {
			st.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
				next, err := r.AfterRelease(p, now)
				if err == nil && next.State == driver.StateReleased {
					next = driver.Record{}
				}
				return next, err
			}
		}, "was granted after"},
		{"a release takes an outcome", func(st *store) {
			st.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
				if r.State == driver.StateComplete {
					return driver.Record{}, nil
				}
				return r.AfterRelease(p, now)
			}
		}, "release was granted on an outcome"},
		{"a purge takes live claims", func(st *store) {
			st.purge = func(driver.Record, time.Time) driver.Record { return driver.Record{} }
		}, "purge removed"},
		{"a dead holder blocks the key", func(st *store) {
			st.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) driver.Record {
				if r.State == driver.StateInFlight && r.Token != p.Token {
					return r
				}
				next, _ := r.AfterClaim(p, now)
				return next
			}
		}, "for ever"},
	} {
		t.Run(m.name, func(t *testing.T) {
			st := sound()
			m.wreck(&st)
			seen, err := st.search()
			if err == nil || !strings.Contains(err.Error(), m.want) {
				t.Errorf("after %d states: %v, want %q", seen, err, m.want)
			}
		})
	}
}
