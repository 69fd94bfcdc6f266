package differential

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idem-go/idem/driver"
)

// call is a step as it is put to a driver, and what the model answers.
type call struct {
	text string
	ask  func(context.Context, session) string
	want string
}

// model keeps records by the pure functions of package driver. It plans each call:
// a driver that gave another answer would get the same calls after it.
type model struct {
	now     time.Time
	records [keys]driver.Record
	holders [keys][]driver.HolderParams // everyone who was granted the key
	rows    [keys]int                   // business rows that are committed
	tokens  uint64
}

func key(i int) driver.Key { return driver.Key{Scope: "tenant", ID: fmt.Sprint("key-", i)} }

func (m *model) plan(s step) call {
	m.now = m.now.Add(s.Advance)
	c := call{}
	switch s.Verb {
	case claim, claimDouble:
		c = m.claim(s)
	case get:
		c = m.get(s.Key, m.now)
	case purge:
		c = m.purge(s)
	case list:
		c = m.list(s)
	case inTx:
		c = m.inTx(s)
	case completeTx:
		c = m.completeTx(s)
	case invalid:
		p := m.claimParams(s)
		spoils[s.Spoil](&p)
		c.ask = func(ctx context.Context, d session) string {
			_, err := d.Claim(ctx, p)
			return kind(err)
		}
		c.want = kind(p.Validate())
		c.text = fmt.Sprintf("Claim with bad parameter %d", s.Spoil)
	case cancelled:
		p := m.claimParams(s)
		c.ask = func(ctx context.Context, d session) string {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			_, err := d.Claim(ctx, p)
			return kind(err)
		}
		c.text, c.want = "Claim with an ended context", kind(context.Canceled)
	default:
		c = m.holderVerb(s)
	}
	c.text = fmt.Sprintf("%v %s %s", m.now.Sub(t0), key(s.Key).ID, c.text)
	return c
}

func (m *model) token() (t driver.Token) {
	m.tokens++
	binary.BigEndian.PutUint64(t[:], m.tokens)
	return t
}

func (m *model) claimParams(s step) driver.ClaimParams {
	p := driver.ClaimParams{
		Key: key(s.Key), Operation: "operation", Fingerprint: []byte("fingerprint"), Summary: "summary", Token: m.token(),
		Lease: time.Duration(s.Lease) * lease, Retention: retention, Hold: s.Hold, Resolve: s.Resolve, Now: m.now,
	}
	switch s.Other {
	case "operation":
		p.Operation = "another"
	case "fingerprint":
		p.Fingerprint = []byte{0, 255}
	}
	return p
}

// holder returns one who has held the key, or says that he has.
func (m *model) holder(s step) driver.HolderParams {
	h := driver.HolderParams{Key: key(s.Key), Token: driver.Token{14: 1}, Fence: 1}
	if n := len(m.holders[s.Key]); n > 0 {
		h = m.holders[s.Key][max(0, n-1-s.Holder)]
	}
	switch s.Foreign {
	case "token":
		h.Token[15] ^= 1
	case "fence":
		h.Fence++
	}
	h.Now = m.now
	return h
}

func (m *model) granted(i int, r driver.Record, token driver.Token) bool {
	if r.State != driver.StateInFlight || r.Token != token {
		return false
	}
	h := driver.HolderParams{Key: key(i), Token: token, Fence: r.Fence}
	if !slices.Contains(m.holders[i], h) {
		m.holders[i] = append(m.holders[i], h)
	}
	return true
}

func (m *model) claim(s step) call {
	p := m.claimParams(s)
	if s.Verb == claimDouble {
		p.Token = m.holder(s).Token
	}
	r, write := m.records[s.Key].AfterClaim(p, m.now)
	if write {
		m.records[s.Key] = r
	}
	m.granted(s.Key, r, p.Token)
	return call{
		text: fmt.Sprintf("Claim token=%s op=%s lease=%v hold=%t resolve=%t", brief(p.Token), p.Operation, p.Lease, p.Hold, p.Resolve),
		ask: func(ctx context.Context, d session) string {
			r, err := d.Claim(ctx, p)
			return answer(r, p.Key, false, err)
		},
		want: answer(r, p.Key, false, nil),
	}
}

