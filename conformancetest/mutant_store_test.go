package conformancetest

import (
	"bytes"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/idem-go/idem/driver"
)

// resultAs changes results before they are stored.
func resultAs(change func([]byte) []byte) func(*hooks) {
	return func(h *hooks) {
		h.complete = completeThen(func(r *driver.Record, p driver.CompleteParams) { r.Result = change(p.Result) })
		h.txResult = change
	}
}

// keyAs changes keys before they are stored.
func keyAs(change func(driver.Key) string) func(*hooks) {
	return func(h *hooks) { h.key = change }
}

var storeMutants = []mutant{
	{"states nothing", func(h *hooks) {
		h.stated = func(g *driver.Guarantees) { *g = driver.Guarantees{} }
	}, "guarantees/stated guarantees/transactions tx/guarantees"},
	{"hides that it has transactions", func(h *hooks) {
		h.stated = func(g *driver.Guarantees) { g.AtomicWithBusinessData, g.TxDuplicate = false, driver.TxDuplicateNone }
	}, "guarantees/transactions tx/guarantees"},
	{"states that it is for one process", func(h *hooks) {
		h.stated = func(g *driver.Guarantees) { g.Sharing = driver.SharedByGoroutines }
	}, "guarantees/sharing"},
	{"states that it is never durable", func(h *hooks) {
		h.stated = func(g *driver.Guarantees) { g.DurableClaim = driver.DurableNever }
	}, "guarantees/durability"},
	{"loses everything on reopening", func(h *hooks) {
		h.reopened = func(*store) *store { return newStore() }
	}, "reopen/claim reopen/outcome reopen/ends guarantees/durability tx/reopen"},
	{"loses the business rows on reopening", func(h *hooks) {
		h.reopened = func(s *store) *store {
			clear(s.rows)
			return s
		}
	}, "tx/reopen"},
	{"has a store for every handle", func(h *hooks) {
		h.second = func(*store) *store { return newStore() }
	}, "handles/claim handles/outcome handles/takeover guarantees/sharing race/claim random/two-handles tx/race-claim"},
	{"caches what the first handle wrote", func(h *hooks) {
		h.second = func(s *store) *store {
			other := newStore()
			other.records = maps.Clone(s.records)
			return other
		}
		h.reopened = func(s *store) *store { return s }
	}, "handles/claim handles/outcome handles/takeover random/two-handles"},
	{"does not see what another handle released", func(h *hooks) {
		h.second = func(s *store) *store {
			other := newStore()
			other.records = s.records
			return other
		}
		claim := h.claim
		h.claim = func(r driver.Record, p driver.ClaimParams, now time.Time) (driver.Record, bool) {
			if r.State == driver.StateReleased {
				return r, false
			}
			return claim(r, p, now)
		}
	}, "handles/release"},
	{"stores an empty result for none", resultAs(func(b []byte) []byte { return append([]byte{}, b...) }), "result/none tx/results random/model"},
	{"stores no result for an empty one", resultAs(func(b []byte) []byte { return append([]byte(nil), b...) }), "result/empty tx/results"},
	{"cuts results at NUL", resultAs(func(b []byte) []byte {
		before, _, _ := bytes.Cut(b, []byte{0})
		return before
	}), "result/every-byte tx/results"},
	{"makes text of results", resultAs(func(b []byte) []byte { return bytes.ToValidUTF8(b, []byte("?")) }), "result/every-byte result/large tx/results"},
	{"cuts results at 64 KiB", resultAs(func(b []byte) []byte { return b[:min(len(b), 64<<10)] }), "result/large tx/results"},
	{"keeps the slices it is given", resultAs(func(b []byte) []byte { return b }), "result/copied"},
	{"returns the slices it keeps", func(h *hooks) {
		h.copied = func(r driver.Record) driver.Record { return r }
	}, "result/copied"},
	{"reuses one buffer for all results", func() func(*hooks) {
		var buf [1 << 21]byte
		return resultAs(func(b []byte) []byte { return buf[:copy(buf[:], b)] })
	}(), "result/kept-apart"},
	{"drops notes", func(h *hooks) {
		h.complete = completeThen(func(r *driver.Record, _ driver.CompleteParams) { r.Note = "" })
	}, "result/note random/model"},
	{"drops the note of a release", func(h *hooks) {
		h.release = func(r driver.Record, p driver.ReleaseParams, now time.Time) (driver.Record, error) {
			p.Note = ""
			return r.AfterRelease(p, now)
		}
	}, "result/note random/model expiry/abandon"},
	{"forgets the scope", keyAs(func(k driver.Key) string { return k.ID }), "key/scope key/no-collision key/longest"},
	{"concatenates scope and ID", keyAs(func(k driver.Key) string { return k.Scope + k.ID }), "key/no-collision"},
	{"joins scope and ID with a colon", keyAs(func(k driver.Key) string { return k.Scope + ":" + k.ID }), "key/no-collision"},
	{"folds case", keyAs(func(k driver.Key) string { return strings.ToLower(k.Scope + "\x00" + k.ID) }), "key/case key/printable"},
	{"trims spaces", keyAs(func(k driver.Key) string {
		return strings.TrimRight(k.Scope, " ") + "\x00" + strings.TrimRight(k.ID, " ")
	}), "key/spaces"},
	{"keeps hash tags only", keyAs(func(k driver.Key) string {
		id := k.ID
		if i := strings.IndexByte(id, '{'); i >= 0 && strings.IndexByte(id[i:], '}') > 1 {
			id = id[i+1 : i+strings.IndexByte(id[i:], '}')]
		}
		return k.Scope + "\x00" + id
	}), "key/looks-alike"},
	{"strips braces", keyAs(func(k driver.Key) string { return k.Scope + "\x00" + strings.Trim(k.ID, "{}") }), "key/looks-alike key/printable"},
	{"reads numbers", keyAs(func(k driver.Key) string {
		if f, err := strconv.ParseFloat(k.ID, 64); err == nil {
			return k.Scope + "\x00" + fmt.Sprint(f)
		}
		return k.Scope + "\x00" + k.ID
	}), "key/looks-alike"},
	{"cuts long keys", keyAs(func(k driver.Key) string { return k.Scope + "\x00" + k.ID[:min(len(k.ID), 254)] }), "key/longest"},
	{"names the key in the error", func(h *hooks) {
		h.valid = func(err error) error {
			if err != nil {
				err = fmt.Errorf("key account-4711: %w", err)
			}
			return err
		}
	}, "params/error-is-discreet"},
	{"forgets nothing", func(h *hooks) {
		h.forget = func(r driver.Record, p driver.ForgetParams) (bool, error) {
			_, err := r.AfterForget(p)
			return false, err
		}
	}, "forget/outcome claim/one-key-only handles/release reopen/ends random/model"},
	{"forgets claims", func(h *hooks) {
		h.forget = func(r driver.Record, p driver.ForgetParams) (bool, error) {
			if r.State == driver.StateInFlight {
				return true, nil
			}
			return r.AfterForget(p)
		}
	}, "forget/claim random/model"},
	{"refuses to forget twice", func(h *hooks) {
		h.forget = func(r driver.Record, p driver.ForgetParams) (bool, error) {
			remove, err := r.AfterForget(p)
			if !remove && err == nil {
				err = driver.ErrNotHolder
			}
			return remove, err
		}
	}, "forget/outcome random/model"},
	{"lists records by the state that is stored", func(h *hooks) {
		h.state = func(r driver.Record, _ time.Time) driver.State { return r.State }
	}, "list/state list/record"},
	{"leaves out what is held", func(h *hooks) {
		h.state = func(r driver.Record, now time.Time) driver.State {
			if r.Hold {
				return driver.StateAbsent
			}
			return r.StateAt(now)
		}
	}, "list/state list/record"},
	{"lists no fences", func(h *hooks) {
		h.listed = func(r driver.Record) driver.Record {
			r.Fence = 0
			return r
		}
	}, "list/record"},
	{"skips records between pages", func(h *hooks) { h.skipAfter = "~" }, "list/paging"},
	{"does not wake waiters on completion", func(h *hooks) { h.muteComplete, h.waitForEver = true, true }, "wait/complete"},
	{"does not wake waiters on release", func(h *hooks) { h.muteRelease, h.waitForEver = true, true }, "wait/release"},
	{"waits for claims that have ended", func(h *hooks) { h.waitForEver = true }, "wait/over"},
	{"waits beyond the context", func(h *hooks) { h.waitDeaf = true }, "wait/context"},
}