func (m *model) get(i int, now time.Time) call {
	r := m.records[i]
	r.Now = now
	p := driver.GetParams{Key: key(i), Now: now}
	return call{
		text: "Get",
		ask: func(ctx context.Context, d session) string {
			r, err := d.Get(ctx, p)
			return answer(r, p.Key, true, err)
		},
		want: answer(r, p.Key, true, nil),
	}
}

// end returns the parameters with which a holder ends his claim.
func (m *model) end(s step, h driver.HolderParams) driver.CompleteParams {
	p := driver.CompleteParams{HolderParams: h, Retention: keep, Note: s.Note}
	if s.Grace {
		p.Grace = grace
	}
	if s.Result != "none" {
		p.Result = append([]byte{}, s.Result...)
	}
	return p
}

func (m *model) holderVerb(s step) call {
	h, r := m.holder(s), &m.records[s.Key]
	var after driver.Record
	var want error
	var ask func(context.Context, session) error
	switch s.Verb {
	case renew:
		p := driver.RenewParams{HolderParams: h, Lease: time.Duration(s.Lease) * lease}
		after, want = r.AfterRenew(p, m.now)
		ask = func(ctx context.Context, d session) error { return d.Renew(ctx, p) }
	case complete:
		p := m.end(s, h)
		after, want = r.AfterComplete(p, m.now)
		ask = func(ctx context.Context, d session) error { return d.Complete(ctx, p) }
	case release, abandon:
		p := driver.ReleaseParams{HolderParams: h, Abandon: s.Verb == abandon, Note: s.Note}
		after, want = r.AfterRelease(p, m.now)
		ask = func(ctx context.Context, d session) error { return d.Release(ctx, p) }
	case forget:
		p := driver.ForgetParams{HolderParams: h}
		var remove bool
		after = *r
		if remove, want = r.AfterForget(p); remove {
			after = driver.Record{}
		}
		ask = func(ctx context.Context, d session) error { return d.Forget(ctx, p) }
	}
	if want == nil {
		*r = after
	}
	return call{
		text: fmt.Sprintf("%s token=%s fence=%d result=%q grace=%t note=%q", s.Verb, brief(h.Token), h.Fence, s.Result, s.Grace, s.Note),
		ask:  func(ctx context.Context, d session) string { return kind(ask(ctx, d)) },
		want: kind(want),
	}
}

// purge drains: which of the records that are due a batch takes is a driver's own choice.
func (m *model) purge(s step) call {
	n := 0
	for i := range m.records {
		next, due, remove := m.records[i].AfterPurge(m.now)
		if remove {
			next = driver.Record{}
		}
		if due {
			m.records[i] = next
			n++
		}
	}
	p := driver.PurgeParams{Limit: s.Limit, Now: m.now}
	return call{
		text: fmt.Sprintf("Purge in batches of %d", s.Limit),
		ask: func(ctx context.Context, d session) string {
			total := 0
			for {
				n, err := d.Purge(ctx, p)
				total += n
				if err != nil || n < p.Limit || n > p.Limit || total > keys {
					return fmt.Sprintf("%d %s", total, kind(err))
				}
			}
		},
		want: fmt.Sprintf("%d ok", n),
	}
}

// list reads all pages. Their order is a driver's own, and so is whether it sends results.
func (m *model) list(s step) call {
	show := func(r driver.Record) string {
		r.Result = nil
		return r.Key.ID + " " + answer(r, r.Key, true, nil)
	}
	var want []string
	for i, r := range m.records {
		if r.Now, r.Key = m.now, key(i); r.StateAt(m.now) == s.State {
			want = append(want, show(r))
		}
	}
	p := driver.ListParams{State: s.State, Limit: s.Limit, Now: m.now}
	return call{
		text: fmt.Sprintf("List %v in pages of %d", s.State, s.Limit),
		ask: func(ctx context.Context, d session) string {
			var got []string
			for p := p; ; {
				page, next, err := d.Driver.(driver.Lister).List(ctx, p)
				for _, r := range page {
					got = append(got, show(r))
				}
				switch {
				case err != nil:
					return kind(err)
				case next == "" || len(got) > keys:
					slices.Sort(got)
					return strings.Join(got, "; ")
				}
				p.After = next
			}
		},
		want: strings.Join(want, "; "),
	}
}
